"""Resources of trainings that run at the same time, in processes of this machine or of Ray."""

from dataclasses import dataclass
from typing import Final

from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.core.wording import setting
from flbench.workers import cores

PER_CORE: Final = 8  # processes that are started on each core of this machine, at most
UNITS: Final = 10_000  # smallest parts of a GPU that Ray counts


@dataclass(frozen=True)
class Kind:
    """What is trained, in words for messages.

    Attributes:
        name: One of the trainings: `trial` or `cell`.
        all: What they belong to: `study` or `comparison`.
        at_once: Option with the number of trainings at the same time.
        gpus: Option with the number of GPUs of each training; None if there is none.
    """

    name: str
    all: str
    at_once: str
    gpus: str | None = None


TRIAL: Final = Kind("trial", "study", "concurrent", "gpus_per_trial")
CELL: Final = Kind("cell", "comparison", "jobs")


def gpu_share(at_once: int, devices: int) -> float:
    """Return the number of GPUs of each training, so that all of them run at the same time.

    Args:
        at_once: Number of trainings at the same time.
        devices: Number of GPUs.

    >>> gpu_share(2, 2), gpu_share(1, 4), gpu_share(3, 2)  # the third one needs a half, too
    (1.0, 1.0, 0.5)
    """
    if not devices:
        return 0.0
    on_one = -(-at_once // devices)
    return UNITS // on_one / UNITS  # rounded down: seven times 0.1429 would be more than one GPU


@dataclass(frozen=True)
class Resources:
    """Resources that the trainings of a study or of a comparison may use.

    Attributes:
        concurrent: Number of trainings at the same time.
        engine: Engine settings of each training.
        gpus: Number of GPUs of each training; a fraction shares a GPU between trainings.
        retries: How often a training whose worker fails is started again.
        address: Address of a Ray cluster; None starts a local one.
        kind: What is trained, for messages.
    """

    concurrent: int
    engine: EngineConfig
    gpus: float
    retries: int
    address: str | None = None
    kind: Kind = TRIAL

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys and options by which one training needs less, for messages."""
        key = "engine.workers" if self.engine.name == "ray" else "engine.threads"
        return (key, setting(self.kind.gpus)) if self.gpus and self.kind.gpus else (key,)

    @property
    def cpus(self) -> int:
        """Number of CPU cores of one training."""
        workers = self.engine.workers
        if self.engine.name == "ray":
            return workers if isinstance(workers, int) else 1
        return self.engine.threads

    def check_cores(self) -> None:
        """Raise a ConfigError if this machine has too few cores for processes of its own."""
        there = cores.available()
        needed = self.concurrent * self.cpus
        if self.address is None and needed > PER_CORE * there:
            raise ConfigError(
                f"{self.concurrent} {self.kind.name}s at once with {self.cpus} CPUs each would need"
                f" {needed:,} CPUs, but this machine has {there} cores, and a {self.kind.all}"
                f" starts at most {PER_CORE} processes on each. Lower"
                f" {setting(self.kind.at_once)} or {self.keys[0]}."
            )
