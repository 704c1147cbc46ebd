"""The defaults of `Algorithm` with parameters that stay with a client and are sent too."""

import pytest
import torch

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    Dispatch,
    LocalProgram,
    Message,
    only,
    weighted_mean,
)
from flbench.algorithms.fedper import FedPer
from flbench.testing import Contract, Played, after, build, run

pytestmark = pytest.mark.slow


class HeadSeen(Algorithm):
    """FedPer whose clients send their heads, because the server reads them."""

    paper, communication = FedPer.paper, FedPer.communication

    def personal(self):
        return self.setting.net.names("head")

    def program(self, state):
        keeps, sends = self.split()
        return LocalProgram((self.phase(*self.terms()),), keeps, sends | self.personal())


class HeadSentBack(HeadSeen):
    """The same, with a server that says that it sends the last client's head to all."""

    def aggregate(self, state, results):
        update = super().aggregate(state, results)
        heads = only(results.sent.values, self.personal())
        last = {f"last.{name}": value[-1] for name, value in heads.items()}
        return type(update)(update.server | last, metrics=update.metrics)

    def dispatch(self, state, ids):
        sent = super().dispatch(state, ids).shared.values
        heads = {
            name: state.server[f"last.{name}"]
            for name in self.personal()
            if f"last.{name}" in state.server
        }
        return Dispatch(Message({**sent, **heads}))


class OfHeadSeen(Contract):
    """The contract, of which the tests below call one function."""

    __test__ = False
    methods = ("head-seen",)


@pytest.fixture(scope="module", autouse=True)
def _methods():
    for name, kind in (("head-seen", HeadSeen), ("head-sent-back", HeadSentBack)):
        ALGORITHMS.register(name)(kind)
    yield
    for name in ("head-seen", "head-sent-back"):
        del ALGORITHMS[name]


def test_a_personal_head_that_the_server_sees_is_neither_averaged_nor_sent_back(tmp_path):
    keys = ("train.rounds=2", "model.name=lenet5", "train.batchnorm=local")
    own = ("algorithm.agg_weights=samples",)
    _, seen = run(tmp_path, "algorithm=head-seen", *own, *keys)
    _, fedper = run(tmp_path, "algorithm=fedper", *own, *keys)

    assert seen["weights_digest"] == fedper["weights_digest"]
    assert seen["communication"]["down_bytes"] == fedper["communication"]["down_bytes"]
    assert seen["communication"]["up_bytes"] > fedper["communication"]["up_bytes"]


def test_a_method_that_dispatches_a_personal_head_itself_overwrites_it():
    built = build("algorithm=head-sent-back")
    state = after(built, 2)

    deployed = built.algorithm.deploy(state, torch.arange(5))["personal"].dispatch.shared.values
    for name in built.algorithm.personal():
        assert torch.equal(deployed[name], state.clients[name][-1])


def test_the_contract_refuses_a_method_whose_defaults_send_personal_leaves(tmp_path, monkeypatch):
    test = OfHeadSeen().test_personal_leaves_stay_with_their_client
    test(Played("head-seen", lambda: tmp_path))

    def everything(self, state, ids):
        return Dispatch(Message(only(state.server, self.program(state).sends)))

    def mean(self, results, names=None):
        net = only(results.sent.values, self.setting.net.names("all"))
        return weighted_mean(net, self.weights(results))

    monkeypatch.setattr(Algorithm, "dispatch", everything)
    monkeypatch.setattr(Algorithm, "mean", mean)
    with pytest.raises(AssertionError, match="sends personal leaves"):
        test(Played("head-seen", lambda: tmp_path))


def test_the_contract_refuses_a_method_whose_clients_lose_their_personal_leaves(
    tmp_path, monkeypatch
):
    def forgetting(self, state):
        return LocalProgram((self.phase(*self.terms()),), frozenset(), self.split()[1])

    monkeypatch.setattr(HeadSeen, "program", forgetting)

    with pytest.raises(AssertionError):
        OfHeadSeen().test_personal_leaves_stay_with_their_client(
            Played("head-seen", lambda: tmp_path)
        )
