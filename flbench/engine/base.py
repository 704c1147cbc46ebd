"""What every engine does, and the tensors of a client that each of them starts from."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flbench.client.program import LocalProgram, Step
from flbench.config.schema import EngineConfig, TrainConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import Draw
from flbench.core.types import Dispatch, Message, Results, Tree

TF32_SINCE = 8, 0
"""The compute capability from which GPUs have TF32 (Ampere)."""

KeptRows = Callable[[Tensor], Tree]
"""ids [K] -> the rows that these clients keep, [K, ...] each."""

Dispatcher = Callable[[Tensor], Dispatch]
"""ids [K] -> what the server sends them.

Row j depends on ids[j] alone, so it may be asked block by block.
"""


@dataclass(frozen=True)
class RoundSettings:
    """What holds for all clients of a round.

    Attributes:
        train: batch size, last batch.
        draw: the round's random streams.
        lr_factor: factor of the schedule on every learning rate.
    """

    train: TrainConfig
    draw: Draw
    lr_factor: float = 1.0


class Engine(Protocol):
    """Runs one program for many clients.

    A client starts from the seeded net, overlaid by its kept rows, overlaid by the dispatch.
    """

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
        """Return what the clients `ids` [K] bring, in this order, without those that failed.

        Args:
            program: what each client does.
            ids: [K] int64 client ids.
            rows: what the clients keep.
            dispatch: what the server sends; already sealed.
            settings: of the round.
            observe: steps after the last one, when what is kept and sent is safe;
                `Results.observed` holds what their Statistics find, and nothing else of them
                remains.
        """

    def block(self, batch_size: int) -> int | None:
        """Return how many clients are stacked at once; None for an engine that stacks none."""

    def report(self) -> dict[str, float]:
        """Return what it did besides its results, for `summary.json`; shares are in [0, 1]."""

    def close(self) -> None:
        """Give back what the engine holds: processes, a cluster. It is not used after that."""


class Gathered:
    """Rows of clients put together leaf by leaf, without a second copy."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.tree: Tree = {}

    def add(self, position: int, row: Tree) -> None:
        """Write one client's tensors at its position; the first client fixes names and shapes."""
        for name, value in row.items():
            if name not in self.tree:
                self.tree[name] = torch.zeros(self.clients, *value.shape, dtype=value.dtype)
            self.tree[name][position] = value.detach()

    def rows(self, positions: list[int]) -> Tree:
        """Return the rows of the clients that finished."""
        if len(positions) == self.clients:
            return self.tree
        return {name: value[positions] for name, value in self.tree.items()}


def find_device(name: str) -> torch.device:
    """Return the device that `engine.device` names; `auto` is the first GPU, or the CPU.

    Raises: ConfigError if there is no such GPU.
    """
    gpus = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError(
            f"`engine.device`={name} is not there: PyTorch sees {gpus} GPUs. Use cpu or auto."
        )
    return device


def dtype_of(config: EngineConfig) -> torch.dtype:
    """Return the type of weights and inputs."""
    return torch.float64 if config.precision == "64-true" else torch.float32


def open_device(config: EngineConfig) -> torch.device:
    """Return the device of an engine, ready to compute in its precision.

    On a GPU this asks the whole process for kernels that give the same bits every time, and for
    full float32 or TF32.

    Raises: ConfigError if the device is not there, or cannot compute in that precision.
    """
    device = find_device(config.device)
    if device.type == "cuda":
        if config.precision == "tf32" and torch.cuda.get_device_capability(device) < TF32_SINCE:
            raise ConfigError(
                f"`engine.precision=tf32` needs a GPU of compute capability 8.0 or more, which"
                f" {torch.cuda.get_device_name(device)} has not. Use 32-true."
            )
        be_deterministic(tf32=config.precision == "tf32")
    elif config.precision in ("tf32", "16-mixed"):
        raise ConfigError(
            f"`engine.precision={config.precision}` needs a GPU. Use bf16-mixed or 32-true."
        )
    return device


def be_deterministic(*, tf32: bool) -> None:
    """Ask CUDA for kernels that give the same bits every time.

    It holds for the whole process.

    Args:
        tf32: whether products and convolutions of float32 may round their factors to TF32, which
            has 10 bits of mantissa instead of 23.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32


def joined(parts: list[Results], ids: Tensor) -> Results:
    """Return the results of all blocks as one, in the order of `ids`."""
    if len(parts) == 1:
        return parts[0]
    some = [part for part in parts if len(part.ids)]

    def together(trees: list[Tree]) -> Tree:
        names = trees[0] if trees else {}
        return {name: torch.cat([tree[name] for tree in trees]) for name in names}

    return Results(
        ids=torch.cat([part.ids for part in parts]) if parts else ids[:0],
        steps=torch.cat([part.steps for part in parts]) if parts else ids[:0],
        losses=torch.cat([part.losses for part in parts]) if parts else torch.zeros(0),
        kept=together([part.kept for part in some]),
        sent=Message(
            together([part.sent.values for part in some]),
            together([part.sent.mask for part in some]),
        ),
        observed=together([part.observed for part in some]),
        failures=tuple(failure for part in parts for failure in part.failures),
    )
