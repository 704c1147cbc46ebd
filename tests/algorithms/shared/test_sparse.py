from math import prod

import numpy as np
import pytest
import torch

from flbench.algorithms import bind
from flbench.algorithms.shared import sparse
from flbench.algorithms.shared.sparse import MASK, inside
from flbench.core.types import Context, Info

LENET = {
    "conv1": (6, 1, 5, 5),
    "conv2": (16, 6, 5, 5),
    "fc1": (120, 256),
    "fc2": (84, 120),
    "head": (10, 84),
}


@pytest.mark.parametrize("density", [0.01, 0.2, 0.5, 0.8, 0.97, 1.0])
def test_erk_densities_are_those_of_a_slow_search(density):
    """min(1, eps raw) with the eps that fits, found by bisection."""

    def densities(eps: float) -> dict[str, float]:
        return {name: min(1.0, eps * sum(s) / prod(s)) for name, s in LENET.items()}

    def ones(shares: dict[str, float]) -> float:
        return sum(shares[name] * prod(shape) for name, shape in LENET.items())

    size = sum(prod(shape) for shape in LENET.values())
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if ones(densities(middle)) > density * size else (middle, high)

    found = sparse.erk(LENET, density)

    assert list(found) == list(LENET)
    assert ones(found) == pytest.approx(density * size)
    for name, share in densities(high).items():
        assert found[name] == pytest.approx(share, rel=1e-6)
        assert 0 < found[name] <= 1
    if density == 0.5:
        assert found["conv1"] == found["head"] == 1 > found["fc2"] > found["conv2"] > found["fc1"]


def start() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in LENET.items()}


def test_start_masks_have_equally_many_ones_and_belong_to_the_client():
    masks = sparse.start_masks(start(), 0.3, 0, 4)

    shares = sparse.erk(LENET, 0.3)
    for name, mask in masks.items():
        assert mask.shape == (4, *LENET[name])
        assert mask.flatten(1).sum(dim=1).tolist() == [round(shares[name] * prod(LENET[name]))] * 4
        if shares[name] < 1:
            assert not torch.equal(mask[0], mask[1])
    again = sparse.start_masks(start(), 0.3, 0, 2)
    assert all(torch.equal(again[name], mask[:2]) for name, mask in masks.items())
    other = sparse.start_masks(start(), 0.3, 1, 2)
    assert not torch.equal(other["fc1"], again["fc1"])


def test_every_layer_has_a_weight_at_the_least():
    tiny = {"a": torch.zeros(3, 2), "b": torch.zeros(400, 500)}

    masks = sparse.start_masks(tiny, 1e-6, 0, 1)

    assert [int(mask.sum()) for mask in masks.values()] == [1, 1]


def searched(mask, weights, gradient, *, round=0, rate=0.5, rounds=10):
    leaves = {"w": weights * mask, f"{MASK}w": mask}
    zero = torch.tensor(0)
    info = Info(zero, zero, zero, torch.tensor(round))
    context = Context(leaves=leaves, start=leaves, ctx={"dense.w": gradient}, info=info)
    return sparse.searched(context, ("w",), bind(inside, ("w",)), rate, rounds)[f"{MASK}w"]


@pytest.mark.parametrize(("ones", "changes"), [(0, 0), (1, 0), (2, 1), (5, 1), (6, 0)])
def test_search_of_extreme_masks(ones, changes):
    """Nothing or one entry inside: no pruning. With a full mask, all that was pruned returns.

    Half of the mask is pruned. The gradient is larger outside the mask.
    """
    mask = torch.arange(6) < ones

    found = searched(mask, torch.ones(6), torch.arange(6.0), rate=1.0, round=5)

    assert int(found.sum()) == ones
    assert int((found & ~mask).sum()) == changes


@pytest.mark.parametrize(("ones", "changes"), [(8, 1), (9, 2), (16, 2)])
def test_whole_number_of_changes_is_not_rounded_up(ones, changes):
    """After two thirds of the rounds the rate is 1/8; the cosine of 2 pi / 3 is rounded upwards."""
    mask = torch.arange(40) < ones

    found = searched(mask, torch.rand(40), torch.arange(40.0), round=2, rounds=3)

    assert int((found & ~mask).sum()) == int((mask & ~found).sum()) == changes


def test_search_breaks_ties_by_index_also_where_rounding_differs():
    mask = torch.tensor([True, True, True, False, False, False])
    noise = torch.tensor([0.0, 3e-8, -3e-8, 3e-8, 0.0, -3e-8])

    for sign in (1, -1):
        nearly = 1 + sign * noise
        gradient = torch.where(mask, 0.5, nearly)  # so that nothing returns
        found = searched(mask, nearly, gradient, rate=0.5, round=0, rounds=1)
        assert found.tolist() == [False, False, True, True, True, False]


def test_masks_are_packed_a_bit_each():
    masks = [torch.rand(3, 3) < 0.5, torch.rand(4) < 0.5]

    bits = sparse.packed(masks)

    flat = torch.cat([mask.flatten() for mask in masks]).numpy()
    assert bits.tolist() == np.packbits(flat, bitorder="little").tolist()
    assert bits.dtype == torch.uint8
