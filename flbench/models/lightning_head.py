"""The head of a LightningModule: which submodule it is, and what passes through it in a call.

The head is the layer whose outputs are the logits; its inputs are the features that methods read.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from flbench.core.errors import ConfigError
from flbench.models.trial import tried

SAME: Final = 1e-5
"""Largest difference of logarithms of a softmax that are taken as those of the same logits."""


class Call(NamedTuple):
    """One call of a head.

    Attributes:
        features: What it gets, [B, D] if it is the head of a net of B samples.
        logits: What it returns.
    """

    features: Tensor
    logits: Tensor


@contextmanager
def recorded(head: nn.Module) -> Iterator[list[Call]]:
    """Record the calls of a module within a `with` block, in their order.

    A call without a tensor, or within `torch.no_grad` where gradients are computed around it, such
    as that of a teacher, is left out.
    """
    calls: list[Call] = []
    has_gradients = torch.is_grad_enabled()

    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        if given and isinstance(found, Tensor) and torch.is_grad_enabled() == has_gradients:
            calls.append(Call(given[0], found))

    handle = head.register_forward_hook(record, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def of_batch(calls: Sequence[Call], rows: int, what: str, head: str | None) -> Call:
    """Return the first call of a head with features [B, D] and logits [B, C] of all B samples.

    Args:
        calls: The calls that were recorded.
        rows: The number of samples B.
        what: What has called the head, for messages.
        head: Name of the head in the net.

    Raises:
        ConfigError: There is no such call.
    """
    for call in calls:
        if _is_of(call, rows):
            return call
    got = ", ".join(str(list(call.features.shape)) for call in calls)
    name = "" if head is None else head.removeprefix("module.")
    raise ConfigError(
        f"the method reads the inputs [B, D] of the head `{name}`, which gets {got or 'no inputs'}"
        f" in {what} for a batch of {rows} samples. Call the head once with all samples of the"
        " batch, or set `model.head` (in Python head=...) to the submodule that computes the"
        " logits."
    )


def find(
    module: nn.Module, name: str | None, x: Tensor, classes: int | None
) -> tuple[str | None, str | None]:
    """Return the name of a module's head, and why its inputs are no features, as a clause.

    If the user names no head, it is the one linear layer whose outputs `forward` returns, or
    returns as logarithms of a softmax; None if there is none. The clause is None if the inputs are
    features [B, D] that methods can read.

    Args:
        module: The module, in eval mode.
        name: Name of the submodule that the user names as the head; None if there is none.
        x: Samples [B, ...] that `forward` accepts.
        classes: Number of classes C; None for targets that are not classes.
    """
    linear = [one for one, part in module.named_modules() if isinstance(part, nn.Linear)]
    names = linear if name is None else [name]
    with torch.no_grad(), tried(module), ExitStack() as stack:
        calls = {key: stack.enter_context(recorded(module.get_submodule(key))) for key in names}
        outputs: Tensor = module(x)
    heads = [key for key, some in calls.items() if some and _returns(some[0], outputs, classes)]
    if len(heads) == 1:
        return heads[0], None
    maps = "no linear layer maps" if name is None else f"`{name}` does not map"
    return name, (
        f"{maps} inputs [B, D] to what {type(module).__name__}.forward returns. Set `model.head`"
        " (in Python head=...) to the submodule that does, call it once, and let `forward` return"
        f" its outputs (linear layers: {', '.join(linear) or 'none'})"
    )


def _returns(call: Call, found: Tensor, classes: int | None) -> bool:
    """Return whether a call maps features [B, D] to what the net returns, [B, ...].

    For classes, logits with the same softmax are the same.
    """
    if not _is_of(call, len(found)) or call.logits.numel() != found.numel():
        return False
    logits = call.logits.reshape(found.shape).to(found.dtype)
    return torch.equal(logits, found) or (
        classes is not None
        and torch.allclose(logits.log_softmax(1), found.log_softmax(1), atol=SAME)
    )


def _is_of(call: Call, rows: int) -> bool:
    """Return whether a call maps features [B, D] of so many samples to outputs of each."""
    return call.features.ndim == 2 and len(call.features) == len(call.logits) == rows
