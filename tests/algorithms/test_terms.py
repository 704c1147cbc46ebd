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
def test_a_term_that_is_cross_entropy_changes_no_method(name):
    """Label smoothing with epsilon 0: the whole path of a term, but the value of the plain loss."""
    plain, same = state_of_rounds(name), state_of_rounds(name, SAME)

    assert distance(plain.server, same.server) < 1e-9
    assert distance(plain.clients, same.clients) < 1e-9


@pytest.mark.parametrize("name", METHODS)
def test_all_terms_train_every_method(name):
    plain, state = state_of_rounds(name), state_of_rounds(name, ALL)

    assert is_finite(state.server)
    assert fingerprint(plain) != fingerprint(state)
    assert plain.server.keys() == state.server.keys()
    assert plain.clients.keys() == state.clients.keys()


@pytest.mark.parametrize("name", METHODS)
def test_stacked_clients_train_with_all_terms_as_one_after_the_other(name):
    one, many = (state_of_rounds(name, ALL, f"engine={e}") for e in ("sequential", "vectorized"))

    assert distance(one.server, many.server) < 1e-8
    assert distance(one.clients, many.clients) < 1e-8
