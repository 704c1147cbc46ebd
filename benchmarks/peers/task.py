"""What the scripts of all platforms share: samples, net, evaluation, and the counting of steps.

This module needs PyTorch and NumPy only.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook

BLOCK = 1000  # test samples that are evaluated at once


@dataclass(frozen=True)
class Task:
    """The samples of a federation.

    Attributes:
        x: Training images [n, channels, height, width] float32, normalized.
        y: Labels [n] int64 in [0, C).
        clients: Positions of the training samples of each client, int64.
        test_x: Test images, normalized in the same way.
        test_y: Labels of the test images.
        classes: Number C of classes.
    """

    x: Tensor
    y: Tensor
    clients: tuple[Tensor, ...]
    test_x: Tensor
    test_y: Tensor
    classes: int

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the training images and labels of a client."""
        return self.x[self.clients[client]], self.y[self.clients[client]]


def load(path: Path) -> Task:
    """Read the samples of a federation.

    The NPZ file has the arrays that flbench reads too: `train_images` uint8 [n, height, width] or
    [n, height, width, channels], `train_labels`, the number of each sample's client as
    `train_groups`, `test_images` and `test_labels`. As flbench does by default, images are brought
    to zero mean and unit variance of each channel over the training samples.
    """
    with np.load(path) as arrays:
        train, test = (_channels_first(arrays[f"{part}_images"]) for part in ("train", "test"))
        y, test_y = (torch.from_numpy(arrays[f"{part}_labels"]) for part in ("train", "test"))
        groups = arrays["train_groups"]
    mean = train.mean((0, 2, 3), keepdim=True)  # [1, channels, 1, 1]
    scale = train.std((0, 2, 3), keepdim=True)
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups))[:-1]
    clients = tuple(torch.from_numpy(rows) for rows in np.split(order, ends))
    return Task(
        x=(train - mean) / scale,
        y=y,
        clients=clients,
        test_x=(test - mean) / scale,
        test_y=test_y,
        classes=int(max(y.max(), test_y.max())) + 1,
    )


def _channels_first(images: np.ndarray) -> Tensor:
    """Return uint8 images as float32 in [0, 1], [n, channels, height, width]."""
    x = torch.from_numpy(images).float() / 255
    return x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def make_net(kind: str, task: Task) -> nn.Module:
    """Return a net with PyTorch's initialization.

    Args:
        kind: `lenet5` (two 5x5 convolutions of 6 and 16 channels, linear layers of widths 120, 84
            and C, without normalization) or `logistic`.
        task: The samples, for their shape and number of classes.
    """
    channels, height, width = task.x.shape[1:]
    if kind == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, task.classes))
    flat = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, task.classes),
    )


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int, batch: int, lr: float) -> None:
    """Train a net with plain SGD on the samples of a client."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(epochs):
        order = torch.randperm(len(y))
        for inputs, labels in zip(x[order].split(batch), y[order].split(batch), strict=True):
            optimizer.zero_grad()
            cross_entropy(net(inputs), labels).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Module, task: Task) -> float:
    """Return the share of test samples that a net classifies correctly."""
    net.eval()
    pieces = zip(task.test_x.split(BLOCK), task.test_y.split(BLOCK), strict=True)
    correct = sum(int((net(x).argmax(1) == y).sum()) for x, y in pieces)
    return correct / len(task.test_y)


class StepCounter:
    """Counts the steps of all optimizers of PyTorch in this process.

    Attributes:
        steps: Steps so far.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._hook = register_optimizer_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.steps += 1

    def close(self) -> None:
        """Stop counting."""
        self._hook.remove()
