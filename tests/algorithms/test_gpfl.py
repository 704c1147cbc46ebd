"""GPFL: a plain loop, bounds of the loss, the deployed model."""

import pytest
import torch

from flbench.core.tree import only
from flbench.testing import after
from tests.algorithms.loops import (
    BACKBONE,
    CLASSES,
    HEAD,
    KEYS,
    WIDTH,
    Clients,
    assert_equal,
    assert_predicts,
    mean_cross_entropy,
    net,
    platform,
)
from tests.support import build

G = "gce.weight"
PARTS = ("weight", "bias", "norm.weight", "norm.bias")
COV = tuple(f"cov.{layer}.{part}" for layer in ("gamma", "beta") for part in PARTS)
ZERO = torch.zeros(WIDTH, dtype=torch.float64)


def slow_norm(x, gain, shift):
    mean = sum(x) / WIDTH
    variance = sum((v - mean) ** 2 for v in x) / WIDTH
    return torch.stack([(v - mean) / (variance + 1e-5).sqrt() for v in x]) * gain + shift


def slow_valve(leaves, z, c):
    made = []
    for layer in ("gamma", "beta"):
        weight, bias, gain, shift = (leaves[f"cov.{layer}.{part}"] for part in PARTS)
        made.append(slow_norm((weight @ c + bias).clamp_min(0), gain, shift))
    return torch.stack([((made[0] + 1) * row + made[1]).clamp_min(0) for row in z])


def slow_conditions(clients, i, embeddings):
    g = sum(embeddings) / CLASSES
    q = sum(clients.count(i, k) / clients.size(i) * embeddings[k] for k in range(CLASSES))
    return g, q


def slow_loss(leaves, x, y, g, q, received, keys):
    z, _ = net(leaves, x)
    personal, generic = slow_valve(leaves, z, q), slow_valve(leaves, z, g)
    logits = personal @ leaves[HEAD[0]].T + leaves[HEAD[1]]
    angles = []
    for row in generic:
        length = (row @ row).sqrt() if row.any() else 1.0
        angles.append(torch.stack([row @ e / (length * (e @ e).sqrt()) for e in leaves[G]]))
    squares = sum(((row - received[k]) ** 2).sum() for row, k in zip(generic, y, strict=True))
    far = (squares + 1e-12).sqrt()
    decay = sum((leaves[name] ** 2).sum() for name in (G, *COV)) / 2
    both = mean_cross_entropy(logits, y) + mean_cross_entropy(angles, y)
    return both + keys["lam"] * far + keys["nu"] * decay


def slow_rounds(clients, keys, shared, rounds):
    """Returns body, CoV and G; the heads; the conditional inputs of all clients."""
    shared = only(clients.start, BACKBONE) | shared
    heads = [only(clients.start, HEAD)] * len(clients)
    conditions = [(ZERO, ZERO)] * len(clients)
    for t in range(rounds):
        sent, ids = [], clients.cohort(t)
        for i in ids:
            g, q = conditions[i]

            def loss(leaves, x, y, g=g, q=q, received=shared[G]):
                return slow_loss(leaves, x, y, g, q, received, keys)

            here = clients.descend(i, t, shared | heads[i], loss)
            heads[i] = only(here, HEAD)
            sent.append(only(here, shared))
            conditions[i] = slow_conditions(clients, i, here[G])
        shared = clients.mean(ids, sent)
    return shared, heads, conditions


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("keys", [{}, {"lam": 0.5}], ids=str)
def test_rounds_equal_a_loop(keys, engine):
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    built = build("algorithm=gpfl", *KEYS, *overrides)
    clients = Clients(built)
    state = platform("algorithm=gpfl", f"engine.name={engine}", *overrides, rounds=3)

    keys = {"lam": 0.01, "nu": 0.1} | keys
    drawn = only(built.start().server, {G, *COV})
    shared, heads, conditions = slow_rounds(clients, keys, drawn, rounds=3)

    assert set(state.server) == set(shared)
    for name, value in shared.items():
        assert_equal(state.server[name], value, name)
    for i in range(len(clients)):
        for name in HEAD:
            assert_equal(state.clients[name][i], heads[i][name], name)
        for name, value in zip(("cond.g", "cond.q"), conditions[i], strict=True):
            assert_equal(state.clients[name][i], value, name)


@pytest.mark.slow
def test_deployed_model_takes_the_personal_route():
    built = build(*KEYS, "algorithm=gpfl")
    state = after(built, 2)

    def logits(i, x):
        head = {name: state.clients[name][i] for name in HEAD}
        z, _ = net(state.server | head, x)
        valve = slow_valve(state.server, z, state.clients["cond.q"][i])
        return valve @ head[HEAD[0]].T + head[HEAD[1]]

    assert_predicts(built, state, logits)
