"""What a process does that trains jobs: the same in an actor of Ray and in one of this machine."""

from typing import Any

from numpy.typing import NDArray

from flbench.data.federation import Federation
from flbench.jobs.job import Outcome, Task
from flbench.jobs.samples import PartitionFiles
from flbench.jobs.training import train
from flbench.workers.shipping import Parcel


class JobWorker:
    """Trains one job after the other in one process, so that imports are done once."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def train(
        self, task: Task, samples: NDArray[Any], rest: Federation, partition: PartitionFiles
    ) -> Outcome:
        """Train a job, or what is left of it."""
        with self._parcel.opened():
            federation = rest.with_samples(samples).reseeded(task.layer.tree["seed"])
            return train(task, federation, partition)
