"""What a run finds out about its data, its code and its machine, beside what the user asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from flbench.config.schema import BestConfig, Config, EngineConfig
from flbench.core.errors import ConfigError
from flbench.engine.base import check_precision, find_device
from flbench.workers.nesting import is_elsewhere, is_ray_worker


@dataclass(frozen=True)
class Found:
    """What a run finds out while its objects are built; the configuration itself never changes.

    Attributes:
        engine: Section `engine` with what is used: the engine that `auto` takes, its block and
            the device.
        dataset: Name of the data set: that of the file or function, if there is one.
        samples: SHA-256 of the samples of `data.source`; None without one.
        clients: Number of clients of the partition, with those that join after the training.
        scheme: SHA-256 of a partition scheme of the user; None for one of flbench.
        net: Values of `model.sha256` and `model.fixed` by key, empty for a net of flbench, and
            `model.weights_sha256` if there are weights.
        method: SHA-256 of the source of a method of the user; None if it is flbench's or not known.
        terms: SHA-256 of each term of `train.terms`; None for one of flbench, or if not known.
        metrics: SHA-256 of each metric of `evaluation.metrics` by name; None if it is not known.
        best: Section `evaluation.best` with the metric that chooses the best round.
    """

    engine: EngineConfig
    dataset: str
    samples: str | None
    clients: int
    scheme: str | None
    net: Mapping[str, str | None]
    method: str | None
    terms: tuple[str | None, ...]
    metrics: Mapping[str, str | None]
    best: BestConfig

    def complete(self, asked: Config) -> Config:
        """Return what the user asked for and what the run found out, as config.yaml has both.

        The keys `partition.seed` and `evaluation.every` have the values that follow from others.

        Args:
            asked: The configuration of the run.
        """
        metrics = {
            name: entry.altered(sha256=self.metrics[name])
            for name, entry in (asked.evaluation.metrics or {}).items()
        }
        terms = tuple(
            entry if found is None else entry.altered(sha256=found)
            for entry, found in zip(asked.train.terms, self.terms, strict=True)
        )
        method = {} if self.method is None else {"sha256": self.method}
        return asked.altered(
            engine=self.engine,
            data=asked.data.altered(name=self.dataset, sha256=self.samples),
            partition=asked.partition.altered(
                seed=asked.partition_seed, clients=self.clients, sha256=self.scheme
            ),
            # The user's classes of these sections may have a key `altered`.
            model=asked.model.model_copy(update=self.net),
            algorithm=asked.algorithm.model_copy(update=method),
            train=asked.train.altered(terms=terms),
            evaluation=asked.evaluation.altered(
                every=asked.evaluation_period,
                metrics=metrics or asked.evaluation.metrics,
                best=self.best,
            ),
        )


def with_device(
    asked: EngineConfig, address: str | None = None, key: str = "`engine.address`"
) -> EngineConfig:
    """Return the section `engine` with the device that trains: that of this machine, or of a node.

    Args:
        asked: The section as the user asked for it. With `engine.name=ray` the workers train.
        address: Address of a Ray cluster on whose nodes whole trainings run; None for none. It is
            not used if this process is connected to a cluster.
        key: The key or option of the address, as error messages write it.

    Raises:
        ConfigError: The device does not exist, no cluster answers, or Ray is not installed.
    """
    has_workers = asked.name == "ray"
    if has_workers and not is_elsewhere(address):
        address = asked.address
    elsewhere = is_elsewhere(address)
    if (elsewhere or has_workers) and find_spec("ray") is None:
        cause = key if elsewhere else "`engine.name=ray`"
        raise ConfigError(
            f"{cause} needs the package `ray`, which is not installed: pip install 'flbench[tune]'"
        )
    if elsewhere or (has_workers and is_ray_worker()):
        from flbench.workers.ray_resources import device_there  # importing Ray takes a second

        return asked.altered(device=device_there(asked.device, address, key))
    device = find_device(asked.device)
    if has_workers:  # they would say so after their start
        check_precision(asked, device)
    return asked.altered(device=str(device))


def on_this_machine(config: EngineConfig) -> EngineConfig:
    """Return the section `engine` with an engine of this process, on a device that it has.

    On CPUs it gives the same bits as the engine of the configuration. A GPU that this machine lacks
    is replaced by the CPU, with a precision that CPUs have.

    Args:
        config: Section `engine`.
    """
    # On CPUs the results of Ray are those of the sequential engine.
    if config.name == "ray":
        config = config.altered(name="sequential", workers="auto", address=None)
    device = config.device
    if device.startswith("cuda") and torch.cuda.device_count() <= int(device[5:] or 0):
        device = "cpu"
    is_on_cpu = config.device != "cpu" and find_device(device).type == "cpu"
    if is_on_cpu and config.precision in ("tf32", "16-mixed"):
        config = config.altered(precision="32-true")
    return config.altered(device=device)
