"""Ditto between FedAvg and Local-Only, a loop over both models, and which of them is evaluated."""

import pytest
import torch

from flbench.testing import after
from tests.algorithms.plain import (
    EPOCHS,
    FULL,
    LR,
    ROUNDS,
    STATISTICS,
    Plain,
    accuracies,
    assert_close,
    deployed,
    lenet5_bytes,
)
from tests.algorithms.test_identities import LENET, POLICIES
from tests.support import build, run

EXACT = "engine.precision=64-true"


@pytest.mark.slow
@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
def test_global_model_is_fedavgs_to_the_bit(policy):
    """The personal model does not act on the global one, whatever the pull."""
    norm = f"train.batchnorm={policy}"
    ditto = after(build(*LENET, norm, "algorithm=ditto", "algorithm.lam=3"), 2)
    fedavg = after(build(*LENET, norm, "algorithm=fedavg"), 2)

    assert ditto.server.keys() == fedavg.server.keys()
    for tree, other in ((ditto.server, fedavg.server), (ditto.clients, fedavg.clients)):
        for name, value in other.items():
            assert torch.equal(tree[name], value), name


@pytest.mark.slow
@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
def test_personal_model_without_pull_is_local_onlys(policy):
    """With lam = 0 both train on the same batches in the same order."""
    norm = f"train.batchnorm={policy}"
    local = deployed(norm, "algorithm=local")

    assert deployed(norm, "algorithm=ditto", "algorithm.lam=0") == local
    assert deployed(norm, "algorithm=ditto") != local


def validation_loss(plain, leaves, client) -> float:
    rows = plain.federation.partition.parts["validation"][client]
    out = plain.outputs(leaves, plain.federation.inputs(rows, torch.float64), train=False)
    y = plain.federation.y[torch.from_numpy(rows)]
    return float(torch.nn.functional.cross_entropy(out.logits, y))


def assert_equals_a_loop(
    strengths, *keys, anchor="received", epochs=EPOCHS, uniform=False
) -> set[int]:
    """Both models of all clients; return which strengths were the best ones."""
    built = build("algorithm=ditto", "model.name=lenet5", *keys, *FULL)
    plain, names = Plain(built), built.algorithm.setting.net.parameters
    w, v, chosen = plain.start(), [plain.start() for _ in range(5)], set()
    for t in range(ROUNDS):
        sent = {}
        for i in plain.cohort(t):
            sent[i] = w
            for _ in range(EPOCHS):
                sent[i] = plain.step(sent[i], i, names)
            pull, tries = w if anchor == "received" else sent[i], []
            for lam in strengths:
                mine = v[i]
                for _ in range(epochs):
                    before, mine = mine, plain.step(mine, i, names)
                    for name in names:
                        mine[name] = mine[name] - LR * lam * (before[name] - pull[name])
                tries.append(mine)
            losses = [validation_loss(plain, mine, i) for mine in tries]
            chosen.add(losses.index(min(losses)))
            v[i] = tries[losses.index(min(losses))]
        w = plain.mean(sent, uniform=uniform)

    state = after(built, ROUNDS)

    assert_close(state.server, w, tiny=1e-12)
    for client in range(5):
        mine = {name.removeprefix("v."): rows[client] for name, rows in state.clients.items()}
        assert mine.keys() == v[client].keys()
        assert_close(mine, v[client], tiny=1e-12)
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ["received", "trained"])
def test_personal_models_equal_a_loop(anchor):
    keys = ("algorithm.lam=0.7", "algorithm.personal_epochs=3", f"algorithm.anchor={anchor}")

    assert_equals_a_loop((0.7,), *keys, anchor=anchor, epochs=3)


@pytest.mark.slow
def test_uniform_mean_of_the_authors_code_equals_a_loop():
    keys = ("algorithm.lam=0.7", "algorithm.agg_weights=uniform")

    assert_equals_a_loop((0.7,), *keys, uniform=True)


@pytest.mark.slow
def test_each_client_keeps_the_strength_that_validates_best():
    # With iid data; on skewed data no client gains by the pull in so few rounds.
    keys = ("partition.scheme=iid", "algorithm.lam_choices=[0.7,0.0,6.0]")

    chosen = assert_equals_a_loop((0.7, 0.0, 6.0), *keys)

    assert len(chosen) > 1  # the clients do not all choose the same strength


@pytest.mark.slow
@pytest.mark.one_of("policy", "engine")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_choice_without_alternatives_is_the_strength_itself(policy, engine):
    """One strength, one given twice, or clients without validation samples: the first counts."""
    keys = (*LENET, f"train.batchnorm={policy}", f"engine.name={engine}", EXACT)
    plain = after(build(*keys, "algorithm=ditto", "algorithm.lam=0.7"), 2)

    for choices in ("[0.7]", "[0.7,0.7]"):
        same = after(build(*keys, "algorithm=ditto", f"algorithm.lam_choices={choices}"), 2)
        assert_close(same.clients, plain.clients)

    empty = "partition.split=[0.8,0,0.2]"
    plain = after(build(*keys, empty, "algorithm=ditto", "algorithm.lam=0.7"), 2)
    first = after(build(*keys, empty, "algorithm=ditto", "algorithm.lam_choices=[0.7,0]"), 2)
    assert_close(first.clients, plain.clients)


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


def test_strong_pull_is_warned_of():
    def notes(*keys):
        return [note for note in build("algorithm=ditto", *keys).notes if "overshoots" in note]

    assert notes("algorithm.lam=150")
    assert not notes("algorithm.lam=50")
    assert not notes("algorithm.lam=150", "train.optimizer.name=adam")
    assert notes("algorithm.lam_choices=[1,150]")


@pytest.mark.slow
def test_bytes_are_fedavgs(tmp_path):
    """The personal model is never sent."""
    assert lenet5_bytes(tmp_path, "algorithm=ditto") == (62_050 * 4 + STATISTICS,) * 2
