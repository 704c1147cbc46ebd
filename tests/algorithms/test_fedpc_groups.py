"""Means within FedPC's groups and mixtures of groups, against loops."""

import pytest
import torch

from flbench.algorithms.fedpc import (
    TABLE,
    intra_group_means,
    mix_groups,
    table_cosines,
)
from flbench.core.types import Message

J, K, C, D = 3, 5, 4, 2


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def presence(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) > 0.4


def old() -> dict[str, torch.Tensor]:
    present = presence(J, C, seed=7)
    table = random(J, C, D, seed=8) * present[:, :, None]
    counters = torch.tensor([3, 50, 4])
    return {"w": random(J, 2, 3, seed=9), "n": counters, TABLE[0]: table, TABLE[1]: present}


def sent() -> Message:
    held = presence(K, C, seed=3)
    held[:, 3] = False
    own = random(K, C, D, seed=4) * held[:, :, None]
    net = {"w": random(K, 2, 3, seed=5), "n": torch.tensor([9, 1, 5, 2, 8])}
    return Message(net | {"prototypes": own, "ids": torch.arange(K)}, {"prototypes": held})


def test_intra_group_means_are_means_over_clients_and_keep_what_no_client_sent():
    """Group 1 has no client; no client holds class 3."""
    weights = torch.tensor([[1.0, 0, 2, 0, 0], [0, 0, 0, 0, 0], [0, 3, 0, 0, 1]]).double()
    before, message = old(), sent()
    own, held = message.values["prototypes"], message.mask["prototypes"]

    now = intra_group_means(before, message, weights)

    assert now.keys() == {"w", "n", *TABLE}
    for j in range(J):
        members = [i for i in range(K) if weights[j, i] > 0]
        if not members:
            assert all(torch.equal(now[name][j], before[name][j]) for name in before)
            continue
        total = float(weights[j].sum())
        slow = sum(float(weights[j, i]) * message.values["w"][i] for i in members) / total
        assert torch.allclose(now["w"][j], slow, rtol=0, atol=1e-12)
        assert int(now["n"][j]) == max(int(message.values["n"][i]) for i in members)
        for k in range(C):
            holders = [i for i in members if held[i, k]]
            if not holders:
                assert torch.equal(now[TABLE[0]][j, k], before[TABLE[0]][j, k])
                assert now[TABLE[1]][j, k] == before[TABLE[1]][j, k]
                continue
            share = sum(float(weights[j, i]) for i in holders)
            slow = sum(float(weights[j, i]) * own[i, k] for i in holders) / share
            assert torch.allclose(now[TABLE[0]][j, k], slow, rtol=0, atol=1e-12)
            assert now[TABLE[1]][j, k]


def test_mix_groups_is_the_weighted_sum_of_nets_and_the_mean_over_tables_that_have_a_class():
    """Receiver 1 takes from group 2 only, which does not have class 0."""
    tree, weights = old(), torch.tensor([[0.5, 0.2, 0.3], [0.0, 0.0, 1.0]]).double()
    tree[TABLE[1]][2, 0] = False
    tree[TABLE[0]][2, 0] = 0.0

    found = mix_groups(tree, weights)

    for r in range(2):
        slow = sum(float(weights[r, j]) * tree["w"][j] for j in range(J))
        assert torch.allclose(found["w"][r], slow, rtol=0, atol=1e-12)
        for k in range(C):
            have = [j for j in range(J) if tree[TABLE[1]][j, k] and weights[r, j] > 0]
            assert bool(found[TABLE[1]][r, k]) == bool(have)
            share = sum(float(weights[r, j]) for j in have)
            slow = sum(float(weights[r, j]) * tree[TABLE[0]][j, k] for j in have)
            expected = slow / share if have else torch.zeros(D).double()
            assert torch.allclose(found[TABLE[0]][r, k], expected, rtol=0, atol=1e-12)
    assert not found[TABLE[1]][1, 0]


def test_table_cosines_are_over_the_classes_that_both_have():
    tree = old()
    tree[TABLE[1]][0] = torch.tensor([True, True, False, False])
    tree[TABLE[1]][1] = torch.tensor([False, False, True, True])
    table, present = random(J, C, D, seed=8), tree[TABLE[1]]

    found = table_cosines(table, present)

    for j in range(J):
        for one in range(J):
            both = present[j] & present[one]
            a, b = table[j][both].flatten(), table[one][both].flatten()
            expected = float(a @ b / (a.norm() * b.norm())) if both.any() else 0.0
            assert float(found[j, one]) == pytest.approx(1.0 if j == one else expected, abs=1e-12)
    assert float(found[0, 1]) == 0.0
