"""A study folder to MLflow: study -> method -> trial -> seed, as nested runs.

MLflow's tables fold the lower ones. So a method's run also has the curve and the parameters of its
best trial and the mean figures of its final seeds, and the study's run those of the best method. It
gets them once the search is over: MLflow keeps what it was told.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import yaml

from flbench.errors import DataError
from flbench.tracking import mirror_run as runs
from flbench.tracking import mlflow_figures, mlflow_files, mlflow_names, mlflow_view
from flbench.tracking.mirror_run import Ending, milliseconds
from flbench.tracking.mlflow_entry import KEY, Entry, Place, Point, Sent
from flbench.tracking.mlflow_store import Store
from flbench.tracking.study_folder import Trial, mean_figures, read_yaml, trials_in, winner

STUDY: Final = "flbench.study"
CURVE: Final = "mlflow.flbench.curve"
VIEW: Final = "mlflow.flbench.view"
SCORED: Final = "mlflow.flbench.scored"
REPORTS: Final = ("study.json", "trials.csv", "study.md", "results.json", "report.html")
TRIAL_FILES: Final = ("config.yaml", "trial.json")
STATUS: Final = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "stopped": "KILLED",  # by the scheduler
    "diverged": "FAILED",
    "failed": "FAILED",
}
SETTINGS: Final = ("metric", "search", "scheduler", "trials", "rounds", "seeds", "seed")


class StudyMirror:
    """Sends a study folder to MLflow, as far as it is written.

    Args:
        store: open.
        path: the folder.
        experiment: another one than the folder says.
    """

    finished = False  # only who drives the study knows

    def __init__(self, store: Store, path: Path, experiment: str | None = None) -> None:
        self.sent = Sent()
        self._store, self._path = store, path
        try:
            self._about = runs.read_json(path / "study.json")
            self._id = str(self._about["id"])
            self._started = milliseconds(self._about["created"])
            name = experiment or self._named()
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            raise DataError(f"the study {path} is damaged ({error}).") from error
        self._experiment = store.experiment(name)
        self._known = {
            run.data.tags.get(KEY): run for run in store.runs(self._experiment, STUDY, self._id)
        }
        self._entries: dict[str, Entry] = {}
        self._done: dict[Path, tuple[Any, ...]] = {}

    def send(self, ending: Ending | None) -> None:
        """Send what is new; `sent` counts it.

        Args:
            ending: of the process that drives the study; None while it goes on.
        """
        live = ending is None or (ending == "unknown" and runs.is_held(self._path))
        resting = "RUNNING" if live else runs.STATUS.get(ending or "", "KILLED")
        root = self._entry("", self._id, None, "study")
        root.know({key: mlflow_names.text(self._about.get(key)) for key in SETTINGS})
        found = [self._method(name, root, resting) for name in self._about["methods"]]
        self._report(root)
        best = [trial for _, trial in found if trial is not None]
        over = all(whole for whole, _ in found)
        if best and len(best) == len(found):
            first = max(best, key=lambda trial: trial.score or 0.0)
            _show_best(root, first, self._configuration(first))
            root.mark({"best_method": first.about["method"]})
        self._end(root, "FINISHED" if over else resting)
        self._view(root)

    def _method(self, method: str, root: Entry, resting: str) -> tuple[bool, Trial | None]:
        """Send a method with its trials; return whether it is over, and the winner if it is known.

        Args:
            method: its name.
            root: the study's run.
            resting: the status of what is not over.
        """
        number = list(self._about["methods"]).index(method)
        colour = mlflow_view.COLOURS[number % len(mlflow_view.COLOURS)]
        tags = {"algorithm": method, mlflow_view.COLOUR: colour}
        entry = self._entry(f"methods/{method}", method, root.id, "method", tags)
        trials = trials_in(self._path / "trials" / method)
        finals = trials_in(self._path / "finals" / method)
        for trial in trials:
            self._trial(trial, entry, resting)
        for trial in finals:
            above = self._entries.get(f"trials/{method}/{trial.about.get('of') or 0:03d}", entry)
            self._trial(trial, above, resting)
        done = [trial for trial in trials if trial.state != "running"]
        _draw_scores(entry, done)
        # Final trainings begin when the search is over; a live one may still add a trial.
        searched = bool(finals) or (resting != "RUNNING" and len(done) >= self._about["trials"])
        best = winner(trials) if searched else None
        if best is not None:
            _show_best(entry, best, self._configuration(best))
        seeds = int(self._about["seeds"])
        self._show_finals(entry, finals, best, seeds)
        variants = 0 if best is None else 1 if best.about["index"] == 0 else 2
        ended = [trial for trial in finals if trial.state != "running"]
        over = searched and len(ended) >= seeds * variants
        self._end(entry, "FINISHED" if over else resting)
        return over, best

    def _trial(self, trial: Trial, above: Entry, resting: str) -> None:
        """Send a trial if its folder has changed since the last time."""
        about, key = trial.about, trial.path.relative_to(self._path).as_posix()
        status = STATUS.get(trial.state, "KILLED") if trial.state != "running" else resting
        signature = (*trial.signature(), status)
        if self._done.get(trial.path) == signature:
            return
        tags = {"algorithm": about["method"], "seed": str(about["seed"])}
        kind, started = "final" if trial.is_final else "trial", milliseconds(about["started"])
        entry = self._entry(key, trial.name, above.id, kind, tags, started)
        if status == "RUNNING":
            entry.end(status)
        entry.know({name: mlflow_names.text(value) for name, value in about["params"].items()})
        if trial.is_final:
            entry.know(mlflow_names.parameters(read_yaml(trial.path / "config.yaml")))
            runs.send_folder(entry, trial.path, over=status != "RUNNING")
        mlflow_figures.send(entry, trial.path / "metrics.csv", over=status != "RUNNING")
        if status != "RUNNING":
            mlflow_files.send(entry, trial.path, TRIAL_FILES)
            if trial.score is not None:
                entry.conclude({"score": trial.score}, int(about["round"]))
            last = about.get("ended")
            entry.end(status, self._last_sign() if last is None else milliseconds(last))
        state = trial.state if trial.state != "running" else status.lower()
        entry.mark({"state": state, "reason": about.get("reason"), "variant": about.get("variant")})
        self._done[trial.path] = signature

    def _show_finals(
        self, entry: Entry, finals: Sequence[Trial], best: Trial | None, seeds: int
    ) -> None:
        """Give a method's run the mean figures of its seeds, once all of a variant are there."""
        means = {}
        for variant in ("tuned", "default"):
            mine = [t for t in finals if t.about["variant"] == variant and t.state == "finished"]
            if mine and len(mine) == seeds:
                means[variant] = mean_figures(mine)
        if best is not None and best.about["index"] == 0 and "default" in means:
            means.setdefault("tuned", means["default"])
        entry.conclude(means.get("tuned", {}))
        default = means.get("default", {})
        entry.conclude({f"default/{name}": value for name, value in default.items()})

    def _entry(
        self,
        key: str,
        name: str,
        parent: str | None,
        kind: str,
        tags: Mapping[str, str] | None = None,
        started: int | None = None,
    ) -> Entry:
        """Return the run in MLflow for a part of the study; it is made if it is not there."""
        if key not in self._entries:
            about, whole = self._about, f"{self._id}/{key}" if key else self._id
            shared = {
                STUDY: self._id,
                "kind": kind,
                "dataset": about["dataset"],
                "partition": about["partition_hash"],
                "objective": f"validation/{about['metric']}",
                "git_revision": about.get("git_revision"),
                "mlflow.source.git.commit": about.get("git_revision"),
                "seed": str(about["seed"]),
                **(tags or {}),
            }
            given = {name: value for name, value in shared.items() if value is not None}
            place = Place(whole, name, started or self._started, parent, given)
            found = self._known.pop(whole, None)
            self._entries[key] = Entry(self._store, self._experiment, place, found, self.sent)
        return self._entries[key]

    def _report(self, root: Entry) -> None:
        """Send the study's own files, and the partition, which all of its runs share."""
        mlflow_files.send(root, self._path, REPORTS)
        shared = next(iter(sorted(self._path.glob("finals/*/*/partition.npz"))), None)
        if shared is not None:
            mlflow_files.send_partition(root, shared.parent)
            mlflow_files.send_data(root, shared.parent)

    def _view(self, root: Entry) -> None:
        """Set the study's own views of the table: its runs with what was searched, its methods."""
        methods = self._about["methods"]
        searched = {name for method in methods.values() for name in method.get("defaults", {})}
        state = mlflow_view.of_study(self._id, searched)
        digest = sha256(state.encode()).hexdigest()
        if root.tags.get(VIEW) != digest:
            self._store.view(self._experiment, self._id, state)
            methods_view = mlflow_view.of_methods(self._id)
            self._store.view(self._experiment, f"{self._id}-methods", methods_view)
            root.mark({VIEW: digest})

    def _configuration(self, trial: Trial) -> dict[str, Any]:
        """Return a trial's configuration, or at least its method's."""
        base = self._path / "methods" / f"{trial.about['method']}.yaml"
        return read_yaml(trial.path / "config.yaml") or read_yaml(base)

    def _end(self, entry: Entry, status: str) -> None:
        """Set the status of a study or a method."""
        entry.end(status, None if status == "RUNNING" else self._last_sign())
        entry.mark({"state": status.lower()})

    def _last_sign(self) -> int:
        """Return when the study was last written to, in ms since 1970."""
        files = [self._path / "study.json", *self._path.glob("*/*/*/trial.json")]
        return max(int(file.stat().st_mtime * 1000) for file in files)

    def _named(self) -> str:
        """Return the experiment that the study belongs to."""
        for file in sorted(self._path.glob("methods/*.yaml")):
            if named := read_yaml(file).get("tracking", {}).get("experiment"):
                return str(named)
        return f"{self._about['dataset']}-{self._about['scheme']}"


def _draw_scores(entry: Entry, trials: Sequence[Trial]) -> None:
    """Draw the scores of trials over their numbers, each once."""
    drawn = entry.tags.get(SCORED, "").split()
    new = [trial for trial in trials if trial.score is not None and trial.path.name not in drawn]
    points = [
        Point("search/score", trial.score or 0.0, trial.about["index"], 1000 * trial.about["index"])
        for trial in new
    ]
    if new:
        entry.draw(points, {SCORED: " ".join(sorted([*drawn, *(t.path.name for t in new)]))})


def _show_best(entry: Entry, best: Trial, config: Mapping[str, Any]) -> None:
    """Give a run the parameters and the curve of the best trial below it."""
    chosen = {name: mlflow_names.text(value) for name, value in best.about["params"].items()}
    entry.know({**mlflow_names.parameters(config), **chosen})
    entry.conclude({"score": best.score or 0.0}, int(best.about["round"]))
    name = f"{best.about['method']} {best.path.name}"
    if entry.tags.get(CURVE, name) == name:  # MLflow forgets no curve: never two in one
        mlflow_figures.send(entry, best.path / "metrics.csv", over=True)
        entry.mark({CURVE: name, "best_trial": best.path.name})
