"""Trains one trial of a study, from evaluation to evaluation, in a run folder of its own.

This module does not depend on Ray: the caller of `TrialTraining.step` decides where a trial runs
and when it stops.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from flbench.callbacks import CallbackList
from flbench.config import trust
from flbench.config.resolve import read, resolve_written
from flbench.config.schema import Config
from flbench.core import files
from flbench.core.errors import DivergedError, RunError, UserError
from flbench.core.plain_yaml import to_yaml
from flbench.core.types import State
from flbench.data.federation import Federation
from flbench.experiment import assembly, checkpoint, finalize, own_methods, provenance
from flbench.experiment.evaluate import Evaluator
from flbench.experiment.judging import ClassJudge
from flbench.experiment.run_folder import RunFolder
from flbench.results import metrics_file
from flbench.results.study_folder import PERSONAL
from flbench.tuning.deployments import score_of
from flbench.tuning.search_space import layer
from flbench.tuning.study import (
    Record,
    StudyFolder,
    TrainingJob,
    now,
    read_record,
    write_record,
)

LOSS: Final = "nll"
SAVED: Final = "trial.safetensors"  # a checkpoint that another trial can load


@dataclass(frozen=True)
class TrialProgress:
    """Progress of a trial after a step.

    Attributes:
        round: Number of rounds that the trial has done.
        score: Validation metric of the last evaluated round; None if there is none.
        done: Whether the trial has ended.
    """

    round: int
    score: float | None
    done: bool


class TrialTraining:
    """The training of one job; it resumes from the job's checkpoint if there is one.

    Args:
        study: Study folder.
        job: Job to train.
        federation: Partitioned data set of the job.
        metric: Metric that scores the trial.
        rounds: Number of rounds of a complete trial.
        deployment: Name of the deployment that scores the trial.
        node: Name of the machine, for the record.
        test: Whether the trial is evaluated on the test parts too, after its last round. A study
            never does so.
        resume: What the user calls to continue the search, for messages; None for the command.
        opened: Function that returns a context manager, in which the configuration finds the
            objects of the user.
    """

    def __init__(
        self,
        study: Path,
        job: TrainingJob,
        federation: Federation,
        *,
        metric: str,
        rounds: int,
        deployment: str = PERSONAL,
        node: str | None = None,
        test: bool = False,
        resume: str | None = None,
        opened: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.job = job
        self._test, self._study, self._metric, self._deployment = test, study, metric, deployment
        self._begun = time.perf_counter()
        before = read_record(study, job) or {}
        kept = {key: before[key] for key in ("started", "attempts") if key in before}
        self._record = job.record(rounds) | kept | {"node": node, "pid": os.getpid()}
        self.folder = RunFolder(study / job.name, resume or StudyFolder.command_to_resume(study))
        (self.folder.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._built: assembly.Experiment | None = None
        self._state: State | None = None
        self._is_whole = True
        self._write()
        try:
            with opened():
                self._build(federation, fresh=before.get("params") != dict(job.params))
        except UserError as error:
            self._end("failed", str(error))

    def step(self) -> TrialProgress:
        """Train until the next evaluation, evaluate, and update trial.json.

        Errors that another attempt cannot cure end the trial and are not raised: parameters that
        the method refuses, and models that diverge.

        Raises:
            RunError: The training was closed, or the machine failed.
        """
        if self._record["ended"] is None:
            try:
                self._advance()
            except DivergedError as error:
                self._end("diverged", str(error))
            except UserError as error:
                self._end("failed", str(error))
        record = self._record
        return TrialProgress(record["round"], record["score"], record["ended"] is not None)

    @property
    def has_begun(self) -> bool:
        """Whether there is a state to save; otherwise `record` says why the training has none."""
        return self._state is not None

    @property
    def record(self) -> Record:
        """What trial.json says: state, reason, rounds, score and seconds."""
        return dict(self._record)

    def weights_digest(self) -> str:
        """Return the SHA-256 (hex) over the weights of all clients' models, as for a run.

        Raises:
            RunError: The training has no state, for the reason in its record, or is closed.
        """
        _, state = self._alive()
        return finalize.weights_digest(self._loop, state)

    def save(self, folder: Path) -> None:
        """Write a checkpoint that this trial, or another one, can load.

        Args:
            folder: An existing folder for the files of the checkpoint.
        """
        built, state = self._alive()
        extra = {"seconds": vars(self._seconds), "rows": len(self.folder.rows)}
        with self._seconds.measure("write"):
            checkpoint.save(folder / SAVED, state, built.config.hash(), extra)
            (folder / "hash.json").write_text(json.dumps(built.config.hash()))
            shutil.copy(self.folder.path / "metrics.csv", folder / "metrics.csv")

    def load(self, folder: Path) -> None:
        """Load state and metrics of a saved trial; the parameters of this trial do not change.

        This trial's metrics.csv and its last checkpoint are overwritten.

        Args:
            folder: Folder that `save` of this trial, or of another one, has written.

        Raises:
            RunError: The training has no state, for the reason in its record, or is closed.
            DataError: The checkpoint is damaged, does not belong to hash.json, or was written by
                another version of flbench.
            FileNotFoundError: The folder lacks hash.json or metrics.csv.
        """
        built, _ = self._alive()
        saved_hash = json.loads((folder / "hash.json").read_text())
        state, extra = checkpoint.load(folder / SAVED, saved_hash)
        files.copy(folder / "metrics.csv", self.folder.path / "metrics.csv")
        checkpoint.save(self.folder.checkpoint("last"), state, built.config.hash(), extra)
        self._restore(built)

    def close(self) -> None:
        """Save the state of a training that was interrupted, and close the engine.

        A trial that the scheduler has stopped has lost: it is saved only if all trials keep their
        checkpoints. Further steps raise an error.
        """
        if self._built is not None:
            stopped = self._record["ended"] is None or self._record["state"] == "stopped"
            stopped = stopped and not self._has_lost(self._built)
            if stopped and self._is_whole and self._state is not None and self._state.round:
                # A full disk is no reason to lose what the trial has shown.
                with suppress(RunError, OSError):
                    self._loop.save()
            self._built.engine.close()
            self._built = None

    def _has_lost(self, built: assembly.Experiment) -> bool:
        """Return whether the scheduler has stopped the trial, and its checkpoints are not kept."""
        if built.config.output.keep_trials == "all":
            return False
        # The process with the scheduler has written the record.
        return (read_record(self._study, self.job) or {}).get("state") == "stopped"

    def _build(self, federation: Federation, *, fresh: bool) -> None:
        config, origins = configuration(self._study, self.job)
        before = self.folder.path / "config.yaml"
        engine = config.engine
        if before.is_file() and not fresh and engine.block is None:
            # The order of sums over a stack depends on its size, so that a resumed trial keeps it.
            engine = engine.altered(block=read(before).engine.block)
        built = assembly.build(config, federation.reseeded(config.seed), engine=engine)
        self._built = built
        if fresh:
            self.folder.checkpoint("last").unlink(missing_ok=True)
        if not (self.folder.path / "metrics.csv").is_file():
            self.folder.write("metrics.csv", metrics_file.header_line())
        for name in ("partition.npz", "partition.json"):
            files.copy(self._study / name, self.folder.path / name)
        if not (self.folder.path / "provenance.json").is_file():
            about = provenance.now(own_methods.modules(config), built.module)
            self.folder.write_json("provenance.json", about)
        tree = built.config.tree()
        self.folder.write("config.yaml", to_yaml(tree, origins))
        trust.record(self.folder.path, tree)
        self._restore(built)

    def _restore(self, built: assembly.Experiment) -> None:
        self._state, self._seconds, _ = built.restore(self.folder)
        self._loop = built.loop(self.folder, CallbackList(), self._seconds, ("validation",))
        self._loop.state = self._state
        self._seconds.total += time.perf_counter() - self._begun
        self._note()

    def _advance(self) -> None:
        """Train until the next evaluation, and finish the run where that was the last."""
        built, state = self._alive()
        rounds, every = built.config.train.rounds, built.config.evaluation_period
        until = min(rounds, (state.round // every + 1) * every)
        if until == rounds and self._test:
            # Test parts are evaluated only once, after the last round, also for the best round.
            self._loop.evaluator = built.evaluator(self._loop.callbacks.on_note)
        elif until == rounds:
            # The validation loss decides between trials whose scores are equal.
            self._loop.evaluator = _with_loss(self._loop.evaluator)
        self._is_whole = False  # until the state of a round belongs to the lines of metrics.csv
        self._state = self._loop.run(state, until)
        self._is_whole = True
        counts = self._loop.running.totals()
        if counts["client_trainings"] and counts["diverged"] == counts["client_trainings"]:
            self._end("diverged", f"all {counts['diverged']} client trainings diverged.")
        elif self._state.round >= rounds:
            self._end("finished", None)
        else:
            self._write()

    def _alive(self) -> tuple[assembly.Experiment, State]:
        if self._built is None or self._state is None:
            reason = self._record["reason"] or "the training is closed."
            raise RunError(f"{self.job.name}: {reason}")
        return self._built, self._state

    def _end(self, state: str, reason: str | None) -> None:
        self._record |= {"state": state, "reason": reason, "ended": now()}
        self._write()

    def _write(self) -> None:
        self._note()
        write_record(self._study, self.job, self._record)

    def _note(self) -> None:
        if self._state is None:
            return
        running, rounds = self._loop.running, self._record["rounds"]
        self._record |= {
            "round": self._state.round,
            "score": score_of(running, self._metric, self._deployment, rounds),
            "loss": score_of(running, LOSS, self._deployment, rounds),
            "seconds": {key: round(value, 3) for key, value in vars(self._seconds).items()},
        }


def _with_loss(evaluator: Evaluator) -> Evaluator:
    """Return an evaluator that computes the metrics of probabilities too, the loss among them."""
    config, judge = evaluator.config.altered(probabilities=True), evaluator.judge
    if isinstance(judge, ClassJudge):
        judge = replace(judge, has_probabilities=True)
    return replace(evaluator, config=config, judge=judge, kept={})


def configuration(study: Path, job: TrainingJob) -> tuple[Config, dict[str, str]]:
    """Return a job's configuration and the origins of its values.

    It is the method's configuration in the study folder, with the job's parameters and seed.
    """
    own = layer({**job.params, "seed": job.seed}, job.name)
    return resolve_written(study / "methods" / f"{job.method}.yaml", own)
