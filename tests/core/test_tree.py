import numpy as np
import pytest
import torch

from flbench.core import tree


def test_weighted_mean_equals_numpy():
    rows = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([1.0, 0.0, 2.0, 3.0, 0.5])

    mean = tree.weighted_mean({"w": rows}, weights)["w"]

    expected = np.average(rows.double().numpy(), axis=0, weights=weights.numpy())
    assert np.allclose(mean.numpy(), expected, rtol=0, atol=1e-7)


def test_weighted_mean_of_one_client_is_that_client_bit_for_bit():
    rows = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))

    assert torch.equal(tree.weighted_mean({"w": rows}, torch.tensor([0, 5, 0]))["w"], rows[1])


def test_weighted_mean_integers_take_the_maximum_over_participants():
    counter = torch.tensor([3, 9, 4])

    assert tree.weighted_mean({"n": counter}, torch.tensor([1.0, 0.0, 1.0]))["n"] == 4


def test_weighted_mean_ignores_rows_of_weight_zero_even_nan():
    rows = torch.tensor([[1.0], [torch.nan]])

    assert tree.weighted_mean({"w": rows}, torch.tensor([1, 0]))["w"] == 1.0


def test_put_writes_only_inside_the_mask():
    target = {"w": torch.zeros(4, 3)}

    tree.put_(
        target, torch.tensor([2, 0]), {"w": torch.ones(2, 3)}, {"w": torch.tensor([True, False])}
    )

    assert target["w"].sum(dim=1).tolist() == [0, 0, 3, 0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_is_finite_finds_one_bad_entry(bad):
    values = torch.zeros(1000)
    values[123] = bad

    assert tree.is_finite({"a": torch.ones(3)})
    assert not tree.is_finite({"a": torch.ones(3), "b": values})


def test_is_finite_large_float32_values_do_not_overflow():
    assert tree.is_finite({"a": torch.full((100,), 3e38)})


def test_digest_depends_on_values_names_order_and_shape():
    a, b = torch.arange(4.0), torch.arange(4.0) + 1
    base = tree.digest([{"a": a, "b": b}])

    assert base == tree.digest([{"a": a.clone(), "b": b.clone()}])
    others = [{"a": b, "b": a}, {"b": b, "a": a}, {"a": a.reshape(2, 2), "b": b}, {"a": a, "c": b}]
    assert len({base, *(tree.digest([other]) for other in others)}) == 5


def test_a_mask_reaches_over_the_first_axes_and_over_a_single_number():
    mask = torch.tensor([True, False])

    assert tree.broadcast(mask, torch.zeros(2, 3, 4)).shape == (2, 1, 1)
    assert tree.broadcast(mask[0], torch.tensor(7)).shape == ()
    assert int(tree.where_masked(mask[1], torch.tensor(7), torch.tensor(3))) == 3


def test_digest_of_one_row_is_the_same_however_it_lies():
    counter = {"n": torch.tensor(4)}

    view = tree.repeat(counter, 1)
    copy = tree.copied(view)

    assert tree.digest([view]) == tree.digest([copy]) == tree.digest([{"n": torch.tensor([4])}])
