"""Max pooling by comparisons of tensors gives what PyTorch's kernel gives."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from flbench.engine import pooling
from flbench.engine.traced import run_and_compare, run_and_record

SHAPES = [(3, 2, 6, 8), (2, 3, 7, 5), (1, 1, 2, 2), (2, 1, 3, 2), (4, 6, 28, 254)]


def images(shape: tuple[int, ...], kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    if kind == "ties":  # few values: most windows have their maximum more than once
        return x.round().clamp(-1, 1) + 0.0  # no -0.0
    if kind == "relu":
        return x.relu()
    if kind == "infinite":
        return torch.where(x > 1, torch.inf, torch.where(x < 0, -torch.inf, x))
    return x


@pytest.mark.parametrize("kind", ["normal", "ties", "relu", "infinite"])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_positions_are_those_of_pytorch(shape, kind):
    for dtype in (torch.float32, torch.float64):
        x = images(shape, kind, dtype)
        values, positions = max_pool2d(x, 2, return_indices=True)

        ours = pooling.max_pool(x, pooling.window_corners(*shape[2:]))

        assert ours[0].numpy().tobytes() == values.numpy().tobytes()
        assert torch.equal(ours[1], positions)
        assert ours[1].dtype == positions.dtype
        assert torch.equal(pooling.max_pool_values(x), values)


def test_zeros_of_both_signs_are_equal_and_the_first_one_is_the_position():
    x = torch.zeros(2, 3, 4, 6).copysign(images((2, 3, 4, 6), "normal"))
    values, positions = max_pool2d(x, 2, return_indices=True)

    ours = pooling.max_pool(x, pooling.window_corners(4, 6))

    assert torch.equal(ours[0], values)
    assert torch.equal(ours[1], positions)


def test_a_window_with_nan_has_the_maximum_nan_and_a_position_inside():
    x = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    x[0, 0, 1, 2] = x[1, 1, 3, 0] = torch.nan

    values, positions = pooling.max_pool(x, pooling.window_corners(4, 4))

    assert torch.equal(values.isnan(), max_pool2d(x, 2).isnan())
    inside = max_pool2d(torch.arange(16.0).reshape(1, 1, 4, 4), 2) - positions
    assert set(inside.flatten().tolist()) <= {0.0, 1.0, 4.0, 5.0}


class Net(nn.Module):
    """A convolution, ReLU, a pooling, and a sum."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.pool = nn.Conv2d(1, 6, 3), pool

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.convolution(x).relu())
        return pooled.square().mean()


@pytest.mark.parametrize(
    ("pool", "is_replaced"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d(2, stride=2, padding=0), True),
        (nn.MaxPool2d((2, 2), (2, 2)), True),
        (nn.MaxPool2d(2, stride=1), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(3), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.AvgPool2d(2), False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_a_trace_replaces_poolings_of_two_by_two_without_another_bit(
    pool, is_replaced, train, monkeypatch
):
    used = []
    for name in ("max_pool", "max_pool_values"):
        monkeypatch.setattr(pooling, name, _recorded(getattr(pooling, name), used))
    net = Net(pool)
    leaves = list(net.parameters())

    def step(x: Tensor) -> list[Tensor]:
        with torch.set_grad_enabled(train):
            loss = net(x)
        found = torch.autograd.grad(loss, leaves) if train else ()
        return [loss.detach(), *found]

    x, other = (
        torch.randn(8, 1, 36, 41, generator=torch.Generator().manual_seed(k)) for k in (1, 2)
    )
    _, trace = run_and_record(partial(step, x), leaves, [x])
    assert trace is not None
    _, equal = run_and_compare(trace, partial(step, other), leaves, [other])

    assert equal
    assert used == ((["max_pool"] if train else ["max_pool_values"]) if is_replaced else [])


def _recorded(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """Return a function that appends its name to a list and does what another one does."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        names.append(function.__name__)
        return function(*arguments)

    return call


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:1, :, :4],  # too few entries to gain
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.bfloat16(),
        lambda x: torch.zeros(1, 1, 200, 255),  # an offset of 255 + 1 does not fit into uint8
    ],
    ids=["small", "channels-last", "bfloat16", "wide"],
)
def test_other_images_keep_pytorch_s_pooling(change, monkeypatch):
    monkeypatch.setattr(pooling, "max_pool_values", None)
    x = change(torch.randn(8, 6, 34, 40))

    _, trace = run_and_record(lambda: max_pool2d(x, 2), [x])

    assert trace is not None
    assert torch.equal(trace.replay(x), max_pool2d(x, 2))
