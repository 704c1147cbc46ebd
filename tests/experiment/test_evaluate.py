"""Evaluation: what is computed together or kept is what each client alone gives."""

from dataclasses import replace

import pytest
import torch

from flbench.core.tree import digest
from flbench.core.types import Samples
from flbench.engine.sequential import SequentialEngine
from flbench.experiment import evaluate, rounds
from flbench.experiment.assembly import Experiment
from tests.support import build

KEYS = (
    "model.name=mlp",
    "partition.clients=9",
    "engine.name=sequential",
    "train.participation=0.3",
)


class Counting:
    """An engine that counts the clients and the samples that it evaluates."""

    def __init__(self, engine):
        self.engine, self.clients = engine, 0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def run(self, work, ids):
        self.clients += len(ids)
        return self.engine.run(work, ids)


@pytest.fixture(params=["fedavg", "ditto", "fedproto", "local", "hfcd", "apfl"])
def trained(request):
    """An experiment of a method after a round, with its state and the settings of the round."""
    return after_a_round(build(f"algorithm={request.param}", *KEYS))


def after_a_round(built, state=None):
    state = built.start() if state is None else state
    settings = rounds.settings_of(built.algorithm, state)
    done = rounds.train(built.algorithm, built.engine, state, settings)
    return built, rounds.exchange(built.algorithm, state, done).state, done.results.ids


def evaluator_of(built: Experiment, **changes):
    made = built.evaluator(lambda text: None)
    return replace(made, engine=Counting(built.engine), kept={}, **changes)


def evaluated(evaluator, state, stale=None):
    settings = rounds.settings_of(evaluator.algorithm, state)
    return evaluator.evaluate(state, settings, common=True, stale=stale)


def clients(*ids):
    return torch.isin(torch.arange(9), torch.tensor(ids))


def one_by_one(built, state):
    """Return predicted classes by deployment and client, each client evaluated alone."""
    alone = SequentialEngine(built.net, built.federation, built.config.engine, stacks=False)
    evaluator = replace(built.evaluator(lambda text: None), engine=alone)
    settings = rounds.settings_of(built.algorithm, state)
    found = {}
    for model in evaluator.models(state, settings):
        for client in range(built.federation.clients) if model.name != "gm" else ():
            statistics = evaluator.statistics(model.deployment, evaluator.parts)
            seen = evaluator.run(model, torch.tensor([client]), statistics).observed
            for part in evaluator.parts:
                size = len(built.federation.partition.parts[part][client])
                predicted = seen[f"evaluation/{part}.predicted"][0, :size].long()
                found[model.name, part, client] = predicted
    return found


def assert_same_counts(built, state, evaluation):
    wanted = {}
    for (name, part, client), predicted in one_by_one(built, state).items():
        rows = built.federation.partition.parts[part][client]
        true = torch.from_numpy(built.federation.dataset.y[rows]).long()
        scores = wanted.setdefault((name, part), built.judge.scores(built.federation.clients))
        scores.add_(torch.full_like(true, client), true, predicted)
    assert evaluation.local.keys() == wanted.keys()
    for key, scores in wanted.items():
        for field in ("support", "predicted", "correct", "confusion"):
            assert torch.equal(getattr(evaluation.local[key], field), getattr(scores, field)), key


def test_predictions_are_those_of_each_client_alone(trained, monkeypatch):
    built, state, _ = trained
    monkeypatch.setattr(evaluate, "PIECE", 30)

    assert_same_counts(built, state, evaluated(evaluator_of(built), state))


def test_clients_that_share_a_model_are_evaluated_in_large_batches():
    built, state, _ = after_a_round(build("algorithm=fedavg", *KEYS))
    evaluator = evaluator_of(built)
    evaluated(evaluator, state)

    # One call for each part of all clients, and two for the common test set (personal and gm).
    assert evaluator.engine.clients == 4


def test_samples_of_all_clients_are_read_in_pieces():
    federation = build(*KEYS).federation
    together = [row for rows in federation.partition.parts["test"] for row in rows.tolist()]

    second = federation.rows(Samples("test", piece=20), 1, draw=None)
    last = federation.rows(Samples("test", piece=20), len(together) // 20, draw=None)

    assert second.tolist() == together[20:40]
    assert last.tolist() == together[len(together) // 20 * 20 :]
    with pytest.raises(ValueError, match="whole parts"):
        Samples("test", high=0.5, piece=20)


@pytest.mark.parametrize("method", ["ditto", "local"])
def test_models_that_have_not_changed_are_not_evaluated_again(method, monkeypatch):
    monkeypatch.setattr(evaluate, "KEPT", 2)
    built, state, _ = after_a_round(build(f"algorithm={method}", *KEYS))
    evaluator = evaluator_of(built, parts=("validation",))
    evaluated(evaluator, state, clients(*range(9)))
    built, state, ids = after_a_round(built, state)
    evaluator.engine.clients = 0

    found = evaluated(evaluator, state, clients(*ids.tolist()))

    blocks = {int(client) // 2 for client in ids}
    assert evaluator.engine.clients == sum(1 for k in range(9) if k // 2 in blocks) < 9
    anew = evaluated(evaluator_of(built, parts=("validation",)), state)
    for key, scores in anew.local.items():
        assert torch.equal(found.local[key].predicted, scores.predicted)
        assert torch.equal(found.local[key].correct, scores.correct)


@pytest.mark.parametrize("method", ["ditto", "fedper"])
def test_nothing_is_kept_if_leaves_changed_without_a_word(method):
    built, state, _ = after_a_round(build(f"algorithm={method}", *KEYS))
    evaluator = evaluator_of(built)
    evaluated(evaluator, state, clients(*range(9)))
    for rows in state.clients.values():
        rows[4] += 0.5  # not by the loop
    assert_same_counts(built, state, evaluated(evaluator, state))
    name = next(iter(state.server))
    state = replace(state, server={**state.server, name: state.server[name] * -1})
    assert_same_counts(built, state, evaluated(evaluator, state, clients()))
    state.server[name] *= 0.5  # in place

    assert_same_counts(built, state, evaluated(evaluator, state, clients()))


def test_weights_are_those_of_each_client_alone(trained):
    built, state, _ = trained
    evaluator = evaluator_of(built)
    settings = rounds.settings_of(built.algorithm, state)
    alone = SequentialEngine(built.net, built.federation, built.config.engine, stacks=False)
    slow = replace(evaluator, engine=alone)

    found = [dict(tree) for tree in evaluator.deployed(state, settings)]

    wanted = []
    model = next(slow.models(state, settings))
    names = built.algorithm.setting.net.names("all")
    write = evaluate.Transform(model.deployment.weights or (lambda context: {}))
    for client in range(built.federation.clients):
        ids = torch.tensor([client])
        kept = slow.run(model, ids, write=(write,), keeps=names).kept
        wanted.append({leaf: rows[0] for leaf, rows in kept.items()})
    assert digest(found) == digest(wanted)


def test_shared_weights_are_hashed_as_those_of_each_client():
    tree = {"w": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(3), "e": torch.zeros(0)}
    copies = [{name: value.clone() for name, value in tree.items()} for _ in range(4)]

    assert digest([tree] * 4) == digest(copies)
    assert digest([tree] * 4) != digest([tree] * 3)
