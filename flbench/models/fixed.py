"""What the user has fixed in a net: frozen parameters, and modules that stay in eval mode.

A fixed tensor is the same for all clients in all rounds. Methods do not see it: it is not among the
leaves of a `NetSpec`, so nothing trains, mixes, sends or keeps it, and the net is called with its
first value.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from flbench.core import wording

ATTRIBUTE: Final = "fixed_by_user"  # of the net; copies of the net have it too


@dataclass(frozen=True)
class Fixed:
    """What is fixed in a net.

    Attributes:
        parameters: Names of the parameters with `requires_grad=False`.
        modules: Names of the modules that are in eval mode while the net is trained.
        statistics: Names of the running statistics of normalization layers in eval mode.
    """

    parameters: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    statistics: frozenset[str] = frozenset()

    @property
    def leaves(self) -> frozenset[str]:
        """Names of the tensors that do not change."""
        return self.parameters | self.statistics

    def __str__(self) -> str:
        parts = {"frozen parameters": self.parameters, "modules in eval mode": self.modules}
        return ", ".join(f"{what}: {len(names)}" for what, names in parts.items() if names)


NOTHING: Final = Fixed()


def find(net: nn.Module) -> Fixed:
    """Return what is fixed in a net: its frozen parameters and its modules in eval mode.

    Modules that the net's own `train()` puts in eval mode are among them. The modes of the net do
    not change.

    Args:
        net: The net, as the user has made it.
    """
    modes = [(name, module, module.training) for name, module in net.named_modules()]
    net.train()
    modules = {name for name, module, before in modes if not (before and module.training)}
    for _, module, before in modes:
        module.training = before
    statistics = {
        f"{name}.{leaf}" if name else leaf
        for name, module, _ in modes
        if name in modules and isinstance(module, _NormBase)
        for leaf, _ in module.named_buffers(recurse=False)
    }
    frozen = {name for name, one in net.named_parameters() if not one.requires_grad}
    return Fixed(frozenset(frozen), frozenset(modules), frozenset(statistics))


def write(net: nn.Module, found: Fixed) -> None:
    """Store in a net what is fixed in it."""
    net.__dict__[ATTRIBUTE] = found


def of(net: nn.Module) -> Fixed:
    """Return what is stored as fixed in a net; nothing for a net of flbench."""
    found: Fixed = net.__dict__.get(ATTRIBUTE, NOTHING)
    return found


def values(net: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a net that are stored as fixed in it, by name in the net's order."""
    known = of(net).leaves
    every = (*net.named_parameters(), *net.named_buffers())
    return {name: tensor for name, tensor in every if name in known}


def trains_batchnorm(net: nn.Module) -> bool:
    """Return whether a net has BatchNorm that reads the statistics of the batch in training."""
    in_eval = of(net).modules
    return any(
        isinstance(module, _BatchNorm) and name not in in_eval
        for name, module in net.named_modules()
    )


def notes(net: nn.Module) -> list[str]:
    """Return a note on what is fixed in a net; an empty list if nothing is."""
    found = of(net)
    sentences = []
    if found.parameters:
        total = sum(1 for _ in net.parameters())
        sentences.append(
            f"model: {len(found.parameters)} of {total} parameters are frozen"
            f" (requires_grad=False or model.freeze; {listed(found.parameters)}). They are not"
            " trained, and neither sent, kept nor counted by any method; layers without other"
            " tensors are no layers of the net to a method."
        )
    if moving := _moving_statistics(net):
        sentences.append(
            f"model: the parameters of {len(moving)} normalization layers are frozen"
            f" ({listed(moving)}), but the layers are in training mode, so their running statistics"
            " change and are sent. Call eval() of these layers, or set model.freeze, to keep them."
        )
    if found.modules:
        count = len(found.modules)
        verb = "module is" if count == 1 else "modules are"
        sentences.append(
            f"model: {count} {verb} in eval mode ({listed(found.modules)}), also while the net is"
            " trained: BatchNorm uses its running statistics unchanged there."
        )
    return sentences


def _moving_statistics(net: nn.Module) -> list[str]:
    """Return the normalization layers with frozen parameters whose running statistics change."""
    found = of(net)
    moving = []
    for name, module in net.named_modules():
        own = {f"{name}.{leaf}" for leaf, _ in module.named_parameters(recurse=False)}
        moves = isinstance(module, _NormBase) and module.track_running_stats
        if moves and own and own <= found.parameters and name not in found.modules:
            moving.append(name)
    return moving


def listed(names: Iterable[str]) -> str:
    """Return the first three of some names in alphabetical order."""
    return wording.listed(sorted(names), 3)


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Put a net in eval mode within a `with` block, and restore the mode of each module."""
    before = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def keep_modes(net: nn.Module) -> None:
    """Put the modules of a net in eval mode that stay so while the net is trained."""
    for name in of(net).modules:
        net.get_submodule(name).training = False
