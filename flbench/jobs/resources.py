"""What trainings that run at the same time may use, and the Ray cluster that has it."""

from dataclasses import dataclass
from typing import Final

from flbench.config.schema import EngineConfig
from flbench.workers.ray_driver import RayDriver

UNITS: Final = 10_000  # smallest parts of a GPU that Ray counts
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
        kind: What is trained, for messages: `trial` or `CELL`.
    """

    concurrent: int
    engine: EngineConfig
    gpus: float
    retries: int
    address: str | None = None
    kind: str = "trial"

    @property
    def cpus(self) -> int:
        """Number of CPU cores of one training."""
        return self.engine.threads


def cluster(resources: Resources) -> RayDriver:
    """Return the driver of a Ray cluster, which is started here if it has no address.

    A cluster of this machine declares as many cores as the trainings at once need, which limits
    them. Trainings whose resources no node has wait for `engine.wait_seconds`.

    Args:
        resources: Resources of all trainings.

    Raises:
        ConfigError: No cluster answers at the address.
    """
    cpus = resources.concurrent * resources.cpus
    return RayDriver(resources.address, key="`address`", cpus=cpus)
