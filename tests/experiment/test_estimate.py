"""What is estimated before a run, from measurements of a few clients."""

import pytest

from flbench.core.storage import Storage
from flbench.experiment import estimate
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
