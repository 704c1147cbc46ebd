"""Descriptions of methods and of their networks."""

import pytest
import torch

from flbench.algorithms import catalogue
from flbench.algorithms.dfedavg import DFedAvg
from flbench.algorithms.fedavg import FedAvg
from flbench.core.errors import ConfigError


def test_network_of_a_ring():
    network = catalogue.network(DFedAvg.Config(name="dfedavg", topology="ring"), 0, 6)

    entry = network.entry()

    assert torch.allclose(network.weights.sum(dim=1), torch.ones(6, dtype=torch.float64))
    assert torch.equal(network.weights != 0, network.graph | torch.eye(6, dtype=torch.bool))
    assert (entry["clients"], entry["payloads"], entry["neighbours"]) == (6, 12, [2, 2])
    assert (entry["both_ways"], entry["parts"]) == (True, 1)
    # The weights are a circulant matrix of thirds with the eigenvalues (1 + 2 cos(pi k / 3)) / 3.
    assert entry["spectral_gap"] == pytest.approx(1 / 3, abs=1e-6)
    assert network.positions.shape == (6, 2)
    assert network.title == "ring: 6 clients"


def test_network_that_is_drawn_in_each_round_is_that_of_the_first_round():
    config = DFedAvg.Config(name="dfedavg", neighbours=2)

    one, again, other = (catalogue.network(config, seed, 12) for seed in (0, 0, 1))

    assert torch.equal(one.graph, again.graph)
    assert not torch.equal(one.graph, other.graph)
    assert one.title == "random: 12 clients, first round"


def test_method_with_a_server_has_no_network():
    with pytest.raises(ConfigError, match=r"algorithm\.name=fedavg.* no network of clients"):
        catalogue.network(FedAvg.Config(name="fedavg"), 0, 6)
