"""A block of clients that run a local program at once: their tensors are stacked.

Axes: K clients of the block, S samples of a client in a step.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.client.forward import apply, call
from flbench.client.program import Statistic, Transform
from flbench.client.recording import Recording
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, shortened
from flbench.core.tree import where_masked
from flbench.core.types import Batch, Context, Info, Outputs, Tree
from flbench.core.user_code_errors import user_line
from flbench.data.federation import Federation
from flbench.engine.base import LocalWork
from flbench.engine.environment import Environment
from flbench.engine.stacked_layers import exclude_padding, replace_convolutions
from flbench.engine.stacked_tree import StackedTree
from flbench.models import freezing

STATISTIC_BATCH = 8192
"""Samples of all clients together in one batch of a Statistic."""
UNSUPPORTED = ("vmap:", "Batching rule not implemented")
"""How the text of an exception begins if code does what vmap does not support."""


class StackEnvironment(Environment):
    """See `Environment`; layers of BatchNorm read which rows are samples.

    On a GPU some convolutions are products with patches, see `stacked_layers.has_small_patches`.

    Attributes:
        padding: The mask of padded rows that BatchNorm layers read.
    """

    def __init__(self, net: nn.Module, federation: Federation, config: EngineConfig) -> None:
        super().__init__(net, federation, config)
        self.padding = exclude_padding(self.net)
        casts, on_gpu = self.autocast is not None, self.device.type == "cuda"
        replace_convolutions(self.net, casts=casts, patches=on_gpu)


class Stack:
    """A block of K clients in one round: their leaves, their ctx, and the steps they have taken.

    Args:
        environment: Net, samples, device and precision.
        ids: [K] client ids.
        work: What the clients compute.

    Attributes:
        ids: [K] client ids, in the present order of the clients.
        position: [K] the position of each client in the `ids` that were given.
        steps: [K] optimizer steps taken so far.
        loss: [K] float64, the sum of the losses of these steps.
        lr: Learning rate of the last phase.
        start: The leaves at the beginning of the program.
        leaves: The leaves now.
        ctx: Named tensors that the server sent or that Statistics computed.
    """

    def __init__(self, environment: StackEnvironment, ids: Tensor, work: LocalWork) -> None:
        env = self.environment = environment
        self.work, self.settings = work, work.settings
        rows, dispatch = work.rows(ids), work.dispatch(ids)
        self.ids = ids.numpy().copy()
        self.position = np.arange(len(ids))
        self.steps = np.zeros(len(ids), dtype=np.int64)
        self.loss = torch.zeros(len(ids), dtype=torch.float64, device=env.device)
        self.lr = 0.0
        self.start = StackedTree(dict(env.start), names=list(env.start))
        self.ctx = StackedTree()
        for name, number in dispatch.numbers.items():
            value = torch.tensor(number, dtype=env.dtype, device=env.device)
            self.ctx.put(name, value, stacked=False)
        for name, value in rows.items():
            self.start.put(name, self._to_device(name, value), stacked=True)
        known = {*self.start.names} | dispatch.leaves
        for message, has_client_axis in ((dispatch.shared, False), (dispatch.rows, True)):
            for name, value in message.values.items():
                target = self.start if name in known else self.ctx
                value, stacked = self._to_device(name, value), has_client_axis
                if name in known and name in message.mask:
                    # Under a mask, a message to all clients keeps the differences between them.
                    stacked = has_client_axis or name in self.start.stacked
                    mask = message.mask[name].to(env.device)
                    value = where_masked(mask, value, self.start[name])
                target.put(name, value, stacked=stacked)
        self.leaves = self.start.copy()

    def __len__(self) -> int:
        return len(self.ids)

    def title(self) -> str:
        """Return clients and round, for messages."""
        called = map(self.environment.federation.partition.called, sorted(self.ids.tolist()))
        return f"the clients [{shortened(', '.join(called))}] in {self.settings.draw.title}"

    def reorder(self, order: NDArray[np.int64]) -> None:
        """Put the clients in another order; `order` [K] has the old position of each client."""
        if (order == np.arange(len(order))).all():
            return
        self.ids, self.position = self.ids[order], self.position[order]
        self.steps = self.steps[order]
        index = torch.from_numpy(order).to(self.environment.device)
        self.loss = self.loss[index]
        for tree in (self.start, self.ctx, self.leaves):
            tree.reorder(index)

    def vmap_clients(self, fn: Callable[..., Any], *extra: Any, count: int | None = None) -> Any:
        """Return fn(leaves, start, ctx, *extra) for the first `count` clients, by `torch.vmap`.

        Each client draws random numbers of its own.

        Args:
            fn: Function of one client's trees; its tensors have no client axis.
            extra: Trees of tensors [count, ...].
            count: The number of clients; None for all K.

        Returns:
            The results of `fn`, stacked: [count, ...] each.

        Raises:
            ConfigError: `fn` does what vmap does not support, such as reading a value.
        """
        count = len(self) if count is None else count
        sources = (self.leaves, self.start, self.ctx)
        # All tensors are passed to vmap as one flat list, because vmap walks through nested trees
        # slowly, and in every step.
        tensors: list[Tensor] = []
        places: dict[int, int] = {}  # by id: unchanged leaves are the same tensors as in `start`
        slots: list[dict[str, int]] = []
        for source in sources:
            slots.append({})
            for name, value in source.stacked.items():
                if id(value) not in places:
                    places[id(value)] = len(tensors)
                    # Not sliced without need: the slice of a trained leaf costs a copy in the
                    # backward pass.
                    tensors.append(value if len(value) == count else value[:count])
                slots[-1][name] = places[id(value)]

        def one(index: Tensor, tensors: list[Tensor], *extra: Any) -> Any:
            trees = [
                {n: tensors[slot[n]] if n in slot else source.shared[n] for n in source.names}
                for source, slot in zip(sources, slots, strict=True)
            ]
            return fn(*trees, *extra)

        # vmap needs at least one stacked tensor.
        index = torch.arange(count, device=self.environment.device)
        try:
            return torch.vmap(one, randomness="different")(index, tensors, *extra)
        except RuntimeError as error:
            if not str(error).startswith(UNSUPPORTED):
                raise
            raise ConfigError(_refusal(error)) from error

    def step_context(
        self,
        leaves: Tree,
        start: Tree,
        ctx: Tree,
        batch: Batch,
        weights: Callable[[Context], Tree] | None = None,
    ) -> Context:
        """Return what loss terms and Statistics read in one client's step.

        The net is called with the leaves, in place of which `weights` (of a phase) may have others.
        """
        env = self.environment

        def forward() -> Outputs:
            here = Context(leaves=leaves, start=start, ctx=ctx)
            called = leaves | weights(here) if weights else leaves
            return call(env.net, {name: called[name] for name in env.start}, batch.x)

        given = partial(apply, env.net)
        return Context(forward, batch=batch, ctx=ctx, leaves=leaves, start=start, apply=given)

    def run_statistic(self, statistic: Statistic) -> None:
        """Compute a Statistic over each client's samples and write the results into ctx.

        Raises:
            ValueError: The Statistic concatenates rows of integers, which cannot be padded.
        """
        env, draw = self.environment, self.settings.draw
        rows = [env.federation.rows(statistic.samples, int(client), draw) for client in self.ids]
        sizes = np.array([len(mine) for mine in rows])  # [K]
        # Largest clients first: those that still have samples are then the first `count` ones.
        order = np.argsort(-sizes, kind="stable")
        self.reorder(order)
        rows, sizes = [rows[k] for k in order], sizes[order]
        # A client without samples gets one padded row, which does not count.
        longest = max(1, int(sizes[0]))
        recording = Recording(statistic)
        begin = 0
        with torch.no_grad(), freezing.mode(env.net, train=False):
            while begin < longest:
                count = int((sizes > begin).sum()) if begin else len(self)
                end = begin + max(1, STATISTIC_BATCH // count)
                batch = self._padded_batch(rows[:count], begin, min(end, longest))
                tensors = self.vmap_clients(partial(self.observe, statistic), batch, count=count)
                for key, value in tensors.items() if sizes[0] != sizes[-1] else ():
                    if statistic.reduction(key) == "rows":
                        tensors[key] = self._padded_rows(value, statistic.name)
                recording.add(tensors)
                begin = end
            self.finish(recording)

    def _padded_rows(self, rows: Tensor, name: str) -> Tensor:
        """Return rows [count, B, ...] of the first clients with NaN for the others, [K, B, ...]."""
        if not rows.is_floating_point():
            raise ValueError(
                f"the Statistic `{name}` concatenates rows of {rows.dtype} (reduce=rows) of clients"
                " with different numbers of samples. Use a floating-point type, which is padded"
                " with NaN, or engine.name=sequential."
            )
        missing = rows.new_full((len(self) - len(rows), *rows.shape[1:]), torch.nan)
        return torch.cat([rows, missing])

    def finish(self, recording: Recording) -> None:
        """Write the result of a Statistic, [K, ...] each, into ctx under the names `NAME.KEY`."""
        result, finish = recording.result(), recording.statistic.finish
        if finish is not None:

            def finished(leaves: Tree, start: Tree, ctx: Tree, mine: Tree) -> Tree:
                return finish(Context(leaves=leaves, start=start, ctx=ctx), mine)

            result = self.vmap_clients(finished, result)
        for key, value in result.items():
            self.ctx.put(f"{recording.statistic.name}.{key}", value, stacked=True)

    def run_transform(self, step: Transform) -> None:
        """Replace leaves by what a Transform returns."""
        env, draw = self.environment, self.settings.draw
        sizes = [len(env.federation.partition.parts["train"][int(client)]) for client in self.ids]
        lr = torch.tensor(self.lr, dtype=env.dtype, device=env.device)
        number = torch.tensor(draw.round, device=env.device)

        def change(leaves: Tree, start: Tree, ctx: Tree, steps: Tensor, size: Tensor) -> Tree:
            info = Info(steps, lr, size, number)
            return step.fn(Context(leaves=leaves, start=start, ctx=ctx, info=info))

        counts = (torch.from_numpy(self.steps.copy()), torch.tensor(sizes))  # [K] each
        with torch.no_grad():
            changed = self.vmap_clients(change, *(count.to(env.device) for count in counts))
        for name, value in changed.items():
            self.leaves.put(name, self._to_device(name, value), stacked=True)

    def inputs(self, rows: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the normalized inputs [K, S, ...] of the rows [K, S] of the data set.

        Args:
            rows: [K, S] rows of the data set.
            keys: [K, S] noise keys for augmentation; None does not augment.
        """
        flat = None if keys is None else keys.reshape(-1)
        x = self.environment.federation.inputs(rows.reshape(-1), self.environment.dtype, flat)
        return x.reshape(*rows.shape, *x.shape[1:])  # [K * S, ...] -> [K, S, ...]

    def _to_device(self, name: str, value: Tensor) -> Tensor:
        """Return a tensor on the device; leaves of the net have the type of its seeded values."""
        own = self.environment.start.get(name)
        return value.to(self.environment.device, None if own is None else own.dtype)

    def observe(
        self, statistic: Statistic, leaves: Tree, start: Tree, ctx: Tree, batch: Any
    ) -> Tree:
        """Return a Statistic's tensors for one client's batch: x, y, mask, key, [S, ...] each."""
        step = torch.zeros((), dtype=torch.int64, device=self.environment.device)
        with self.environment.precision():
            x, y, mask, key = batch
            return statistic.fn(self.step_context(leaves, start, ctx, Batch(x, y, mask, key, step)))

    def _padded_batch(self, rows: Sequence[NDArray[np.int64]], begin: int, end: int) -> Any:
        """Return x, y, mask and key [K, S, ...] of each client's rows from `begin` to `end`."""
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


def _refusal(error: RuntimeError) -> str:
    """Return a message with what vmap does not support, and the line of the user's code."""
    first, _, _ = str(error).removeprefix("vmap: ").partition(". ")
    return (
        f"code cannot be called for many clients at once ({first}){user_line(error)}. Use masks"
        " instead of reading values, torch.rand instead of filling a tensor in place, or"
        " engine.name=sequential or ray."
    )
