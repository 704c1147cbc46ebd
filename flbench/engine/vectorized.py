"""Many clients at once on one device: blocks of clients, stacked, and trained by `torch.vmap`."""

from collections.abc import Callable
from copy import deepcopy
from time import perf_counter
from typing import Final

import torch
import torch._dynamo  # PyTorch's first optimizer imports it, which would count as training
from torch import Tensor, nn

from flbench.client.program import LocalProgram, Phase, Statistic, Step, Transform
from flbench.client.tensor_names import check_ends, naming
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import positions, seeded
from flbench.core.tree import nbytes
from flbench.core.types import Failure, Message, Results
from flbench.core.user_code_errors import placed
from flbench.data.federation import Federation
from flbench.engine import captured_step, memory
from flbench.engine.base import Engine, LocalWork, gathered
from flbench.engine.captured_step import CapturedSteps
from flbench.engine.stack import Stack, StackEnvironment
from flbench.engine.stacked_training import StackedPhase
from flbench.models import freezing
from flbench.models.base import is_lightning

MEMORY_SHARE = 0.25
"""Share of the free memory that a block of clients may take."""
LEAF_COPIES = 6
"""Copies of a client's leaves: value, start, gradient, two moments of Adam, new value."""
ACTIVATION_COPIES = 3
"""Copies of what a backward pass saves: saved tensors, their gradients, a second model's."""
GRAPH_COPIES = 3
"""Times all of that with CUDA graphs: of ordinary steps, static tensors, and the graphs' memory."""

OTHER_GENERATORS: Final = (
    "`engine.name=vectorized` cannot train with code that draws random numbers from NumPy's or"
    " Python's generator: it calls the code of a net, a loss term or a method once for many"
    " clients, which would all get the same numbers. Draw from PyTorch's generator, by torch.rand"
    " for example, or use engine.name=sequential, ray or auto."
)


class VectorizedEngine(Engine):
    """Trains blocks of clients at once; see `engine.stack` and `engine.stacked_training`.

    The results are those of the sequential engine up to rounding, because sums are computed in
    another order.

    Args:
        net: The seeded net. Its values are the leaves' initial values.
        federation: The samples of all clients; they are copied to the device.
        config: Device, precision and size of a block.
        tell: Function that gets notes for the user; None for none.

    Raises:
        ConfigError: The device does not exist, or the engine cannot compute in that precision.
    """

    def __init__(
        self,
        net: nn.Module,
        federation: Federation,
        config: EngineConfig,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if config.precision == "16-mixed":
            raise ConfigError(
                "`engine.precision=16-mixed` needs a loss scaler for each client, which"
                " `engine.name=vectorized` does not have. Use bf16-mixed or 32-true."
            )
        if is_lightning(net):
            raise ConfigError(
                f"`engine.name=vectorized` cannot train {net.title}: the training step of a"
                " LightningModule is Python code for one client. Use sequential, ray or auto."
            )
        self._block = config.block
        env = self._environment = StackEnvironment(deepcopy(net), federation, config)
        is_captured = env.device.type in captured_step.DEVICES
        self._captured = CapturedSteps(env.device, config, tell) if is_captured else None

    def run(self, work: LocalWork, ids: Tensor) -> Results:
        """Train the clients in blocks; see `Engine.run`."""
        settings = work.settings
        most = self.stacked(work.program, work.observe, settings.train.batch_size)
        # Nobody may take part in a round.
        groups = settings.groups(ids) if len(ids) else ()
        blocks = [block for group in groups for block in torch.split(group, most)]
        stacks = (Stack(self._environment, block, work) for block in blocks)
        parts = (_run(stack, self._captured) for stack in stacks)
        return next(parts) if len(blocks) == 1 else gathered(parts, ids, settings.storage)

    def close(self) -> None:
        """Do nothing: this engine holds no processes."""

    def stacked(self, program: LocalProgram, observe: tuple[Step, ...], batch_size: int) -> int:
        """Return `engine.block`, or the number of clients that fit into memory now, if it is None.

        Rounding depends on the number of stacked clients, so the first answer is kept.
        """
        if self._block is None:
            env = self._environment
            x = env.federation.inputs(torch.zeros(2, dtype=torch.int64), env.dtype)
            known = freezing.of(env.net)
            own = {name: leaf for name, leaf in env.start.items() if name not in known.leaves}
            never = env.buffers | known.parameters
            per_sample = memory.saved_bytes_per_sample(env.net, env.start, never, x)
            client = LEAF_COPIES * nbytes(own) + ACTIVATION_COPIES * batch_size * per_sample
            if self._captured is not None:
                client *= GRAPH_COPIES
            fitting = int(MEMORY_SHARE * memory.free(env.device) / client)
            self._block = max(1, min(fitting, env.federation.with_new_clients().clients))
        return self._block


def _run(stack: Stack, captured: CapturedSteps | None) -> Results:
    """Run the local program of one block of clients; see `Engine.run`."""
    program, observe = stack.work.program, stack.work.observe
    for step in program.steps:
        with naming(step, program, stack.leaves.names, stack.ctx.names):
            _execute(stack, step, captured)
    check_ends(program, frozenset(stack.leaves.names))
    names = [name for name in stack.leaves.names if name in program.keeps | program.sends]
    stack.leaves.stack([*names, *(mask for _, mask in program.masks)], len(stack))
    finite = _are_finite(stack, names)
    finished = torch.stack(list(finite.values())).all(dim=0).cpu()  # [leaves + 1, K] -> [K]
    order = torch.from_numpy(stack.position).argsort()
    failures = tuple(
        Failure(
            int(stack.ids[k]), _failure_reason([name for name in finite if not finite[name][k]])
        )
        for k in order[~finished[order]].tolist()
    )
    order = order[finished[order]]  # the clients that finished, in the order of `ids`
    index = order.to(stack.environment.device)
    # Copies: a leaf may be another one or a tensor of the server, and `observe` may write to it.
    wanted = {*names, *(mask for _, mask in program.masks)}
    stacked = {n: value[index] for n, value in stack.leaves.stacked.items() if n in wanted}
    masks = {name: stacked[mask].cpu() for name, mask in program.masks}
    # What the server alone needs stays on the device, where means of it are computed.
    stays = program.sends - program.keeps - masks.keys()
    tree = {name: stacked[name] if name in stays else stacked[name].cpu() for name in names}
    steps = torch.from_numpy(stack.steps)[order]
    losses = (stack.loss.cpu()[order] / steps.clamp_min(1)).float()
    clients = torch.from_numpy(stack.ids)[order]
    places = torch.from_numpy(stack.position)[order]
    # `observe` comes last: its steps may change leaves and the order of the clients.
    begin = perf_counter()
    for step in observe:
        _execute(stack, step)
    order = torch.from_numpy(stack.position).argsort()[places]
    prefixes = tuple(f"{step.name}." for step in observe if isinstance(step, Statistic))
    observed = {
        name: value[order.to(value.device)].cpu()
        for name, value in stack.ctx.stacked.items()
        if name.startswith(prefixes)
    }
    return Results(
        ids=clients,
        steps=steps,
        losses=torch.where(steps > 0, losses, torch.nan),
        kept={name: tree[name] for name in names if name not in program.sends},
        sent=Message({name: tree[name] for name in names if name in program.sends}, masks),
        observed=observed,
        failures=failures,
        observe_seconds=perf_counter() - begin,
    )


def _execute(stack: Stack, step: Step, captured: CapturedSteps | None = None) -> None:
    """Run one step of the local program; what it draws depends on the round and the block.

    Raises:
        ConfigError: The code draws from NumPy's or Python's generator.
    """
    part = () if isinstance(step, Phase) else (1,)
    first = int(stack.ids[stack.position.argmin()])
    with placed(stack.title), seeded(stack.settings.draw.module_seed(first, *part)):
        before = positions()
        match step:
            case Phase():
                StackedPhase(stack, step).train(captured.take_steps if captured else None)
            case Statistic():
                stack.run_statistic(step)
            case Transform():
                stack.run_transform(step)
        if before != positions():
            raise ConfigError(OTHER_GENERATORS)


def _are_finite(stack: Stack, names: list[str]) -> dict[str, Tensor]:
    """Return [K] bool by name of a leaf, and for the loss under the name "".

    Args:
        stack: The clients.
        names: The leaves to check if no client has trained; otherwise all stacked leaves are
            checked.
    """
    stacked = stack.leaves.stacked
    checked = [n for n in stack.leaves.names if n in stacked] if stack.steps.any() else names
    floats = [name for name in checked if stacked[name].is_floating_point()]
    rows = {name: stacked[name].reshape(len(stack), -1) for name in floats}
    rows[""] = stack.loss[:, None]
    # A sum with NaN or infinity is not finite, and takes a small part of the time of `isfinite`.
    finite = torch.stack([value.sum(dim=1).isfinite() for value in rows.values()])
    if not finite.all():  # or a sum is too large for its type
        finite = torch.stack([value.isfinite().all(dim=1) for value in rows.values()])
    return dict(zip(rows, finite, strict=True))


def _failure_reason(bad: list[str]) -> str:
    """Return a sentence that names the first value that is not finite (see `_are_finite`)."""
    if "" in bad:
        return "its training loss is not finite"
    return f"its tensor `{bad[0]}` is not finite"
