"""The contract of every method in the registry, including methods that are added later.

A new file in `flbench/algorithms` is tested here without a new line. `make test` runs every method
at one crash point, and one method of each kind of state (`KINDS`) at all crash points, under all
BatchNorm policies, and where all clients diverge; `make test-all` runs the full product.
"""

import pytest

from flbench.algorithms import ALGORITHMS
from flbench.testing import CRASHES, POLICIES, Conditions, Contract

pytestmark = pytest.mark.slow

METHODS = ALGORITHMS.load()

# One method for each kind of state that a run can hold.
KINDS = {
    "fedavg": "the weights of one global model",
    "scaffold": "control variates at the server and at the clients",
    "ditto": "a second model at each client",
    "hfcd": "prototypes and similarities of classes",
    "fedcpmd": "stages, votes and stored bodies",
    "fedap": "stages of set-up rounds",
    "cfl": "groups of clients that split",
    "dispfl-hp": "masks and a hypernetwork, exchanged between neighbours",
}


def crash_point(name):
    """The round in which `make test` lets a method crash that is not in `KINDS`."""
    return CRASHES[METHODS.index(name) % len(CRASHES)]


class TestContract(Contract):
    methods = METHODS

    def crashes(self, name):
        return CRASHES if name in KINDS else (crash_point(name),)

    def policies(self, name):
        return POLICIES if name in KINDS else ()

    def is_tried(self, name):
        return name in KINDS


@pytest.mark.full
class TestOtherConditions(Conditions):
    """The conditions that are left out above."""

    methods = METHODS  # the same list: the two classes share what was played of a method

    def crashes(self, name):
        return () if name in KINDS else [when for when in CRASHES if when != crash_point(name)]

    def policies(self, name):
        return () if name in KINDS else POLICIES

    def is_tried(self, name):
        return name not in KINDS
