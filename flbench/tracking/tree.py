"""What MLflow should have of a folder: a tree of nodes, of which each is a run in MLflow.

A run folder is one node. A comparison has a node for itself, for each method and for each cell; a
study has the trials of its search besides, below their methods. Reading changes nothing, and a
cell or trial that is damaged is left out alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from flbench.comparison.folder import MARKER, CellEntry, is_comparison, read_cells, read_design
from flbench.config.sources import leaves
from flbench.core.documents import as_data_error, read_json, read_yaml
from flbench.core.errors import DataError, shortened
from flbench.core.files import is_locked
from flbench.core.text import printable
from flbench.jobs.folder import read_failures
from flbench.reports.shown import COLOURS
from flbench.results import study_folder
from flbench.results.study_folder import Header, Trial
from flbench.tracking import artifacts, measures
from flbench.tracking.artifacts import File
from flbench.tracking.measures import Point
from flbench.tracking.mirror import Outcome

STATUS: Final = {"failed": "FAILED", "killed": "KILLED", "finished": "KILLED"}
"""MLflow's status of what is not finished, by how the process that wrote it has ended."""
ENDED: Final = "ENDED"
"""Status of what is not finished, and it is not known why: that of MLflow stays, or is KILLED."""
TRIAL_STATUS: Final = {"finished": "FINISHED", "stopped": "KILLED"}
SETTINGS: Final = (
    *("metric", "search", "scheduler"),
    *("trials", "rounds", "seeds", "vary", "seed"),
)
"""Entries of study.json that are parameters of its node."""
OF_ONE: Final = ("seed", "partition.seed", "tracking.", "output.")
"""Parameters that no node above several trainings has."""
_NOT_IN_ID: Final = re.compile("[%'\"`\\\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Node:
    """A run in MLflow.

    Attributes:
        key: Value of the tag `flbench.run`, which finds the run again when a user renames it.
        name: Name that MLflow's pages show.
        kind: run, comparison, study, method, cell or trial.
        started: Start time in ms since 1970.
        parent: Key of the node above; None at the top.
        status: RUNNING, FINISHED, FAILED, KILLED or `ENDED`.
        ended: End time in ms since 1970; None for now.
        tags: Tags by which users filter runs.
        params: Parameters.
        points: Points of metrics with one value.
        curves: Points of curves, in the order of the rows of metrics.csv.
        files: Its files.
    """

    key: str
    name: str
    kind: str
    started: int
    parent: str | None = None
    status: str = "RUNNING"
    ended: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    curves: Sequence[Point] = ()
    files: Sequence[File] = ()


class Tree(NamedTuple):
    """The nodes of a folder.

    Attributes:
        nodes: The nodes, those above others first.
        errors: What could not be read.
        experiment: Name of the experiment that the folder belongs to.
    """

    nodes: list[Node]
    errors: list[DataError]
    experiment: str = ""


@contextmanager
def _keeping(errors: list[DataError]) -> Iterator[None]:
    """Add a DataError inside the context, which ends there, to a list."""
    try:
        yield
    except DataError as error:
        errors.append(error)


def identifier(name: str) -> str:
    """Return the name of a folder as a value that can stand between quotes in MLflow's queries.

    Quotes, backslashes and control characters are percent-encoded; most names do not change.

    >>> identifier("it's"), identifier("fedavg-seed0")
    ('it%27s', 'fedavg-seed0')
    """
    return _NOT_IN_ID.sub(lambda match: quote(match[0], safe="", errors="surrogateescape"), name)


def tracking_of(folder: Path) -> Mapping[str, Any]:
    """Return the section `tracking` with which a folder was written."""
    if is_comparison(folder) and (tracking := read_design(folder)[0].base.tree.get("tracking")):
        return dict(tracking)
    for file in (folder / "config.yaml", *sorted(folder.glob("methods/*.yaml"))):
        if tracking := read_yaml(file).get("tracking"):
            with as_data_error(file):
                return dict(tracking)
    return {}


def tree(folder: Path, outcome: Outcome | None) -> Tree:
    """Return what MLflow should have of the folder of a run, a comparison or a study.

    Raises:
        DataError: The description of the whole folder is damaged, or a file of a run.
    """
    is_live = outcome is None or (outcome == "unknown" and is_locked(folder))
    unfinished = "RUNNING" if is_live else STATUS.get(outcome or "", ENDED)
    if study_folder.is_study(folder) or is_comparison(folder):
        found = _Campaign(folder, unfinished).tree()
    else:
        node, of_run = training(folder, is_over=outcome is not None)
        # MLflow's pages show the date beside the name.
        name = printable(re.sub(r"-\d{8}-\d{6}-", "-", folder.name))
        status = node.status or unfinished
        node = replace(node, key=identifier(folder.name), name=name, status=status)
        found = Tree([node], [], of_run)
    experiment = tracking_of(folder).get("experiment")
    return found._replace(experiment=str(experiment)) if experiment else found


def training(folder: Path, *, is_over: bool, metric: str = "") -> tuple[Node, str]:
    """Read a run folder as one node without key and name. An unchanged one is not read again.

    Args:
        folder: The run folder.
        is_over: Whether nobody writes it. Tables and checkpoints, which change after each
            evaluation, are left out before.
        metric: Metric that ranks the methods; "" for that of the configuration.

    Returns:
        The node, and the name of the experiment.

    Raises:
        DataError: A file is damaged.
    """
    # A file that is being replaced is there the next time.
    versions = []
    for file in sorted([*folder.iterdir(), *folder.glob("checkpoints/*")]):
        with suppress(FileNotFoundError):
            versions.append((str(file), file.lstat().st_mtime_ns, file.lstat().st_size))
    is_over = is_over or (folder / "summary.json").is_file()
    return _training(folder, tuple(versions), is_over, metric)


@lru_cache(maxsize=4096)
def _training(folder: Path, versions: object, is_over: bool, metric: str) -> tuple[Node, str]:
    config = read_yaml(folder / "config.yaml", required=True)
    with as_data_error(folder / "config.yaml"):
        tags = {key: str(config[key]["name"]) for key in ("algorithm", "data", "model")}
        tags = {"method": tags["algorithm"], "dataset": tags["data"], "model": tags["model"]}
        tags["seed"] = str(config["seed"])
        experiment = f"{tags['dataset']}-{config['partition']['scheme']}"
        best = config.get("evaluation", {}).get("best") or {}
        metric = metric or str(best.get("metric") or "accuracy")
    provenance, about = (read_json(folder / f"{name}.json") for name in ("provenance", "partition"))
    if module := provenance.get("module"):  # it makes its own optimizer
        train = {key: value for key, value in config["train"].items() if key != "optimizer"}
        config = {**config, "train": train, "module": module}
    if revision := provenance.get("git_revision"):
        tags["mlflow.source.git.commit"] = str(revision)
    tags |= {"partition": str(about["hash"])} if "hash" in about else {}
    curves = measures.curves(folder / "metrics.csv", metric)
    values = measures.values(folder, metric, len({name for name, _, _ in curves}))
    if folder.parents[1].name == "trials" and study_folder.is_study(folder.parents[2]):
        files = artifacts.found(folder, artifacts.OF_TRIAL)
    else:
        files = artifacts.found(folder, artifacts.OF_RUN)
        if is_over:
            files += artifacts.found(folder, artifacts.OF_RESULTS) + artifacts.checkpoints(folder)
    started, ended = _times(folder, provenance)
    node = Node(
        *("", "", "run", started, None),
        status="FINISHED" if (folder / "summary.json").is_file() else "",
        ended=ended,
        tags=tags,
        params=params_of(config),
        points=values,
        curves=curves,
        files=files,
    )
    return node, experiment


def params_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a configuration by their dotted paths."""
    flat = leaves(dict(config))
    return {
        key: measures.text(value) for key, value in flat.items() if not key.startswith("tracking.")
    }


def _times(folder: Path, provenance: Mapping[str, Any]) -> tuple[int, int]:
    """Return when a run began and ended, in ms since 1970.

    For a finished run, interruptions are left out, so that the duration in MLflow is the time that
    the run took.
    """
    begun, changed = folder / "config.yaml", folder / "metrics.csv"
    started, ended = _written(begun), _written(changed if changed.is_file() else begun)
    with as_data_error(folder / "provenance.json"):
        started = milliseconds(provenance.get("started")) or started
    summary = read_json(folder / "summary.json")
    with as_data_error(folder / "summary.json"):
        ended = started + int(1000 * summary["seconds"]["total"]) if summary else ended
    return started, ended


def _written(file: Path) -> int:
    """Return when a file was last written, in ms since 1970."""
    return int(file.stat().st_mtime * 1000)


def milliseconds(time: str | None) -> int:
    """Return a time in ISO 8601 format as milliseconds since 1970-01-01 UTC; 0 for None."""
    return 0 if time is None else round(datetime.fromisoformat(time).timestamp() * 1000)


class _Campaign:
    """Reads the folder of a comparison or of a study, whose repetitions are cells.

    Args:
        folder: The folder.
        unfinished: Status of what is not finished.

    Raises:
        DataError: comparison.json or study.json is damaged.
    """

    def __init__(self, folder: Path, unfinished: str) -> None:
        self._folder, self._unfinished = folder, unfinished
        self._errors: list[DataError] = []
        self._study: Header | None = None
        self._about, self._failures = read_json(folder / MARKER), read_failures(folder)
        self._cells = read_cells(folder) if self._about else []
        untuned = self._about.get("untuned")
        if self._about.get("tuned") and untuned:  # the names are those of the report
            with as_data_error(folder / MARKER):
                self._cells = [
                    one
                    if one.own or one.method.partition(" ")[0] in untuned
                    else replace(one, method=f"{one.method} tuned")
                    for one in self._cells
                ]
        marker, self._metric = folder / MARKER, ""
        if study_folder.is_study(folder):
            self._study, marker = study_folder.read_header(folder), folder / "study.json"
            self._metric = self._study.metric
        with as_data_error(marker):
            about = vars(self._study) if self._study else self._about
            self._name, self._started = str(about["id"]), milliseconds(about["created"])
        self._key = identifier(self._name)
        self._best: dict[str, str] = {}  # tags with the best parameters of the methods
        self._has_places = len({cell.place for cell in self._cells}) > 1

    def tree(self) -> Tree:
        """Return the nodes of the folder."""
        searched = self._study.methods if self._study else ()
        methods = dict.fromkeys((*searched, *(cell.method for cell in self._cells)))
        trials, below = [*self._trials()], [*self._cells_begun()]
        above: list[Node] = []
        for method in methods:
            own = [trial for trial, _ in trials if trial.method == method.removesuffix(" tuned")]
            cells = [one for one in below if one.tags["method"] == method]
            node = self._method(method, cells, own)
            colour = COLOURS[sorted(methods).index(method) % len(COLOURS)]
            above.append(replace(node, tags={**node.tags, "mlflow.runColor": colour}))
        below += [node for _, node in trials]
        sets, schemes = ({getattr(c, k): 0 for c in self._cells} for k in ("data", "scheme"))
        experiment = f"{'+'.join(sets)}-{'+'.join(schemes)}"[:200]
        if self._study:
            experiment = f"{self._study.dataset}-{self._study.scheme}"
        return Tree([self._root(above, below), *above, *below], self._errors, experiment)

    def _cells_begun(self) -> Iterator[Node]:
        """Yield the nodes of the cells that have begun."""
        for cell in self._cells:
            if (self._folder / "cells" / cell.name / "config.yaml").is_file():
                with _keeping(self._errors):
                    yield self._cell(cell, self._folder / "cells" / cell.name)

    def _cell(self, cell: CellEntry, path: Path) -> Node:
        """Return the node of a cell."""
        reason = self._failures.get(cell.name)
        if reason is not None:
            status = "FAILED"
        elif (path / "summary.json").is_file():
            status = "FINISHED"
        else:  # one that nobody trains waits to be continued
            is_live = self._unfinished != "RUNNING" or is_locked(path)
            status = self._unfinished if is_live else ENDED
        # MLflow's tables show only the first characters: they must tell the runs apart.
        words = [cell.name.rpartition("-")[2], cell.method, *([cell.place] * self._has_places)]
        node, _ = training(path, is_over=status != "RUNNING", metric=self._metric)
        return replace(
            node,
            key=f"{self._key}/cells/{identifier(cell.name)}",
            name=printable(" ".join(words)),
            kind="cell",
            parent=self._method_key(cell.method),
            status=status,
            tags={**node.tags, "method": cell.method, "setting": cell.place} | _reason(reason),
        )

    def _trials(self) -> Iterator[tuple[Trial, Node]]:
        """Yield the trials with their nodes."""
        for file in sorted(self._folder.glob("trials/*/*/trial.json")):
            with _keeping(self._errors):
                trial = study_folder.read_trial(file)
                if self._study is None or trial.method not in self._study.methods:
                    raise DataError(
                        f"{file} is damaged (study.json does not list its method). Move its folder"
                        " away."
                    )
                yield trial, self._trial(trial, file.parent)

    def _trial(self, trial: Trial, path: Path) -> Node:
        """Return the node of a trial."""
        is_running = trial.state == "running"
        node = Node("", "", "trial", self._started)  # it may be refused before it has a run folder
        if (path / "config.yaml").is_file():
            node, _ = training(path, is_over=not is_running, metric=self._metric)
        score = None if is_running else trial.score
        with as_data_error(path / "trial.json"):
            started, ended = milliseconds(trial.started), milliseconds(trial.ended)
        return replace(
            node,
            key=f"{self._key}/trials/{identifier(trial.method)}/{path.name}",
            name=printable(f"{trial.method} {path.name}"),
            kind="trial",
            started=started or node.started,
            parent=self._method_key(trial.method),
            status=self._unfinished if is_running else TRIAL_STATUS.get(trial.state, "FAILED"),
            ended=ended or None,
            tags={"method": trial.method, "state": trial.state} | _reason(trial.reason),
            params={key: measures.text(value) for key, value in trial.params.items()},
            points=[] if score is None else [Point("score", score, trial.round)],
        )

    def _method_key(self, method: str) -> str:
        return f"{self._key}/methods/{identifier(method)}"

    def _method(self, method: str, cells: Sequence[Node], trials: Sequence[Trial]) -> Node:
        """Return the node of a method: means of its cells, and scores of its trials.

        MLflow cannot delete a mean of fewer cells, so they are sent when no cell is left. The score
        of `METHOD` is that of its default parameters, and of `METHOD tuned` that of the best ones.
        """
        names = [cell.name for cell in self._cells if cell.method == method]
        finished = [node for node in cells if node.status == "FINISHED"]
        left = len(names) - len(finished) - len(self._failures.keys() & set(names))
        points = measures.means([node.points for node in finished]) if not left else []
        if self._has_places and not left:
            for place in dict.fromkeys(node.tags["setting"] for node in finished):
                mine = [one.points[:1] for one in finished if one.tags["setting"] == place]
                points += _renamed(measures.means(mine), place)
        over = [one for one in trials if one.state != "running"]
        scores = {one.index: one.score for one in over if one.score is not None}
        best, is_searched = None, False
        if self._study:
            is_searched = method in self._study.methods
            of = method.removesuffix(" tuned")
            most = self._study.trials_of(of) if of in self._study.methods else self._study.trials
            left += max(0, most - len(over))
            best = study_folder.best_trial(over) if not left else None
            if best is not None:
                values = (f"{key}={measures.text(one)}" for key, one in best.params.items())
                self._best[f"best.{measures.safe(best.method)}"] = ", ".join(values)
            left += max(0, self._study.seeds - len(names))
            index = best.index if best and not is_searched else 0
            if index in scores and not left:
                points = [*points, Point("score", scores[index], len(over))]
        status = self._unfinished if left else "FINISHED"
        return Node(
            *(self._method_key(method), printable(method), "method", self._started, self._key),
            status="FAILED" if not left and len(finished) < len(names) else status,
            ended=self._last_change(cells),
            tags={"method": method} | ({} if best is None else {"best_trial": f"{best.index:03d}"}),
            params={"method": method} | (_shared(finished) if not left else {}),
            points=points,
            curves=[Point("search/score", scores[k], k) for k in scores] if is_searched else (),
        )

    def _root(self, methods: Sequence[Node], below: Sequence[Node]) -> Node:
        """Return the node of the whole: the figures of its methods, and its report."""
        files, states = list[File](), {node.status for node in methods}
        status = "FAILED" if "FAILED" in states else "FINISHED"
        if states - {"FINISHED", "FAILED"}:
            status = self._unfinished
        report: dict[str, Any] = {}
        with _keeping(self._errors):
            read = read_json(self._folder / "report.json")
            with as_data_error(self._folder / "report.json"):
                first = [dict(one) for one in read.get("leaderboard") or ()][:1]
                answer = " ".join(str(one) for one in read.get("answer") or ())
                report = {"metric": read.get("metric"), "row": [*first, {}][0], "answer": answer}
        metric = self._metric or str(report.get("metric") or "accuracy")
        ranked = measures.named(metric)
        tags = {"metric": ranked, **self._best}
        cells = [node for node in below if node.kind == "cell" and node.status == "FINISHED"]
        shared: Mapping[str, str] = {}
        if self._unfinished != "RUNNING":  # the report is written at the end
            shared = _shared(cells)
            files = artifacts.found(self._folder, artifacts.OF_CAMPAIGN)
            if report.get("answer"):
                # MLflow's page of the run shows the answer as its description.
                tags["mlflow.note.content"] = shortened(report["answer"], 4000)
        if self._study:
            params = {key: measures.text(getattr(self._study, key)) for key in SETTINGS}
        else:
            params = {key: measures.text(self._about.get(key)) for key in ("seeds", "vary")}
            params |= {key: one for key, one in shared.items() if not key.startswith("algorithm.")}
        return Node(
            *(self._key, printable(self._name), "study" if self._study else "comparison"),
            self._started,
            status=status,
            ended=self._last_change(below),
            tags=tags,
            params=params,
            points=self._of_methods(methods, ranked, report.get("row", {})),
            files=files,
        )

    def _of_methods(
        self, methods: Sequence[Node], ranked: str, row: Mapping[str, Any]
    ) -> list[Point]:
        """Return metrics of the methods, as `accuracy/hfcd`: that which ranks them comes first.

        Recall of rare classes comes second; others follow if there are few methods.
        """
        found = {node.name: {one.name: one for one in node.points} for node in methods}
        known = {name for points in found.values() for name in points}
        names = [name for name in dict.fromkeys((ranked, "rare_recall", *row)) if name in known]
        return [
            point
            for name in names[: max(2, measures.MOST // max(1, len(methods)))]
            for method, points in found.items()
            for point in _renamed([points[name]] if name in points else [], method)
        ]

    def _last_change(self, nodes: Sequence[Node]) -> int:
        """Return the end of the last of some nodes, in ms since 1970."""
        return max((node.ended or 0 for node in nodes), default=0) or self._started


def _renamed(points: Sequence[Point], ending: str) -> list[Point]:
    """Return points with a further part of their names."""
    return [one._replace(name=f"{one.name}/{measures.safe(ending)}") for one in points]


def _shared(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the parameters that several trainings share."""
    first, *others = [node.params for node in nodes] or [{}]
    return {
        key: value
        for key, value in first.items()
        if not key.startswith(OF_ONE) and all(one.get(key) == value for one in others)
    }


def _reason(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {"reason": shortened(str(reason), 500)}
