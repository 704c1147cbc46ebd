from math import cos, pi

import pytest
import torch

from flbench.algorithms.shared.directions import far_apart


def nearest(rows: torch.Tensor) -> float:
    """The largest cosine of two rows."""
    return float((rows @ rows.T).fill_diagonal_(-1.0).max())


def test_where_there_is_room_rows_are_orthonormal():
    rows = far_apart(10, 64, seed=0)

    assert torch.allclose(rows @ rows.T, torch.eye(10).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("count", "width", "best"),
    [(3, 2, -1 / 2), (4, 3, -1 / 3), (6, 3, 0.0), (10, 2, cos(2 * pi / 10))],
)
def test_where_there_is_not_rows_are_as_far_apart_as_they_can_be(count, width, best):
    """Triangle, tetrahedron, octahedron, and the corners of a decagon."""
    rows = far_apart(count, width, seed=0)

    assert nearest(rows) == pytest.approx(best, abs=0.01)
    assert torch.allclose(rows.norm(dim=1), torch.ones(count).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [8, 3])
def test_rows_follow_from_the_seed_alone(width):
    torch.manual_seed(5)
    first = far_apart(4, width, seed=0)
    torch.manual_seed(6)

    assert torch.equal(first, far_apart(4, width, seed=0))
    assert not torch.allclose(first, far_apart(4, width, seed=1))
