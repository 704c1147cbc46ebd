"""The reference engine: client after client through one net, driven by Lightning Fabric."""

from copy import deepcopy

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm

from flbench.client.program import LocalProgram, Statistic, Step
from flbench.config.schema import EngineConfig
from flbench.core.tree import is_finite
from flbench.core.types import Failure, Message, Results
from flbench.data.federation import Federation
from flbench.engine.base import Dispatcher, Gathered, KeptRows, RoundSettings, dtype_of, open_device
from flbench.engine.traced import Traces
from flbench.engine.workbench import Workbench
from flbench.engine.worker import Worker
from flbench.models.base import net_leaves


class SequentialEngine:
    """Trains one client after the other on one device.

    The net is copied once and filled with each client's values in place. Where a phase has no hooks
    the net is called itself (`functional_call` costs 4-6 % where steps are not traced).

    Args:
        net: the seeded net; its values are what clients start from.
        federation: the samples.
        config: device and precision. Threads are the process's affair (`flbench.experiment` sets
            them).
    """

    def __init__(self, net: nn.Module, federation: Federation, config: EngineConfig) -> None:
        fabric = make_fabric(config)
        dtype = dtype_of(config)
        net = fabric.to_device(deepcopy(net).to(dtype)).requires_grad_(False)
        own = net_leaves(net)
        self._bench = Workbench(
            fabric=fabric,
            net=net,
            own=own,
            start={name: leaf.detach().clone() for name, leaf in own.items()},
            federation=federation.to(fabric.device, dtype),
            dtype=dtype,
            has_batchnorm=any(isinstance(module, _BatchNorm) for module in net.modules()),
            scaler=dict(fabric.strategy.precision.state_dict()),
            traces=Traces(),
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
        """Train the clients one by one; see `Engine.run`."""
        kept, sent, masks, observed = (Gathered(len(ids)) for _ in range(4))
        finished: list[int] = []
        failures: list[Failure] = []
        steps, losses = torch.zeros(len(ids), dtype=torch.int64), torch.full((len(ids),), torch.nan)
        for position, client in enumerate(ids.tolist()):
            one = ids[position : position + 1]
            worker = Worker(self._bench, client, settings, rows(one), dispatch(one))
            for step in program.steps:
                worker.take(step)
            leaves = worker.leaves
            unknown = sorted((program.keeps | program.sends) - set(leaves))
            if unknown:
                raise ValueError(f"the program keeps or sends {unknown}, which no client has")
            bounded = {
                name: leaves[name] for name in leaves if name in program.keeps | program.sends
            }
            checked = leaves if worker.steps else bounded
            if not worker.loss_is_finite() or not is_finite(checked):
                failures.append(Failure(client, worker.diagnosis(checked)))
                continue
            finished.append(position)
            steps[position], losses[position] = worker.steps, worker.mean_loss()
            kept.add(position, {n: leaves[n] for n in leaves if n in program.keeps - program.sends})
            sent.add(position, {n: leaves[n] for n in leaves if n in program.sends})
            masks.add(position, {name: leaves[mask] for name, mask in program.masks})
            for step in observe:
                worker.take(step)
            found = tuple(f"{step.name}." for step in observe if isinstance(step, Statistic))
            observed.add(position, {n: v for n, v in worker.ctx.items() if n.startswith(found)})
        return Results(
            ids=ids[finished],
            steps=steps[finished],
            losses=losses[finished],
            kept=kept.rows(finished),
            sent=Message(sent.rows(finished), masks.rows(finished)),
            observed=observed.rows(finished),
            failures=tuple(failures),
        )

    def block(self, batch_size: int) -> int | None:
        """Return None: nothing is stacked here."""
        return None

    def report(self) -> dict[str, float]:
        """Return nothing: there is nothing to tell."""
        return {}

    def close(self) -> None:
        """Give nothing back: there is nothing but memory."""


def make_fabric(config: EngineConfig) -> Fabric:
    """Return Fabric for a device and precision; see `open_device`."""
    device = open_device(config)
    devices: int | list[int] = 1 if device.index is None else [device.index]
    if config.precision == "16-mixed":
        # Every client starts with a fresh scaler: PyTorch's first scale of 2**16 often overflows,
        # and each client would lose its first steps to finding a smaller one.
        scaler = GradScaler("cuda", init_scale=2.0**10)
        plugin = MixedPrecision("16-mixed", "cuda", scaler)
        return Fabric(accelerator="cuda", devices=devices, plugins=[plugin])
    precision = "32-true" if config.precision == "tf32" else config.precision
    return Fabric(accelerator=device.type, devices=devices, precision=precision)
