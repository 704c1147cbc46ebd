"""What is estimated before a run, from measurements of a few clients."""

import pytest
import torch

from flbench.experiment import estimate, memory
from tests.support import build

KEYS = ("model.name=mlp", "partition.clients=12", "engine.name=sequential")


@pytest.fixture
def uncopied(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the rows of all clients are copied")

    monkeypatch.setattr(memory, "writable_copy", refuse)


@pytest.mark.parametrize("method", ["ditto", "fedavg"])
def test_estimate_copies_no_rows_of_all_clients(method, uncopied):
    built = build(f"algorithm={method}", *KEYS)

    found = estimate.measure(built)

    assert found.state >= found.parameters * 4 * (13 if method == "ditto" else 1)
    assert found.total >= found.training + found.evaluate > 0


def test_all_clients_of_a_small_federation_are_evaluated_for_the_estimate(monkeypatch):
    """One client, before anything is traced or stacked, says nothing of the others."""
    built = build("algorithm=ditto", *KEYS)
    evaluated = []
    run = built.engine.run

    def counted(program, ids, **keys):
        evaluated.append(len(ids) if keys.get("observe") else 0)
        return run(program, ids, **keys)

    monkeypatch.setattr(built.engine, "run", counted)
    estimate.measure(built)

    assert max(evaluated) == 12


@pytest.mark.parametrize(("method", "passes"), [("fedavg", 2.0), ("local", 12.0)])
def test_a_shared_model_is_evaluated_once_on_the_common_test_set(method, passes):
    built = build(f"algorithm={method}", *KEYS)
    state = built.start()
    evaluator = built.evaluator(lambda text: None)

    assert evaluator.common_passes(state) == passes
    assert evaluator.share_evaluated(state, 3) == 1.0
    assert torch.equal(state.participation_count, torch.zeros(12, dtype=torch.int64))
