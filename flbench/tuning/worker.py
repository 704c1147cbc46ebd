"""The worker of Ray Tune: an actor that trains one trial after the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune

from flbench.data.federation import Federation
from flbench.tuning.study import load_job
from flbench.tuning.training import TrialTraining
from flbench.workers.shipping import Parcel

WORST = -1.0  # score of a trial without one, for the scheduler; metrics are in [0, 1]


class TrialWorker(tune.Trainable):  # type: ignore[misc]
    """Trains trials in one process, so that imports and samples are loaded once.

    `config` has the trial's parameters only. The job is found by the trial's id, because
    population based training passes the config of one trial to another.
    """

    def setup(
        self,
        config: dict[str, Any],
        *,
        study: str,
        metric: str,
        deployment: str,
        rounds: int,
        samples: Sequence[Any],
        rest: Federation,
        parcel: Parcel,
        resume: str,
    ) -> None:
        """Get the samples from shared memory.

        No file is written: Ray Tune may set up a worker for a trial that another worker trains.

        Args:
            config: Mapping with the trial's parameters under `params`.
            study: Study folder.
            metric: Metric that scores the trial.
            deployment: Name of the deployment that scores the trial.
            rounds: Number of rounds of a complete trial.
            samples: Reference of the samples in Ray's object store. In a sequence, Ray does not
                copy them into the arguments.
            rest: The federation without its samples.
            parcel: Objects of the user that the configurations name.
            resume: What the user calls to resume the study, for messages.
        """
        self._study, self._metric, self._rounds = Path(study), metric, rounds
        self._deployment, self._parcel, self._resume = deployment, parcel, resume
        self._samples, self._rest = samples, rest
        self._params: dict[str, Any] = config["params"]
        self._training: TrialTraining | None = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Reuse this process for another trial."""
        self.cleanup()
        self._params = new_config["params"]
        return True

    def step(self) -> dict[str, Any]:
        """Train until the next evaluation; return round, score and whether the trial has ended."""
        progress = self._begun().step()
        score = WORST if progress.score is None else progress.score
        return {"round": progress.round, "score": score, "done": progress.done}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint that this trial, or another one, can load.

        None is written for a trial that could not begin; its trial.json has the reason.
        """
        training = self._begun()
        if training.has_begun:
            training.save(Path(checkpoint_dir))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Load the state of a saved trial."""
        self._begun().load(Path(str(checkpoint)))

    def cleanup(self) -> None:
        """Close the trial's engine."""
        if self._training is not None:
            self._training.close()
        self._training = None

    def _begun(self) -> TrialTraining:
        """Return the trial's training; the first call begins it."""
        if self._training is None:
            job = load_job(self._study, self.trial_id, self._params)
            federation = self._rest.with_samples(ray.get(self._samples[0]))
            node = ray.get_runtime_context().get_node_id()
            self._training = TrialTraining(
                self._study,
                job,
                federation,
                metric=self._metric,
                deployment=self._deployment,
                rounds=self._rounds,
                node=node,
                resume=self._resume,
                opened=self._parcel.opened,
            )
        return self._training
