"""Many clients at once on one device: blocks of clients, stacked and stepped with vmap."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.client.program import Collector, LocalProgram, Map, Phase, Step
from flbench.config import EngineConfig
from flbench.data.federation import Federation
from flbench.engine.base import (
    Dispatcher,
    KeptRows,
    RoundSettings,
    be_deterministic,
    find_device,
    joined,
)
from flbench.engine.padding import mind_padding
from flbench.engine.stack import Stack, StackBench
from flbench.engine.stacked_training import train
from flbench.errors import ConfigError
from flbench.models.base import net_leaves
from flbench.types import Failure, Message, Results

SHARE = 0.25  # of the free memory that a block of clients may take
COPIES = 6  # of a client's leaves: value, start, gradient, two moments, a new value


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
        device = find_device(config.device)
        if config.precision == "16-mixed":
            raise ConfigError(
                "`engine.precision=16-mixed` needs a loss scaler for each client, which"
                " `engine.name=vectorized` does not have. Use bf16-mixed or 32-true."
            )
        if device.type == "cuda":
            be_deterministic()
        dtype = torch.float64 if config.precision == "64-true" else torch.float32
        net = deepcopy(net).to(device, dtype).requires_grad_(False)
        self._block = config.block
        self.idle = 0.0  # share of sample slots that held padding, in the last block that trained
        self._bench = StackBench(
            net=net,
            start={name: leaf.detach() for name, leaf in net_leaves(net).items()},
            buffers=frozenset(name for name, _ in net.named_buffers()),
            federation=federation.to(device, dtype),
            device=device,
            dtype=dtype,
            autocast=torch.bfloat16 if config.precision == "bf16-mixed" else None,
            has_batchnorm=any(isinstance(module, _BatchNorm) for module in net.modules()),
            padding=mind_padding(net),
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
        for block in torch.split(ids, self._block or self._fitting(len(ids))):
            stack = Stack(self._bench, block, settings, rows(block), dispatch(block))
            parts.append(self._run(program, stack, observe))
        return joined(parts, ids)

    def close(self) -> None:
        """Give nothing back: there is nothing but memory."""

    def _fitting(self, clients: int) -> int:
        """Return how many clients fit into a share of the free memory, at least one."""
        bench = self._bench
        size = sum(leaf.numel() * leaf.element_size() for leaf in bench.start.values())
        if bench.device.type == "cuda":
            free = torch.cuda.mem_get_info(bench.device)[0]
        else:
            free = _free_memory()
        return max(1, min(clients, int(SHARE * free / (COPIES * max(1, size)))))

    def _run(self, program: LocalProgram, stack: Stack, observe: tuple[Step, ...]) -> Results:
        for step in program.steps:
            self._take(stack, step)
        leaves = stack.leaves.names
        unknown = sorted((program.keeps | program.sends) - set(leaves))
        if unknown:
            raise ValueError(f"the program keeps or sends {unknown}, which no client has")
        bounded = [name for name in leaves if name in program.keeps | program.sends]
        stack.leaves.spread([*bounded, *(mask for _, mask in program.masks)], len(stack))
        mine = stack.leaves.rows
        checked = [name for name in leaves if name in mine] if stack.steps.any() else bounded
        sound = {name: _is_finite(mine[name]) for name in checked}
        sound |= {"": stack.loss.isfinite().cpu()}
        finished = torch.stack(list(sound.values())).all(dim=0)
        failures = [
            Failure(int(stack.ids[k]), _diagnosis([name for name in sound if not sound[name][k]]))
            for k in torch.nonzero(~finished).flatten().tolist()
        ]
        order = torch.from_numpy(stack.position).argsort()
        order = order[finished[order]]  # those that finished, as they stood in `ids`
        index = order.to(self._bench.device)
        steps = torch.from_numpy(stack.steps.copy())
        losses = (stack.loss.cpu() / steps.clamp_min(1)).float()
        kept = [name for name in bounded if name in program.keeps - program.sends]
        sent = [name for name in bounded if name in program.sends]
        tree = {name: mine[name][index].cpu() for name in bounded}
        masks = {name: mine[mask][index].cpu() for name, mask in program.masks}
        clients = torch.from_numpy(stack.ids.copy())
        # Observers come last; they may change leaves, so that what is kept was copied before.
        where = torch.from_numpy(stack.position.copy())[order]
        for step in observe:
            self._take(stack, step)
        found = tuple(f"{step.name}." for step in observe if isinstance(step, Collector))
        back = torch.from_numpy(stack.position).argsort()
        back = back[torch.isin(torch.from_numpy(stack.position)[back], where)]
        observed = {
            name: value[back.to(value.device)].cpu()
            for name, value in stack.ctx.rows.items()
            if name.startswith(found)
        }
        return Results(
            ids=clients[order],
            steps=steps[order],
            losses=torch.where(steps[order] > 0, losses[order], torch.nan),
            kept={name: tree[name] for name in kept},
            sent=Message({name: tree[name] for name in sent}, masks),
            observed=observed,
            failures=tuple(failures),
        )

    def _take(self, stack: Stack, step: Step) -> None:
        match step:
            case Phase():
                self.idle = train(stack, step)
            case Collector():
                stack.collect(step)
            case Map():
                stack.map(step)


def _is_finite(rows: Tensor) -> Tensor:
    """Return [B] bool on the CPU: whether all entries of a client's leaf are finite."""
    if not rows.is_floating_point():
        return torch.ones(len(rows), dtype=torch.bool)
    return rows.abs().reshape(len(rows), -1).sum(dim=1, dtype=torch.float64).isfinite().cpu()


def _diagnosis(bad: list[str]) -> str:
    """Say what is not finite; the name "" stands for the loss."""
    return "its training loss is not finite" if "" in bad else f"its leaf `{bad[0]}` is not finite"


def _free_memory() -> int:
    """Return the bytes of memory that this machine has left."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 2**30
