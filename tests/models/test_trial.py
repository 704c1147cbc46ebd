"""Trials of a net: both modes, single samples, composed batches, random numbers, buffers."""

import time

import pytest
import torch
from torch import nn

from flbench.config.schema import OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.models import trial
from flbench.models.base import build
from flbench.models.trial import may_draw, random_layers, tried


def made(source):
    with offered({"model": source}):
        return build(OwnModelConfig(name="object"), (1, 8, 8), 10, seed=0)


class Two(nn.Module):
    """A net of two layers whose output `change` replaces."""

    def __init__(self, change=lambda net, logits: logits, between=None):
        super().__init__()
        self.a, self.c = nn.Linear(64, 16), nn.Linear(16, 10)
        self.change = change
        self.between = between or nn.Identity()

    def forward(self, x):
        return self.change(self, self.c(self.between(self.a(x.flatten(1)))))


class Divides(nn.Module):
    """A normalization of the batch in training mode, undefined for one sample."""

    def forward(self, x):
        return (x - x.mean(0)) / x.std(0) if self.training else x


class Clock(nn.Module):
    def forward(self, x):
        return x * (1 + time.perf_counter_ns() % 1000)


def in_training(function):
    return lambda net, logits: function(logits) if net.training else logits


REFUSED = {
    "softmax in training": Two(in_training(lambda logits: logits.softmax(1))),
    "tuple in training": Two(in_training(lambda logits: (logits, 1))),
    "other classes in training": Two(in_training(lambda logits: logits[:, :9])),
    "error in training": Two(in_training(lambda logits: logits.missing)),
    "error for one sample in eval": Two(between=nn.BatchNorm1d(16, track_running_stats=False)),
    "clock": Two(between=Clock()),
    "weight_norm": lambda shape, classes: Two(
        between=torch.nn.utils.weight_norm(nn.Linear(16, 16))
    ),
    "no linear layer": nn.Sequential(nn.Flatten(), nn.Identity()),
    "all frozen": Two().requires_grad_(False),
    "softmax": Two(lambda net, logits: logits.softmax(1)),
    "whole numbers": Two(lambda net, logits: logits.long()),
    "other classes": nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
    "convolution as head": nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()),
    "nothing": lambda: None,
}


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore")  # of PyTorch, about old functions
def test_nets_that_cannot_be_trained_are_refused(source):
    with pytest.raises(ConfigError, match=r"model\.name=object"):
        made(source)


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (None, False),
        (nn.BatchNorm1d(16), False),
        (Divides(), False),
        (
            nn.Sequential(
                nn.Unflatten(1, (4, 2, 2)),
                nn.BatchNorm2d(4, track_running_stats=False),
                nn.Flatten(),
            ),
            True,
        ),
    ],
)
def test_nets_whose_samples_depend_on_each_other_are_known(between, expected):
    net = made(Two(between=between))

    assert trial.mixes(net) == expected


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("late", None)

    def forward(self, x):
        self.count, self.late = self.count + 1, x
        return self.body(x)


def test_buffers_begin_as_they_were():
    net = Net()
    before = net.count
    with tried(net):
        net(torch.ones(1, 2))

    assert net.count is before
    assert before == 0
    assert net.late is None


@pytest.mark.parametrize("name", ["weight", "new"])
def test_a_parameter_that_the_code_makes_is_refused_by_name(name):
    net = Net()

    with pytest.raises(ConfigError, match=f"`body.{name}`"), tried(net):
        setattr(net.body, name, nn.Parameter(torch.ones(2, 2)))


def test_a_look_changes_nothing_and_repeats_itself():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    x, before = torch.ones(8, 2), torch.get_rng_state()
    with tried(net):
        first = net(x)
    with tried(net):
        assert torch.equal(net(x), first)

    assert torch.equal(torch.get_rng_state(), before)
    assert net[2].num_batches_tracked == 0
    assert not net[2].running_mean.any()


@pytest.mark.parametrize(
    ("layer", "is_random"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.RReLU(), True),
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

    assert bool(random_layers(net)) == may_draw(net) == is_random


def test_trials_change_neither_statistics_nor_modes():
    given = Two(between=nn.BatchNorm1d(16))
    net = made(given)

    assert int(net.backbone.between.num_batches_tracked) == 0
    assert all(module.training for module in net.modules())
