"""Selections by rank: against a plain sort, and with scores that differ by rounding alone."""

import pytest
import torch

from flbench.core.tree import largest, smallest_index


@pytest.mark.parametrize("count", [1, 3, 8])
def test_distinct_scores_are_chosen_as_by_a_sort(count):
    scores = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))

    chosen = largest(scores, count)

    places = scores.sort(dim=1, descending=True).indices[:, :count]
    assert torch.equal(chosen, torch.zeros_like(chosen).scatter(1, places, True))
    assert torch.equal(torch.vmap(lambda row: largest(row, count))(scores), chosen)
    assert torch.equal(smallest_index(scores), scores.argmin(dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", [1e-12, 1.0, -1e6])
def test_rounding_decides_nothing(dtype, level):
    """Many scores are equal but for their last bits; the first ones fill what the largest leave."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.full((40,), level, dtype=dtype)
    exact[7], exact[31] = level + abs(level), level - abs(level)
    expected = torch.zeros(40, dtype=torch.bool)
    expected[[0, 1, 2, 3, 7]] = True
    for _ in range(20):
        noise = 1 + 10 * torch.finfo(dtype).eps * torch.randn(40, dtype=dtype, generator=generator)

        assert torch.equal(largest(exact * noise, 5), expected)
        assert int(smallest_index(exact[:20] * noise[:20])) == 0
        if dtype == torch.float32:
            widened = (exact * noise).double()
            assert torch.equal(largest(widened, 5, torch.float32), expected)


def test_infinite_scores_are_equal_to_each_other():
    scores = torch.tensor([-torch.inf, 1.0, -torch.inf, torch.inf])

    assert largest(scores, 3).tolist() == [True, True, False, True]
    assert largest(scores, 1).tolist() == [False, False, False, True]
    assert int(smallest_index(scores)) == 0
