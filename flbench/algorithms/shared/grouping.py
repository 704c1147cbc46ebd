"""Clients grouped once by what they sent: principal components, then k-means (scikit-learn)."""

import warnings
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flbench.core.rng import generator
from flbench.core.types import Results

Fill = Literal["zero", "class_mean"]

VARIANCE = 0.9  # that the components must reach
COMPONENTS = 32  # and at most so many
STARTS = 10
MOST = 10  # groups that `auto` tries
ALIKE = 1e-9  # relative to the widest: points that differ by less are one point

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


def assign(
    results: Results, fill: Fill, components: int | None, groups: int | Literal["auto"], seed: int
) -> tuple[Tensor, int]:
    """Return each client's group [K] int64, numbered from 0, and the number of components.

    Args:
        results: `prototypes` [K, C, D] were sent, their mask [K, C] says which classes a client
            holds.
        fill: see `stack`.
        components: see `principal`.
        groups: J, or the number with the best silhouette among 2 to 10; fewer where fewer clients
            differ.
        seed: the run's.
    """
    sent = results.sent
    points = principal(stack(sent.values["prototypes"], sent.mask["prototypes"], fill), components)
    starts = int(generator(seed, "method").integers(2**32))
    if groups == "auto":
        labels = by_silhouette(points, MOST, starts)
    else:
        labels = kmeans(points, groups, starts)
    return torch.from_numpy(labels), points.shape[1]


def stack(prototypes: Tensor, held: Tensor, fill: Fill) -> Tensor:
    """Return one vector [K, C D] float64 per client: its prototypes, class after class.

    Args:
        prototypes: [K, C, D].
        held: [K, C] bool.
        fill: what stands for a class that a client does not hold: zeros, or the mean over the
            holders of that class (zeros where there are none).
    """
    own = torch.where(held[:, :, None], prototypes.double(), 0.0)
    if fill == "class_mean":
        mean = own.sum(dim=0) / held.sum(dim=0).clamp_min(1)[:, None]
        own = torch.where(held[:, :, None], own, mean)
    return own.flatten(1)


def principal(vectors: Tensor, components: int | None = None) -> Points:
    """Return the first principal components [K, q] of centred vectors [K, M], widest first.

    Args:
        vectors: float64.
        components: q; None for the fewest that reach 90 % of the variance, at most 32. Never more
            than K - 1 or M; alike vectors have one component, 0.
    """
    from sklearn.decomposition import PCA

    centred = vectors - vectors.mean(dim=0)
    # The mean itself is rounded: what is left of alike vectors is no difference between them.
    if float(centred.abs().amax()) <= ALIKE * float(vectors.abs().amax()):
        return np.zeros((len(vectors), 1))
    if vectors.shape[1] > len(vectors):  # the same inner products in K columns instead of M
        centred = torch.linalg.qr(centred.T, mode="r").R.T
    most = min(components or COMPONENTS, len(vectors) - 1, vectors.shape[1])
    pca = PCA(most, svd_solver="full").fit(centred.numpy())
    if components is None:
        reached = np.cumsum(pca.explained_variance_ratio_) >= VARIANCE
        components = int(reached.argmax()) + 1 if reached.any() else most
    points: Points = pca.transform(centred.numpy())[:, :components]
    return points


def kmeans(points: Points, groups: int, seed: int) -> Labels:
    """Return each point's group [K] by k-means, the best of ten starts.

    Groups are numbered by their first members. There are fewer than asked for where fewer points
    differ. scikit-learn gives a group that runs empty the point farthest from its own centre.

    Args:
        points: [K, q].
        groups: J.
        seed: in [0, 2^32), of the starts.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    groups = min(groups, _distinct(points))
    if groups == 1:
        return np.zeros(len(points), dtype=np.int64)
    with warnings.catch_warnings():
        # Points that differ by rounding alone may still fall into fewer groups; that is no harm.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(groups, n_init=STARTS, random_state=seed).fit_predict(points)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    numbered: Labels = np.argsort(np.argsort(first))[inverse].astype(np.int64)
    return numbered


def by_silhouette(points: Points, most: int, seed: int) -> Labels:
    """Return the groups [K] of the number in 2..most with the best mean silhouette.

    Ties go to fewer groups. One group where no number can be evaluated: it needs two groups at least,
    and one of two members.

    Args:
        points: [K, q].
        most: groups.
        seed: of k-means.
    """
    from sklearn.metrics import silhouette_score

    best, score = np.zeros(len(points), dtype=np.int64), -np.inf
    for groups in range(2, min(most, _distinct(points), len(points) - 1) + 1):
        labels = kmeans(points, groups, seed)
        found = float(silhouette_score(points, labels)) if labels.any() else -np.inf
        if found > score:
            best, score = labels, found
    return best


def _distinct(points: Points) -> int:
    """Return how many points differ by more than rounding."""
    scale = float(np.abs(points).max())
    return len(np.unique(np.round(points / scale / ALIKE), axis=0)) if scale else 1
