"""Calls that try a net change none of its tensors, and its random layers are known."""

import pytest
import torch
from torch import nn

from flbench.core.errors import ConfigError
from flbench.models.module_state import may_draw, random_layers
from flbench.models.trial import tried


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

    assert bool(random_layers(net)) == may_draw(net) == is_random
