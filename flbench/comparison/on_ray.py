"""Trains several cells of a comparison at the same time, in processes of Ray."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from numpy.typing import NDArray

from flbench.comparison.plan import Cell
from flbench.comparison.running import Work
from flbench.comparison.samples import PartitionFiles, partition_key
from flbench.comparison.training import Outcome, Task, train
from flbench.core.errors import UserError
from flbench.core.imported import portable
from flbench.data.federation import Federation
from flbench.workers.cluster import cluster
from flbench.workers.resources import Resources
from flbench.workers.samples import SharedSamples
from flbench.workers.shipping import Parcel, pack
from flbench.workers.supervisor import Supervisor

PERIOD: Final = 0.3  # seconds between two looks for stop signals and progress


class CellWorker:
    """Trains one cell after the other in one process of Ray, so that imports are done once."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def train(
        self, task: Task, samples: NDArray[Any], rest: Federation, partition: PartitionFiles
    ) -> Outcome:
        """Train a cell, or what is left of it.

        Args:
            task: The cell.
            samples: The samples, read-only, in memory that all processes share.
            rest: The federation without its samples.
            partition: Content of partition.npz and of partition.json.
        """
        with self._parcel.opened():
            federation = rest.with_samples(samples).reseeded(task.layer.tree["seed"])
            return train(task, federation, partition)


@dataclass(frozen=True)
class _Shipped:
    """A partition in Ray's object store.

    Attributes:
        samples: Reference of the samples, which partitions of one data set share.
        rest: Reference of the federation without them.
        partition: Reference of the content of the partition's two files.
    """

    samples: Any
    rest: Any
    partition: Any


@dataclass
class _Shared:
    """Samples in Ray's object store.

    Attributes:
        array: The samples in this process; the address of this array identifies them.
        stored: The stored samples.
        users: Keys of the partitions that use them.
    """

    array: NDArray[Any]
    stored: SharedSamples
    users: set[str] = field(default_factory=set)


class _Store:
    """Samples and partitions in Ray's object store, as long as a cell needs them."""

    def __init__(self, work: Work) -> None:
        self._samples = work.prepared.samples
        self._needed = Counter(map(partition_key, work.left))
        self._shipped: dict[str, _Shipped] = {}
        self._shared: dict[int, _Shared] = {}  # by the address of the array

    def ship(self, cell: Cell) -> _Shipped:
        """Return what the process that trains a cell gets.

        Raises:
            UserError: The data cannot be read, or the partition cannot be made from them.
        """
        key = partition_key(cell)
        if key not in self._shipped:
            found = self._samples.federation(cell)
            partition = ray.put(self._samples.partition(cell))
            array = found.x.numpy()
            address = array.__array_interface__["data"][0]
            if address not in self._shared:
                self._shared[address] = _Shared(array, SharedSamples.put(array))
            self._shared[address].users.add(key)
            samples = self._shared[address].stored.reference
            self._shipped[key] = _Shipped(samples, ray.put(found.without_samples()), partition)
        return self._shipped[key]

    def release(self, cell: Cell) -> None:
        """Note that a cell has ended.

        Raises:
            RunError: No other cell needs its samples, and they have changed.
        """
        key = partition_key(cell)
        self._needed[key] -= 1
        if self._needed[key]:
            return
        self._shipped.pop(key, None)
        for address, shared in list(self._shared.items()):
            shared.users.discard(key)
            if not shared.users:
                shared.stored.check()
                del self._shared[address]

    def close(self) -> None:
        """Give up all references."""
        self._shipped.clear()
        self._shared.clear()


def carry_out(work: Work, supervisor: Supervisor) -> None:
    """Train cells at the same time, on a Ray cluster that is started for it.

    Args:
        work: The cells to train.
        supervisor: Stops the comparison after a stop signal or the loss of a server of Ray.

    Raises:
        KeyboardInterrupt: A stop signal has arrived.
        RunError: A server of Ray was lost, or a cell changed the shared samples.
    """
    prepared = work.prepared
    methods = {cell.config.algorithm.name for cell in prepared.cells}
    parcel = pack(prepared.samples.objects, sorted(methods))
    resources = prepared.resources
    with cluster(resources, supervisor):
        crew = _Crew(work, _Store(work), parcel, resources, supervisor)
        try:
            with supervisor.waiting():
                crew.carry_out()
        finally:
            crew.close()


class _Crew:
    """The processes that train the cells.

    Args:
        work: The cells to train.
        store: Their samples.
        parcel: Objects of the user that the configurations name.
        resources: Resources of each process.
        supervisor: Stops the comparison.
    """

    def __init__(
        self,
        work: Work,
        store: _Store,
        parcel: Parcel,
        resources: Resources,
        supervisor: Supervisor,
    ) -> None:
        self._work, self._store, self._supervisor = work, store, supervisor
        self._resources = resources
        self._parcel = ray.put(portable(parcel, ray.cloudpickle.dumps))
        self._idle: list[Any] = []
        self._running: dict[Any, tuple[Cell, Any]] = {}  # by the reference of the outcome
        self._deaths: Counter[str] = Counter()

    def carry_out(self) -> None:
        """Train all cells."""
        while self._work.left or self._running:
            while self._work.left and len(self._running) < self._resources.concurrent:
                self._begin(self._work.left.popleft())
            done, _ = ray.wait(list(self._running), timeout=PERIOD) if self._running else ([], [])
            self._supervisor.check()
            for reference in done:
                self._end(reference)

    def close(self) -> None:
        """Give up all references to Ray's objects.

        After an interrupt, the exception holds this object until Ray is shut down, and Ray's
        library may crash when a reference ends after that.
        """
        self._running.clear()
        self._idle.clear()
        self._store.close()
        self._parcel = None

    def _begin(self, cell: Cell) -> None:
        """Let a process train a cell."""
        try:
            shipped = self._store.ship(cell)
        except UserError as error:
            self._store.release(cell)
            self._work.end(cell, Outcome(" ".join(str(error).split()), (), 0.0))
            return
        worker = self._idle.pop() if self._idle else self._start()
        reference = worker.train.remote(
            self._work.task(cell), shipped.samples, shipped.rest, shipped.partition
        )
        self._running[reference] = cell, worker
        self._work.progress.begin(cell)

    def _start(self) -> Any:
        """Start a process."""
        kind = ray.remote(CellWorker).options(
            num_cpus=self._resources.cpus, num_gpus=self._resources.gpus
        )
        return kind.remote(self._parcel)

    def _end(self, reference: Any) -> None:
        """Note how the training of a cell ended; begin it again if its process has died."""
        cell, worker = self._running.pop(reference)
        try:
            outcome = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            if self._supervisor.is_over():
                self._supervisor.check()
            self._deaths[cell.name] += 1
            if self._deaths[cell.name] <= self._resources.retries:
                self._work.progress.note(
                    f"{cell.title}: its process has died, and is started again."
                )
                self._work.left.appendleft(cell)
                return
            last = str(error).strip().splitlines()[0]
            outcome = Outcome(
                f"its process has died {self._deaths[cell.name]} times ({last}).", (), 0.0
            )
        else:
            self._idle.append(worker)
        self._store.release(cell)
        self._work.end(cell, outcome)
