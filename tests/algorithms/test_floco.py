"""Floco: a plain loop, the placement beside scikit-learn and scipy, special cases."""

from math import log, sqrt

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.decomposition import PCA

from flbench.algorithms.floco import placed, principal_components, project
from flbench.core.rng import Draw, uniform
from flbench.core.tree import only
from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.loops import (
    BACKBONE,
    BATCH,
    EPOCHS,
    HEAD,
    KEYS,
    LR,
    Clients,
    assert_equal,
    mean_cross_entropy,
    net,
    platform,
)
from tests.support import build

POINTS, M = "simplex.weight", 3
SHARED = (*BACKBONE, HEAD[1], POINTS)


def slow_point(key, alpha, rho, first):
    """A point for a batch, from the key of its first sample."""
    u = [float(uniform(key[:1], first + m)) for m in range(M + 1)]
    if alpha is None:
        drawn = [-log(1 - one) for one in u[:M]]
        return [one / sum(drawn) for one in drawn]
    step = [2 * one - 1 for one in u[:M]]
    length = sum(abs(one) for one in step)
    return [float(a) + rho * u[M] * one / length for a, one in zip(alpha, step, strict=True)]


def slow_training(clients, i, draw, rows, w, alpha, rho, received=None, lam=0.0, epochs=EPOCHS):
    """Of w, or of a personal model that is pulled to what was received."""
    for epoch in range(epochs):
        order = draw.sample_order(i, epoch, clients.size(i))
        keys = torch.from_numpy(draw.noise_keys(i, epoch, rows[i][order]))
        for first in range(0, len(order), BATCH):
            here = order[first : first + BATCH].tolist()
            unit = 0 if received is None else M + 1
            point = slow_point(keys[first : first + BATCH], alpha, rho, unit)
            leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
            weight = sum(a * one for a, one in zip(point, leaves[POINTS], strict=True))
            logits = net({**leaves, HEAD[0]: weight}, clients.x[i][here])[1]
            mean_cross_entropy(logits, [clients.y[i][j] for j in here]).backward()
            pull = {name: lam * (w[name] - received[name]) if received else 0.0 for name in w}
            w = {name: w[name] - LR * (leaves[name].grad + pull[name]) for name in w}
    return w


def slow_projection(row, size):
    """By bisection for the shift of all entries."""
    low, high = min(row) - size, max(row)
    for _ in range(60):  # more than a float64 has bits
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(row - middle, 0).sum() > size else (low, middle)
    return np.maximum(row - high, 0)


def slow_placement(endpoints):
    """kappa by the eigenvectors of the Gram matrix, and the best of all sizes."""
    g = np.array([one.flatten().numpy() for one in endpoints])
    g = g - g.mean(axis=0)
    values, vectors = np.linalg.eigh(g @ g.T)
    kappa = np.zeros((len(g), M))
    for m in range(M):
        loading = vectors[:, -1 - m] @ g
        sign = np.sign(loading[np.abs(loading).argmax()])
        kappa[:, m] = sign * sqrt(max(values[-1 - m], 0)) * vectors[:, -1 - m]
    best, least = None, np.inf
    for size in np.linspace(1e-4, 1, 1000):
        beta = np.array([slow_projection(row, size) for row in kappa])
        beta = beta / beta.sum(axis=1, keepdims=True)
        energies = [
            1 / max(sqrt(((beta[i] - beta[j]) ** 2).sum()), 1e-4) ** 2
            for i in range(len(beta))
            for j in range(len(beta))
            if i != j
        ]
        energy = log(sum(energies) / len(energies))
        if energy < least - 1e-12:
            best, least = beta, energy
    return best


def slow_rounds(clients, seed, rows, endpoints, rho, before, rounds, lam=1.0, epochs=EPOCHS):
    """Returns the shared part, the points of all clients (None without any), personal models."""
    w = only(clients.start, SHARED) | {POINTS: endpoints}
    own = [w] * len(clients)
    alphas = None
    for t in range(rounds):
        if t == before:
            draw = Draw(seed, (t, 2 if before else 1, 1), len(clients))
            trained = [
                slow_training(clients, i, draw, rows, w, None, rho) for i in range(len(clients))
            ]
            alphas = slow_placement([one[POINTS] for one in trained])
        ids, sent = clients.cohort(t), []
        for i in ids:
            alpha = None if alphas is None else alphas[i]
            sent.append(slow_training(clients, i, clients.draws[t], rows, w, alpha, rho))
            own[i] = slow_training(
                clients, i, clients.draws[t], rows, own[i], alpha, rho, w, lam, epochs
            )
        w = clients.mean(ids, sent)
    return w, alphas, own


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(("tau", "rho"), [(0.5, 0.3), (0.0, 0.1), (1.0, 0.1)])
def test_rounds_equal_a_loop(tau, rho, engine):
    keys = (f"algorithm.endpoints={M}", f"algorithm.tau={tau}", f"algorithm.rho={rho}")
    built = build("algorithm=floco", *KEYS, *keys)
    clients, rows = Clients(built), built.federation.partition.parts["train"]
    state = platform("algorithm=floco", f"engine.name={engine}", *keys, rounds=3)

    w, alphas, _ = slow_rounds(
        clients, built.config.seed, rows, built.start().server[POINTS], rho, int(3 * tau), 3
    )

    for name, value in w.items():
        assert_equal(state.server[name], value, name)
    if alphas is not None:
        assert_equal(state.server["points"], torch.from_numpy(alphas), "points", tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_personal_models_equal_a_loop(engine):
    """Floco+; clients that never took part are evaluated with the shared model at the centre."""
    keys = (f"algorithm.endpoints={M}", "algorithm.tau=0.5", "algorithm.rho=0.2")
    plus = ("algorithm.lam=0.4", "algorithm.personal_epochs=1")
    built = build(
        "algorithm=flocoplus", *KEYS, *keys, *plus, f"engine.name={engine}", "train.rounds=3"
    )
    clients, rows = Clients(built), built.federation.partition.parts["train"]
    state = after(built, 3)

    endpoints = built.start().server[POINTS]
    w, alphas, own = slow_rounds(
        clients, built.config.seed, rows, endpoints, 0.2, 1, 3, lam=0.4, epochs=1
    )
    for name, value in w.items():
        assert_equal(state.server[name], value, name)
        for i in range(len(clients)):
            assert_equal(state.clients[f"v.{name}"][i], own[i][name], name)

    models = built.evaluator(print).deployed(state, settings_of(built.algorithm, state))
    took_part = {i for t in range(3) for i in clients.cohort(t)}
    for i, model in enumerate(models):
        alpha, mine = (alphas[i], own[i]) if i in took_part else ([1 / M] * M, w)
        weight = sum(a * one for a, one in zip(alpha, mine[POINTS], strict=True))
        for name, value in (mine | {HEAD[0]: weight}).items():
            if name != POINTS:
                assert_equal(model[name], value, (i, name), tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
def test_deployed_head_is_the_centre_and_later_the_clients_point(rounds):
    keys = ("algorithm=floco", f"algorithm.endpoints={M}", "train.rounds=3", "algorithm.tau=0.4")
    built = build(*KEYS, *keys)
    state = after(built, rounds)
    models = built.evaluator(print).deployed(state, settings_of(built.algorithm, state))

    centre = [1 / M] * M
    for i, model in enumerate(models):
        alpha = centre if rounds == 1 else state.server["points"][i].tolist()
        expected = sum(a * one for a, one in zip(alpha, state.server[POINTS], strict=True))
        assert torch.allclose(model[HEAD[0]], expected, rtol=0, atol=1e-12), i
        assert torch.equal(model[HEAD[1]], state.server[HEAD[1]])


def test_components_are_those_of_scikit_learn():
    rows = np.random.default_rng(0).normal(size=(8, 30)) * np.linspace(3, 0.5, 30)
    found = principal_components(torch.from_numpy(rows), 4)

    expected = PCA(4, svd_solver="full").fit_transform(rows)  # signs are its own
    assert np.allclose(found.abs().numpy(), np.abs(expected), rtol=0, atol=1e-10)
    moved = principal_components(torch.from_numpy(rows + rows[0]), 4)
    assert torch.allclose(moved, found, rtol=0, atol=1e-10)
    few = principal_components(torch.from_numpy(rows[:3]), 5)
    assert few.shape == (3, 5)
    assert not few[:, 2:].any()  # three rows span two directions


def test_signs_of_components_do_not_depend_on_rounding():
    """Of two classes, the rows of the head change by the same values with opposite signs."""
    rows = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([rows, -rows], dim=1).double()
    expected = principal_components(rows, 3)
    for seed in range(10):
        noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed)).double()
        found = principal_components(rows * (1 + 1e-7 * noise), 3)
        assert torch.allclose(found, expected, rtol=0, atol=1e-5), seed


def test_projection_is_the_nearest_point():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    for size in (0.01, 0.7, 3.0):
        for row, found in zip(rows.numpy(), project(rows, size).numpy(), strict=True):
            best = minimize(
                lambda x, row=row: ((x - row) ** 2).sum(),
                np.full(4, size / 4),
                bounds=[(0, None)] * 4,
                constraints={"type": "eq", "fun": lambda x, size=size: x.sum() - size},
                tol=1e-12,
            ).x
            assert np.allclose(found, best, rtol=0, atol=1e-5)
            assert found.sum() == pytest.approx(size)


def test_clients_far_apart_are_placed_at_different_vertices():
    points, energy = placed(5 * torch.eye(3).double())
    assert torch.allclose(points, torch.eye(3).double())
    assert energy == pytest.approx(log(1 / 2))
