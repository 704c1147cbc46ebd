"""Calls of a net: with which weights, in which mode, and what loss terms and Statistics see of it.

Nothing here needs Lightning, which only the engines import that train one client after the other.
"""

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.core.types import Outputs, Tree
from flbench.models import freezing
from flbench.models.trial import write_back


def freeze_statistics(net: nn.Module) -> None:
    """Put BatchNorm layers in eval mode: they use their running statistics without updating."""
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def never_trained(net: nn.Module) -> frozenset[str]:
    """Return the names of a net's buffers and of the parameters that the user has frozen."""
    return frozenset(name for name, _ in net.named_buffers()) | freezing.of(net).parameters


def name_in_net(leaf: str, names: Collection[str]) -> str | None:
    """Return which of some names of the net's tensors a leaf has; None if it has none of them.

    Args:
        leaf: The leaf's name. A second model's leaves have a prefix with a dot, such as `v.`.
        names: The names.

    >>> name_in_net("v.module.fc.bias", {"module.fc.weight", "module.fc.bias"})
    'module.fc.bias'
    """
    parts = leaf.split(".")
    suffixes = (".".join(parts[k:]) for k in range(len(parts)))
    return next((name for name in suffixes if name in names), None)


def call(net: nn.Module, weights: Tree, x: Tensor) -> Outputs:
    """Return the net's outputs for x [B, ...] with these parameters and buffers.

    What the net writes to its buffers is written to the tensors in `weights`, such as the running
    statistics of BatchNorm in training mode.

    Raises:
        ConfigError: The net's code changes the shape of a buffer.
    """
    given = dict(weights)  # PyTorch puts buffers there that the net has assigned anew
    outputs: Outputs = torch.func.functional_call(net, given, (x,))
    for name, value in given.items():
        if value is not weights[name]:
            write_back(name, weights[name], value)
    return outputs


def apply(
    net: nn.Module,
    leaves: Tree,
    x: Tensor,
    *,
    train: bool = False,
    activations: tuple[str, ...] = (),
) -> Outputs:
    """Return the net's outputs with the values of `leaves`.

    No leaf is written to, and the net's mode is restored.

    Args:
        net: The net.
        leaves: Parameters and buffers under the net's own names; other entries are ignored. Those
            that the user has fixed may be missing: the net has their values.
        x: Inputs [B, ...].
        train: Whether BatchNorm uses the statistics of the batch. Its running statistics do not
            change.
        activations: Names of layers whose input and output are returned.
    """
    missing = freezing.of(net).leaves - leaves.keys()
    weights = {name: leaves[name] for name, _ in net.named_parameters() if name not in missing}
    for name, _ in net.named_buffers():
        if name in missing:
            continue
        value = leaves[name]
        # The sum is a copy. Where clients are stacked it has one value for each, as x has, also of
        # leaves that all clients have in common: BatchNorm writes there in place.
        weights[name] = value + x.new_zeros((), dtype=value.dtype) if train else value
    recorded: dict[str, tuple[Tensor, Tensor]] = {}
    handles = [
        net.get_submodule(name).register_forward_hook(partial(_record_activation, recorded, name))
        for name in activations
    ]
    with freezing.mode(net, train=train):
        try:
            outputs: Outputs = torch.func.functional_call(net, weights, (x,))
        finally:
            for handle in handles:
                handle.remove()
    return outputs._replace(activations=recorded)


def _record_activation(
    recorded: dict[str, tuple[Tensor, Tensor]],
    name: str,
    module: nn.Module,
    args: tuple[Tensor, ...],
    out: Tensor,
) -> None:
    """Store a layer's input and output: a forward hook of PyTorch."""
    recorded[name] = (args[0], out)
