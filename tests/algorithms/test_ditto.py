"""Ditto between FedAvg and Local-Only, a loop over both models, and which of them is evaluated."""

import pytest

from flbench.testing import after
from tests.algorithms.plain import EPOCHS, FULL, LR, ROUNDS, Plain, accuracies, assert_close
from tests.algorithms.test_identities import POLICIES
from tests.support import build, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anchor", "weights"),
    [("received", "samples"), ("trained", "samples"), ("received", "uniform")],
)
def test_both_models_equal_a_loop(anchor, weights):
    """A uniform mean is that of the authors' code."""
    lam = 0.7
    keys = (
        f"algorithm.lam={lam}",
        f"algorithm.anchor={anchor}",
        f"algorithm.agg_weights={weights}",
    )
    built = build("algorithm=ditto", "model.name=lenet5", *keys, *FULL)
    plain, names = Plain(built), built.algorithm.setting.net.parameters
    w, v = plain.start(), [plain.start() for _ in range(5)]
    for t in range(ROUNDS):
        sent = {}
        for i in plain.cohort(t):
            sent[i] = w
            for _ in range(EPOCHS):
                sent[i] = plain.step(sent[i], i, names)
            pull = w if anchor == "received" else sent[i]
            for _ in range(EPOCHS):
                before, v[i] = v[i], plain.step(v[i], i, names)
                for name in names:
                    v[i][name] = v[i][name] - LR * lam * (before[name] - pull[name])
        w = plain.mean(sent, uniform=weights == "uniform")

    state = after(built, ROUNDS)

    assert_close(state.server, w, tiny=1e-12)
    for client in range(5):
        mine = {name.removeprefix("v."): rows[client] for name, rows in state.clients.items()}
        assert mine.keys() == v[client].keys()
        assert_close(mine, v[client], tiny=1e-12)


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.slow
def test_what_is_evaluated_is_the_personal_model_at_both_moments(tmp_path, policy):
    """Aggregation does not touch v: with all clients it is the same before and after it."""
    norm = ("model.name=lenet5", f"train.batchnorm={policy}", "train.optimizer.lr=0.1")
    rounds = ("train.rounds=1", "train.local_epochs=2")
    path, _ = run(tmp_path, "algorithm=ditto", "algorithm.lam=0.1", *norm, *rounds)
    fedavg, _ = run(tmp_path, "algorithm=fedavg", *norm, *rounds)

    assert accuracies(path, "personal") == accuracies(path, "personal@local")
    assert accuracies(path, "personal") != accuracies(fedavg, "personal")
    if policy == "average":  # else there is no model that all share
        assert accuracies(path, "gm", "common") == accuracies(fedavg, "gm", "common")
