"""The interface of an engine, and what all engines share: device, precision, results."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig, TrainConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import Draw
from flbench.core.storage import Storage
from flbench.core.types import Dispatch, Failure, Message, Results, Tree
from flbench.engine.memory import keep_freed_memory

STACKED_SIZE = 2**17
"""Scalars of the largest net whose models are stacked; larger ones gain nothing by it."""

STATISTIC_BATCH = 512
"""Samples of one batch of a Statistic in the sequential engine."""

IN_MEMORY = Storage()

KeptRows = Callable[[Tensor], Tree]
"""Client ids [K] -> the leaves that these clients keep between rounds, [K, ...] each."""

Dispatcher = Callable[[Tensor], Dispatch]
"""Client ids [K] -> what the server sends these clients.

Row j of the result depends on ids[j] alone, so an engine may call it for one block of clients after
the other.
"""


@dataclass(frozen=True)
class RoundSettings:
    """Settings that all clients of a round share.

    Attributes:
        train: Batch size and treatment of the last batch.
        draw: Random streams of the round.
        lr_factor: The schedule's factor, >= 0, on the learning rate of every phase.
        storage: Where the results of a cohort are stored.
        group: Largest number of clients that an engine may stack, >= 1; None for any number. The
            clients of a call are then split into groups of this size, in their order, and the
            results are those of a call for each group, bit for bit.
    """

    train: TrainConfig
    draw: Draw
    lr_factor: float = 1.0
    storage: Storage = Storage()
    group: int | None = None

    def groups(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Return ids [K] of clients in groups of at most `group`."""
        return torch.split(ids, self.group or max(1, len(ids)))


@dataclass(frozen=True)
class LocalWork:
    """What the clients of a cohort compute, and what they compute it from.

    Attributes:
        program: The local program; each client runs it.
        rows: Gives the leaves that the clients keep.
        dispatch: Gives what the server sends; masks have been applied.
        settings: Settings of the round.
        observe: Steps that run after the program, when the leaves to keep and to send have been
            copied. The results of their Statistics are in `Results.observed`; whatever else they
            change is discarded.
    """

    program: LocalProgram
    rows: KeptRows
    dispatch: Dispatcher
    settings: RoundSettings
    observe: tuple[Step, ...] = ()


class Engine(Protocol):
    """Runs one local program for many clients.

    A client's leaves at the beginning are the seeded net, overlaid by the leaves that the client
    keeps, overlaid by the leaves that the server sends.
    """

    def run(self, work: LocalWork, ids: Tensor) -> Results:
        """Return the results of the clients `ids`, in this order, without those that failed.

        Args:
            work: What they compute.
            ids: [K] int64 client ids.

        Raises:
            UnknownNameError: The program trains, keeps or sends a leaf that no client has.
            ConfigError: The engine cannot run the program.
        """

    def stacked(
        self, program: LocalProgram, observe: tuple[Step, ...], batch_size: int
    ) -> int | None:
        """Return how many clients are stacked at once; 1 if each one is computed alone.

        It is None if that depends on more than the clients, such as the number of GPUs.

        Rounding in the results of a client may depend on the others of its stack. A call for many
        clients has the bits of one call for each stack, in the order of the ids.

        Args:
            program: See `LocalWork`.
            observe: See `LocalWork`.
            batch_size: Samples of one step of one client.
        """

    def report(self) -> dict[str, float]:
        """Return measurements of the engine itself, for `summary.json`."""
        return {}

    def close(self) -> None:
        """Release processes and connections. `run` opens them again, where it needs them."""


def find_device(name: str) -> torch.device:
    """Return the device that `engine.device` names; `auto` is the first GPU, or else the CPU.

    Raises:
        ConfigError: PyTorch does not see that GPU.
    """
    gpus = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError(
            f"`engine.device`={name} does not exist: PyTorch sees {gpus} GPUs. Use cpu or auto."
        )
    return device


def dtype_of(config: EngineConfig) -> torch.dtype:
    """Return the type of weights and inputs under `engine.precision`."""
    return torch.float64 if config.precision == "64-true" else torch.float32


def open_device(config: EngineConfig) -> torch.device:
    """Return the device of an engine, prepared for `engine.precision`.

    On a GPU this selects deterministic kernels, and float32 or TF32 products, for the whole
    process. On a CPU this lets the process keep memory that tensors have freed.

    Raises:
        ConfigError: The device does not exist or cannot compute in that precision.
    """
    device = find_device(config.device)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA reads it at its start
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        allow_tf32(config.precision == "tf32")
        return device
    check_precision(config, device)
    keep_freed_memory()
    return device


def allow_tf32(is_on: bool) -> None:
    """Let GPUs round the factors of float32 products to TF32: 10 bits of mantissa instead of 23."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = is_on


def check_precision(config: EngineConfig, device: torch.device) -> None:
    """Raise a ConfigError if a device is a CPU, which cannot compute in `engine.precision`."""
    if device.type == "cpu" and config.precision in ("tf32", "16-mixed"):
        raise ConfigError(
            f"`engine.precision={config.precision}` needs a GPU. Use bf16-mixed or 32-true."
        )


def gathered(parts: Iterable[Results], ids: Tensor, storage: Storage = IN_MEMORY) -> Results:
    """Return the results of several groups of clients as one, in the order of `ids`.

    Args:
        parts: The results of each group. An iterator lets each one be freed when it is copied. What
            some clients have logged and others have not is zero for these.
        ids: [K] The ids of all clients.
        storage: Where the results are stored.
    """
    place = {client: k for k, client in enumerate(ids.tolist())}
    rows: list[Tree] = [{}, {}, {}, {}]  # [K, ...] each
    steps, losses = torch.zeros(len(ids), dtype=torch.int64), torch.zeros(len(ids))
    finished = torch.zeros(len(ids), dtype=torch.bool)
    failures: list[Failure] = []
    seconds = 0.0
    for part in parts:
        failures += part.failures
        seconds += part.observe_seconds
        at = torch.tensor([place[client] for client in part.ids.tolist()], dtype=torch.int64)
        if not len(at):
            continue
        finished[at], steps[at], losses[at] = True, part.steps, part.losses.float()
        trees = (part.kept, part.sent.values, part.sent.mask, part.observed)
        for mine, tree in zip(rows, trees, strict=True):
            layout = {name: value for name, value in tree.items() if name not in mine}
            mine |= storage.zeros(
                {name: ((len(ids), *v.shape[1:]), v.dtype) for name, v in layout.items()}
            )
            for name, value in tree.items():
                mine[name].index_copy_(0, at, value.detach().cpu())
    if not finished.all():
        rows = [storage.rows(tree, finished.nonzero()[:, 0]) for tree in rows]
    kept, sent, masks, observed = rows
    return Results(
        ids=ids[finished],
        steps=steps[finished],
        losses=losses[finished],
        kept=kept,
        sent=Message(sent, masks),
        observed=observed,
        failures=tuple(sorted(failures, key=lambda failure: place[failure.client])),
        observe_seconds=seconds,
    )
