"""Sending a study folder to MLflow as a tree of runs: study, methods, trials, final trainings.

MLflow's tables fold the lower runs. Therefore a method has two runs with the names of its two rows
in the report: `METHOD` has the curve and the parameters of the default trial and the mean metrics
of the final trainings with these parameters, and `METHOD tuned` those of the best trial, unless the
default trial is the best one. The study's run has all of these of the best method. They are sent
when the search is over, because MLflow cannot delete them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flbench.core.documents import as_data_error, read_json, read_yaml
from flbench.results.metrics_file import Row
from flbench.results.study_folder import PERSONAL, read_header
from flbench.tracking import mirror_run, mlflow_files, mlflow_metrics, mlflow_names, mlflow_view
from flbench.tracking.mirror_tree import TreeMirror
from flbench.tracking.mlflow_run import MlflowRun
from flbench.tracking.mlflow_store import Store
from flbench.tracking.parent_runs import mean_final_metrics, send_scores, send_trial
from flbench.tracking.study_folder import TrialFolder, best_folder, trial_folders

STUDY_TAG: Final = "flbench.study"
"""Tag with the id of the study, on all of its runs."""
REPORTS: Final = ("study.json", "trials.csv", "study.md", "results.json", "report.html")
TRIAL_FILES: Final = ("config.yaml", "trial.json")
TRIAL_STATUS: Final = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "stopped": "KILLED",  # by the scheduler
    "diverged": "FAILED",
    "failed": "FAILED",
}
PICTURES: Final = "pictures"
SETTINGS: Final = (
    *("metric", "deployment", "search", "scheduler"),
    *("trials", "rounds", "seeds", "vary", "seed"),
)


@dataclass(frozen=True)
class SentMethod:
    """What is known of a method of a study after it was sent.

    Attributes:
        name: Name of the method.
        parameters: Searched parameters that every trial has. A chart would leave out the trials
            that lack one, because of its condition.
        best: The best trial; None while it is not known.
        label: `METHOD tuned`, or METHOD if the default trial is the best one.
        means: Mean metrics of the final trainings with the best parameters.
        is_over: Whether nothing of the method is left to train.
    """

    name: str
    parameters: frozenset[str]
    best: TrialFolder | None
    label: str
    means: Mapping[str, float]
    is_over: bool


class StudyMirror(TreeMirror):
    """Sends a study folder to MLflow, as far as it is written.

    Args:
        store: An open store.
        folder: The study folder.
        experiment: Name of the experiment; None for the one that the configuration names.
    """

    kind = "study"
    tag = STUDY_TAG
    marker = "study.json"
    changing = "*/*/*/trial.json"

    def __init__(self, store: Store, folder: Path, experiment: str | None = None) -> None:
        self._header = read_header(folder)
        super().__init__(
            store,
            folder,
            name=self._header.id,
            created=self._header.created,
            experiment=experiment or self._experiment_name(folder),
        )
        self._sent_versions: dict[Path, tuple[Any, ...]] = {}

    def _send_tree(self, root: MlflowRun, unfinished: str) -> None:
        root.log_parameters(
            {key: mlflow_names.text(getattr(self._header, key)) for key in SETTINGS}
        )
        methods = [self._send_method(name, root, unfinished) for name in self._header.methods]
        with self._collect_errors():
            self._send_report(root)
        self._send_best_method(root, methods)
        all_over = all(method.is_over for method in methods)
        self._set_status(root, "FINISHED" if all_over else unfinished)
        self._set_views(root, self._views(methods))

    def _shared_tags(self) -> dict[str, str | None]:
        header = self._header
        objective = Row(0, "validation", header.deployment, header.metric, 0.0)
        return {
            "dataset": header.dataset,
            "partition": header.partition_hash,
            "objective": mlflow_names.metric_name(objective),
            "git_revision": header.git_revision,
            "mlflow.source.git.commit": header.git_revision,
            "seed": str(header.seed),
        }

    def _send_best_method(self, root: MlflowRun, methods: Sequence[SentMethod]) -> None:
        """Send trial and means of the method with the highest score to the run of the study.

        Nothing is sent while a method's best trial is not known.
        """
        found = [(method.best, method) for method in methods if method.best is not None]
        if not found or len(found) < len(methods):
            return
        best, method = max(found, key=lambda pair: pair[0].trial.score or 0.0)
        with self._collect_errors():
            send_trial(root, best, self._configuration(best))
        root.log_metrics(method.means)
        root.set_tags({"best_method": method.label, "best_trial": best.path.name})

    def _send_method(self, method: str, root: MlflowRun, unfinished: str) -> SentMethod:
        """Send a method with its trials and final trainings.

        Args:
            method: Name of the method.
            root: Run of the study.
            unfinished: MLflow's status of what is not over.
        """
        number = list(self._header.methods).index(method)
        run, _ = self._method_run(method, number, "algorithm", root)
        runs = [run]
        trials, trial_errors = trial_folders(self._folder / "trials" / method)
        finals, final_errors = trial_folders(self._folder / "finals" / method)
        self._kept.errors += [*trial_errors, *final_errors]
        for trial in trials:
            with self._collect_errors(trial.path):
                self._send_trial(trial, run, unfinished)
        for final in finals:
            parent = self._runs.get(f"trials/{method}/{final.parent_index:03d}")
            if parent is None and trial_errors:
                continue  # it belongs below a trial that cannot be read
            with self._collect_errors(final.path):
                self._send_trial(final, parent or run, unfinished)
        trials_over = [folder for folder in trials if folder.trial.state != "running"]
        finals_over = [folder for folder in finals if folder.trial.state != "running"]
        send_scores(run, trials_over)
        # Final trainings of tuned parameters begin when the search is over, those of the default
        # parameters before or after that. A search without final trainings is over when no trial
        # can be added. MLflow cannot delete a best trial, so none is sent while a trial that is
        # running or cannot be read may be better.
        has_ended = len(trials_over) >= self._header.trials
        is_tuned = any(folder.trial.variant == "tuned" for folder in finals)
        is_over_without = has_ended and (bool(finals) or unfinished != "RUNNING")
        is_searched = not trial_errors and (is_tuned or is_over_without)
        best = best_folder(trials) if is_searched else None
        label, means = method, {}
        with self._collect_errors():
            means = mean_final_metrics(finals, "default", self._header.seeds)
            run.log_metrics(means)
            default = best_folder([folder for folder in trials if folder.trial.index == 0])
            if is_searched and default is not None:
                send_trial(run, default, self._configuration(default))
            if best is not None:
                run.set_tags({"best_trial": best.path.name})
            if best is not None and best.trial.index:
                label = f"{method} tuned"
                tuned = self._tuned_run(method, number, root)
                runs.append(tuned)
                send_trial(tuned, best, self._configuration(best))
                means = mean_final_metrics(finals, "tuned", self._header.seeds)
                tuned.log_metrics(means)
        for picture in self._pictures(f"{method}-parallel.png"):
            run.upload_file(picture, PICTURES)
        # Without a best trial nothing is trained again. If the default parameters are the best,
        # they are trained once.
        variants = 0 if best is None else 1 if best.trial.index == 0 else 2
        is_over = is_searched and len(finals_over) >= self._header.seeds * variants
        for one in runs:
            self._set_status(one, "FINISHED" if is_over else unfinished)
        searched = frozenset(self._header.methods[method].defaults)
        shared = searched.intersection(*(folder.trial.params for folder in trials))
        return SentMethod(method, shared, best, label, means, is_over)

    def _tuned_run(self, method: str, number: int, root: MlflowRun) -> MlflowRun:
        """Return the run of a method's best parameters, with a colour of its own."""
        colours = mlflow_view.COLOURS
        colour = colours[(len(self._header.methods) + number) % len(colours)]
        tags = {"algorithm": method, "variant": "tuned", mlflow_view.COLOUR_TAG: colour}
        label = f"{method} tuned"
        return self._run(f"methods/{label}", label, root.id, "method", tags)

    def _send_trial(self, folder: TrialFolder, parent: MlflowRun, unfinished: str) -> None:
        """Send a trial or a final training, if its folder has changed since the last time."""
        trial, path = folder.trial, folder.path
        is_running = trial.state == "running"
        status = unfinished if is_running else TRIAL_STATUS.get(trial.state, "KILLED")
        version = (*folder.file_versions(), status)
        if self._sent_versions.get(path) == version:
            return
        key = path.relative_to(self._folder).as_posix()
        kind = "final" if folder.is_final else "trial"
        tags = {"algorithm": trial.method, "seed": str(trial.seed)}
        if own := read_json(path / "partition.json").get("hash"):
            tags["partition"] = str(own)
        run = self._run(key, folder.name, parent.id, kind, tags, folder.started)
        is_over = status != "RUNNING"
        if not is_over:
            run.set_status(status)
        known = len(self._kept.errors)
        params = {name: mlflow_names.text(value) for name, value in trial.params.items()}
        with self._collect_errors(path):
            run.log_parameters(params)
        if folder.is_final:
            with self._collect_errors(path):
                run.log_parameters(mlflow_names.parameters(read_yaml(path / "config.yaml")))
            mirror_run.send_folder(run, path, self._kept, is_over=is_over)
        with self._collect_errors(path):
            mlflow_metrics.send(run, path / "metrics.csv", is_over=is_over)
        if is_over:
            mlflow_files.send(run, path, TRIAL_FILES)
            if trial.score is not None:
                run.log_metrics({"score": trial.score}, trial.round)
            run.set_status(status, folder.ended or self._last_change())
        state = status.lower() if is_running else trial.state
        run.set_tags({"state": state, "reason": trial.reason, "variant": trial.variant})
        if len(self._kept.errors) == known:
            self._sent_versions[path] = version

    def _send_report(self, root: MlflowRun) -> None:
        """Send the files of the study itself, and the partition of its search."""
        mlflow_files.send(root, self._folder, REPORTS)
        for picture in self._pictures("*.png"):
            root.upload_file(picture, PICTURES)
        # A study of an earlier version has its partition in the final trainings only.
        partitions = [
            *self._folder.glob("partition.npz"),
            *self._folder.glob("finals/*/*/partition.npz"),
        ]
        if partitions:
            mlflow_files.send_partition(root, partitions[0].parent)
            mlflow_files.send_data_set(root, partitions[0].parent)

    def _pictures(self, pattern: str) -> list[Path]:
        """Return pictures of the study's report: parameters against score for each method."""
        return sorted((self._folder / PICTURES).glob(pattern))

    def _views(self, methods: Sequence[SentMethod]) -> dict[str, str]:
        """Return the views of the study's runs, of its methods, and of each method's trials."""
        searched = {name for method in self._header.methods.values() for name in method.defaults}
        names = {name for sent in methods for name in sent.means}
        deployment, ranked = self._header.deployment, self._header.metric
        if deployment != PERSONAL:
            ranked = f"{deployment}/{ranked}"
        views = {
            "": mlflow_view.study_view(self._id, searched, names, ranked),
            "methods": mlflow_view.methods_view(self._id, names, ranked),
        }
        for sent in methods:
            views[sent.name] = mlflow_view.trials_view(self._id, sent.name, sent.parameters)
        return views

    def _configuration(self, folder: TrialFolder) -> dict[str, Any]:
        """Return a trial's configuration, or that of its method if the trial's is missing."""
        method = self._folder / "methods" / f"{folder.trial.method}.yaml"
        return read_yaml(folder.path / "config.yaml") or read_yaml(method)

    def _experiment_name(self, folder: Path) -> str:
        """Return the name of the experiment that the study belongs to."""
        for file in sorted(folder.glob("methods/*.yaml")):
            tracking = read_yaml(file).get("tracking")
            with as_data_error(file):
                if name := (tracking or {}).get("experiment"):
                    return str(name)
        return f"{self._header.dataset}-{self._header.scheme}"
