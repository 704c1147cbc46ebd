"""What counts as code of PyTorch or flbench, for a net with anything attached to it."""

import warnings
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, weight_norm

from flbench.client.program import LocalProgram, Phase
from flbench.config.schema import OptimizerConfig
from flbench.core.known_code import is_known, unknown_parts
from flbench.losses import CrossEntropy, Proximal


class Mine(nn.Linear):
    """A layer of the user."""


class Half(nn.Module):
    def forward(self, x):
        return x / 2


@dataclass(frozen=True)
class Term:
    weight: float = 1.0

    def __call__(self, context):
        return context.out.logits.sum()


def plain():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def hooked(kind):
    net = plain()
    getattr(net[0], kind)(lambda *given: None)
    return net


def overridden():
    net = plain()
    net[0].forward = lambda x: x
    return net


def parametrized():
    net = plain()
    parametrize.register_parametrization(net[0], "weight", Half())
    return net


def phase(**keys):
    given = {"terms": (CrossEntropy(),), "optimizer": OptimizerConfig(), "epochs": 1, **keys}
    return LocalProgram((Phase("*", **given),))


@pytest.mark.parametrize(
    "thing",
    [
        nn.Sequential(plain(), Mine(4, 4)),
        hooked("register_forward_hook"),
        overridden(),
        parametrized(),
        nn.TransformerEncoderLayer(4, 1, activation=lambda x: x),
        torch.jit.trace(plain(), torch.zeros(1, 4)),
        phase(terms=(Term(),)),
        phase(weights=lambda context: context.leaves),
        phase(project=partial(partial, lambda leaves: leaves)),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_anything_else_is_not_known(thing):
    assert not is_known(thing)
    assert list(unknown_parts(thing))


def test_layers_and_terms_of_the_packages_are_known():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old weight_norm is deprecated
        old = weight_norm(nn.Linear(4, 4))
    for thing in (
        nn.TransformerEncoderLayer(4, 1),
        parametrizations.spectral_norm(nn.Linear(4, 4)),
        old,
        phase(terms=(CrossEntropy(), Proximal(("a",)))),
    ):
        assert is_known(thing)
        assert not list(unknown_parts(thing))
