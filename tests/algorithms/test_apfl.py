"""APFL: the paper's formulas in a plain loop."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.algorithms.apfl import clip_alpha
from flbench.core.types import Context
from flbench.testing import after, played
from tests.algorithms.plain import EPOCHS, FULL, LR, ROUNDS, Plain, assert_close
from tests.support import build

SAMPLES = "algorithm.agg_weights=samples"
APFL = ("algorithm=apfl", "algorithm.adaptive=false", SAMPLES)


def gradient(plain, leaves, client, names):
    """The gradient of a client's loss at these leaves, and the leaves with BatchNorm updated."""
    x, y = plain.samples(client)
    leaves = {name: value.detach().clone() for name, value in leaves.items()}
    for name in names:
        leaves[name].requires_grad_()
    loss = cross_entropy(plain.outputs(leaves, x, train=True).logits, y)
    found = torch.autograd.grad(loss, [leaves[name] for name in names])
    updated = {name: value.detach() for name, value in leaves.items()}
    return dict(zip(names, found, strict=True)), updated


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [True, False])
def test_models_and_alphas_equal_a_loop(adaptive):
    keys = ("algorithm.alpha=0.4", f"algorithm.adaptive={str(adaptive).lower()}")
    built = build("algorithm=apfl", "model.name=lenet5", *keys, *FULL)
    plain, names = Plain(built), built.algorithm.setting.net.parameters

    w = plain.start()
    v = [{name: w[name] for name in names} for _ in range(5)]
    alpha = [torch.tensor(0.4, dtype=torch.float64) for _ in range(5)]

    def mixed(i, mine):
        """The personal model of client i, with its w."""
        return mine | {n: alpha[i] * v[i][n] + (1 - alpha[i]) * mine[n] for n in names}

    for t in range(ROUNDS):
        sent = {}
        for i in plain.cohort(t):
            mine = w
            if adaptive:
                slope, _ = gradient(plain, mixed(i, mine), i, names)
                inner = sum(((v[i][n] - mine[n]) * slope[n]).sum() for n in names)
                alpha[i] = (alpha[i] - LR * inner).clamp(0, 1)
            for _ in range(EPOCHS):
                of_w, updated = gradient(plain, mine, i, names)
                of_mixture, _ = gradient(plain, mixed(i, mine), i, names)
                v[i] = {n: v[i][n] - LR * alpha[i] * of_mixture[n] for n in names}
                mine = updated | {n: mine[n] - LR * of_w[n] for n in names}
            sent[i] = mine
        w = plain.mean(sent, uniform=True)

    state = after(built, ROUNDS)

    assert_close(state.server, w, tiny=1e-12)
    assert set(state.clients) == {"alpha", *(f"v.{name}" for name in names)}
    found = {"alpha": state.clients["alpha"]}
    assert_close(found, {"alpha": torch.stack(alpha)}, tiny=1e-12)
    for i in range(5):
        assert_close({n: state.clients[f"v.{n}"][i] for n in names}, v[i], tiny=1e-12)
    moved = (state.clients["alpha"] - 0.4).abs()
    assert (moved.max() > 1e-3) == adaptive


@pytest.mark.slow
def test_alpha_takes_its_step_on_the_first_batch_of_the_round():
    """One step per round on a part of the samples, so that v moves along the same gradient.

    The learning rate is so small that alpha's step does not change the gradient for v.
    """
    lr = 1e-7
    keys = (
        "partition.scheme=iid",
        "partition.samples=1200",
        "train.batch_size=100",
        "train.last_batch=drop",
        f"train.optimizer.lr={lr}",
    )
    built = build("algorithm=apfl", "engine.precision=64-true", *keys)
    sizes, state = built.federation.sizes, built.start()
    assert ((sizes > 100) & (sizes < 200)).all()
    names = built.algorithm.setting.net.parameters
    torch.manual_seed(0)
    for name in names:
        state.clients[f"v.{name}"] += 0.1 * torch.randn_like(state.clients[f"v.{name}"])
    before = {name: value.clone() for name, value in state.clients.items()}

    now, _ = played(built, state)

    for i in range(5):
        inner = 0.0
        for name in names:
            old = before[f"v.{name}"][i]
            slope = (old - now.clients[f"v.{name}"][i]) / (lr * 0.5)
            inner += float(((old - state.server[name]) * slope).sum())
        found = float(before["alpha"][i] - now.clients["alpha"][i]) / lr
        assert abs(inner) > 1e-3
        assert found == pytest.approx(inner, rel=1e-5)


def test_alpha_stays_between_zero_and_one():
    for value, expected in ((-0.2, 0.0), (0.3, 0.3), (1.7, 1.0)):
        context = Context(leaves={"alpha": torch.tensor(value)}, start={}, ctx={})
        assert clip_alpha(context)["alpha"] == torch.tensor(expected)
