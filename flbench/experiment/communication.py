"""Masking of messages, and the number of bytes that they take.

Every entry of a message that lies inside its mask, or has no mask, counts with the item size of its
tensor; masks themselves and the overhead of serialization do not count. Entries outside the mask
are set to zero, so that no receiver can use values that were not paid for.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Self

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
    shared, rows = apply_mask(dispatch.shared), apply_mask(dispatch.rows)
    return replace(dispatch, shared=shared, rows=rows)


def row_bytes(message: Message) -> Tensor:
    """Return the bytes [K] int64 of each row of a message with a client axis.

    The result has the shape [0] if the message is empty.
    """
    sizes = _row_bytes(message).values()
    return sum(sizes, torch.zeros(1, dtype=torch.int64)) if sizes else torch.zeros(0).long()


def shared_bytes(message: Message) -> int:
    """Return the bytes of a message without a client axis.

    >>> shared_bytes(Message({"w": torch.zeros(3, 2)}, {"w": torch.tensor([True, False, True])}))
    16
    """
    return sum(_shared_bytes(message).values())


class DispatchMeter:
    """Counts the bytes that clients receive.

    A tensor of one name counts once for a client: an engine asks for a client a second time if its
    worker died.
    """

    def __init__(self) -> None:
        self._bytes: dict[int, dict[str, int]] = {}

    def copy(self) -> Self:
        """Return a copy, which counts on from here."""
        return deepcopy(self)

    def counted(self, ids: Tensor, dispatch: Dispatch) -> Dispatch:
        """Count a dispatch to clients `ids` [K]; return it with its masks applied."""
        shared = _shared_bytes(dispatch.shared)
        rows = {name: sizes.tolist() for name, sizes in _row_bytes(dispatch.rows).items()}
        for k, client in enumerate(ids.tolist()):
            before = self._bytes.get(client)
            known = shared if before is None else {**before, **shared}
            mine = {name: max(sizes[k], known.get(name, 0)) for name, sizes in rows.items()}
            self._bytes[client] = {**known, **mine} if mine else known
        return apply_masks(dispatch)

    def total(self) -> int:
        """Return the bytes of all clients together."""
        return sum(sum(mine.values()) for mine in self._bytes.values())

    def mean(self, ids: Tensor) -> float:
        """Return the mean of the bytes of clients `ids` [K]."""
        return sum(sum(self._bytes.get(one, {}).values()) for one in ids.tolist()) / len(ids)


def _row_bytes(message: Message) -> dict[str, Tensor]:
    """Return the bytes [K] int64 of each row of a message by the tensor's name."""
    found = {}
    for name, value in message.values.items():
        if (mask := message.mask.get(name)) is None:
            entries = torch.full((len(value),), value[:1].numel())
        else:
            inside = broadcast(mask, value).expand(value.shape)
            entries = inside.reshape(len(value), -1).sum(dim=1).cpu()  # [K, ...] -> [K]
        found[name] = entries * value.element_size()
    return found


def _shared_bytes(message: Message) -> dict[str, int]:
    """Return the bytes of a message without a client axis by the tensor's name."""
    values = {name: value[None] for name, value in message.values.items()}
    masks = {name: mask[None] for name, mask in message.mask.items()}
    return {name: int(sizes) for name, sizes in _row_bytes(Message(values, masks)).items()}
