"""What is estimated before a run, from measurements of a few clients."""

from dataclasses import replace

import pytest
import torch

from flbench.core.storage import Storage
from flbench.experiment import estimate, rounds
from flbench.workers import nesting
from tests.support import build

KEYS = ("model.name=mlp", "partition.clients=12", "engine.name=sequential")


@pytest.fixture
def uncopied(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the rows of all clients are copied")

    monkeypatch.setattr(Storage, "copied", refuse)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "fedavg"])
def test_estimate_copies_no_rows_of_all_clients(method, uncopied):
    built = build(f"algorithm={method}", *KEYS)

    found = estimate.measure(built)

    assert found.state >= found.parameters * 4 * (13 if method == "ditto" else 1)
    assert found.total >= 3 * found.round + found.evaluate > 0


@pytest.mark.slow
def test_all_clients_of_a_small_federation_are_evaluated_for_the_estimate(monkeypatch):
    built = build("algorithm=ditto", *KEYS)
    evaluated = []
    run = built.engine.run

    def counted(program, ids, **keys):
        evaluated.append(len(ids) if keys.get("observe") else 0)
        return run(program, ids, **keys)

    monkeypatch.setattr(built.engine, "run", counted)
    estimate.measure(built)

    assert max(evaluated) == 12


@pytest.mark.parametrize("changes", [{"device": "cuda:0"}, {"name": "ray"}, {"workers": 1}])
def test_no_process_of_this_machine_trains_for_gpus_and_ray(changes, monkeypatch):
    monkeypatch.delenv(nesting.VARIABLE, raising=False)
    built = build(*KEYS)
    used = built.config.engine.altered(**{"workers": 4, "device": "cpu"} | changes)
    other = replace(built, config=built.config.altered(engine=used))

    assert other.with_workers(lambda text: None).engine is built.engine


@pytest.mark.parametrize(("method", "calls"), [("fedavg", 2), ("local", 1)])
def test_the_time_of_the_common_test_set_is_that_of_one_client(method, calls, monkeypatch):
    """Of FedAvg these are its personal and its global model; 12 clients of Local take 12 times."""
    built = build(f"algorithm={method}", *KEYS)
    state, asked, engine_run = built.start(), [], built.engine.run
    evaluator = built.evaluator(lambda text: None)

    def noted(program, ids, **others):
        asked.append(len(ids))
        return engine_run(program, ids, **others)

    monkeypatch.setattr(built.engine, "run", noted)
    settings = rounds.settings_of(built.algorithm, state)

    assert evaluator.seconds(state, settings, 1, common=True) > 0
    assert asked == [1] * calls
    assert torch.equal(state.participation_count, torch.zeros(12, dtype=torch.int64))
