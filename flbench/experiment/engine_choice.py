"""The rule by which `engine.name=auto` takes an engine."""

from torch import nn
from torch.nn.modules.conv import _ConvNd

from flbench.config.schema import EngineConfig
from flbench.engine.base import STACKED_SIZE
from flbench.models.base import net_leaves


def stacks(config: EngineConfig, net: nn.Module) -> bool:
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
