"""What is estimated before a run, from measurements of a few clients."""

import pytest

from flbench.core.storage import Storage
from flbench.experiment import estimate
from flbench.testing.setting import with_method
from tests.support import build, run

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
@pytest.mark.parametrize("method", ["feddbe", "pfedsim", "fedala"])
def test_steps_are_those_of_the_run_with_all_its_stages(method, tmp_path):
    keys = with_method(method, "train.participation=1", "train.rounds=4")

    found = estimate.measure(build(*keys))

    assert found.all_steps == run(tmp_path, *keys)[1]["steps"] > found.steps
