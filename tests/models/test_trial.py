"""Trials of a user's net: both modes, single samples, composed batches."""

import time

import pytest
import torch
from torch import nn

from flbench.config.schema import OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.models import module_state, trial
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


class Raises(nn.Module):
    def forward(self, x):
        if self.training and len(x) == 1:
            raise ValueError("one sample is not enough")
        return x


def in_training(function):
    return lambda net, logits: function(logits) if net.training else logits


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (Two(in_training(lambda logits: logits.softmax(1))), "training mode.*its head applied"),
        (Two(in_training(lambda logits: 2 * logits)), "training mode.*its head applied"),
        (Two(in_training(lambda logits: (logits, 1))), "training mode, returns tuple"),
        (Two(in_training(lambda logits: [logits])), "training mode, returns list"),
        (Two(in_training(lambda logits: {"out": logits})), "training mode, returns dict"),
        (Two(in_training(lambda logits: logits[:, :9])), r"training mode, returns \[2, 9\]"),
        (Two(in_training(lambda logits: logits.detach())), "without a gradient"),
        (Two(in_training(lambda logits: logits.missing)), "training mode, fails with Attribute"),
        (Two(lambda net, logits: logits.squeeze()), r"one sample in eval mode, returns \[10\]"),
        (
            Two(between=nn.BatchNorm1d(16, track_running_stats=False)),
            "one sample in eval mode, fails with ValueError",
        ),
        (torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), "TorchScript"),
        (
            lambda shape, classes: Two(between=torch.nn.utils.weight_norm(nn.Linear(16, 16))),
            "cannot be copied.*parametrizations",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of PyTorch, about old functions
def test_nets_are_refused_with_the_reason(source, sentence):
    with pytest.raises(ConfigError, match=sentence):
        made(source)


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (None, set()),
        (nn.BatchNorm1d(16), set()),
        (nn.BatchNorm1d(16, momentum=None), set()),
        (nn.LayerNorm(16), set()),
        (Divides(), {trial.NEEDS_TWO}),
        (Raises(), {trial.NEEDS_TWO}),
        (
            nn.Sequential(
                nn.Unflatten(1, (4, 2, 2)),
                nn.BatchNorm2d(4, track_running_stats=False),
                nn.Flatten(),
            ),
            {trial.MIXES},
        ),
    ],
)
def test_notes_are_there_where_they_belong(between, expected):
    net = made(Two(between=between))
    flags = {trial.NEEDS_TWO, trial.MIXES, trial.TOLD}

    assert {name for name in flags if net.__dict__.get(name)} == expected
    assert len(trial.notes(net)) == len(expected)
    assert module_state.needs_two(net) == (trial.NEEDS_TWO in expected)


def test_net_in_eval_mode_as_a_whole_has_a_note():
    assert made(Two(between=nn.BatchNorm1d(16)).eval()).__dict__[trial.TOLD]
    assert not made(Two().eval()).__dict__[trial.TOLD]


def test_trials_change_neither_statistics_nor_modes():
    given = Two(between=nn.BatchNorm1d(16))
    net = made(given)

    assert int(net.backbone.between.num_batches_tracked) == 0
    assert all(module.training for module in net.modules())


def test_noise_in_eval_mode_is_no_dependence_on_other_samples():
    """The trial draws the same numbers for both batches."""
    noisy = Two(lambda net, logits: logits, between=Noise())
    assert not any("other samples" in note for note in trial.notes(made(noisy)))


def test_a_net_that_reads_a_clock_is_told_so():
    with pytest.raises(ConfigError) as refusal:
        made(Two(between=Clock()))
    assert "clock" in str(refusal.value)


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


class Clock(nn.Module):
    def forward(self, x):
        return x * (1 + time.perf_counter_ns() % 1000)
