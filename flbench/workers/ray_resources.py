"""Resources of trainings that run at the same time, in processes of this machine or of Ray."""

from dataclasses import dataclass
from typing import Final

from flbench.config.schema import EngineConfig

UNITS: Final = 10_000  # smallest parts of a GPU that Ray counts
TRIAL: Final = "trial"
CELL: Final = "cell"


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
        kind: What is trained, for messages: `TRIAL` or `CELL`.
    """

    concurrent: int
    engine: EngineConfig
    gpus: float
    retries: int
    address: str | None = None
    kind: str = TRIAL

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys and options by which one training needs less, for messages."""
        key = "engine.workers" if self.engine.name == "ray" else "engine.threads"
        return (key, "`gpus_per_trial`") if self.gpus and self.kind == TRIAL else (key,)

    @property
    def cpus(self) -> int:
        """Number of CPU cores of one training."""
        workers = self.engine.workers
        if self.engine.name == "ray":
            return workers if isinstance(workers, int) else 1
        return self.engine.threads
