"""Constants in place of random numbers, to compare what two engines compute."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

HALF: Final = 0.5
"""What takes the place of random numbers."""


class ConstantDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode of PyTorch in which all random numbers are constants, and dropout drops nothing.

    It shows whether two computations differ by more than by what they draw.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Execute an operation; one that draws random numbers gives constants."""
        if func is torch.ops.aten.rrelu_with_noise.default:
            if len(args) < 5 or not args[4]:  # not in training mode
                return func(*args, **(kwargs or {}))
            args[1].copy_(torch.where(args[0] <= 0, HALF, 1.0))  # the slopes, which backward reads
            return args[0] * args[1]
        found = func(*args, **(kwargs or {}))
        if not may_draw(func):
            return found
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(found[1])
        for value in [found] if isinstance(found, Tensor) else found:
            is_mask = "bernoulli" in func.name() or value.dtype == torch.bool
            value.fill_(1 if is_mask else HALF if value.is_floating_point() else 0)
        return found


@cache
def may_draw(operation: Any) -> bool:
    """Return whether an operation of PyTorch may draw random numbers."""
    return torch.Tag.nondeterministic_seeded in operation.tags
