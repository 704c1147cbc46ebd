"""Many clients at once on one device: blocks of clients, stacked and stepped with vmap."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.client.program import LocalProgram, Phase, Statistic, Step, Transform
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.core.tree import nbytes
from flbench.core.types import Failure, Message, Results, Tree
from flbench.data.federation import Federation
from flbench.engine import memory
from flbench.engine.base import (
    Dispatcher,
    KeptRows,
    RoundSettings,
    concatenate_results,
    dtype_of,
    open_device,
)
from flbench.engine.padding import mind_padding
from flbench.engine.stack import Stack, StackEnvironment
from flbench.engine.stacked_training import train
from flbench.engine.traced import Traces
from flbench.models.base import net_leaves

SHARE = 0.25  # of the free memory that a block of clients may take
COPIES = 6  # of a client's leaves: value, start, gradient, two moments, a new value
SAVED = 3  # of what a backward pass remembers: it, gradients beside it, another model's


class VectorizedEngine:
    """Trains blocks of clients at once; see `engine.stack` and `engine.stacked_training`.

    It gives what the sequential engine gives but for rounding: sums run in another order.

    Args:
        net: the seeded net; its values are what clients start from.
        federation: the samples; they go to the device.
        config: device, precision and block.
    Raises: ConfigError for a device or precision that it cannot use.
    """

    def __init__(self, net: nn.Module, federation: Federation, config: EngineConfig) -> None:
        if config.precision == "16-mixed":
            raise ConfigError(
                "`engine.precision=16-mixed` needs a loss scaler for each client, which"
                " `engine.name=vectorized` does not have. Use bf16-mixed or 32-true."
            )
        device, dtype = open_device(config), dtype_of(config)
        net = deepcopy(net).to(device, dtype).requires_grad_(False)
        self._block = config.block
        self._slots = self._real = 0  # of all batches so far: rows, and rows that are no padding
        self._environment = StackEnvironment(
            net=net,
            start={name: leaf.detach() for name, leaf in net_leaves(net).items()},
            buffers=frozenset(name for name, _ in net.named_buffers()),
            federation=federation.to(device, dtype),
            device=device,
            dtype=dtype,
            autocast=torch.bfloat16 if config.precision == "bf16-mixed" else None,
            has_batchnorm=any(isinstance(module, _BatchNorm) for module in net.modules()),
            padding=mind_padding(net),
            traces=Traces(enabled=config.trace),
        )

    def run(
        self,
        program: LocalProgram,
        ids: Tensor,
        *,
        rows: KeptRows,
        dispatch: Dispatcher,
        settings: RoundSettings,
        observe: tuple[Step, ...] = (),
    ) -> Results:
        """Train the clients in blocks; see `Engine.run`."""
        parts = []
        for block in torch.split(ids, self.block(settings.train.batch_size)):
            stack = Stack(self._environment, block, settings, rows(block), dispatch(block))
            parts.append(self._run(program, stack, observe))
        return concatenate_results(parts, ids)

    def report(self) -> dict[str, float]:
        """Return the share of training rows that were padding."""
        return {"idle_share": 1.0 - self._real / self._slots if self._slots else 0.0}

    def close(self) -> None:
        """Give nothing back: there is nothing but memory."""

    def block(self, batch_size: int) -> int:
        """Return how many clients are stacked: as configured, or as many as fit now.

        Sums over a stack run in an order that depends on it: what was decided once stays.

        Args:
            batch_size: samples of a step.
        """
        if self._block is None:
            env = self._environment
            x = env.federation.inputs(torch.zeros(2, dtype=torch.int64), env.dtype)
            sample = memory.saved_of_sample(env.net, env.start, env.buffers, x)
            one = COPIES * nbytes(env.start) + SAVED * batch_size * sample
            self._block = max(1, int(SHARE * memory.free(env.device) / one))
        return self._block

    def _run(self, program: LocalProgram, stack: Stack, observe: tuple[Step, ...]) -> Results:
        for step in program.steps:
            self._take(stack, step)
        unknown = sorted((program.keeps | program.sends) - set(stack.leaves.names))
        if unknown:
            raise ValueError(f"the program keeps or sends {unknown}, which no client has")
        names = [name for name in stack.leaves.names if name in program.keeps | program.sends]
        stack.leaves.spread([*names, *(mask for _, mask in program.masks)], len(stack))
        sound = _soundness(stack, names)
        finished = torch.stack(list(sound.values())).all(dim=0)
        order = torch.from_numpy(stack.position).argsort()
        failures = tuple(
            Failure(int(stack.ids[k]), _diagnosis([name for name in sound if not sound[name][k]]))
            for k in order[~finished[order]].tolist()
        )
        order = order[finished[order]]  # those that finished, as they stood in `ids`
        index = order.to(self._environment.device)
        rows = stack.leaves.rows
        tree = {name: rows[name][index].cpu() for name in names}
        masks = {name: rows[mask][index].cpu() for name, mask in program.masks}
        steps = torch.from_numpy(stack.steps)[order]
        losses = (stack.loss.cpu()[order] / steps.clamp_min(1)).float()
        clients = torch.from_numpy(stack.ids)[order]
        positions = torch.from_numpy(stack.position)[order]
        # Observers come last, since they may change leaves and the order of the clients.
        observed = self._observe(stack, observe, positions)
        return Results(
            ids=clients,
            steps=steps,
            losses=torch.where(steps > 0, losses, torch.nan),
            kept={name: tree[name] for name in names if name not in program.sends},
            sent=Message({name: tree[name] for name in names if name in program.sends}, masks),
            observed=observed,
            failures=failures,
        )

    def _observe(self, stack: Stack, observe: tuple[Step, ...], positions: Tensor) -> Tree:
        """Return what observing Statistics find, for the clients that stood at `positions`."""
        for step in observe:
            self._take(stack, step)
        found = tuple(f"{step.name}." for step in observe if isinstance(step, Statistic))
        place = torch.from_numpy(stack.position).argsort()[positions]
        return {
            name: value[place.to(value.device)].cpu()
            for name, value in stack.ctx.rows.items()
            if name.startswith(found)
        }

    def _take(self, stack: Stack, step: Step) -> None:
        match step:
            case Phase():
                slots, real = train(stack, step)
                self._slots, self._real = self._slots + slots, self._real + real
            case Statistic():
                stack.collect(step)
            case Transform():
                stack.map(step)


def _soundness(stack: Stack, names: list[str]) -> dict[str, Tensor]:
    """Return [B] bool by leaf, on the CPU: whether it is finite; the loss stands under "".

    After training all leaves are looked at, otherwise those that are kept or sent.
    """
    rows = stack.leaves.rows
    checked = [n for n in stack.leaves.names if n in rows] if stack.steps.any() else names
    return {name: _is_finite(rows[name]) for name in checked} | {"": stack.loss.isfinite().cpu()}


def _is_finite(rows: Tensor) -> Tensor:
    """Return [B] bool on the CPU: whether all entries of a client's leaf are finite."""
    if not rows.is_floating_point():
        return torch.ones(len(rows), dtype=torch.bool)
    return rows.abs().reshape(len(rows), -1).sum(dim=1, dtype=torch.float64).isfinite().cpu()


def _diagnosis(bad: list[str]) -> str:
    """Say what is not finite; the name "" stands for the loss."""
    return "its training loss is not finite" if "" in bad else f"its leaf `{bad[0]}` is not finite"
