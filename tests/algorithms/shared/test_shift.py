"""The distances of FedCPMD's score against closed forms and quadrature, and its Gaussians."""

from itertools import pairwise
from math import exp, log

import pytest
import torch
from scipy import integrate, stats

from flbench.algorithms.shared.shift import (
    DISTANCES,
    REDUCE,
    Gaussian,
    gaussians,
    moments,
    shift_scores,
)
from flbench.core.types import Batch, Context, Outputs

PAIRS = [(0.0, 1.0, 0.0, 1.0), (0.2, 0.3, 0.7, 0.1), (0.5, 0.001, 0.4, 0.3), (0.1, 0.02, 0.9, 0.02)]
PAPER = ["js", "wasserstein", "hellinger", "bhattacharyya"]


def normal(mean: float, std: float) -> Gaussian:
    return Gaussian(*torch.tensor([mean, std], dtype=torch.float64))


def distance(name: str, m1: float, s1: float, m2: float, s2: float) -> float:
    return float(DISTANCES[name](normal(m1, s1), normal(m2, s2)))


@pytest.mark.parametrize("pair", PAIRS)
def test_js_is_that_of_a_quadrature(pair):
    m1, s1, m2, s2 = pair
    p, q = stats.norm(m1, s1), stats.norm(m2, s2)

    def inside(x: float) -> float:
        r = (p.pdf(x) + q.pdf(x)) / 2
        return sum(f.pdf(x) * log(f.pdf(x) / r) for f in (p, q) if f.pdf(x) > 0) / 2

    cuts = sorted({m + k * s for m, s in ((m1, s1), (m2, s2)) for k in range(-8, 9)})
    slow = sum(integrate.quad(inside, low, high)[0] for low, high in pairwise(cuts))

    assert distance("js", *pair) == pytest.approx(slow, abs=1e-6)


@pytest.mark.parametrize("pair", PAIRS)
def test_coefficient_and_quantiles_are_those_of_a_quadrature(pair):
    """BC = integral of sqrt(p q); W2^2 = integral of the squared difference of quantiles."""
    m1, s1, m2, s2 = pair
    p, q = stats.norm(m1, s1), stats.norm(m2, s2)
    cuts = sorted({m + k * s for m, s in ((m1, s1), (m2, s2)) for k in range(-8, 9)})
    bc = sum(
        integrate.quad(lambda x: (p.pdf(x) * q.pdf(x)) ** 0.5, low, high)[0]
        for low, high in pairwise(cuts)
    )
    squared = integrate.quad(lambda u: (p.ppf(u) - q.ppf(u)) ** 2, 1e-12, 1 - 1e-12)[0]

    assert exp(-distance("bhattacharyya", *pair)) == pytest.approx(bc, abs=1e-8)
    assert distance("hellinger", *pair) == pytest.approx(max(0.0, 1 - bc) ** 0.5, abs=1e-6)
    assert distance("wasserstein", *pair) == pytest.approx(squared**0.5, abs=1e-6)


# What Gaussians are made of


def context(x, y, mask, hidden) -> Context:
    """Return the context of a net whose layers put out `hidden` (after ReLU) and 2 `hidden`."""

    def apply(leaves, x, *, train=False, activations=()):
        values = {"a": (x.flatten(1), hidden - 0.1), "b": (hidden, 2 * hidden)}
        return Outputs(hidden, hidden, {name: values[name] for name in activations})

    batch = Batch(x, y, mask, torch.arange(len(y)), torch.tensor(0))
    return Context(lambda: None, batch=batch, ctx={}, leaves={}, start={}, apply=apply)


def samples(n: int = 12):
    g = torch.Generator().manual_seed(0)
    x = (
        torch.randn(n, 3, 2, 2, generator=g, dtype=torch.float64)
        * torch.tensor([1.0, 4.0, 9.0])[:, None, None]
    )
    hidden = torch.randn(n, 5, generator=g, dtype=torch.float64).relu()
    return x, torch.randint(0, 4, (n,), generator=g), hidden


def put_together(parts):
    how = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum}
    whole = parts[0]
    for part in parts[1:]:
        whole = {key: how[reduce](whole[key], part[key]) for key, reduce in REDUCE}
    return whole


@pytest.mark.parametrize("raw", [False, True])
def test_gaussians_are_mean_and_deviation_of_scaled_tensors(raw):
    x, y, hidden = samples()
    pieces = [slice(0, 5), slice(5, 6), slice(6, 12)]
    parts = []
    for piece in pieces:  # each with a padded row that must not count
        rows = [torch.cat([v[piece], torch.full_like(v[:1], 77)]) for v in (x, y, hidden)]
        real = torch.tensor([True] * len(y[piece]) + [False])
        parts.append(moments(context(rows[0], rows[1], real, rows[2]), ("a", "b")))

    found = gaussians(put_together(parts), raw, 4, 2)

    def unit(v, axes):
        low, high = v.amin(axes, keepdim=True), v.amax(axes, keepdim=True)
        return (v - low) / (high - low)

    scaled_x, scaled_y = (x, y.double()) if raw else (unit(x, (0, 2, 3)), y.double() / 3)
    flat = x.flatten(1), hidden, 2 * hidden
    if not raw:
        flat = tuple(unit(value, (0, 1)) for value in flat)
    wanted = [value.double() for value in (scaled_x, scaled_y, *flat)]
    means = torch.stack([value.mean() for value in wanted])
    stds = torch.stack([value.std(correction=0) for value in wanted])
    assert torch.allclose(found.mean, means, rtol=0, atol=1e-12)
    assert torch.allclose(found.std, stds, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("poor", ["one class", "one sample", "constant", "no rows"])
def test_poor_clients_have_finite_scores(name, poor):
    """The standard deviation is at least 1e-3, and the mean of a constant tensor is 0.5."""
    x, y, hidden = samples()
    mask = torch.ones(12, dtype=torch.bool)
    if poor == "one class":
        y = torch.full_like(y, 2)
    elif poor == "one sample":
        mask[1:] = False
    elif poor == "constant":
        x, hidden = torch.ones_like(x), torch.zeros_like(hidden)
    else:
        mask[:] = False
    here, layers = context(x, y, mask, hidden), ("a", "b")

    found = moments(here, layers)
    mean, std = gaussians(found, False, 4, 2)
    scores = shift_scores(here, found, name, False, 4, layers)["scores"]

    assert bool(scores.isfinite().all())
    assert float(std[1]) >= 1e-3
    if poor == "one class":
        assert (float(mean[1]), float(std[1])) == pytest.approx((2 / 3, 1e-3))
    if poor in ("constant", "no rows"):
        assert mean[3:].tolist() == [0.5, 0.5]


def test_raw_constant_keeps_its_mean_and_has_the_least_deviation():
    x, y, hidden = samples()
    mask = torch.ones(12, dtype=torch.bool)
    here = context(torch.full_like(x, 7), torch.full_like(y, 3), mask, hidden * 0 + 2)

    found = gaussians(moments(here, ("a", "b")), True, 4, 2)

    assert found.mean.tolist() == [7, 3, 7, 2, 4]
    assert found.std.tolist() == pytest.approx([1e-3] * 5)
