"""Masking of messages, and the number of bytes that they take.

Every entry of a message that lies inside its mask, or has no mask, counts with the item size of its
tensor; masks themselves and the overhead of serialization do not count. Entries outside the mask
are set to zero, so that no receiver can use values that were not paid for.
"""

import torch
from torch import Tensor

from flbench.core.errors import UnknownNameError, did_you_mean
from flbench.core.tree import broadcast
from flbench.core.types import Dispatch, Message


def apply_mask(message: Message) -> Message:
    """Return a message with every entry outside its mask set to zero, even if it is NaN.

    Raises:
        UnknownNameError: A mask has a name that no value has.
    """
    if not message.mask:
        return message
    values = dict(message.values)
    for name, mask in message.mask.items():
        if name not in values:
            raise UnknownNameError(
                f"a Message has a mask for `{name}`, but no value of this name."
                f"{did_you_mean(name, values)} Its values are {', '.join(values) or 'none'}."
            )
        values[name] = torch.where(
            broadcast(mask, values[name]), values[name], torch.zeros_like(values[name])
        )
    return Message(values, message.mask)


def apply_masks(dispatch: Dispatch) -> Dispatch:
    """Return a dispatch with the masks of both of its messages applied."""
    return Dispatch(apply_mask(dispatch.shared), apply_mask(dispatch.rows), dispatch.numbers)


def shared_bytes(message: Message) -> int:
    """Return the bytes of a message without a client axis.

    >>> shared_bytes(Message({"w": torch.zeros(3, 2)}, {"w": torch.tensor([True, False, True])}))
    16
    """
    return sum(
        value.element_size() * _entries(value, message.mask.get(name))
        for name, value in message.values.items()
    )


def row_bytes(message: Message) -> Tensor:
    """Return the bytes [K] int64 of each row of a message with a client axis.

    The result has the shape [0] if the message is empty.
    """
    total: Tensor | None = None
    for name, value in message.values.items():
        mask = message.mask.get(name)
        if mask is None:
            # [K, ...] -> [K]
            entries = torch.full((value.shape[0],), value[0].numel() if len(value) else 0)
        else:
            inside = broadcast(mask, value).expand(value.shape)
            entries = inside.reshape(value.shape[0], -1).sum(dim=1).cpu()  # [K, ...] -> [K]
        total = (0 if total is None else total) + entries * value.element_size()
    return torch.zeros(0, dtype=torch.int64) if total is None else total


def _entries(value: Tensor, mask: Tensor | None) -> int:
    """Return the number of entries of a value that lie inside its mask."""
    return value.numel() if mask is None else int(broadcast(mask, value).expand(value.shape).sum())
