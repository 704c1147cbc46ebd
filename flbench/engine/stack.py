"""A block of clients at work at once: what they share is there once, what differs is stacked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from traceback import walk_tb
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.client.module import call, make_step_context, mode
from flbench.client.program import Statistic, Transform, merge_context
from flbench.client.recording import REDUCTIONS
from flbench.core.errors import ConfigError
from flbench.core.tree import where_masked
from flbench.core.types import Batch, Dispatch, Info, Outputs, StepContext, Tree
from flbench.data.federation import Federation
from flbench.engine.base import RoundSettings
from flbench.engine.bundle import Bundle
from flbench.engine.padding import Padding
from flbench.engine.traced import Traces

PASS = 8192  # rows of all clients together in one step of a Statistic


@dataclass(frozen=True)
class StackEnvironment:
    """What stacks work with.

    Attributes:
        net: its own tensors are never used, only their names and the forward pass.
        start: the seeded values by name, on the device.
        buffers: names of the net's buffers.
        federation: the samples, on the device.
        device: of all tensors.
        dtype: of weights and inputs.
        autocast: the type that matrix products are computed in; None for `dtype`.
        has_batchnorm: whether a batch of one sample must be skipped.
        padding: tells BatchNorm which rows are real.
        traces: of training steps.
    """

    net: nn.Module
    start: Tree
    buffers: frozenset[str]
    federation: Federation
    device: torch.device
    dtype: torch.dtype
    autocast: torch.dtype | None
    has_batchnorm: bool
    padding: Padding
    traces: Traces

    def precision(self) -> torch.autocast:
        """Return the context of a forward pass."""
        kind = self.autocast or torch.bfloat16
        return torch.autocast(self.device.type, kind, enabled=self.autocast is not None)


class Stack:
    """A block of clients: their leaves, what they know (ctx), and what they have done.

    Args:
        env: net, samples, precision.
        ids: [B] client ids.
        settings: of the round.
        rows: what the clients kept, [B, ...] each.
        dispatch: what the server sends them.
    """

    def __init__(
        self,
        env: StackEnvironment,
        ids: Tensor,
        settings: RoundSettings,
        rows: Tree,
        dispatch: Dispatch,
    ) -> None:
        self.environment = env
        self.settings = settings
        self.ids = ids.numpy().copy()
        self.position = np.arange(len(ids))  # where each client stood in `ids`
        self.steps = np.zeros(len(ids), dtype=np.int64)
        self.loss = torch.zeros(len(ids), dtype=torch.float64, device=env.device)
        self.lr = 0.0
        self.start = Bundle(dict(env.start), names=list(env.start))
        self.ctx = Bundle()
        for name, number in dispatch.numbers.items():
            value = torch.tensor(number, dtype=env.dtype, device=env.device)
            self.ctx.put(name, value, row=False)
        for name, value in rows.items():
            self.start.put(name, self._own(name, value), row=True)
        known = set(self.start.names)
        for message, row in ((dispatch.shared, False), (dispatch.rows, True)):
            for name, value in message.values.items():
                target = self.start if name in known else self.ctx
                value, each = self._own(name, value), row
                if name in known and name in message.mask:
                    # A message to all leaves rows where the clients already differ.
                    each = row or name in self.start.rows
                    mask = message.mask[name].to(env.device)
                    value = where_masked(mask, value, self.start[name])
                target.put(name, value, row=each)
        self.leaves = self.start.copy()

    def __len__(self) -> int:
        return len(self.ids)

    def reorder(self, order: NDArray[np.int64]) -> None:
        """Put the clients in another order."""
        if (order == np.arange(len(order))).all():
            return
        self.ids, self.position = self.ids[order], self.position[order]
        self.steps = self.steps[order]
        index = torch.from_numpy(order).to(self.environment.device)
        self.loss = self.loss[index]
        for bundle in (self.start, self.ctx, self.leaves):
            bundle.reorder(index)

    def each(self, fn: Callable[..., Any], *extra: Any, count: int | None = None) -> Any:
        """Return fn(leaves, start, ctx, *extra) for the first `count` clients, stacked [B, ...].

        Args:
            fn: sees one client.
            extra: trees of tensors with an axis [B].
            count: None for all clients.
        Raises: ConfigError if it does what vmap cannot, such as reading a value.
        """
        count = len(self) if count is None else count
        bundles = (self.leaves, self.start, self.ctx)
        # vmap takes a flat list: it walks through nested trees slowly, and in every step.
        rows: list[Tensor] = []
        places: dict[int, int] = {}  # by tensor: leaves that did not change are those of the start
        slots: list[dict[str, int]] = []
        for bundle in bundles:
            slots.append({})
            for name, value in bundle.rows.items():
                if id(value) not in places:
                    places[id(value)] = len(rows)
                    # A slice of what is trained would cost a copy in the backward pass.
                    rows.append(value if len(value) == count else value[:count])
                slots[-1][name] = places[id(value)]

        def one(first: Tensor, rows: list[Tensor], *extra: Any) -> Any:
            trees = [
                {n: rows[mine[n]] if n in mine else bundle.shared[n] for n in bundle.names}
                for bundle, mine in zip(bundles, slots, strict=True)
            ]
            return fn(*trees, *extra)

        index = torch.arange(count, device=self.environment.device)  # vmap needs one stacked tensor
        try:
            return torch.vmap(one)(index, rows, *extra)
        except RuntimeError as error:
            if not str(error).startswith("vmap:"):
                raise
            raise ConfigError(_refusal(error)) from error

    def step_context(
        self, leaves: Tree, start: Tree, ctx: Tree, batch: Batch, **keys: Any
    ) -> StepContext:
        """Return what one client's step sees."""
        forward = partial(self.forward, leaves, ctx, batch.x, **keys)
        return make_step_context(self.environment.net, forward, batch, ctx, leaves, start)

    def forward(
        self,
        leaves: Tree,
        ctx: Tree,
        x: Tensor,
        weights: Callable[[Tree, Tree], Tree] | None = None,
    ) -> Outputs:
        """Return the net's outputs with one client's leaves, or what `weights` makes of them."""
        if weights is not None:
            return call(self.environment.net, weights(leaves, ctx), x)
        return call(
            self.environment.net, {name: leaves[name] for name in self.environment.start}, x
        )

    def collect(self, statistic: Statistic) -> None:
        """Run a Statistic over each client's rows and write what it finds into ctx."""
        env, draw = self.environment, self.settings.draw
        rows = [env.federation.rows(statistic.samples, int(client), draw) for client in self.ids]
        sizes = np.array([len(mine) for mine in rows])
        order = np.argsort(-sizes, kind="stable")  # most rows first: who has more comes first
        self.reorder(order)
        rows, sizes = [rows[k] for k in order], sizes[order]
        self._refuse_ragged(statistic, sizes)
        # Without rows there is one padded row that does not count.
        longest = max(1, int(sizes[0]))
        found: Tree = {}
        begin = 0
        with torch.no_grad(), mode(env.net, train=False):
            while begin < longest:
                count = int((sizes > begin).sum()) if begin else len(self)
                end = begin + max(1, PASS // count)
                batch = self._cut(rows[:count], begin, min(end, longest))
                new = self.each(partial(self.observe, statistic), batch, count=count)
                for key, value in new.items():
                    reduction = statistic.reduction(key)
                    if key not in found:
                        found[key] = value.clone()  # vmap may hand out one value for all
                    elif reduction == "rows":  # axis 0 is the clients'
                        found[key] = torch.cat([found[key], value], dim=1)
                    else:
                        found[key][:count] = REDUCTIONS[reduction](found[key][:count], value)
                begin = end
            if statistic.finish is not None:
                finish = statistic.finish
                found = self.each(lambda leaves, start, ctx, got: finish(got, leaves, ctx), found)
        self.know(statistic.name, found)

    def know(self, name: str, found: Tree) -> None:
        """Write a Statistic's result [B, ...] into ctx."""
        named: Tree = {}
        merge_context(named, name, found)
        for key, value in named.items():
            self.ctx.put(key, value, row=True)

    def map(self, step: Transform) -> None:
        """Let a Transform change leaves."""
        env, draw = self.environment, self.settings.draw
        sizes = [len(env.federation.partition.parts["train"][int(client)]) for client in self.ids]
        lr = torch.tensor(self.lr, dtype=env.dtype, device=env.device)
        number = torch.tensor(draw.round, device=env.device)

        def change(leaves: Tree, start: Tree, ctx: Tree, steps: Tensor, size: Tensor) -> Tree:
            return step.fn(leaves, start, ctx, Info(steps, lr, size, number))

        counts = (torch.from_numpy(self.steps.copy()), torch.tensor(sizes))
        with torch.no_grad():
            changed = self.each(change, *(count.to(env.device) for count in counts))
        for name, value in changed.items():
            self.leaves.put(name, self._own(name, value), row=True)

    def inputs(self, rows: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the normalised samples [B, S, ...] of the rows [B, S] of the data set."""
        flat = None if keys is None else keys.reshape(-1)
        x = self.environment.federation.inputs(rows.reshape(-1), self.environment.dtype, flat)
        return x.reshape(*rows.shape, *x.shape[1:])

    def _own(self, name: str, value: Tensor) -> Tensor:
        """Return a tensor on the device; the net's own leaves keep their type."""
        own = self.environment.start.get(name)
        return value.to(self.environment.device, None if own is None else own.dtype)

    def observe(
        self, statistic: Statistic, leaves: Tree, start: Tree, ctx: Tree, batch: Any
    ) -> Tree:
        """Return what a Statistic finds in one client's batch `(x, y, mask, key)`."""
        step = torch.zeros((), dtype=torch.int64, device=self.environment.device)
        with self.environment.precision():
            x, y, mask, key = batch
            return statistic.fn(self.step_context(leaves, start, ctx, Batch(x, y, mask, key, step)))

    def _cut(self, rows: Sequence[NDArray[np.int64]], begin: int, end: int) -> Any:
        """Return x, y, mask, key of the clients' rows from `begin` to `end`, padded."""
        width = max(1, min(end, max(len(mine) for mine in rows)) - begin)
        index = np.zeros((len(rows), width), dtype=np.int64)
        real = np.zeros((len(rows), width), dtype=bool)
        for k, mine in enumerate(rows):
            piece = mine[begin:end]
            index[k, : len(piece)] = piece
            real[k, : len(piece)] = True
        device = self.environment.device
        chosen = torch.from_numpy(index).to(device)
        mask = torch.from_numpy(real).to(device)
        return self.inputs(chosen), self.environment.federation.y[chosen], mask, chosen

    def _refuse_ragged(self, statistic: Statistic, sizes: NDArray[np.int64]) -> None:
        kinds = statistic.reduce
        every = {kinds} if isinstance(kinds, str) else {kind for _, kind in kinds}
        if "rows" in every and len(set(sizes.tolist())) > 1:
            raise ValueError(
                f"the Statistic `{statistic.name}` puts rows one after the other, which clients of"
                " different size cannot do at once"
            )


def _refusal(error: RuntimeError) -> str:
    """Say what vmap could not do, and where: in the innermost call outside PyTorch."""
    call, line = [found for found in walk_tb(error.__traceback__) if not _is_pytorch(found[0])][-1]
    code = call.f_code
    first, _, _ = str(error).removeprefix("vmap: ").partition(". ")
    return (
        f"`{code.co_qualname}` ({code.co_filename}:{line}) cannot be done for many clients at once"
        f" ({first}). Use engine.name=sequential, or masks instead of values."
    )


def _is_pytorch(call: FrameType) -> bool:
    return str(call.f_globals.get("__name__")).partition(".")[0] == "torch"
