"""What training cannot do without, and what a device can do at most: floors under every engine.

The arithmetic is that of the net's forward and backward pass. The bytes are the least that must
move when nothing stays in a cache: weights are read in both passes, gradients written and read,
weights written; what the backward pass needs is written once and read once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from flbench.core.tree import nbytes
from flbench.engine.memory import saved_of_sample
from flbench.models.base import net_leaves

WEIGHTS = 5  # times that weights or gradients cross memory in a step
REPEATS = 5
SIDE = {"cpu": 1024, "cuda": 8192}  # of the matrices whose product is timed
COPIED = {"cpu": 2**26, "cuda": 2**29}  # bytes that are copied, beyond all caches


@dataclass(frozen=True)
class Need:
    """What the training of a net takes.

    Attributes:
        arithmetic: floating-point operations of one sample, both passes.
        sample: bytes of one sample.
        step: bytes of a step besides its samples.
    """

    arithmetic: float
    sample: int
    step: int

    def of(self, samples: int, steps: int) -> tuple[float, float]:
        """Return the operations and the bytes of a round."""
        return self.arithmetic * samples, float(self.sample * samples + self.step * steps)


def need(net: nn.Module, x: Tensor, y: Tensor) -> Need:
    """Return what a net needs for samples such as x [B, ...] with labels y [B].

    The net's gradients are lost.
    """
    counter = FlopCounterMode(display=False)
    with counter:
        torch.autograd.backward(cross_entropy(net(x).logits, y))
    leaves = {name: leaf.detach() for name, leaf in net_leaves(net).items()}
    buffers = frozenset(name for name, _ in net.named_buffers())
    net.zero_grad()
    return Need(
        arithmetic=counter.get_total_flops() / len(x),
        sample=2 * saved_of_sample(net, leaves, buffers, x),
        step=WEIGHTS * nbytes(leaves),
    )


def best_arithmetic(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product."""
    side = SIDE[device.type]
    a, b = (torch.rand(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / _shortest(device, lambda: a @ b)


def best_bandwidth(device: torch.device) -> float:
    """Return the bytes per second of a large copy, read and written."""
    source = torch.zeros(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / _shortest(device, lambda: target.copy_(source))


def _shortest(device: torch.device, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def wait(device: torch.device) -> None:
    """Wait until a device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
