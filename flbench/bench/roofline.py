"""The roofline of training: operations and bytes that it needs, and what the device can do at best.

The operations are those of the net's forward and backward pass. The bytes are the least that must
move if nothing stays in a cache: weights are read in both passes, gradients are written and read,
and weights are written; what the backward pass needs is written once and read once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from flbench.core.tree import nbytes
from flbench.engine.memory import saved_bytes_per_sample
from flbench.models.base import net_leaves

WEIGHT_TRANSFERS = 5
"""Reads and writes of weights or gradients per step: see the list above."""
REPEATS = 5
MATRIX_SIDE = {"cpu": 1024, "cuda": 8192}  # of the matrices whose product is timed
COPY_BYTES = {"cpu": 2**26, "cuda": 2**29}  # larger than all caches


@dataclass(frozen=True)
class TrainingCost:
    """Floating-point operations and memory traffic of training a net.

    The bytes are a lower bound: see the docstring of the module.

    Attributes:
        operations_per_sample: Floating-point operations of the forward and the backward pass for
            one sample.
        bytes_per_sample: Bytes read from and written to memory for one sample: what the backward
            pass needs is written once and read once.
        bytes_per_step: Bytes read and written in one step for parameters, buffers and gradients,
            whatever the batch size.
    """

    operations_per_sample: float
    bytes_per_sample: int
    bytes_per_step: int

    def total(self, samples: int, steps: int) -> tuple[float, float]:
        """Return the operations and the bytes of training on `samples` samples in `steps` steps."""
        moved = self.bytes_per_sample * samples + self.bytes_per_step * steps
        return self.operations_per_sample * samples, float(moved)


def training_cost(net: nn.Module, x: Tensor, y: Tensor) -> TrainingCost:
    """Count what the training of a net costs, on one batch.

    Args:
        net: The net. Its gradients are set to None.
        x: Inputs [B, ...].
        y: Labels [B].
    """
    counter = FlopCounterMode(display=False)
    with counter:
        torch.autograd.backward(cross_entropy(net(x).logits, y))
    leaves = {name: leaf.detach() for name, leaf in net_leaves(net).items()}
    buffers = frozenset(name for name, _ in net.named_buffers())
    net.zero_grad()
    return TrainingCost(
        operations_per_sample=counter.get_total_flops() / len(x),
        bytes_per_sample=2 * saved_bytes_per_sample(net, leaves, buffers, x),
        bytes_per_step=WEIGHT_TRANSFERS * nbytes(leaves),
    )


def best_arithmetic(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the floating-point operations per second of a large matrix product."""
    side = MATRIX_SIDE[device.type]
    a, b = (torch.rand(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / _shortest_time(device, lambda: a @ b)


def best_bandwidth(device: torch.device) -> float:
    """Measure the bytes per second of a large copy; each byte is read and written."""
    source = torch.zeros(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / _shortest_time(device, lambda: target.copy_(source))


def _shortest_time(device: torch.device, work: Callable[[], object]) -> float:
    """Return the shortest time of several repetitions, in seconds."""
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work; the CPU has no work in the background."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
