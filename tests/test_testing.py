"""The contract finds methods that do not keep it."""

from dataclasses import replace

import pytest
import torch

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    Communication,
    LocalProgram,
    Paper,
    Update,
    repeat,
)
from flbench.testing import Contract, Played

pytestmark = pytest.mark.slow


def test_names_of_methods_are_a_tuple():
    class OfAString(Contract):
        methods = "slow"

    for contract in (OfAString(), Contract()):
        with pytest.raises(pytest.UsageError):
            contract.pytest_generate_tests(None)


def test_contract_finds_state_that_a_checkpoint_does_not_hold(tmp_path_factory):
    calls = []

    @ALGORITHMS.register("hidden")
    class Hidden(Algorithm):
        """FedAvg, whose server shrinks the mean a little more after each second round.

        The trial before a run consists of first and last rounds, so it cannot find this state.
        """

        paper = Paper("Hidden", "nobody", "invented")
        communication = Communication(down="w", up="w", keeps="nothing")

        def aggregate(self, state, results):
            if state.round == 1:
                calls.append(state.round)
            change = super().aggregate(state, results).server
            return Update({key: value * 0.99 ** len(calls) for key, value in change.items()})

    method = Played("hidden", lambda: tmp_path_factory.mktemp("hidden"))
    with pytest.raises(AssertionError):
        Contract().test_crash_and_resume_end_like_the_straight_run(
            method, tmp_path_factory.mktemp("crash")
        )


def test_contract_finds_a_trained_tensor_on_which_the_loss_does_not_depend(tmp_path_factory):
    @ALGORITHMS.register("idle")
    class Idle(Algorithm):
        """FedAvg, whose clients have a vector that no term reads."""

        paper = Paper("Idle", "nobody", "invented")
        communication = Communication(down="w", up="w", keeps="1 number")

        def init(self, start):
            server, clients = super().init(start)
            return server, clients | repeat({"shift": torch.zeros(1)}, self.setting.clients)

        def program(self, state):
            names = frozenset([*self.setting.net.parameters, "shift"])
            phase = self.phase(*self.terms(), train=names)
            keeps, sends = self.split()
            return LocalProgram((phase,), keeps | {"shift"}, sends)

    method = Played("idle", lambda: tmp_path_factory.mktemp("idle"))
    with pytest.raises(AssertionError, match="shift"):
        Contract().test_tensors_that_a_phase_trains_at_the_client_change(method)


def test_contract_finds_a_personal_leaf_that_training_loses(tmp_path_factory):
    @ALGORITHMS.register("forgetful")
    class Forgetful(Algorithm):
        """Clients train a head of their own, which they do not keep."""

        paper = Paper("Forgetful", "nobody", "invented")
        communication = Communication(down="body", up="body", keeps="nothing")

        def personal(self):
            return self.setting.net.names("head")

        def program(self, state):
            return replace(super().program(state), keeps=frozenset())

    method = Played("forgetful", lambda: tmp_path_factory.mktemp("forgetful"))
    with pytest.raises(AssertionError):
        Contract().test_personal_leaves_stay_with_their_client(method)
