"""A trial: an ordinary run that reports its evaluations to Ray Tune.

It is evaluated on the validation parts alone. A trial of a study has its run folder in the study
folder, and continues from what is there. That of a Tuner of the user's own has it in the working
directory of the trial, and each report has a copy of it as its checkpoint.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.callbacks import Callback, RunView
from flbench.config.resolve import read, resolve
from flbench.config.sources import Layer, from_values, has_value, leaves
from flbench.core import files
from flbench.core.errors import ConfigError, DivergedError, RunError, UserError
from flbench.core.plain_yaml import to_yaml
from flbench.data.federation import Federation
from flbench.experiment import checkpoint
from flbench.jobs.job import Task
from flbench.jobs.samples import PartitionFiles
from flbench.jobs.training import run_or_resume
from flbench.results.summary import RunningSummary
from flbench.tuning.scores import metrics_at, reported
from flbench.tuning.search_space import why_not_searched
from flbench.tuning.study import TrialFolder, now
from flbench.workers.shipping import Parcel

FOLDER: Final = "flbench"  # in the working directory of the trial of a user's Tuner
ORIGIN: Final = "config of a trial"
RESUME: Final = "tune.Tuner.restore(PATH, trainable=..., resume_errored=True)"
OWN: Final = ("seed", "model.name", "train.rounds", "train.participation")
"""Keys that a Tuner of the user's own may search, and a study may not."""
LOSS: Final = "nll"
WORST: Final = -1.0
"""Score of a trial without one, for schedulers; metrics are in [0, 1]."""


@dataclass(frozen=True)
class Base:
    """What all trials of a method have in common, without the samples.

    Attributes:
        config: The complete configuration without a trial's parameters, as a layer.
        partition: Content of partition.npz and of partition.json.
        parcel: Objects of the user that the configuration names.
        resume: What the user calls to continue the search, for messages.
    """

    config: Layer
    partition: PartitionFiles
    parcel: Parcel
    resume: str = RESUME

    def run(
        self, path: Path, params: Mapping[str, Any], federation: Federation, reporter: Callback
    ) -> None:
        """Train the run of a trial, or what is left of it; see `jobs.training.run_or_resume`."""
        seed = params.get("seed", self.config.tree["seed"])
        task = Task(path, self.config, from_values(params, ORIGIN), self.resume)
        run_or_resume(task, federation.reseeded(seed), self.partition, reporter, ("validation",))


class Reporter(Callback):
    """Reports the evaluations of a run; a trial whose clients all diverge ends."""

    def __init__(self, base: Base, report: Callable[[RunView], None]) -> None:
        self.base, self._report = base, report

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        counts = RunningSummary(list(run.rows)).totals()
        if counts["client_trainings"] and counts["diverged"] == counts["client_trainings"]:
            raise DivergedError(f"all {counts['diverged']} client trainings diverged.")
        self._report(run)


def train(
    folder: TrialFolder,
    base: Base,
    federation: Federation,
    given: Mapping[str, Any],
    metric: str,
    report: Callable[[int, float], None],
) -> None:
    """Train a trial of a study, or what is left of it, and write its trial.json.

    Args:
        folder: Its folder.
        base: What all trials of the method have in common.
        federation: The data that all trials share.
        given: Arguments of `TrialFolder.begin`.
        metric: Metric that scores the trial.
        report: Function that gets the number of rounds and the score of each evaluation. It raises
            SystemExit if the scheduler has stopped the trial.

    Raises:
        RunError: The machine failed. Errors that another attempt cannot cure are in trial.json.
    """
    written = folder.begin(**given)

    def reported_by(run: RunView) -> None:
        nonlocal written
        metrics = metrics_at(run.rows, run.round)
        score, loss = metrics.get(metric), metrics.get(LOSS)
        seconds = {key: round(value, 3) for key, value in run.seconds.items()}
        steps = RunningSummary(list(run.rows)).totals()["steps"]
        found = {"round": run.round, "score": score, "loss": loss}
        written = folder.write(written, **found, seconds=seconds, steps=steps)
        try:
            report(run.round, WORST if score is None else score)
        except SystemExit:
            if run.config.output.keep_trials == "all":
                raise KeyboardInterrupt from None  # the state is saved
            raise

    state, reason = "finished", None
    try:
        with base.parcel.opened():
            base.run(folder.path, written.params, federation, Reporter(base, reported_by))
    except DivergedError as error:
        state, reason = "diverged", str(error)
    except UserError as error:
        state, reason = "failed", f"{folder.name}: {error}"
    except KeyboardInterrupt:
        raise SystemExit from None
    folder.write(written, state=state, reason=reason, ended=now())


def of_study(
    config: dict[str, Any],
    *,
    study: Path,
    bases: Mapping[str, Base],
    metric: str,
    samples: NDArray[Any],
    rest: Federation,
) -> None:
    """Train a trial of a study in a worker of Ray Tune.

    Args:
        config: The `method`, the `index` of the trial, and its `params` by dotted key.
        study: Study folder.
        bases: What all trials of a method have in common, by method.
        metric: Metric that scores the trials.
        samples: The samples, read-only, in memory that all trials on this machine share.
        rest: The federation without its samples.

    Raises:
        RunError: The machine failed.
    """
    import ray
    from ray import tune

    base, folder = bases[config["method"]], TrialFolder(study, config["method"], config["index"])
    patience = time.monotonic() + base.config.tree["engine"]["wait_seconds"]
    while files.is_locked(folder.path) and time.monotonic() < patience:
        time.sleep(1.0)  # until the process on a machine that was lost has ended
    given = {
        "seed": base.config.tree["seed"],
        "params": config["params"],
        "rounds": base.config.tree["train"]["rounds"],
        "node": ray.get_runtime_context().get_node_id(),
        "pid": os.getpid(),
    }

    def report(number: int, score: float) -> None:
        tune.report({"round": number, "score": score})

    train(folder, base, rest.with_samples(samples), given, metric, report)


def of_tuner(
    config: dict[str, Any], *, base: Base, samples: NDArray[Any], rest: Federation
) -> None:
    """Train a trial of a Tuner of the user's own, and report each evaluation with a checkpoint.

    If Ray Tune gives a checkpoint, of this trial or of another, the training continues from it.

    Raises:
        ConfigError: The method refuses the parameters.
        RunError: The models diverged.
    """
    from ray import tune

    params = parameters(config, base.config)
    path = Path(tune.get_context().get_storage().trial_working_directory) / FOLDER
    shutil.rmtree(path, ignore_errors=True)  # of an attempt that failed; the checkpoint has it all
    with base.parcel.opened():
        if (given := tune.get_checkpoint()) is not None:
            given.to_directory(path)
            (path / "summary.json").unlink(missing_ok=True)  # of a trial that had ended
            take_over(path, base, params)
        try:
            base.run(path, params, rest.with_samples(samples), CheckpointReporter(base, tune))
        except DivergedError as error:
            raise RunError(f"diverged with {params}: {error}") from None


class CheckpointReporter(Reporter):
    """Reports each evaluation to a Tuner, with a copy of the run folder as the checkpoint."""

    def __init__(self, base: Base, tune: Any) -> None:
        super().__init__(base, lambda run: None)
        self._tune, self._done = tune, 0

    def on_run_start(self, run: RunView) -> None:
        # A trial that begins with the last state of another one reports it too.
        self._done = min(run.round, run.rounds - 1)

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        rows = list(run.rows)
        is_evaluated = path.stem == "last" and RunningSummary(rows).last == run.round
        if is_evaluated and run.round > self._done:
            self._done = run.round
            saved = self._tune.Checkpoint.from_directory(run.path)
            self._tune.report(reported(rows, run.seconds), checkpoint=saved)


def take_over(path: Path, base: Base, params: Mapping[str, Any]) -> None:
    """Give the run folder of a checkpoint, which may be another trial's, this trial's parameters.

    The order of sums over a stack depends on its size, so that `engine.block` stays.
    """
    saved = read(path / "config.yaml")
    config, origins = resolve([base.config, from_values(params, ORIGIN)])
    config = config.altered(engine=config.engine.altered(block=saved.engine.block))
    if config.hash() == saved.hash():
        return
    for file in (path / "checkpoints" / f"{name}.safetensors" for name in ("best", "last")):
        if file.is_file():
            state, extra = checkpoint.load(file, saved.hash())
            checkpoint.save(file, state, config.hash(), extra)
    (path / "config.yaml").write_text(to_yaml(config.tree(), origins), "utf-8")


def parameters(config: Mapping[str, Any], base: Layer) -> dict[str, Any]:
    """Return the parameters of a trial by their dotted keys; the keys are checked.

    Values are not checked: a trial whose value the method refuses fails alone.

    Raises:
        ConfigError: A key does not exist, or must be the same for all trials. The message has one
            line for each.
    """
    params = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in leaves(dict(config)).items()
    }
    errors = [
        f"`{key}` ({ORIGIN}) {why}."
        for key in params
        if key not in OWN and (why := why_not_searched(key, base.tree))
    ]
    if errors:
        raise ConfigError("\n".join(errors))
    if unknown := {key: value for key, value in params.items() if not has_value(base.tree, key)}:
        resolve([base, from_values(unknown, ORIGIN)])  # raises an error, or it is a free key
    return params


def resources_for(config: Mapping[str, Any], *, base: Layer, bundles: Any) -> Any:
    """Return the resources of a trial. Ray Tune calls this before the trial starts.

    Raises:
        ConfigError: The config has wrong keys.
    """
    parameters(config, base)
    return bundles
