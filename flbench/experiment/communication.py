"""Masking of messages, and the number of bytes that they take.

Every entry of a message that lies inside its mask, or has no mask, counts with the item size of its
tensor; masks themselves and the overhead of serialization do not count. Entries outside the mask
are set to zero, so that no receiver can use values that were not paid for.
"""

from collections.abc import Iterator

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


class DispatchMeter:
    """Counts the bytes that clients receive.

    A tensor of one name counts once for a client: an engine asks for a client a second time if its
    worker died.
    """

    def __init__(self) -> None:
        self._bytes: dict[int, dict[str, int]] = {}

    def copy(self) -> "DispatchMeter":
        """Return a copy, which counts on from here."""
        other = DispatchMeter()
        other._bytes = dict(self._bytes)
        return other

    def counted(self, ids: Tensor, dispatch: Dispatch) -> Dispatch:
        """Count a dispatch to clients `ids` [K]; return it with its masks applied."""
        shared = {name: shared_bytes(one) for name, one in _each(dispatch.shared)}
        rows = {name: row_bytes(one).tolist() for name, one in _each(dispatch.rows)}
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


def _each(message: Message) -> Iterator[tuple[str, Message]]:
    """Yield each tensor of a message by name, as a message with its mask."""
    for name, value in message.values.items():
        mask = {name: message.mask[name]} if name in message.mask else {}
        yield name, Message({name: value}, mask)


def _entries(value: Tensor, mask: Tensor | None) -> int:
    """Return the number of entries of a value that lie inside its mask."""
    return value.numel() if mask is None else int(broadcast(mask, value).expand(value.shape).sum())
