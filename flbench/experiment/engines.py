"""The engine of a run, and the device that it trains on."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from flbench.config.schema import EngineConfig, TrainConfig
from flbench.core.errors import ConfigError
from flbench.data.federation import Federation
from flbench.engine.base import STACKED_SIZE, Engine, find_device
from flbench.models import freezing
from flbench.models.base import net_leaves
from flbench.workers.nesting import is_elsewhere

LONG_TRAINING: Final = 6e14
"""Floating-point operations of a long training: see `auto_compiles`."""


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
    if elsewhere:
        from flbench.workers.ray_driver import device_there  # importing Ray takes a second

        return asked.altered(device=device_there(asked.device, address, key))
    return asked.altered(device=str(find_device(asked.device)))


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


def build_engine(
    config: EngineConfig,
    net: nn.Module,
    federation: Federation,
    *,
    tell: Callable[[str], None] | None = None,
) -> Engine:
    """Return the engine that `engine.name` selects.

    Args:
        config: Section `engine` as it is used, with a name other than `auto`.
        net: The net.
        federation: Samples of all clients.
        tell: See `assembly.build`.

    Raises:
        ConfigError: The engine does not support the configuration.
    """
    if config.name == "ray":
        from flbench.engine.ray import RayEngine

        return RayEngine(net, federation, config, tell=tell)
    if config.name == "vectorized":
        from flbench.engine.vectorized import VectorizedEngine  # it loads PyTorch's compiler

        return VectorizedEngine(net, federation, config, tell)
    from flbench.engine.sequential import SequentialEngine

    return SequentialEngine(net, federation, config)


def auto_stacks(config: EngineConfig, net: nn.Module) -> bool:
    """Return whether `engine.name=auto` trains stacked clients.

    One client at a time leaves most of a GPU idle. On a CPU, stacked convolutions are slower than
    one client after the other, and the layers of large nets gain nothing.

    Args:
        config: Section `engine`, with the device that trains.
        net: The net, without what is frozen and computed once.
    """
    if config.device.startswith("cuda"):
        return True
    size = sum(leaf.numel() for leaf in net_leaves(net).values())
    return size <= STACKED_SIZE and not any(isinstance(one, _ConvNd) for one in net.modules())


def auto_compiles(
    config: EngineConfig, train: TrainConfig, net: nn.Module, federation: Federation
) -> bool:
    """Return whether `engine.compile=auto` compiles gradients: on a GPU, in a long training.

    Compiling takes 6 to 27 s and changes rounding, so nothing is measured: the operations of the
    training are counted, as three times those of the forward pass for each sample that the clients
    read in all rounds, once in each local epoch. In float32 by CUDA graphs, a prototype on an H200
    took 8.5e12 operations a second with an MLP of 200 units, 2.9e12 with LeNet-5, 7.4e12 with
    pfl-research's CNN and 11.9e12 with ResNet-18. `LONG_TRAINING` is two minutes at 5e12 a second.

    Args:
        config: Section `engine`, with the engine and the device that train.
        train: Section `train`.
        net: The net, without what is frozen and computed once.
        federation: Its samples.
    """
    if not captures(config):
        return False
    from torch.utils.flop_counter import FlopCounterMode  # a run without `auto` needs none of it

    x = federation.inputs(torch.zeros(1, dtype=torch.int64), torch.float32)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad(), freezing.mode(net, train=False):
        net(x)
    if train.local_steps is None:
        samples = int(federation.sizes.sum()) * (train.local_epochs or 0)
    else:
        samples = int(federation.sizes.clamp_max(train.batch_size).sum()) * train.local_steps
    in_all = samples * train.participation * train.rounds
    return 3 * counter.get_total_flops() * in_all >= LONG_TRAINING


def captures(config: EngineConfig) -> bool:
    """Return whether training steps are CUDA graphs, whose gradients can be compiled."""
    return stacks(config) and config.device.startswith("cuda")


def stacks(config: EngineConfig) -> bool:
    """Return whether clients are stacked: by the vectorized engine, or by Ray's workers on GPUs."""
    on_gpu = config.device.startswith("cuda")
    return config.name == "vectorized" or (config.name == "ray" and on_gpu)
