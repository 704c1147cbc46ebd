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
    """Numbers of what MLflow has.

    Attributes:
        runs: Runs.
        points: Values of metrics.
        files: Files of all runs.
        running: Runs that have not ended.
        values: How often each value of each metric is there, without times.
    """

    runs: int
    points: int
    files: int
    running: int = field(compare=False)
    values: Counter[tuple[str, int, float]] = field(repr=False)


def counts(uri: str, experiment: str, database: str | None = None) -> Counts:
    """Return what MLflow at an address has of an experiment; zeros if it has none.

    Args:
        uri: Address of MLflow.
        experiment: Name of the experiment.
        database: Address of its database, which is asked directly for all but the files.
    """
    with pytest.MonkeyPatch.context() as patch:
        # flbench has set shorter times, with which a busy machine answers too late.
        patch.setenv(stores.TIMEOUT_VARIABLE, "120")
        patch.setenv(stores.RETRIES_VARIABLE, "3")
        return _counted(uri, experiment, database)


def _counted(uri: str, experiment: str, database: str | None) -> Counts:
    store = stores.open_store(database or uri)
    server = store if database is None else stores.open_store(uri)
    found = store.client.get_experiment_by_name(experiment)
    if found is None:
        return Counts(0, 0, 0, 0, Counter())
    number = [found.experiment_id]
    entries = list(store.client.search_runs(number, max_results=ALL))
    points = [point for entry in entries for point in history(store, entry)]
    return Counts(
        len(entries),
        len(points),
        sum(_files(server.client, entry.info.run_id, None) for entry in entries),
        sum(entry.info.status == "RUNNING" for entry in entries),
        Counter(point for point in points if "seconds" not in point[0]),
    )


def _files(client: Any, run: str, folder: str | None) -> int:
    """Return how many files a run has below a folder."""
    found = client.list_artifacts(run, folder)
    return sum(_files(client, run, one.path) if one.is_dir else 1 for one in found)
