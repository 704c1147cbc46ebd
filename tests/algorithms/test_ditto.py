"""Ditto between FedAvg and Local-Only, a loop over both models, and which of them is evaluated."""

import pytest

from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.plain import EPOCHS, FULL, LR, ROUNDS, Plain, assert_close
from tests.support import build


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
    settings = settings_of(built.algorithm, state)
    for client, model in enumerate(built.evaluator(print).deployed(state, settings)):
        mine = {name.removeprefix("v."): rows[client] for name, rows in state.clients.items()}
        assert mine.keys() == v[client].keys()
        assert_close(mine, v[client], tiny=1e-12)
        assert_close(model, v[client], tiny=1e-12)
