import pytest
import torch

from flbench.algorithms.shared import mixing
from flbench.algorithms.shared.mixing import mix, mix_latest, mix_overlap, pairwise_cosines


def rows() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"a": torch.randn(4, 3, 5), "b": torch.randn(4), "n": torch.tensor([3, 9, 1, 5])}


@pytest.mark.parametrize("entries", [2**25, 16])
def test_mix_is_the_weighted_sum_of_a_slow_loop(entries, monkeypatch):
    """Also where a leaf is taken in pieces."""
    monkeypatch.setattr(mixing, "ENTRIES", entries)
    weights = torch.rand(2, 4)

    mixed = mix(rows(), weights)

    for name in ("a", "b"):
        for i in range(2):
            slow = sum(weights[i, j].double() * rows()[name][j].double() for j in range(4))
            assert torch.allclose(mixed[name][i].double(), slow, atol=1e-6)


def test_mix_with_the_identity_changes_no_bit():
    for name, value in mix(rows(), torch.eye(4)).items():
        assert torch.equal(value, rows()[name])


def test_mix_of_booleans_is_true_where_one_of_those_that_take_part_is():
    rows = {"b": torch.tensor([[True, False], [False, False], [True, True]])}
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])

    assert mix(rows, weights)["b"].tolist() == [[True, False], [False, False]]


def test_mix_takes_the_largest_counter_of_those_that_take_part():
    weights = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.0, 0.2, 0.8, 0.0]])

    assert mix(rows(), weights)["n"].tolist() == [3, 9]


@pytest.mark.parametrize("entries", [2**25, 16])
def test_pairwise_cosines_is_the_cosine_of_all_leaves_as_one_vector(entries, monkeypatch):
    monkeypatch.setattr(mixing, "ENTRIES", entries)
    tree = rows()
    tree["a"][2], tree["b"][2] = 0.0, 0.0
    flat = torch.cat([tree["a"].reshape(4, -1), tree["b"][:, None]], dim=1).double()

    found = pairwise_cosines(tree, ("a", "b"))

    slow = torch.nn.functional.cosine_similarity(flat[:, None], flat[None], dim=2)
    assert torch.allclose(found, slow, atol=1e-12)
    assert found[2].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("entries", [2**25, 16])
def test_overlap_is_the_mean_over_those_that_have_an_entry(entries, monkeypatch):
    """Whether the receiver has the entry does not matter; one that no client has is zero."""
    monkeypatch.setattr(mixing, "ENTRIES", entries)
    masks = {"a": torch.rand(4, 3, 5) < 0.5, "b": torch.tensor([True, False, True, True])}
    own = {name: rows()[name] * mask for name, mask in masks.items()}
    weights = torch.rand(3, 4) * torch.tensor([[1, 1, 0, 1], [0, 1, 0, 0], [1, 0, 1, 1]])

    mixed = mix_overlap(own, masks, weights)

    for name, mask in masks.items():
        assert mixed[name].shape == (3, *mask.shape[1:])
        flat, inside = own[name].reshape(4, -1), mask.reshape(4, -1)
        for i in range(3):
            for e in range(flat.shape[1]):
                held = [j for j in range(4) if bool(inside[j, e])]
                total = sum(float(weights[i, j]) * float(flat[j, e]) for j in held)
                share = sum(float(weights[i, j]) for j in held)
                expected = total / share if held and share else 0.0
                assert float(mixed[name].reshape(3, -1)[i, e]) == pytest.approx(expected, abs=1e-6)


def test_who_has_not_uploaded_counts_with_the_common_model():
    tree, weights = rows(), torch.rand(3, 4) * (torch.arange(4) != 2)
    weights[2] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    common = {name: value[0] + 7 for name, value in tree.items()}
    known = torch.tensor([True, False, True, False])
    filled = {name: value.clone() for name, value in tree.items()}
    for name in filled:
        filled[name][[1, 3]] = common[name]
        tree[name][[1, 3]] = 0

    mixed = mix_latest(tree, weights, known=known, common=common)

    for name, value in mix(filled, weights).items():
        assert torch.allclose(mixed[name], value, atol=1e-6)
        assert torch.equal(mixed[name][2], common[name])


def test_receivers_of_one_model_get_the_bits_of_the_product():
    tree = {"a": torch.randn(3, 4), "b": torch.randint(5, (3, 1))}
    tree["a"][1, 0] = -0.0
    known, common = torch.tensor([True, True, False]), {"a": torch.zeros(4), "b": tree["b"][0]}
    filled = {name: torch.cat([tree[name][:2], common[name][None]]) for name in tree}
    weights = torch.eye(3, dtype=torch.float64)

    mixed = mix_latest(tree, weights, known=known, common=common)

    for name, value in mix(filled, weights).items():
        assert torch.equal(mixed[name], value)
        assert not mixed[name].signbit()[value == 0].any()


def test_pairwise_cosines_with_a_term_in_the_denominator():
    pair = {"a": torch.tensor([[3.0, 0.0], [0.0, 0.0], [4.0, 0.0]])}

    assert pairwise_cosines(pair, ("a",), added=2.0).tolist()[0] == pytest.approx(
        [9 / 11, 0.0, 12 / 14]
    )
