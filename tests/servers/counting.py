"""What MLflow has of an experiment."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from flbench.tracking import store as stores
from tests.tracking.reading import history

ALL = 10_000


@dataclass(frozen=True)
class Counts:
    """Numbers of what MLflow has: runs, values of metrics, files of all runs, and unfinished runs.

    Attributes:
        values: How often each value of each metric is there, without times.
    """

    runs: int
    points: int
    files: int
    running: int = field(compare=False)
    values: Counter[tuple[str, int, float]] = field(repr=False)


def counts(uri: str, experiment: str) -> Counts:
    """Return what MLflow at an address has of an experiment; zeros if it has none."""
    with pytest.MonkeyPatch.context() as patch:
        # flbench has set shorter times, with which a busy machine answers too late.
        patch.setenv(stores.TIMEOUT_VARIABLE, "120")
        patch.setenv(stores.RETRIES_VARIABLE, "3")
        store = stores.open_store(uri)
        found = store.client.get_experiment_by_name(experiment)
        if found is None:
            return Counts(0, 0, 0, 0, Counter())
        entries = list(store.client.search_runs([found.experiment_id], max_results=ALL))
        points = [point for entry in entries for point in history(store, entry)]
        return Counts(
            len(entries),
            len(points),
            sum(_files(store.client, entry.info.run_id, None) for entry in entries),
            sum(entry.info.status == "RUNNING" for entry in entries),
            Counter(point for point in points if "seconds" not in point[0]),
        )


def _files(client: Any, run: str, folder: str | None) -> int:
    """Return how many files a run has below a folder."""
    found = client.list_artifacts(run, folder)
    return sum(_files(client, run, one.path) if one.is_dir else 1 for one in found)
