"""pFedHN: a plain loop, FedAvg, gradient descent and Local-Only as limits, new clients, the bytes."""

from math import sqrt

import pytest
import torch

from flbench.core.tree import only
from flbench.experiment.new_clients import NewClients
from flbench.testing import after, build
from tests.algorithms.loops import (
    BACKBONE,
    EPOCHS,
    HEAD,
    KEYS,
    LR,
    Clients,
    mean_cross_entropy,
    net,
    platform,
)

NET = (*BACKBONE, *HEAD)
V = "embeddings"
LOCAL = ("train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0.01", "train.clip=2")
DEFAULTS = {
    "head": "generated",
    "steps": None,
    "embedding_lr": None,
    "server_momentum": 0.9,
    "server_weight_decay": 1e-3,
    "server_clip": 50.0,
    "dense_embedding": False,
    "agg_weights": "uniform",
}


def slow_weights(phi, v, names):
    """theta = h(v): l -> H, 3 x (ReLU, H -> H), one linear layer for each tensor."""
    e = phi["hyper.0.weight"] @ v + phi["hyper.0.bias"]
    for k in (1, 2, 3):
        e = phi[f"hyper.{k}.weight"] @ e.clamp_min(0) + phi[f"hyper.{k}.bias"]
    return {
        name: sum(phi[f"hyper.out.{name}.weight"][..., j] * e[j] for j in range(len(e)))
        + phi[f"hyper.out.{name}.bias"]
        for name in names
    }


def clipped(gradients, largest):
    norm = sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    factor = min(1.0, largest / (norm + 1e-6))
    return {name: factor * g for name, g in gradients.items()}


def slow_sgd(value, buffer, gradient, lr, momentum, decay):
    buffer = momentum * buffer + gradient + decay * value
    return value - lr * buffer, buffer


def slow_client(clients, i, t, weights, steps):
    """Momentum 0.9, weight decay 0.01, gradients clipped at 2."""
    weights = dict(weights)
    buffers = {name: torch.zeros_like(value) for name, value in weights.items()}
    for number, (x, y) in enumerate(clients.batches(i, t, EPOCHS if steps is None else 99)):
        if steps is not None and number == steps:
            break
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        mean_cross_entropy(net(leaves, x)[1], y).backward()
        gradients = clipped({name: leaf.grad for name, leaf in leaves.items()}, 2)
        for name, g in gradients.items():
            weights[name], buffers[name] = slow_sgd(weights[name], buffers[name], g, LR, 0.9, 0.01)
    return weights


def slow_rounds(clients, keys, server, rounds):
    """Returns phi, all v_i, and the heads that clients keep."""
    names = BACKBONE if keys["head"] == "personal" else NET
    phi = {name: value for name, value in server.items() if name.startswith("hyper.")}
    v = list(server[V])
    heads = [only(clients.start, HEAD) for _ in v]
    buffers = {name: torch.zeros_like(value) for name, value in phi.items()}
    v_buffers = [torch.zeros_like(row) for row in v]
    lr, decay, momentum = keys["server_lr"], keys["server_weight_decay"], keys["server_momentum"]
    for t in range(rounds):
        cohort = clients.cohort(t)
        g = {name: torch.zeros_like(value) for name, value in phi.items()}
        for i in cohort:
            p = 1 / len(cohort)
            if keys["agg_weights"] == "samples":
                p = clients.size(i) / sum(clients.size(j) for j in cohort)
            leaves = {name: value.clone().requires_grad_() for name, value in phi.items()}
            row = v[i].clone().requires_grad_()
            theta = slow_weights(leaves, row, names)
            begin = {name: value.detach() for name, value in theta.items()}
            if keys["head"] == "personal":
                begin |= heads[i]
            end = slow_client(clients, i, t, begin, keys["steps"])
            heads[i] = only(end, HEAD)
            delta = {name: begin[name] - end[name] for name in names}
            sum((theta[name] * delta[name]).sum() for name in names).backward()
            for name, leaf in leaves.items():
                g[name] = g[name] + p * leaf.grad
            g[i] = row.grad
        g = clipped(g, keys["server_clip"])
        for name in phi:
            phi[name], buffers[name] = slow_sgd(
                phi[name], buffers[name], g[name], lr, momentum, decay
            )
        for i in range(len(v)) if keys["dense_embedding"] else cohort:
            gradient = g.get(i, torch.zeros_like(v[i]))
            rate = lr if keys["embedding_lr"] is None else keys["embedding_lr"]
            v[i], v_buffers[i] = slow_sgd(v[i], v_buffers[i], gradient, rate, momentum, decay)
    return phi, v, heads


def largest_difference(keys, engine="sequential", rounds=3):
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items() if value is not None]
    overrides = ["algorithm=pfedhn", "algorithm.hidden=8", *LOCAL, *overrides]
    built = build(*KEYS, *overrides)
    clients = Clients(built)
    state = platform(f"engine.name={engine}", *overrides, rounds=rounds)

    phi, v, heads = slow_rounds(clients, DEFAULTS | keys, built.start().server, rounds)

    gaps = [float((state.server[name] - value).abs().max()) for name, value in phi.items()]
    gaps.append(float((state.server[V] - torch.stack(v)).abs().max()))
    if keys.get("head") == "personal":
        for name in HEAD:
            mine = torch.stack([head[name] for head in heads])
            gaps.append(float((state.clients[name] - mine).abs().max()))
    return max(gaps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "engine"),
    [
        ({"server_lr": 0.1}, "sequential"),
        ({"server_lr": 0.1}, "vectorized"),
        ({"server_lr": 0.2, "server_clip": 0.05, "steps": 7, "embedding_lr": 0.4}, "sequential"),
        ({"server_lr": 0.1, "dense_embedding": True, "server_weight_decay": 0.1}, "sequential"),
        ({"server_lr": 0.1, "head": "personal", "agg_weights": "samples"}, "vectorized"),
    ],
    ids=str,
)
def test_rounds_equal_a_loop(keys, engine):
    assert largest_difference(keys, engine) < 1e-10
