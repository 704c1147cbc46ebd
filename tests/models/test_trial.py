"""Trials of a user's net: both modes, single samples, composed batches."""

import time

import pytest
import torch
from torch import nn

from flbench.config.schema import OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.models import trial
from flbench.models.base import build


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
    "scaled in training": Two(in_training(lambda logits: 2 * logits)),
    "tuple in training": Two(in_training(lambda logits: (logits, 1))),
    "dict in training": Two(in_training(lambda logits: {"out": logits})),
    "other classes in training": Two(in_training(lambda logits: logits[:, :9])),
    "error in training": Two(in_training(lambda logits: logits.missing)),
    "squeezed": Two(lambda net, logits: logits.squeeze()),
    "error for one sample in eval": Two(between=nn.BatchNorm1d(16, track_running_stats=False)),
    "clock": Two(between=Clock()),
    "weight_norm": lambda shape, classes: Two(
        between=torch.nn.utils.weight_norm(nn.Linear(16, 16))
    ),
    "no linear layer": nn.Sequential(nn.Flatten(), nn.Identity()),
    "no parameters": lambda shape, classes: nn.Flatten(),
    "all frozen": Two().requires_grad_(False),
    "not a net": lambda shape, classes: 3,
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
        (nn.BatchNorm1d(16, momentum=None), False),
        (nn.LayerNorm(16), False),
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
def test_notes_are_there_where_they_belong(between, expected):
    net = made(Two(between=between))

    assert trial.mixes(net) == bool(trial.notes(net)) == expected


def test_trials_change_neither_statistics_nor_modes():
    given = Two(between=nn.BatchNorm1d(16))
    net = made(given)

    assert int(net.backbone.between.num_batches_tracked) == 0
    assert all(module.training for module in net.modules())


def test_noise_in_eval_mode_is_no_dependence_on_other_samples():
    """The trial draws the same numbers for both batches."""
    noisy = Two(lambda net, logits: logits, between=Noise())
    assert not any("other samples" in note for note in trial.notes(made(noisy)))


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)
