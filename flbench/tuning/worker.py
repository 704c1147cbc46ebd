"""Ray Tune's worker: an actor that trains one trial after the other."""

from pathlib import Path
from typing import Any

import ray
from ray import tune

from flbench.data.federation import Federation
from flbench.tuning.study import named
from flbench.tuning.training import Training

WORST = -1.0  # what schedulers are told of a trial without a score; metrics are in [0, 1]


class Worker(tune.Trainable):  # type: ignore[misc]
    """Trains trials; a later one finds the process, its imports and the samples in place.

    `config` holds the trial's parameters alone: what it is besides follows from its id, because
    population based training gives a trial another one's config.
    """

    def setup(
        self,
        config: dict[str, Any],
        *,
        study: str,
        metric: str,
        rounds: int,
        samples: list[Any],
        rest: Federation,
    ) -> None:
        """Take up the samples, which lie in shared memory; `samples` holds their reference.

        Nothing is written yet: Ray Tune may set up a worker for a trial that another one gets.
        """
        self._study, self._metric, self._rounds = Path(study), metric, rounds
        self._federation = rest.with_samples(ray.get(samples[0]))
        self._params: dict[str, Any] = config["params"]
        self._training: Training | None = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Make this process another trial's."""
        self.cleanup()
        self._params = new_config["params"]
        return True

    def step(self) -> dict[str, Any]:
        """Train until the next evaluation."""
        found = self._begun().step()
        score = WORST if found.score is None else found.score
        return {"round": found.round, "score": score, "done": found.done}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write what another trial can go on from."""
        self._begun().save(Path(checkpoint_dir))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Go on from what a trial saved."""
        self._begun().load(Path(str(checkpoint)))

    def cleanup(self) -> None:
        """Let go of the trial's engine."""
        if self._training is not None:
            self._training.close()
        self._training = None

    def _begun(self) -> Training:
        """Return the trial's training, which begins when it is first needed."""
        if self._training is None:
            job = named(self._study, self.trial_id, self._params)
            node = ray.get_runtime_context().get_node_id()
            self._training = Training(
                self._study,
                job,
                self._federation,
                metric=self._metric,
                rounds=self._rounds,
                node=node,
            )
        return self._training
