"""Reads runs from MLflow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flbench.tracking.store import Store


def entries(store: Store, key: str, value: str) -> list[Any]:
    """Return the runs in MLflow that have a tag."""
    numbers = [item.experiment_id for item in store.client.search_experiments()]
    return list(store.client.search_runs(numbers, f"tags.`{key}` = '{value}'", max_results=1000))


def campaign(store: Store, name: str) -> dict[str, Any]:
    """Return the runs in MLflow of a study or a comparison by key, of which there is one each."""
    numbers = [item.experiment_id for item in store.client.search_experiments()]
    found = [
        run
        for query in (f"= '{name}'", f"LIKE '{name}/%'")
        for run in store.client.search_runs(numbers, f"tags.`flbench.run` {query}")
    ]
    by_key = {
        run.data.tags["flbench.run"].removeprefix(name).removeprefix("/"): run for run in found
    }
    assert len(by_key) == len(found)
    return by_key


def parents(runs: dict[str, Any]) -> dict[str, str | None]:
    """Return the key of the run above each run."""
    keys = {run.info.run_id: key for key, run in runs.items()}
    return {key: keys.get(run.data.tags.get("mlflow.parentRunId")) for key, run in runs.items()}


def artifacts(store: Store, run: Any, folder: str | None = None) -> set[str]:
    """Return the paths of the files of a run."""
    return {item.path for item in store.client.list_artifacts(run.info.run_id, folder)}


def only(store: Store, path: Path) -> Any:
    """Return a run folder's run in MLflow, of which there is one."""
    [found] = entries(store, "flbench.run", path.name)
    return found


def history(store: Store, entry: Any) -> list[tuple[str, int, float]]:
    """Return all points of all curves: name, step, value."""
    return [
        (name, point.step, point.value)
        for name in entry.data.metrics
        for point in store.client.get_metric_history(entry.info.run_id, name)
    ]


def counts(store: Store, path: Path) -> Sequence[int]:
    """Return how much MLflow has of a run."""
    entry = only(store, path)
    files = store.client.list_artifacts(entry.info.run_id)
    return len(entry.data.params), len(history(store, entry)), len(entry.data.tags), len(files)
