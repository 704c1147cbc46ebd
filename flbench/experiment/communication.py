"""The wire rule (C14): what lies outside a mask is zeroed, and the rest is charged."""

import torch
from torch import Tensor

from flbench.core.tree import broadcast
from flbench.core.types import Dispatch, Message


def apply_mask(message: Message) -> Message:
    """Return the message with every entry outside its mask set to zero."""
    if not message.mask:
        return message
    values = dict(message.values)
    for name, mask in message.mask.items():
        values[name] = torch.where(
            broadcast(mask, values[name]), values[name], torch.zeros_like(values[name])
        )
    return Message(values, message.mask)


def apply_masks(dispatch: Dispatch) -> Dispatch:
    """Return the dispatch with both of its messages sealed."""
    return Dispatch(apply_mask(dispatch.shared), apply_mask(dispatch.rows), dispatch.numbers)


def shared_bytes(message: Message) -> int:
    """Return the bytes of a message without a client axis: item size times entries sent."""
    return sum(
        value.element_size() * _entries(value, message.mask.get(name))
        for name, value in message.values.items()
    )


def row_bytes(message: Message) -> Tensor:
    """Return the bytes [K] of each row of a message with a client axis; none if it is empty."""
    total: Tensor | None = None
    for name, value in message.values.items():
        mask = message.mask.get(name)
        if mask is None:
            entries = torch.full((value.shape[0],), value[0].numel() if len(value) else 0)
        else:
            inside = broadcast(mask, value).expand(value.shape)
            entries = inside.reshape(value.shape[0], -1).sum(dim=1).cpu()
        total = (0 if total is None else total) + entries * value.element_size()
    return torch.zeros(0, dtype=torch.int64) if total is None else total


def _entries(value: Tensor, mask: Tensor | None) -> int:
    return value.numel() if mask is None else int(broadcast(mask, value).expand(value.shape).sum())
