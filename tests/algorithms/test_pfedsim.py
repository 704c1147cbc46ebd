"""pFedSim against loops over its formulas, its two stages, and what is sent."""

from dataclasses import replace
from math import log

import pytest
import torch

from flbench.experiment.rounds import settings_of, visible_to_server
from flbench.testing import after, played
from tests.support import build

KEYS = ("algorithm=pfedsim", "model.name=lenet5", "engine.precision=64-true", "train.rounds=6")
HEAD = ("head.weight", "head.bias")


def cos(a, b) -> float:
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms > 0 else 0.0


def slow_similarity(a, b, classes) -> float:
    return max(0.0, sum(cos(a[k], b[k]) for k in classes) / len(classes))


@pytest.mark.slow
@pytest.mark.parametrize("classes", ["all", "union"])
def test_rounds_after_the_warm_up_equal_a_loop_over_the_formulas(classes):
    built = build(*KEYS, f"algorithm.classes={classes}")
    state = after(built, 3)
    weights = {name: [value.clone()] * 5 for name, value in state.server.items() if "." in name}
    sim = [[0.0] * 5 for _ in range(5)]

    for cohort in ([0, 2, 3], [0, 1, 2], [1, 3, 4]):
        state, results = played(built, state, torch.tensor(cohort))
        counts = built.federation.counts
        for k, i in enumerate(cohort):
            for name in weights:
                mine = list(weights[name])
                mine[i] = results.sent.values[name][k]
                weights[name] = mine
        for i in cohort:
            for j in cohort:
                held = [
                    c for c in range(10) if classes == "all" or counts[i, c] > 0 or counts[j, c] > 0
                ]
                if i != j:
                    head = weights["head.weight"]
                    sim[i][j] = slow_similarity(head[i], head[j], held)

    found = state.server["similarity"]
    assert torch.allclose(found, torch.tensor(sim, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.equal(found, found.T)
    assert (found > 0).sum() == 2 * 8  # of ten pairs, 2-4 and 0-4 never met
    mixed = built.algorithm.mixture(state, torch.arange(5))
    assert not set(HEAD) & set(mixed)
    for i in range(5):
        u = [log(1e4) if i == j else -log(1 - min(sim[i][j], 0.9999)) for j in range(5)]
        for name, rows in mixed.items():
            if rows.is_floating_point():
                total = sum(x * w for x, w in zip(u, weights[name], strict=True)) / sum(u)
                assert torch.allclose(rows[i], total, rtol=0, atol=1e-12), name


def test_identical_clients_get_their_own_body_back():
    """Their similarity is 1, where the logarithm in the weight has no value."""
    built = build(*KEYS)
    state, results = played(built, after(built, 3))
    for value in (*results.sent.values.values(), *state.clients.values()):
        value[:] = value[:1].clone()

    state = replace(state, server=state.server | built.algorithm.aggregate(state, results).server)

    off = ~torch.eye(5, dtype=torch.bool)
    assert torch.allclose(state.server["similarity"][off], torch.ones(20).double())
    for name, rows in built.algorithm.mixture(state, torch.arange(5)).items():
        own = state.clients[name].double()
        assert torch.allclose(rows.double(), own, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_pair_with_a_client_without_a_step_keeps_its_old_similarity():
    """Such a client sends the classifier that it had before."""
    built = build(*KEYS)
    state, results = played(built, after(built, 3))
    state.server["similarity"] = torch.full((5, 5), 0.25, dtype=torch.float64)
    idle = replace(results, steps=torch.tensor([1, 0, 1, 1, 1]))

    found = built.algorithm.aggregate(state, idle).server["similarity"]

    assert (found[1] == 0.25).all()
    assert (found[:, 1] == 0.25).all()
    assert float(found[0, 2]) != 0.25


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_first_contact_after_the_warm_up_brings_the_global_classifier_and_later_ones_do_not(engine):
    built = build(*KEYS, "train.optimizer.lr=0.1", f"engine.name={engine}")
    state = after(built, 3)
    state, _ = played(built, state, torch.tensor([0, 1]))
    state.clients["head.weight"][2] = 5.0  # the previous value does not matter
    own = {name: state.clients[name].clone() for name in HEAD}
    still = build(*KEYS, "train.optimizer.lr=0", f"engine.name={engine}")

    _, results = played(still, state, torch.tensor([1, 2]))

    begin = results.sent.values  # learning rate 0: they send what they started from
    for name in HEAD:
        assert torch.equal(begin[name][0], own[name][1])
        assert torch.equal(begin[name][1], state.server[name])
    name = "backbone.fc1.weight"
    assert torch.equal(begin[name][1], state.server[name])
    assert not torch.equal(begin[name][0], state.server[name])


def test_mixture_and_stored_model_are_both_evaluated():
    built = build(*KEYS)
    state = after(built, 4)
    models = built.evaluator(print).deployed(state, settings_of(built.algorithm, state))

    assert list(built.algorithm.deploy(state, torch.arange(5))) == ["personal", "stored"]
    mixed = built.algorithm.mixture(state, torch.arange(5))
    for i, model in enumerate(models):
        for name in mixed:
            assert torch.equal(model[name], mixed[name][i])
        assert torch.equal(model["head.weight"], state.clients["head.weight"][i])
    stored = build(*KEYS, "algorithm.evaluated=stored").algorithm.deploy(state, torch.arange(5))
    assert list(stored) == ["personal", "mixture"]


def test_without_a_warm_up_the_seeded_net_is_free_in_the_first_round():
    built = build(*KEYS, "algorithm.rho=0")
    state = built.start()

    program = built.algorithm.program(state)
    first = built.algorithm.dispatch(visible_to_server(state, program), torch.arange(5))
    state, _ = played(built, state, torch.tensor([0, 1]))
    second = built.algorithm.dispatch(visible_to_server(state, program), torch.arange(5))

    assert len(built.algorithm.stages()) == 1
    assert first.rows.values == {}
    assert not second.rows.mask[
        "head.weight"
    ].any()  # the classifier of the others is the seeded one
    for name in ("backbone.fc1.weight", "backbone.norm1.running_var"):
        assert torch.equal(second.rows.values[name][4], built.start().server[name])
