"""pFedMe: its steps in a plain loop, the proximal point that they seek, and what is evaluated."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.experiment.rounds import settings_of
from flbench.testing import after, fingerprint, played
from tests.algorithms.plain import EPOCHS, FULL, LR, ROUNDS, Plain, assert_close
from tests.support import build

EXACT = "engine.precision=64-true"


def gradient(plain, leaves, client, names, *, train=True):
    """Of the cross entropy; train-mode BatchNorm writes to the buffers among the leaves."""
    x, y = plain.samples(client)
    mine = {n: v.clone().requires_grad_() if n in names else v for n, v in leaves.items()}
    loss = cross_entropy(plain.outputs(mine, x, train=train).logits, y)
    return dict(zip(names, torch.autograd.grad(loss, [mine[n] for n in names]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "decay", "clip"), [(1, 0, None), (0.5, 0.1, None), (2, 0.1, 0.5)])
def test_rounds_equal_a_plain_loop(beta, decay, clip):
    lam, inner, rate = 3.0, 4, 0.05
    built = build(
        "algorithm=pfedme",
        "model.name=lenet5",
        f"algorithm.lam={lam}",
        f"algorithm.inner_steps={inner}",
        f"algorithm.personal_lr={rate}",
        f"algorithm.beta={beta}",
        f"train.optimizer.weight_decay={decay}",
        f"train.clip={'null' if clip is None else clip}",
        *FULL,
    )
    plain, names = Plain(built), built.algorithm.setting.net.parameters
    w = plain.start()
    personal = [w] * 5
    for t in range(ROUNDS):
        sent = {}
        for i in plain.cohort(t):
            local = {name: value.clone() for name, value in w.items()}
            theta = dict(local)  # with the same buffers: only theta's passes write to them
            for _ in range(EPOCHS):
                for _ in range(inner):
                    g = gradient(plain, theta, i, names)
                    norm = torch.cat([value.flatten() for value in g.values()]).norm()
                    bound = 1.0 if clip is None else min(1.0, clip / (float(norm) + 1e-6))
                    for n in names:
                        slope = bound * g[n] + decay * theta[n] + lam * (theta[n] - local[n])
                        theta[n] = theta[n] - rate * slope
                for n in names:
                    local[n] = local[n] - LR * lam * (local[n] - theta[n])
            sent[i], personal[i] = local, theta
        mean = plain.mean(sent)
        w = mean | {n: (1 - beta) * w[n] + beta * mean[n] for n in names}

    state = after(built, ROUNDS)

    assert_close(state.server, w, tiny=1e-12)
    for i in range(5):
        mine = {name: state.clients[f"theta.{name}"][i] for name in w}
        assert_close(mine, personal[i], tiny=1e-12)


@pytest.mark.slow
def test_many_inner_steps_find_the_proximal_point():
    """grad CE(theta) + lam (theta - w) = 0 at the received w, after one step with eta = 0."""
    lam = 2.0
    built = build(
        "algorithm=pfedme",
        "model.name=logistic",
        f"algorithm.lam={lam}",
        "algorithm.inner_steps=300",
        "algorithm.personal_lr=0.05",
        "train.optimizer.lr=0",
        "train.batch_size=2048",
        EXACT,
    )
    plain, w = Plain(built), Plain(built).start()

    state = after(built, 1)

    assert_close(state.server, w)
    for i in range(5):
        theta = {name: state.clients[f"theta.{name}"][i] for name in w}
        g = gradient(plain, theta, i, list(w))
        for name in w:
            assert (g[name] + lam * (theta[name] - w[name])).abs().max() < 1e-9
            assert (theta[name] - w[name]).abs().max() > 1e-3


def test_clients_are_evaluated_with_theta_and_those_that_never_took_part_with_w():
    built = build("algorithm=pfedme")
    state, _ = played(built, built.start(), torch.tensor([0, 1]))

    models = list(built.evaluator(print).deployed(state, settings_of(built.algorithm, state)))

    for name in built.algorithm.setting.net.parameters:
        assert torch.equal(models[0][name], state.clients[f"theta.{name}"][0])
        assert not torch.equal(models[0][name], state.server[name])
        assert torch.equal(models[3][name], state.server[name])


@pytest.mark.slow
def test_schedule_acts_on_both_rates():
    half = ("train.schedule.name=step", "train.schedule.decay=0.5", "train.schedule.every=1")
    built = build("algorithm=pfedme", EXACT, *half)
    slow = build(
        "algorithm=pfedme", EXACT, "train.optimizer.lr=0.005", "algorithm.personal_lr=0.045"
    )
    state, same = after(built, 1), after(built, 1)

    state, _ = played(built, state)
    same, _ = played(slow, same)

    assert fingerprint(state) != fingerprint(after(built, 1))
    assert_close(state.server, same.server)
    assert_close(state.clients, same.clients)
