"""The chunked hypernetwork: its size, what fills what, and the gradient that runs through it."""

from math import sqrt

import pytest

from flbench.algorithms.dfedhp import PHI, Hypernetwork, Z, tensors_of
from flbench.core.rng import generator
from flbench.core.types import Context
from flbench.models import MODELS
from flbench.models.base import build, describe, net_leaves

CARD = {"chunk": 9216, "embedding": 128, "hidden": 128}
LEAVES = PHI | Z


def weights_of(hyper, leaves):
    """What the net is called with."""
    return hyper(Context(leaves=leaves, start=leaves, ctx={}))


def net_of(name: str, shape=(3, 32, 32), classes: int = 10, **options):
    net = build(MODELS.find(name).Config(name=name, **options), shape, classes, 0)
    return net, describe(net, shape), {k: v.detach() for k, v in net_leaves(net).items()}


def body_of(net, spec, sizes=CARD):
    generated = frozenset(spec.parameters) - spec.names("head")
    return Hypernetwork(tensors_of(spec, generated), **sizes)


def scalars(tree) -> int:
    return sum(value.numel() for value in tree.values())


@pytest.mark.parametrize("classes", [10, 100])
def test_payload_of_resnet18_is_that_of_the_paper(classes):
    """A message has 1,360,512 numbers, 5,314.5 KiB, for any number of classes."""
    net, spec, start = net_of("resnet18", classes=classes, norm="group")
    hyper = body_of(net, spec)

    own = hyper.initial(start, generator(0, "model", 1))

    assert sum(start[name].numel() for name, _ in hyper.tensors) == 11_168_832
    assert set(own) == LEAVES
    assert scalars(own) == hyper.size(11_168_832) == 1_360_512
    assert own["z"].shape == (1212, 128)
    assert 4 * scalars(own) / 1024 == 5314.5


def test_generated_matrices_start_with_the_variance_of_he_and_norms_near_identity():
    net, spec, start = net_of("resnet18", norm="group")
    hyper = body_of(net, spec)

    weights = weights_of(hyper, start | hyper.initial(start, generator(0, "model", 1)))

    for name, kind in hyper.tensors:
        value = weights[name]
        assert value.shape == start[name].shape
        if kind == "weight":
            assert value.std() * sqrt(value[0].numel() / 2) == pytest.approx(1, abs=0.2), name
        else:
            assert value.mean() == pytest.approx(1.0 if kind == "gain" else 0.0, abs=0.01), name
            assert 0 < value.std() < 0.03, name
    kinds = {kind for _, kind in hyper.tensors}
    assert kinds == {"weight", "gain", "bias"}
