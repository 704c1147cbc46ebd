"""pFedHN: a plain loop, its limits (gradient descent, FedAvg), clients that join."""

from dataclasses import replace
from functools import partial
from math import inf, sqrt

import pytest
import torch

from flbench.algorithms import pfedhn
from flbench.core.rng import Draw
from flbench.core.tree import only, take
from flbench.engine.base import LocalWork, RoundSettings
from flbench.experiment.communication import apply_masks
from flbench.testing import after, build, played
from tests.algorithms.loops import (
    BACKBONE,
    EPOCHS,
    HEAD,
    KEYS,
    LR,
    NET,
    Clients,
    assert_equal,
    mean_cross_entropy,
    net,
    platform,
)

V = "embeddings"
LOCAL = ("train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0.01", "train.clip=2")
DEFAULTS = {"head": "generated", "agg_weights": "uniform"}


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


def slow_client(clients, i, t, weights):
    """Momentum 0.9, weight decay 0.01, gradients clipped at 2."""
    weights = dict(weights)
    buffers = {name: torch.zeros_like(value) for name, value in weights.items()}
    for x, y in clients.batches(i, t, EPOCHS):
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
    lr, decay, momentum = keys["server_lr"], pfedhn.DECAY, pfedhn.MOMENTUM
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
            end = slow_client(clients, i, t, begin)
            heads[i] = only(end, HEAD)
            delta = {name: begin[name] - end[name] for name in names}
            sum((theta[name] * delta[name]).sum() for name in names).backward()
            for name, leaf in leaves.items():
                g[name] = g[name] + p * leaf.grad
            g[i] = row.grad
        g = clipped(g, pfedhn.CLIP)
        for name in phi:
            phi[name], buffers[name] = slow_sgd(
                phi[name], buffers[name], g[name], lr, momentum, decay
            )
        for i in cohort:
            v[i], v_buffers[i] = slow_sgd(v[i], v_buffers[i], g[i], lr, momentum, decay)
    return phi, v, heads


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "constants", "engine"),
    [
        ({"server_lr": 0.1}, {}, "sequential"),
        ({"server_lr": 0.1}, {}, "vectorized"),
        ({"server_lr": 0.2}, {"CLIP": 0.05, "DECAY": 0.1}, "sequential"),
        ({"server_lr": 0.1, "head": "personal", "agg_weights": "samples"}, {}, "vectorized"),
    ],
    ids=str,
)
def test_rounds_equal_a_loop(keys, constants, engine, monkeypatch):
    for name, value in constants.items():
        monkeypatch.setattr(pfedhn, name, value)
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    overrides = ["algorithm=pfedhn", "algorithm.hidden=8", *LOCAL, *overrides]
    built = build(*KEYS, *overrides)
    clients = Clients(built)
    state = platform(f"engine.name={engine}", *overrides, rounds=3)

    phi, v, heads = slow_rounds(clients, DEFAULTS | keys, built.start().server, rounds=3)

    moved = float((state.server[V] - built.start().server[V]).abs().max())
    assert moved > 1e-3
    for name, value in phi.items():
        assert_equal(state.server[name], value, name, tolerance=1e-10)
    assert_equal(state.server[V], torch.stack(v), V, tolerance=1e-10)
    if keys.get("head") == "personal":
        for name in HEAD:
            mine = torch.stack([head[name] for head in heads])
            assert_equal(state.clients[name], mine, name, tolerance=1e-10)


@pytest.fixture
def plain_descent(monkeypatch):
    """The server's SGD without momentum, weight decay and clipping."""
    for name, value in {"MOMENTUM": 0.0, "DECAY": 0.0, "CLIP": inf}.items():
        monkeypatch.setattr(pfedhn, name, value)


@pytest.mark.usefixtures("plain_descent")
def test_one_local_step_is_gradient_descent_on_hypernetwork_and_embeddings():
    """The server's gradient is LR times that of the cross entropy of h(v_i), by autograd."""
    keys = ("algorithm=pfedhn", "algorithm.hidden=8", "algorithm.server_lr=2")
    built = build(*KEYS, *keys, "train.local_epochs=1", "train.batch_size=500")
    clients, start = Clients(built), built.start().server
    state, _ = played(built, built.start(), torch.tensor([1, 3]))

    phi = {name: v.clone() for name, v in start.items() if name.startswith("hyper.")}
    leaves = {name: value.requires_grad_() for name, value in (phi | {V: start[V].clone()}).items()}
    for i in (1, 3):
        theta = slow_weights(leaves, leaves[V][i], NET)
        mean_cross_entropy(net(theta, clients.x[i])[1], clients.y[i]).backward()

    for name, leaf in leaves.items():
        share = 1.0 if name == V else 0.5  # an embedding belongs to one client
        expected = leaf.detach() - 2 * LR * share * leaf.grad
        assert float((state.server[name] - expected).abs().max()) < 1e-12, name


@pytest.mark.slow
@pytest.mark.usefixtures("plain_descent")
def test_with_output_biases_alone_it_is_uniform_fedavg():
    """All layers are zero but the biases of the outputs, which begin as the seeded net."""
    uniform = ("algorithm=fedavg", "algorithm.agg_weights=uniform")
    expected = after(build(*KEYS, *uniform), 2).server
    keys = ("algorithm=pfedhn", "algorithm.server_lr=1")
    built = build(*KEYS, *keys)
    state, seeded = built.start(), Clients(built).start
    for name, value in state.server.items():
        if name.startswith("hyper."):
            value.zero_()
    for name in NET:
        state.server[f"hyper.out.{name}.bias"] += seeded[name]

    for t in range(2):
        cohort = Draw(built.config.seed, (t,), 5).cohort(0.6)
        state, _ = played(built, state, cohort)

    for i in range(5):
        for name, value in built.algorithm.generated(state, torch.tensor([i])).items():
            assert float((value[0] - expected[name]).abs().max()) < 1e-12, name


def joined(*overrides):
    """Returns an experiment, its clients, and a state in which client 4 is a new one."""
    built = build(*KEYS, "algorithm=pfedhn", "algorithm.hidden=8", *LOCAL, *overrides)
    state = after(built, 1)
    members = torch.tensor([True, True, True, True, False])
    return built, Clients(built), replace(state, server=state.server | {"members": members})


def test_new_client_has_the_weights_of_the_mean_embedding():
    built, _, state = joined()

    found = built.algorithm.deploy(state, torch.tensor([4, 2]))["personal"].dispatch.rows.values

    assert built.algorithm.join(state, torch.tensor([4])) is None
    mean = sum(state.server[V][i] for i in range(4)) / 4
    for row, v in enumerate((mean, state.server[V][2])):
        for name, value in slow_weights(state.server, v, NET).items():
            assert float((found[name][row] - value).abs().max()) < 1e-12, name


@pytest.mark.parametrize("head", ["generated", "personal"])
def test_new_client_fits_its_embedding_alone(head, monkeypatch):
    monkeypatch.setattr(pfedhn, "CLIP", 0.05)
    keys = ("algorithm.join_rounds=2", "algorithm.server_lr=0.1", f"algorithm.head={head}")
    built, clients, state = joined(*keys)
    ids, names = torch.tensor([4]), NET if head == "generated" else BACKBONE
    joining = built.algorithm.join(state, ids)
    draw = Draw(built.config.seed, (1,), 5)

    work = LocalWork(
        joining.program,
        partial(take, state.clients),
        lambda some: apply_masks(built.algorithm.join(state, some).dispatch),
        RoundSettings(built.algorithm.setting.train, draw),
    )
    kept = built.engine.run(work, ids).kept

    v, buffer = sum(state.server[V][i] for i in range(4)) / 4, torch.zeros_like(state.server[V][0])
    own = only({name: state.clients[name][4] for name in state.clients}, HEAD)
    for _ in range(2):
        row = v.clone().requires_grad_()
        theta = slow_weights(state.server, row, names)
        begin = {name: value.detach() for name, value in theta.items()}
        end = slow_client(clients, 4, 1, begin if head == "generated" else begin | own)
        own = only(end, HEAD)
        sum((theta[name] * (begin[name] - end[name])).sum() for name in names).backward()
        g = clipped({V: row.grad}, 0.05)[V]
        v, buffer = slow_sgd(v, buffer, g, 0.1, 0.9, 1e-3)
    expected = slow_weights(state.server, v, names)
    if head == "personal":
        expected |= own
    for name in NET:
        assert float((kept[name][0] - expected[name]).abs().max()) < 1e-12, name

    dispatch = built.algorithm.deploy(state, torch.tensor([2, 4]))["personal"].dispatch
    for name in names:  # what it has fitted is not overwritten
        assert dispatch.rows.mask[name].tolist() == [True, False]


@pytest.mark.parametrize(("participation", "rate"), [(0.05, 0.01), (0.2, 0.04), (1, 0.1)])
def test_default_rate_of_the_server_is_the_papers_times_the_clients_of_a_round(participation, rate):
    algorithm = build(
        "algorithm=pfedhn", "partition.clients=20", f"train.participation={participation}"
    ).algorithm

    assert algorithm.server_lr == pytest.approx(rate)
    assert build("algorithm=pfedhn", "partition.clients=6").start().server[V].shape == (6, 2)
