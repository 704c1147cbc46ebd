"""The contract of every method in the registry, including methods that are added later.

A new file in `flbench/algorithms` is tested here without a new line. Of the tests that train once
more (`DRAWN`), `make test` runs one for every method and all for one method of each kind of state
(`KINDS`). Each of these methods runs under one BatchNorm policy, and where all clients diverge; all
crash points and policies occur. All other tests of the contract run for every method. `make
test-all` runs the full product.
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


DRAWN = (
    "test_another_seed_gives_another_state",
    "test_clients_that_join_later_are_evaluated_and_change_nothing",
    "test_crash_and_resume_end_like_the_straight_run",
    "test_evaluation_and_unpaid_values_change_nothing",
    "test_order_of_the_cohort_does_not_matter",
    "test_poor_clients_run_without_nan",
    "test_vectorized_engine_does_what_the_sequential_one_does",
)


def is_drawn(test, name):
    """Whether `make test` runs a test for a method. Neighbours in the registry differ."""
    if name in KINDS or test not in DRAWN:
        return True
    return METHODS.index(name) % len(DRAWN) == DRAWN.index(test)


def crash_point(name):
    """The round in which `make test` lets a method crash."""
    return CRASHES[METHODS.index(name) % len(CRASHES)]


def policy(name):
    """The BatchNorm policy under which `make test` runs a method of `KINDS`; None for others."""
    return POLICIES[list(KINDS).index(name) % len(POLICIES)] if name in KINDS else None


class TestContract(Contract):
    methods = METHODS

    def pytest_generate_tests(self, metafunc):
        if "method" in metafunc.fixturenames:
            test = metafunc.function.__name__
            methods = [
                name if is_drawn(test, name) else pytest.param(name, marks=pytest.mark.full)
                for name in METHODS
            ]
            metafunc.parametrize("method", methods, indirect=True, scope="module")

    def crashes(self, name):
        return (crash_point(name),)

    def policies(self, name):
        return (policy(name),) if name in KINDS else ()

    def is_tried(self, name):
        return name in KINDS


@pytest.mark.full
class TestOtherConditions(Conditions):
    """The conditions that are left out above."""

    methods = METHODS  # the same list: the two classes share what was played of a method

    def crashes(self, name):
        return [when for when in CRASHES if when != crash_point(name)]

    def policies(self, name):
        return [other for other in POLICIES if other != policy(name)]

    def is_tried(self, name):
        return name not in KINDS
