"""Per-FedAvg: a plain loop, the exact Hessian, quadratic losses, and its limit FedAvg."""

import pytest
import torch

from flbench.algorithms import Batch
from flbench.algorithms.perfedavg import meta_gradient
from flbench.core.types import Context
from flbench.testing import after, setting
from tests.algorithms.loops import (
    KEYS,
    LR,
    NET,
    Clients,
    assert_equal,
    assert_predicts,
    mean_cross_entropy,
    net,
    platform,
    weighted_sum,
)
from tests.support import build


def gradient(w, x, y, rows):
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    mean_cross_entropy(net(leaves, x[rows])[1], [y[j] for j in rows]).backward()
    return {name: value.grad for name, value in leaves.items()}


def moved(w, direction, step):
    return {name: value + step * direction[name] for name, value in w.items()}


def slow_step(w, x, y, keys):
    """One local step of Algorithm 1."""
    alpha, count = keys["alpha"], {"first_order": 2, "hessian_free": 3}[keys["version"]]
    parts = [[j for j in range(len(y)) if j % count == k] or [*range(len(y))] for k in range(count)]
    u = moved(w, gradient(w, x, y, parts[0]), -alpha)
    outer = gradient(u, x, y, parts[1])
    if keys["version"] == "first_order":
        return moved(w, outer, -LR)
    delta = keys["delta"]
    plus = gradient(moved(w, outer, delta), x, y, parts[2])
    minus = gradient(moved(w, outer, -delta), x, y, parts[2])
    product = {name: (plus[name] - minus[name]) / (2 * delta) for name in w}
    return moved(w, moved(outer, product, -alpha), -LR)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"alpha": 0.2, "agg_weights": "samples"},
        {
            "version": "hessian_free",
            "alpha": 0.2,
            "delta": 0.05,
        },  # rounding errors are divided by 2 delta
    ],
    ids=str,
)
def test_rounds_equal_a_loop(keys):
    overrides = [f"algorithm.{key}={str(value).lower()}" for key, value in keys.items()]
    built = build("algorithm=perfedavg", *KEYS, *overrides)
    clients = Clients(built)
    state = platform("algorithm=perfedavg", *overrides, rounds=3)
    many = platform("algorithm=perfedavg", "engine.name=vectorized", *overrides, rounds=3)
    keys = {"version": "first_order", "alpha": 0.01, "delta": 1e-3, "agg_weights": "uniform"} | keys

    w = dict(clients.start)
    for t in range(3):
        sent, ids = [], clients.cohort(t)
        for i in ids:
            here = w
            for x, y in clients.batches(i, t, 2):
                here = slow_step(here, x, y, keys)
            sent.append(here)
        n = [1 if keys["agg_weights"] == "uniform" else clients.size(i) for i in ids]
        w = weighted_sum(sent, [k / sum(n) for k in n])

    for name in NET:
        assert_equal(state.server[name], w[name], name)
        # The difference of two gradients is divided by 2 delta, and with it their rounding errors.
        assert_equal(many.server[name], w[name], name, tolerance=1e-11)


@pytest.mark.slow
def test_deployed_models_have_made_one_step():
    """Of length alpha, whatever the schedule, on the first batch of the last round."""
    keys = ("algorithm.alpha=0.5", "train.schedule.name=cosine", "train.rounds=2")
    built = build("algorithm=perfedavg", *KEYS, *keys)
    clients, state = Clients(built), after(built, 2)

    def logits(i, x):
        first, y = next(clients.batches(i, 1))
        slope = gradient(state.server, first, y, range(len(y)))
        return net(moved(state.server, slope, -0.5), x)[1]

    assert built.algorithm.deploy(state, torch.arange(5)).keys() == {"personal", "noft", "gm"}
    assert_predicts(built, state, logits, played=after(built, 1))


@pytest.mark.slow
@pytest.mark.parametrize("version", ["first_order", "hessian_free"])
def test_clipping_and_weight_decay_act_on_the_step_of_w_alone(version):
    """One step of one client: the clipped gradient is a multiple, and decay adds lr decay w."""
    one = (*KEYS, "train.participation=0.1", "algorithm=perfedavg", f"algorithm.version={version}")
    one += ("algorithm.alpha=0.3", "train.batch_size=2048", "train.local_epochs=1")

    def change(*keys):
        built = build(*one, *keys)
        start, end = Clients(built).start, after(built, 1).server
        return torch.cat([(end[name] - start[name]).flatten() for name in NET])

    plain, start = change(), torch.cat([Clients(build(*one)).start[name].flatten() for name in NET])
    clipped, decayed = change("train.clip=0.01"), change("train.optimizer.weight_decay=0.5")

    assert float(plain.norm()) > LR * 0.02
    short = LR * 0.01 * plain / plain.norm()  # PyTorch divides by the norm + 1e-6
    assert torch.allclose(clipped, short, rtol=1e-4, atol=1e-12)
    assert torch.allclose(decayed, plain - LR * 0.5 * start, rtol=0, atol=1e-12)


def batch(size):
    mask, rows = torch.ones(size, dtype=torch.bool), torch.arange(size)
    return Batch(rows[:, None].double(), rows, mask, rows, torch.tensor(0))


def context_of(trained, batch):
    return Context(leaves=trained, start=trained, ctx={}, batch=batch, trained=trained)


def test_difference_of_gradients_is_the_product_with_the_hessian():
    """A loss that is not quadratic, with double backward, and other samples in each part."""
    torch.manual_seed(0)
    shape = torch.randn(9, 4, dtype=torch.float64)
    w = torch.randn(4, dtype=torch.float64)

    def loss(w, rows):
        return (shape[rows] @ w).tanh().exp().mean()

    def grad(parameters, batch):
        here = parameters["w"].clone().requires_grad_()
        return {"w": torch.autograd.grad(loss(here, batch.mask), here)[0]}

    a, b, c = (torch.arange(9) % 3 == k for k in range(3))
    u = w - 0.3 * grad({"w": w}, batch(9)._replace(mask=a))["w"]
    outer = grad({"w": u}, batch(9)._replace(mask=b))["w"]
    hessian = torch.autograd.functional.hessian(lambda v: loss(v, c), w)

    found = meta_gradient(context_of({"w": w}, batch(9)), grad, 0.3, 1e-4)["w"]

    assert torch.allclose(found, outer - 0.3 * hessian @ outer, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["first_order", "hessian_free"])
def test_batchnorm_sees_the_whole_batch_in_both_engines(version):
    """A part hides rows from the loss alone, also where the vectorized engine pads batches."""
    keys = (
        *setting.NET,
        "algorithm=perfedavg",
        f"algorithm.version={version}",
        "engine.precision=64-true",
    )
    one, many = (
        after(build(*keys, f"engine.name={engine}"), 2).server
        for engine in ("sequential", "vectorized")
    )

    assert any("running_mean" in name for name in one)
    for name, value in one.items():
        assert torch.allclose(value.double(), many[name].double(), rtol=0, atol=1e-9), name
