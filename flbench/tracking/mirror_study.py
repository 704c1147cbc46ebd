"""A study folder to MLflow: study -> method -> trial -> seed, as nested runs.

MLflow's tables fold the lower ones. So a method's run also has the curve and the parameters of its
best trial and the mean figures of its final seeds, and the study's run those of the best method. It
gets them once the search is over: MLflow keeps what it was told.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from flbench.core.documents import as_data_error, read_yaml, unix_milliseconds
from flbench.core.errors import DataError
from flbench.results.study_folder import read_header
from flbench.tracking import mirror_run as runs
from flbench.tracking import mlflow_figures, mlflow_files, mlflow_names, mlflow_view
from flbench.tracking.mirror_run import Ending
from flbench.tracking.mlflow_entry import KEY, Entry, Place, Sent
from flbench.tracking.mlflow_store import Store
from flbench.tracking.parent_runs import draw_scores, show_best, show_finals
from flbench.tracking.study_folder import TrialFolder, best_folder, trial_folders

STUDY: Final = "flbench.study"
VIEW: Final = "mlflow.flbench.view"
REPORTS: Final = ("study.json", "trials.csv", "study.md", "results.json", "report.html")
TRIAL_FILES: Final = ("config.yaml", "trial.json")
STATUS: Final = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "stopped": "KILLED",  # by the scheduler
    "diverged": "FAILED",
    "failed": "FAILED",
}
PICTURES: Final = "pictures"
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
        self._header = read_header(path)
        self._id = self._header.id
        with as_data_error(path / "study.json"):
            self._started = unix_milliseconds(self._header.created)
        self._experiment = store.experiment(experiment or self._named())
        self._known = {
            run.data.tags.get(KEY): run for run in store.runs(self._experiment, STUDY, self._id)
        }
        self._entries: dict[str, Entry] = {}
        self._done: dict[Path, tuple[Any, ...]] = {}
        self._damaged: list[DataError] = []

    def send(self, ending: Ending | None) -> None:
        """Send what is new; `sent` counts it.

        Args:
            ending: of the process that drives the study; None while it goes on.

        Raises: DataError, after all else was sent, if files are damaged.
        """
        self._damaged = []
        live = ending is None or (ending == "unknown" and runs.is_held(self._path))
        resting = "RUNNING" if live else runs.STATUS.get(ending or "", "KILLED")
        root = self._entry("", self._id, None, "study")
        root.know({key: mlflow_names.text(getattr(self._header, key)) for key in SETTINGS})
        found = [self._method(name, root, resting) for name in self._header.methods]
        with self._noting():
            self._report(root)
        best = [trial for _, trial in found if trial is not None]
        over = all(whole for whole, _ in found)
        if best and len(best) == len(found):
            first = max(best, key=lambda folder: folder.trial.score or 0.0)
            with self._noting():
                show_best(root, first, self._configuration(first))
            root.mark({"best_method": first.trial.method})
        self._end(root, "FINISHED" if over else resting)
        self._view(root)
        if self._damaged:
            raise DataError("\n".join(dict.fromkeys(map(str, self._damaged))))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Remember a file that is damaged: the rest of the study comes first."""
        try:
            yield
        except DataError as error:
            self._damaged.append(error)

    def _method(self, method: str, root: Entry, resting: str) -> tuple[bool, TrialFolder | None]:
        """Send a method with its trials; return whether it is over, and the winner if it is known.

        Args:
            method: its name.
            root: the study's run.
            resting: the status of what is not over.
        """
        number = list(self._header.methods).index(method)
        colour = mlflow_view.COLOURS[number % len(mlflow_view.COLOURS)]
        tags = {"algorithm": method, mlflow_view.COLOUR: colour}
        entry = self._entry(f"methods/{method}", method, root.id, "method", tags)
        trials, unknown = trial_folders(self._path / "trials" / method)
        finals, damaged = trial_folders(self._path / "finals" / method)
        self._damaged += [*unknown, *damaged]
        for trial in trials:
            with self._noting():
                self._trial(trial, entry, resting)
        for trial in finals:
            above = self._entries.get(f"trials/{method}/{trial.parent_index:03d}")
            if above is None and unknown:
                continue  # its place in the tree is below a trial that cannot be read
            with self._noting():
                self._trial(trial, above or entry, resting)
        done = [folder for folder in trials if folder.trial.state != "running"]
        draw_scores(entry, done)
        # Final trainings begin when the search is over; a live one may still add a trial. MLflow
        # would keep a winner for ever, so none is shown while a trial cannot be read.
        ended = resting != "RUNNING" and len(done) >= self._header.trials
        searched = not unknown and (bool(finals) or ended)
        best, seeds = best_folder(trials) if searched else None, self._header.seeds
        with self._noting():
            if best is not None:
                show_best(entry, best, self._configuration(best))
            show_finals(entry, finals, best, seeds)
        for picture in self._pictures(f"{method}-parallel.png"):
            entry.file(picture, PICTURES)
        variants = 0 if best is None else 1 if best.trial.index == 0 else 2
        trained = [folder for folder in finals if folder.trial.state != "running"]
        over = searched and len(trained) >= seeds * variants
        self._end(entry, "FINISHED" if over else resting)
        return over, best

    def _trial(self, folder: TrialFolder, above: Entry, resting: str) -> None:
        """Send a trial if its folder has changed since the last time."""
        trial, path = folder.trial, folder.path
        status = STATUS.get(trial.state, "KILLED") if trial.state != "running" else resting
        signature = (*folder.file_versions(), status)
        if self._done.get(path) == signature:
            return
        key = path.relative_to(self._path).as_posix()
        tags = {"algorithm": trial.method, "seed": str(trial.seed)}
        kind = "final" if folder.is_final else "trial"
        entry = self._entry(key, folder.name, above.id, kind, tags, folder.started)
        if status == "RUNNING":
            entry.end(status)
        entry.know({name: mlflow_names.text(value) for name, value in trial.params.items()})
        if folder.is_final:
            entry.know(mlflow_names.parameters(read_yaml(path / "config.yaml")))
            runs.send_folder(entry, path, over=status != "RUNNING")
        mlflow_figures.send(entry, path / "metrics.csv", over=status != "RUNNING")
        if status != "RUNNING":
            mlflow_files.send(entry, path, TRIAL_FILES)
            if trial.score is not None:
                entry.conclude({"score": trial.score}, trial.round)
            entry.end(status, folder.ended or self._last_sign())
        state = trial.state if trial.state != "running" else status.lower()
        entry.mark({"state": state, "reason": trial.reason, "variant": trial.variant})
        self._done[path] = signature

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
            header, whole = self._header, f"{self._id}/{key}" if key else self._id
            revision = header.git_revision
            shared = {
                STUDY: self._id,
                "kind": kind,
                "dataset": header.dataset,
                "partition": header.partition_hash,
                "objective": f"validation/{header.metric}",
                "git_revision": revision,
                "mlflow.source.git.commit": revision,
                "seed": str(header.seed),
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
        for picture in self._pictures("*.png"):
            root.file(picture, PICTURES)
        # Older studies have the partition in their final trainings alone.
        for file in [
            *self._path.glob("partition.npz"),
            *self._path.glob("finals/*/*/partition.npz"),
        ]:
            mlflow_files.send_partition(root, file.parent)
            mlflow_files.send_data(root, file.parent)
            break

    def _pictures(self, pattern: str) -> list[Path]:
        """Return pictures of the study's report: of each method its parameters and scores."""
        return sorted((self._path / PICTURES).glob(pattern))

    def _view(self, root: Entry) -> None:
        """Set the study's own views of the table: its runs with what was searched, its methods."""
        searched = {name for method in self._header.methods.values() for name in method.defaults}
        state = mlflow_view.of_study(self._id, searched)
        digest = sha256(state.encode()).hexdigest()
        if root.tags.get(VIEW) != digest:
            self._store.view(self._experiment, self._id, state)
            methods_view = mlflow_view.of_methods(self._id)
            self._store.view(self._experiment, f"{self._id}-methods", methods_view)
            root.mark({VIEW: digest})

    def _configuration(self, folder: TrialFolder) -> dict[str, Any]:
        """Return a trial's configuration, or at least its method's."""
        base = self._path / "methods" / f"{folder.trial.method}.yaml"
        return read_yaml(folder.path / "config.yaml") or read_yaml(base)

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
            tracking = read_yaml(file).get("tracking")
            with as_data_error(file):
                if named := (tracking or {}).get("experiment"):
                    return str(named)
        return f"{self._header.dataset}-{self._header.scheme}"
