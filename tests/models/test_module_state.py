"""A net's modules are set back to what they were, and its buffers keep what training wrote."""

import itertools
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric

from flbench.core.errors import ConfigError
from flbench.models.module_state import ModuleState, isolated, needs_isolation, random_layers


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
        self.metric = MeanMetric()
        self.n, self.seen, self.offset = 0, {"calls": []}, torch.zeros(2)
        self.draw = torch.Generator().manual_seed(1)
        self.numbers, self.last = np.random.default_rng(1), deque([0], maxlen=1)
        self.turns, self.array = itertools.cycle([1, 2]), np.zeros(2)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("late", None)

    def forward(self, x):
        self.n += 1
        self.seen["calls"].append(self.n)
        self.offset += 1
        self.extra = x
        self.count = self.count + 1
        self.inner[1].p = 0.5
        self.inner.note = "changed"
        self.inner[0].register_forward_hook(lambda module, given, out: out * 2)
        self.metric.update(1.0)
        torch.rand(1, generator=self.draw)
        self.numbers.random()
        self.last.append(self.n)
        next(self.turns)
        self.array += 1
        self.late, self.cache = x.clone(), x.numpy()
        return self.inner(x)


def test_all_modules_begin_as_they_were():
    net = Net()
    state, count, drawn = ModuleState(net), net.count, net.draw.get_state()
    numbers = net.numbers.bit_generator.state
    with torch.no_grad():
        net.inner[0].weight.fill_(3.0)

    for _ in range(2):
        net(torch.ones(1, 2))
        net(torch.ones(1, 2))
        changed = state.changed()
        state.write_back()
        state.restore()

    assert {name for name, is_tensor in changed.items() if is_tensor} == {"offset", "late"}
    plain = {"n", "seen", "inner.note", "inner.1.p"}
    assert set(changed) == {*plain, "offset", "late", "draw", "numbers", "last", "turns", "array"}
    assert (net.n, net.seen, net.inner[1].p) == (0, {"calls": []}, 0.0)
    assert (list(net.last), net.late, net.array.sum()) == ([0], None, 0)
    assert net.numbers.bit_generator.state == numbers
    assert not hasattr(net, "extra")
    assert not hasattr(net.inner, "note")
    assert not net.inner[0]._forward_hooks
    assert not net.offset.any()
    assert net.metric.update_count == 0
    assert torch.equal(net.draw.get_state(), drawn)
    # Parameters and buffers keep their values, and are the same tensors.
    assert net.count is count
    assert count == 4
    assert (net.inner[0].weight == 3).all()


def test_a_look_changes_nothing_and_repeats_itself():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    x, before = torch.ones(8, 2), torch.get_rng_state()
    with isolated(net):
        first = net(x)
    with isolated(net):
        assert torch.equal(net(x), first)

    assert torch.equal(torch.get_rng_state(), before)
    assert net[2].num_batches_tracked == 0
    assert not net[2].running_mean.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda net: setattr(net, "count", torch.zeros(3)), ("`count`", "[3]")),
        (lambda net: delattr(net, "count"), ("`count`", "removed")),
        (
            lambda net: setattr(net.inner[0], "weight", nn.Parameter(torch.ones(2, 2))),
            ("`inner.0.weight`", "optimizer"),
        ),
    ],
)
def test_what_cannot_be_written_back_is_refused_by_name(change, words):
    net = Net()
    state = ModuleState(net)
    change(net)

    with pytest.raises(ConfigError) as refusal:
        state.write_back()
    assert all(word in str(refusal.value) for word in words)


@pytest.mark.parametrize(
    ("layer", "is_random"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.RReLU(), True),
        (nn.AlphaDropout(0.1), True),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (nn.LSTM(2, 2), False),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (nn.MultiheadAttention(2, 1), False),
        (nn.FractionalMaxPool2d(2, output_size=2), True),
        (nn.BatchNorm1d(2), False),
    ],
)
def test_random_layers_are_known(layer, is_random):
    net = nn.Sequential(nn.Linear(2, 2), layer)

    assert bool(random_layers(net)) == needs_isolation(net) == is_random
