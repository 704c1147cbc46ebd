from itertools import product

import numpy as np
import pytest
import torch

from flbench.algorithms.shared.topology import (
    GossipConfig,
    components,
    graph_of,
    mixing_rows,
)
from flbench.core.rng import Draw

NETWORKS = ("ring", "grid", "exponential", "complete", "star", "erdos_renyi", "k_regular")
NAMES = ["random", *NETWORKS]
N = 12


def keys(topology: str, neighbours: int = 10, **others) -> GossipConfig:
    return GossipConfig(topology=topology, neighbours=neighbours, **others)


def graph(config: GossipConfig, clients: int = N, round: int = 0, ids=None) -> torch.Tensor:
    ids = torch.arange(clients) if ids is None else torch.tensor(ids)
    return graph_of(config, Draw(0, (round,), clients), ids)


def links_of(found: torch.Tensor) -> list[set[int]]:
    return [set(row.nonzero()[:, 0].tolist()) for row in found]


@pytest.mark.parametrize("name", NAMES)
def test_rows_sum_to_one_and_no_client_is_its_own_neighbour(name):
    """A mixture of equal models is that model only if the weights of each row sum to one."""
    for clients, mixing in product((1, 2, 3, 7, 12), ("uniform", "metropolis")):
        found = graph(keys(name, neighbours=3), clients)

        rows = mixing_rows(found, mixing)

        assert not bool(found.diagonal().any())
        assert bool((rows >= 0).all())
        ones = torch.ones(clients, dtype=torch.float64)
        assert torch.allclose(rows.sum(dim=1), ones, atol=1e-15)
        assert torch.equal((rows != 0) & ~torch.eye(clients, dtype=torch.bool), found)


@pytest.mark.parametrize("name", NAMES)
def test_metropolis_weights_of_an_undirected_graph_are_doubly_stochastic(name):
    for ids in (None, [1, 2, 5, 6, 11]):
        found = graph(keys(name, 3, symmetric=True), ids=ids)

        rows = mixing_rows(found, "metropolis")

        assert torch.equal(found, found.T)
        ones = torch.ones(len(rows), dtype=torch.float64)
        assert torch.allclose(rows.sum(dim=0), ones, atol=1e-15)


def test_metropolis_weights_are_those_of_a_slow_loop():
    found = graph(keys("star"), 5)
    links = links_of(found)

    rows = mixing_rows(found, "metropolis")

    for i in range(5):
        for j in links[i]:
            assert float(rows[i, j]) == 1 / (1 + max(len(links[i]), len(links[j])))
        assert float(rows[i, i]) == pytest.approx(1 - sum(float(rows[i, j]) for j in links[i]))


def test_networks_link_whom_they_say():
    assert links_of(graph(keys("ring"), 5)) == [{1, 4}, {0, 2}, {1, 3}, {2, 4}, {0, 3}]
    assert links_of(graph(keys("complete"), 3)) == [{1, 2}, {0, 2}, {0, 1}]
    assert links_of(graph(keys("star"), 4)) == [{1, 2, 3}, {0}, {0}, {0}]
    # Three to a row: 0 1 2 / 3 4 5 / 6.
    assert links_of(graph(keys("grid"), 7)) == [
        *({1, 3}, {0, 2, 4}, {1, 5}, {0, 4, 6}, {1, 3, 5}, {2, 4}, {3})
    ]
    assert links_of(graph(keys("exponential"), 6))[1] == {2, 3, 5}
    assert links_of(graph(keys("exponential", symmetric=True), 6))[1] == {2, 3, 5, 0}


@pytest.mark.parametrize("name", ["k_regular", "random"])
def test_regular_graphs_are_regular(name):
    """Where both numbers are odd one client has a link less; at most all others."""
    for clients, degree in ((12, 4), (12, 5), (9, 4), (9, 3), (2, 1), (5, 9)):
        found = graph(keys(name, degree, symmetric=True), clients)

        wanted = min(degree, clients - 1)
        odd = clients * wanted % 2
        assert sorted(found.sum(dim=1).tolist()) == [wanted - 1] * odd + [wanted] * (clients - odd)
        assert torch.equal(found, found.T)


def test_random_neighbours_are_drawn_in_each_round_and_directed():
    first, second = (graph(keys("random", 4), 20, round=t) for t in range(2))

    assert first.sum(dim=1).tolist() == [4] * 20
    assert not torch.equal(first, second)
    assert not torch.equal(first, first.T)
    assert torch.equal(first, graph(keys("random", 4), 20))
    assert not torch.equal(first, graph_of(keys("random", 4), Draw(1, (0,), 20), torch.arange(20)))
    # All clients are drawn about equally often: 4 times on average over 50 rounds.
    drawn = sum(graph(keys("random", 4), 20, round=t).sum(dim=0) for t in range(50)) / 50
    assert 3 < float(drawn.min()) < 4 < float(drawn.max()) < 5


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_fixed_and_absent_clients_forward_nothing(name):
    topology = keys(name, 3)
    ids = [0, 3, 4, 9]

    part = graph(topology, round=5, ids=ids)

    assert torch.equal(part, graph(topology)[ids][:, ids])
    order = [9, 0, 4, 3]
    assert torch.equal(graph(topology, ids=order), graph(topology)[order][:, order])


def test_links_of_an_erdos_renyi_graph_have_the_configured_probability():
    def density(**own) -> float:
        return float(graph(keys("erdos_renyi", **own), 60).double().sum()) / (60 * 59)

    assert density(edge_probability=0.0) == 0
    assert density(edge_probability=1.0) == 1
    assert density(edge_probability=0.3) == pytest.approx(0.3, abs=0.05)
    assert density(neighbours=12) == pytest.approx(12 / 59, abs=0.05)


def test_components_are_found_directions_aside():
    links = np.zeros((5, 5), dtype=bool)
    links[0, 3] = links[4, 1] = True

    assert components(links) == [[0, 3], [1, 4], [2]]


def test_regular_graph_is_not_a_ring_lattice():
    """The swaps do something: neighbours are not the nearest ones under any fixed naming."""
    found = [graph(keys("random", 4, symmetric=True), 30, round=t).numpy() for t in range(3)]

    triangles = [np.trace(np.linalg.matrix_power(links.astype(int), 3)) / 6 for links in found]

    assert max(triangles) < 30  # as many as the lattice has
