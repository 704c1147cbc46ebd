"""Sending the folder of a comparison to MLflow as a tree of runs: comparison, methods, cells.

MLflow's tables fold the lower runs. Therefore a method's run also has the mean metrics of its
finished cells, and the run of the comparison has the figures of the report's leaderboard, such as
`accuracy/METHOD` and `macro_f1/METHOD`, beside the files of the report.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from flbench.comparison.folder import (
    MARKER,
    CellEntry,
    read_cells,
    read_design,
)
from flbench.config.sources import leaves
from flbench.core.documents import as_data_error, read_json
from flbench.core.files import is_locked
from flbench.jobs.folder import FAILURES, read_failures
from flbench.tracking import mirror_run, mlflow_files, mlflow_names, mlflow_view
from flbench.tracking.mirror import Outcome
from flbench.tracking.mirror_tree import TreeMirror, file_versions
from flbench.tracking.mlflow_run import MlflowRun
from flbench.tracking.mlflow_store import Store
from flbench.tracking.study_folder import mean_metrics

COMPARISON_TAG: Final = "flbench.comparison"
"""Tag with the id of the comparison, on all of its runs and models."""
REPORTS: Final = (MARKER, FAILURES, "report.html", "report.md", "report.json")
TABLES: Final = (
    *("leaderboard", "scores", "pairs", "classes", "clients", "client_spread", "new_clients"),
    "targets",
)
"""Tables of the report that MLflow's pages show as tables; the curves are those of the cells."""
BEST: Final = "best/test/"
LONGEST: Final = 500  # characters of a parameter or a tag


class ComparisonMirror(TreeMirror):
    """Sends the folder of a comparison to MLflow, as far as it is written.

    Args:
        store: An open store.
        folder: Folder of the comparison.
        experiment: Name of the experiment; None for the one that the configuration names.
        only: Names of the cells to send; None for all, with the report.
    """

    kind = "comparison"
    tag = COMPARISON_TAG
    marker = MARKER
    changing = "cells/*/metrics.csv"

    def __init__(
        self,
        store: Store,
        folder: Path,
        experiment: str | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self._only = only
        self._design, about = read_design(folder)
        self._cells = read_cells(folder)
        with as_data_error(folder / MARKER):
            name, created = str(about["id"]), str(about["created"])
        super().__init__(
            store,
            folder,
            name=name,
            created=created,
            experiment=experiment or self._experiment_name(),
        )
        self._sent_versions: dict[str, tuple[Any, ...]] = {}
        self._sent_means: dict[str, tuple[int, dict[str, dict[str, float]]]] = {}

    def _send_tree(self, root: MlflowRun, unfinished: str) -> None:
        failures = read_failures(self._folder)
        root.log_parameters(self._parameters())
        means = {}
        for method in dict.fromkeys(cell.method for cell in self._cells):
            mine = [cell for cell in self._cells if cell.method == method]
            if self._only is None or any(cell.name in self._only for cell in mine):
                means[method] = self._send_method(method, mine, root, failures, unfinished)
        if self._only is None:
            self._send_root(root, means, failures, unfinished)

    def _shared_tags(self) -> dict[str, str | None]:
        return {"objective": "validation/accuracy"}

    def _send_method(
        self,
        method: str,
        cells: Sequence[CellEntry],
        root: MlflowRun,
        failures: Mapping[str, str],
        unfinished: str,
    ) -> dict[str, dict[str, float]]:
        """Send a method with its cells, and return the means of those that are finished.

        Args:
            method: Label of the method.
            cells: Its cells.
            root: Run of the comparison.
            failures: Reasons of the cells that failed, by their names.
            unfinished: MLflow's status of what is not over.

        Returns:
            See `_means`; an empty dict before all cells are over.
        """
        methods = list(dict.fromkeys(cell.method for cell in self._cells))
        run, tags = self._method_run(method, methods.index(method), "method", root)
        for cell in cells:
            begun = (self._path(cell) / "config.yaml").is_file()
            if begun and (self._only is None or cell.name in self._only):
                with self._collect_errors(self._path(cell)):
                    self._send_cell(cell, run, failures.get(cell.name), unfinished, tags)
        if self._only is not None:
            return {}
        finished = [cell for cell in cells if self._is_finished(cell, failures)]
        is_over = all(cell in finished or cell.name in failures for cell in cells)
        none: dict[str, dict[str, float]] = {}
        known, means = self._sent_means.get(method, (0, none))
        # MLflow cannot delete a mean of fewer cells, so it is sent when no cell is left. One that
        # changes, because repetitions are added, is the later one in its curve.
        if is_over and len(finished) > known:
            with self._collect_errors():
                means = self._means(finished)
            run.log_metrics(_with_places(means), len(finished))
            self._sent_means[method] = len(finished), means
        self._set_status(run, _status(cells, finished, failures, unfinished))
        return means

    def _means(self, finished: Sequence[CellEntry]) -> dict[str, dict[str, float]]:
        """Return the mean metrics of a method's cells: of all as "", and of each place by its name.

        A comparison of one place has those of all alone.
        """
        means = {"": mean_metrics([self._path(cell) for cell in finished])}
        if self._has_places():
            for place in dict.fromkeys(cell.place for cell in finished):
                mine = [self._path(cell) for cell in finished if cell.place == place]
                means[place] = mean_metrics(mine)
        return means

    def _send_cell(
        self,
        cell: CellEntry,
        parent: MlflowRun,
        reason: str | None,
        unfinished: str,
        tags: Mapping[str, str],
    ) -> None:
        """Send a cell, if its folder has changed since the last time.

        Args:
            cell: The cell.
            parent: Run of its method.
            reason: Why it failed; None if it did not.
            unfinished: MLflow's status of what is not over.
            tags: Tags of the method.
        """
        path = self._path(cell)
        is_finished = (path / "summary.json").is_file()
        if reason is not None:
            status = "FAILED"
        elif is_finished:
            status = "FINISHED"
        elif unfinished != "RUNNING" or is_locked(path):
            status = unfinished
        else:  # it waits to be continued
            status = "KILLED"
        files = file_versions(path, "config.yaml", "metrics.csv", "summary.json")
        version = (files, status, reason)
        if self._sent_versions.get(cell.name) == version:
            return
        about = mirror_run.describe(path)
        own = {
            **tags,
            **about.tags,
            "setting": cell.place,
            "repetition": str(cell.repetition + 1),
        }
        # MLflow's tables show only the first characters: they must tell the runs apart.
        words = [cell.name.rpartition("-")[2], cell.method]
        if self._has_places():
            has_data_sets = len({one.data for one in self._cells}) > 1
            words.append(cell.place if has_data_sets else cell.place.partition(", ")[2])
        name = " ".join(words)
        run = self._run(f"cells/{cell.name}", name, parent.id, "cell", own, about.started)
        if status == "RUNNING":
            run.set_status(status)
        known = len(self._kept.errors)
        with self._collect_errors(path):
            run.log_parameters(mlflow_names.parameters(about.config))
        mirror_run.send_folder(run, path, self._kept, is_over=status != "RUNNING")
        if is_finished:
            with self._collect_errors():
                hashes = {
                    name: read_json(path / "summary.json").get(name)
                    for name in ("config_hash", "weights_digest")
                }
                run.set_tags(hashes)
        if status != "RUNNING":
            ended = None
            with self._collect_errors():
                ended = mirror_run.end_time(path, run.start)
            run.set_status(status, ended)
        run.set_tags({"state": status.lower(), "reason": reason and _short(reason)})
        if len(self._kept.errors) == known:
            self._sent_versions[cell.name] = version

    def _send_root(
        self,
        root: MlflowRun,
        means: Mapping[str, Mapping[str, Mapping[str, float]]],
        failures: Mapping[str, str],
        unfinished: str,
    ) -> None:
        """Send the report, the means of the methods, and the state of the whole comparison."""
        finished = [cell for cell in self._cells if self._is_finished(cell, failures)]
        metrics = ["accuracy"]
        with self._collect_errors():
            metrics = self._metrics_of_report()
        shown: dict[str, float] = {}
        for name in metrics:
            for method, found in means.items():
                values = {
                    place or "mean": of_place[BEST + name]
                    for place, of_place in found.items()
                    if BEST + name in of_place
                }
                if values:
                    value = values if self._has_places() else values["mean"]
                    shown |= mlflow_names.flatten(name, {method: value})
        root.log_metrics(shown, len(finished))
        if unfinished != "RUNNING":  # the report is written at the end
            with self._collect_errors():
                self._send_report(root)
            root.set_tags({"flbench.data": self._data_hashes(finished)})
            with self._collect_errors():
                mlflow_files.send_data_sets(root, map(self._path, finished))
        root.set_tags(
            {
                "design": _digest(self._design.model_dump(mode="json")),
                "vary": self._design.vary,
                "tuned": self._design.tuned,
                "untuned": ", ".join(self._design.untuned) or None,
                "cells": str(len(self._cells)),
                "failed": str(len(failures)),
            }
        )
        self._set_status(root, _status(self._cells, finished, failures, unfinished))
        first = [name for name in shown if name.startswith(f"{metrics[0]}/")]
        first = [name for name in first if "/mean" in name] or first
        names = {name for found in means.values() for name in _with_places(found)}
        self._set_views(root, self._views(names, first, metrics[0]))

    def _metrics_of_report(self) -> list[str]:
        """Return the metrics of the report: that which ranks the methods, and those beside it.

        Before the report is written, it is the accuracy alone.
        """
        file = self._folder / "report.json"
        report = read_json(file)
        with as_data_error(file):
            rows = report.get("leaderboard") or [{}]
            return list(dict.fromkeys([str(report.get("metric") or "accuracy"), *rows[0]]))

    def _send_report(self, root: MlflowRun) -> None:
        """Send the files of the report, as far as they are written."""
        mlflow_files.send(root, self._folder, REPORTS)
        for folder, pattern in (("pictures", "*.svg"), ("tables", "*.csv"), ("tables", "*.tex")):
            root.upload_files(sorted((self._folder / folder).glob(pattern)), folder)
        tables = [self._folder / "tables" / f"{name}.csv" for name in TABLES]
        mlflow_files.send_shown(root, tables)
        # MLflow's page of the run shows the answer as its description.
        file = self._folder / "report.json"
        if answer := read_json(file).get("answer"):
            with as_data_error(file):
                note = _short(" ".join(answer), 4000)
            root.set_tags({"mlflow.note.content": note})

    def _parameters(self) -> dict[str, str]:
        """Return the design, and the values that all cells share."""
        design = self._design
        methods = dict.fromkeys(cell.method for cell in self._cells)
        places = dict.fromkeys(cell.place for cell in self._cells)
        shared = {
            key: value
            for key, value in leaves(dict(design.base.tree)).items()
            if not key.startswith("tracking.")
        }
        found = {
            "methods": ", ".join(methods),
            "places": "; ".join(places),
            "repetitions": str(design.seeds),
            "vary": design.vary,
            **{
                f"grid.{key}": mlflow_names.text(list(values))
                for key, values in design.grid.items()
            },
            **{key: mlflow_names.text(value) for key, value in shared.items()},
        }
        return {key: _short(value) for key, value in found.items()}

    def _data_hashes(self, finished: Sequence[CellEntry]) -> str | None:
        """Return the SHA-256 of the samples of all data sets; None while no cell is finished."""
        found = {}
        for cell in finished:
            about = read_json(self._path(cell) / "partition.json")
            found[str(about.get("dataset"))] = str(about.get("data") or about.get("labels"))
        if len(found) == 1:
            return next(iter(found.values()))
        return json.dumps(found) if found else None

    def _views(self, names: Collection[str], shown: Sequence[str], metric: str) -> dict[str, str]:
        """Return the views of the comparison's runs, of its methods, and of its cells.

        Args:
            names: Names of the methods' metrics.
            shown: Metrics of the root, a value for each method.
            metric: Metric that ranks the methods.
        """
        return {
            "": mlflow_view.comparison_view(self._id, shown, names, metric),
            "methods": mlflow_view.compared_methods_view(self._id, names, metric),
            "cells": mlflow_view.cells_view(self._id, names, metric),
        }

    def _path(self, cell: CellEntry) -> Path:
        return self._folder / "cells" / cell.name

    def _is_finished(self, cell: CellEntry, failures: Mapping[str, str]) -> bool:
        return (self._path(cell) / "summary.json").is_file() and cell.name not in failures

    def _has_places(self) -> bool:
        return len({cell.place for cell in self._cells}) > 1

    def _experiment_name(self) -> str:
        """Return the name of the experiment that the comparison belongs to."""
        tracking = self._design.base.tree.get("tracking") or {}
        if name := tracking.get("experiment"):
            return str(name)
        sets = dict.fromkeys(cell.data for cell in self._cells)
        schemes = dict.fromkeys(cell.scheme for cell in self._cells)
        return _short(f"{'+'.join(sets)}-{'+'.join(schemes)}", 200)


class CellMirror:
    """Sends one cell of a comparison to MLflow, at its place below the comparison.

    Args:
        store: An open store.
        folder: Run folder of the cell.
        experiment: Name of the experiment; None for the one that the configuration names.
    """

    def __init__(self, store: Store, folder: Path, experiment: str | None = None) -> None:
        self._folder = folder
        self._whole = ComparisonMirror(store, folder.parents[1], experiment, {folder.name})
        self.sent = self._whole.sent

    def send(self, outcome: Outcome | None) -> None:
        """Send what MLflow does not have yet; see `ComparisonMirror.send`."""
        self._whole.send(outcome)

    @property
    def finished(self) -> bool:
        """Whether the cell is finished."""
        return (self._folder / "summary.json").is_file()


def _status(
    cells: Sequence[CellEntry],
    finished: Collection[CellEntry],
    failures: Mapping[str, str],
    unfinished: str,
) -> str:
    """Return MLflow's status of a method or of the comparison.

    Args:
        cells: Its cells.
        finished: Those that are finished, at least.
        failures: Reasons of the cells that failed, by their names.
        unfinished: The status while cells are left.
    """
    if all(cell in finished for cell in cells):
        return "FINISHED"
    is_over = all(cell in finished or cell.name in failures for cell in cells)
    return "FAILED" if is_over else unfinished


def _with_places(means: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the means over all cells of a method, and its accuracy in each place."""
    accuracy = f"{BEST}accuracy"
    places = {name: found[accuracy] for name, found in means.items() if name and accuracy in found}
    return {**means.get("", {}), **mlflow_names.flatten("places", places)}


def _digest(value: object) -> str:
    """Return the SHA-256 of a value of JSON."""
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _short(text: str, longest: int = LONGEST) -> str:
    """Return a text with at most some characters, because MLflow's texts have limits.

    >>> _short("fedavg, local", 8)
    'fedavg,…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"
