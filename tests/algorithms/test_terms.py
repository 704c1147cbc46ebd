"""`train.terms` crossed with every method: some kinds, and all methods in `make test-all`."""

import pytest
import torch

from flbench.algorithms import ALGORITHMS
from flbench.core.tree import is_finite
from flbench.testing import after, build, fingerprint, with_method
from tests.algorithms.test_contract import SPANNING

pytestmark = pytest.mark.slow

METHODS = [
    pytest.param(name, marks=() if name in SPANNING else pytest.mark.full)
    for name in ALGORITHMS.load()
]
FEW = ("partition.samples=120", "train.rounds=2", "partition.min_samples=5")
ALL = (
    "train.terms=[{name: balanced_softmax, instead: true}, {name: logit_adjustment, tau: 2,"
    " instead: true}, focal, class_balanced, label_smoothing]"
)
SAME = "train.terms=[{name: label_smoothing, epsilon: 0, instead: true}]"


def state_of_rounds(name, *overrides):
    return after(build(*with_method(name, *FEW, "engine.precision=64-true", *overrides)), rounds=2)


def distance(one, two) -> float:
    """Largest difference of two trees' floating-point tensors, NaN counted as equal to NaN."""
    pairs = [(value, two[name]) for name, value in one.items() if value.is_floating_point()]
    differences = [
        float(torch.where(a.isnan() & b.isnan(), 0.0, (a - b).abs()).max())
        for a, b in pairs
        if a.numel()
    ]
    return max(differences, default=0.0)


@pytest.mark.parametrize("name", METHODS)
def test_terms_train_every_method_alike_in_both_engines(name):
    """Label smoothing with epsilon 0: the whole path of a term, but the value of cross entropy."""
    plain, same, one = (
        state_of_rounds(name),
        state_of_rounds(name, SAME),
        state_of_rounds(name, ALL),
    )
    many = state_of_rounds(name, ALL, "engine=vectorized")

    assert distance(plain.server, same.server) < 1e-9
    assert distance(plain.clients, same.clients) < 1e-9
    assert is_finite(one.server)
    assert fingerprint(plain) != fingerprint(one)
    assert plain.server.keys() == one.server.keys()
    assert plain.clients.keys() == one.clients.keys()
    assert distance(one.server, many.server) < 1e-8
    assert distance(one.clients, many.clients) < 1e-8
