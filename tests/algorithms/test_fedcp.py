"""FedCP: a plain loop, the gates' mean over the noise, the condition."""

from math import exp, sqrt

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from flbench.algorithms.fedcp import logistic, mean_gate
from flbench.core.rng import uniform
from flbench.core.tree import only
from flbench.testing import after
from tests.algorithms.loops import (
    BACKBONE,
    BATCH,
    EPOCHS,
    HEAD,
    KEYS,
    LR,
    WIDTH,
    Clients,
    assert_equal,
    assert_predicts,
    mean_cross_entropy,
    net,
    platform,
)
from tests.support import build

POLICY = ("cpn.weight", "cpn.bias", "cpn.norm.weight", "cpn.norm.bias")
OWN = tuple(f"own.{name}" for name in HEAD)


def condition(own_weight):
    total = sum(own_weight)
    return total / sqrt(float(total @ total))


def slow_odds(leaves, row, v):
    """h_1 - h_2 of one sample."""
    weight, bias, gain, shift = (leaves[name] for name in POLICY)
    hidden = weight @ (row * v) + bias
    mean = sum(hidden) / (2 * WIDTH)
    variance = sum((one - mean) ** 2 for one in hidden) / (2 * WIDTH)
    hidden = ((hidden - mean) / (variance + 1e-5).sqrt() * gain + shift).clamp_min(0)
    return hidden[:WIDTH] - hidden[WIDTH:]


def slow_logits(leaves, z, v, gate):
    """Both heads, sample by sample; `gate` maps number and log-odds of a sample to gates."""
    rows = []
    for j, row in enumerate(z):
        s = gate(j, slow_odds(leaves, row, v))
        own = leaves[OWN[0]] @ (s * row) + leaves[OWN[1]]
        rows.append(own + leaves[HEAD[0]] @ ((1 - s) * row) + leaves[HEAD[1]])
    return torch.stack(rows)


def slow_mmd(z, before):
    widths = torch.tensor([10.0, 15.0, 20.0, 50.0], dtype=torch.float64)

    def k(x, y):
        return (-((x - y) ** 2).sum() / (2 * widths)).exp().sum()

    n, total = len(z), 0.0
    for a in range(n):
        for b in range(n):
            total = total + k(z[a], z[b]) + k(before[a], before[b]) - 2 * k(z[a], before[b])
    return total / n**2


def noisy_batches(clients, i, t, rows):
    """Batches and the noise [B, D] of their gates."""
    for epoch in range(EPOCHS):
        order = clients.draws[t].sample_order(i, epoch, clients.size(i))
        keys = torch.from_numpy(clients.draws[t].noise_keys(i, epoch, rows[i][order]))
        for first in range(0, len(order), BATCH):
            here = order[first : first + BATCH].tolist()
            base = (uniform(keys[first : first + BATCH], 0) * 2**52).long()
            unit = [uniform(base * WIDTH + d, 1) for d in range(WIDTH)]
            noise = torch.stack([(u / (1 - u)).log() for u in unit], dim=1)
            yield clients.x[i][here], [clients.y[i][j] for j in here], noise


def slow_rounds(clients, lam, policy, rows, rounds):
    """Returns body, global head and CPN; the personal heads of all clients."""
    shared = only(clients.start, (*BACKBONE, *HEAD)) | policy
    own = [{a: clients.start[b] for a, b in zip(OWN, HEAD, strict=True)}] * len(clients)
    trained = (*BACKBONE, *POLICY, *OWN)
    for t in range(rounds):
        sent, ids = [], clients.cohort(t)
        for i in ids:
            here, v = shared | own[i], condition(own[i][OWN[0]])
            for x, y, noise in noisy_batches(clients, i, t, rows):
                leaves = {name: value.clone().requires_grad_() for name, value in here.items()}
                z, _ = net(leaves, x)

                def gate(j, odds, noise=noise):
                    return 1 / (1 + (-odds - noise[j]).exp())

                loss = mean_cross_entropy(slow_logits(leaves, z, v, gate), y)
                before = net(shared, x)[0]
                (loss + lam * slow_mmd(z, before)).backward()
                for name in trained:
                    here[name] = here[name] - LR * leaves[name].grad
            own[i] = only(here, OWN)
            half = {b: (here[a] + here[b]) / 2 for a, b in zip(OWN, HEAD, strict=True)}
            sent.append(only(here, shared) | half)
        shared = clients.mean(ids, sent)
    return shared, own


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("lam", [5.0, 0.0])
def test_rounds_equal_a_loop(lam, engine):
    keys = ("algorithm=fedcp", f"algorithm.lam={lam}")
    built = build(*keys, *KEYS)
    clients, rows = Clients(built), built.federation.partition.parts["train"]
    state = platform(*keys, f"engine.name={engine}", rounds=3)

    policy = only(built.start().server, POLICY)
    shared, own = slow_rounds(clients, lam, policy, rows, rounds=3)

    assert set(state.server) == set(shared)
    for name, value in shared.items():
        assert_equal(state.server[name], value, name)
    for name in OWN:
        for i in range(len(clients)):
            assert_equal(state.clients[name][i], own[i][name], name)


@pytest.mark.slow
def test_deployed_model_has_both_heads():
    built = build(*KEYS, "algorithm=fedcp")
    state = after(built, 2)

    def gate(j, odds):
        grown = odds.exp()
        formula = grown * (grown - 1 - odds) / (grown - 1) ** 2
        return torch.where(odds.abs() < 1e-5, 0.5 + odds / 6, formula)

    def logits(i, x):
        leaves = state.server | {name: state.clients[name][i] for name in OWN}
        return slow_logits(leaves, net(leaves, x)[0], condition(leaves[OWN[0]]), gate)

    assert_predicts(built, state, logits)


def test_mean_gate_is_the_integral_over_the_noise():
    odds = np.array([-30.0, -2.0, -0.02, -0.005, 0.0, 1e-4, 0.00999, 0.01001, 1.5, 40.0])
    found = mean_gate(torch.from_numpy(odds))

    for d, value in zip(odds, found.tolist(), strict=True):
        expected, _ = quad(lambda u, d=d: 1 / (1 + exp(-d) * (1 - u) / u), 0, 1, epsabs=1e-12)
        assert value == pytest.approx(expected, abs=1e-9)


def test_noise_is_standard_logistic_and_independent():
    noise = logistic(torch.arange(20_000) * 7_919, 3)

    assert noise.shape == (20_000, 3)
    assert float(noise.mean()) == pytest.approx(0, abs=0.03)
    assert float(noise.var()) == pytest.approx(np.pi**2 / 3, rel=0.03)
    correlation = torch.corrcoef(noise.T) - torch.eye(3).double()
    assert float(correlation.abs().max()) < 0.03
    assert len(noise.unique()) == noise.numel()


@pytest.mark.slow
def test_engines_agree_with_batchnorm():
    """The received body, which clients have in common, is called in training mode."""
    keys = (*KEYS[2:], "algorithm=fedcp", "model.name=lenet5", "train.optimizer.lr=0.05")
    one, many = (
        after(build(*keys, f"engine.name={name}"), 2) for name in ("sequential", "vectorized")
    )

    for name, value in one.server.items():
        assert torch.allclose(many.server[name].double(), value.double(), rtol=0, atol=1e-10), name
