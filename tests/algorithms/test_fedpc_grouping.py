"""How FedPC groups clients and compares groups: vectors, components, k-means, cosines."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from flbench.algorithms.fedpc import group_clients, kmeans, principal_components

CAMPS = np.array([[0.0, 0], [0, 1], [9, 0], [9, 1], [0, 30], [1, 30], [0, 31]])
EXPECTED = [0, 0, 1, 1, 2, 2, 2]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(7, 40), (40, 7)])
def test_principal_components_are_those_of_the_covariance(shape):
    """Signs of components are arbitrary; one case has more columns than clients."""
    vectors = random(*shape)
    centred = vectors - vectors.mean(dim=0)
    values, axes = torch.linalg.eigh(centred.T @ centred)

    points = principal_components(vectors)

    q = points.shape[1]
    assert points.shape == (shape[0], q)
    for k in range(q):
        slow = (centred @ axes[:, -1 - k]).numpy()
        assert np.allclose(np.abs(points[:, k]), np.abs(slow), atol=1e-9)
        assert np.square(slow).sum() == pytest.approx(float(values[-1 - k]))


def test_components_are_the_fewest_that_reach_nine_tenths_of_the_variance():
    scales = torch.tensor([10.0, 5, 2, 1, 0.5]).double()
    vectors = torch.linalg.qr(random(50, 6) - random(50, 6).mean(dim=0)).Q[:, :5] * scales
    vectors = vectors - vectors.mean(dim=0)
    shares = PCA().fit(vectors.numpy()).explained_variance_ratio_.cumsum()

    q = principal_components(vectors).shape[1]

    assert shares[q - 1] >= 0.9 > shares[q - 2]
    assert 1 < q < 5


@pytest.mark.parametrize(("clients", "most"), [(60, 32), (10, 9), (2, 1)])
def test_components_are_at_most_32_and_fewer_than_the_clients(clients, most):
    """Noise of equal variance in all directions would need nearly all components."""
    assert principal_components(random(clients, 200)).shape[1] <= most


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Number of distinct clusters")
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_alike_clients_are_one_group(clients):
    """The mean of equal vectors is rounded, and differs from them in the last bits."""
    vectors = (random(1, 12) + 0.1).expand(clients, 12)

    assert group_clients(vectors, 3, 0)[0].tolist() == [0] * clients


@pytest.mark.parametrize("seed", range(5))
def test_kmeans_finds_the_camps_and_numbers_them_by_their_first_members(seed):
    assert kmeans(CAMPS, 3, seed).tolist() == EXPECTED
    assert kmeans(CAMPS[::-1], 3, seed).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_kmeans_with_one_group_per_point_and_more():
    assert kmeans(CAMPS, 7, 0).tolist() == list(range(7))
    assert kmeans(CAMPS, 70, 0).tolist() == list(range(7))


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_fewer_distinct_points_than_groups_make_fewer_groups():
    twice = np.concatenate([CAMPS[:3], CAMPS[:3]])

    assert kmeans(twice, 5, 0).tolist() == [0, 1, 2, 0, 1, 2]
