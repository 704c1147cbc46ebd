"""Random numbers of stacked clients: each client draws from generators of its own.

The sequential engine seeds the global generators for each client. Stacked clients share one call of
each operation. `ClientDraws` works below `torch.vmap`, where tensors have a leading axis for the
clients, and executes operations that draw random numbers client by client, with PyTorch's
generators in the state of that client. So what a client draws depends neither on the other clients
of the stack nor on their order. It is what the sequential engine draws if samples are the first
axis of what the code draws.

Axes: K clients that take a step, S rows of the largest batch in this step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.core.errors import ConfigError
from flbench.core.rng import RandomState

Seed = Callable[..., int]
"""Maps a client's id, and numbers that separate its streams, to a seed in [0, 2^32)."""

PADDING = 2
"""The number that separates what rows of padding draw from what a client's samples draw."""
HALF = 0.5
"""What takes the place of random numbers in comparisons of engines."""
WHOLE = (torch.ops.aten.multinomial.default,)
"""Operations that draw random numbers and whose first axis may be another one than their result's.
"""


class ClientDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode of PyTorch in which each of several clients draws its own random numbers.

    Attributes:
        needed: Whether code has drawn, or has done something else that vmap refuses without this
            mode.
        used: Whether anything has been drawn.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.needed = self.used = False
        self._seed: Seed = lambda client, *part: 0
        self._states: dict[tuple[int, ...], RandomState] = {}
        self._ids: Sequence[int] = ()
        self._fill: Sequence[int] = ()
        self._size = self._calls = 0

    def begin(self, seed: Seed) -> None:
        """Set the generators of all clients to their beginning.

        Args:
            seed: Gives the seeds that they begin with.
        """
        self._seed, self._states = seed, {}

    def restart(self) -> None:
        """Set the generators of all clients to their last beginning."""
        self._states = {}

    @contextmanager
    def of(self, ids: NDArray[np.int64], fill: NDArray[np.int64], size: int) -> Iterator[None]:
        """Return a context manager in which operations draw for some clients.

        Args:
            ids: Ids [K] of the clients, in the order of the leading axis of tensors.
            fill: Numbers [K] of samples in the clients' batches; the other rows are padding.
            size: Number of rows S of each client's batch; 0 if no batch is read.
        """
        self._ids, self._fill = ids.tolist(), fill.tolist()
        self._size, self._calls = size, 0
        with self:
            yield

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Execute an operation; one that draws random numbers is executed for each client."""
        kwargs = kwargs or {}
        if not may_draw(func):
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("generator") is not None or given.get("dropout_p") == 0:
            return func(*args, **kwargs)
        self.used = True
        lengths = {_length(value) for name, value in given.items() if _has_rows(name, value)}
        if not lengths:  # such as randperm, which vmap calls once for each client
            self._calls += 1
            with self._generators(self._ids[(self._calls - 1) % len(self._ids)]):
                return func(*args, **kwargs)
        if lengths != {len(self._ids)}:
            raise ConfigError(
                f"the operation `{func}` draws random numbers for {sorted(lengths)} rows at once,"
                f" which engine.name=vectorized cannot divide among {len(self._ids)} clients. Use"
                " engine.name=sequential or ray."
            )
        results = [self._of_client(func, given, k) for k in range(len(self._ids))]
        return _stacked(func, given, results)

    def _of_client(self, func: Any, given: Mapping[str, Any], k: int) -> Any:
        """Return the result of an operation for one client.

        Rows of samples are drawn first, as the sequential engine does, whose batches have no
        padding. Rows of padding are drawn from generators of their own. All rows have the same
        distribution, because the first axis may be another one than that of the samples.

        Args:
            func: The operation.
            given: Its arguments by name.
            k: Position of the client.
        """
        client, fill = self._ids[k], self._fill[k]
        mine = {name: _row(name, value, k) for name, value in given.items()}
        shapes = {_shape(value) for name, value in mine.items() if _has_rows(name, value)}
        rows = next(iter(shapes))[0] if len(shapes) == 1 and all(shapes) else 0
        is_padded = 0 < fill < self._size and func not in WHOLE
        if not is_padded or not rows or rows % self._size:
            with self._generators(client):
                return func(**mine)
        count = rows // self._size * fill  # of the samples
        results = []
        for begin, end, part in ((0, count, ()), (count, rows, (PADDING,))):
            piece = {name: _slice(name, value, begin, end) for name, value in mine.items()}
            with self._generators(client, *part):
                results.append(func(**piece))
        if isinstance(results[0], Tensor):
            return torch.cat(results)
        return tuple(torch.cat(pieces) for pieces in zip(*results, strict=True))

    @contextmanager
    def _generators(self, *key: int) -> Iterator[None]:
        """Return a context manager in which PyTorch's generators are those of a client.

        Args:
            key: Id of the client, and numbers that separate its streams.
        """
        state = self._states.get(key)
        (RandomState.seeded(self._seed(*key)) if state is None else state).set()
        yield
        self._states[key] = RandomState.now()


class Stackable(TorchFunctionMode):
    """Mode of PyTorch in which code for one client draws in ways that `torch.vmap` does not know.

    A tensor that `torch.empty` makes to be filled with random numbers has other ones for each
    client. RReLU is computed by operations that vmap knows.

    Args:
        like: A tensor of one client, within vmap.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self._like = like

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch."""
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("out") is None:
            one = func(*args, **kwargs)
            return self._like.new_empty(one.shape, dtype=one.dtype, device=one.device)
        if func in (torch.rrelu, torch.rrelu_, functional.rrelu):
            return _rrelu(*args, **({"inplace": func is torch.rrelu_, **kwargs}))
        return func(*args, **kwargs)


def _rrelu(
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Return what `torch.nn.functional.rrelu` returns, in distribution."""
    slope: Tensor | float = (lower + upper) / 2
    if training:
        slope = torch.empty_like(input).uniform_(lower, upper)
    found = torch.where(input < 0, input * slope, input)
    return input.copy_(found) if inplace else found


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


def _has_rows(name: str, value: object) -> bool:
    """Return whether an argument is a tensor, or the shape of the result."""
    return name == "size" or isinstance(value, Tensor)


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, or that of the result."""
    return tuple(value.shape if isinstance(value, Tensor) else value)


def _length(value: Any) -> int:
    """Return the length of the first axis; 0 if there is none."""
    return next(iter(_shape(value)), 0)


def _row(name: str, value: Any, k: int) -> Any:
    """Return the part of an argument that belongs to one client."""
    if name == "size":
        return list(value[1:])
    return value[k] if isinstance(value, Tensor) else value


def _slice(name: str, value: Any, begin: int, end: int) -> Any:
    """Return the part of a client's argument for some rows of its first axis."""
    if name == "size":
        return [end - begin, *value[1:]]
    return value[begin:end] if isinstance(value, Tensor) else value


def _stacked(func: Any, given: Mapping[str, Any], results: Sequence[Any]) -> Any:
    """Return the results of all clients as the operation for all of them returns them.

    Args:
        func: The operation.
        given: Its arguments by name, for all clients.
        results: Its results for each client; arguments that it writes to have been written.
    """
    written = {
        frozenset(argument.alias_info.before_set): given[argument.name]
        for argument in func._schema.arguments
        if argument.alias_info is not None
    }
    found = []
    for k, returned in enumerate(func._schema.returns):
        if returned.alias_info is not None:
            found.append(written[frozenset(returned.alias_info.before_set)])
        else:
            pieces = [one if isinstance(one, Tensor) else one[k] for one in results]
            found.append(torch.stack(pieces))
    return found[0] if len(found) == 1 else tuple(found)
