"""FedAvgM: the paper's formulas in a plain loop, FedAvg without momentum, and the bytes."""

from dataclasses import replace

import pytest
import torch

from tests.algorithms.plain import EPOCHS, FULL, ROUNDS, STATISTICS, Plain, assert_close
from tests.algorithms.test_contract import after, played
from tests.algorithms.test_identities import LENET, POLICIES, traffic
from tests.support import build

FEDAVG = ("algorithm=fedavgm", "algorithm.beta=0", "algorithm.server_lr=1")


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "server_lr"), [(0.9, 1.0), (0.6, 0.5)])
def test_server_equals_a_loop(beta, server_lr):
    keys = (f"algorithm.beta={beta}", f"algorithm.server_lr={server_lr}")
    built = build("algorithm=fedavgm", "model.name=lenet5", *keys, *FULL)
    plain, names = Plain(built), built.algorithm.setting.net.parameters

    w, v = plain.start(), dict.fromkeys(names, 0.0)
    for t in range(ROUNDS):
        sent = {}
        for i in plain.cohort(t):
            sent[i] = w
            for _ in range(EPOCHS):
                sent[i] = plain.step(sent[i], i, names)
        sizes = {i: len(plain.samples(i)[1]) for i in sent}
        statistics = {n: value for n, value in plain.mean(sent).items() if n not in names}
        for name in names:
            delta = sum(sizes[i] * (w[name] - sent[i][name]) for i in sent) / sum(sizes.values())
            v[name] = beta * v[name] + delta
        w = {n: w[n] - server_lr * v[n] for n in names} | statistics

    state = after(built, ROUNDS)

    assert_close(state.server, w | {f"momentum.{name}": v[name] for name in names})
    assert set(state.server) == set(w) | {f"momentum.{name}" for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_without_momentum_it_is_fedavg_to_the_bit(policy):
    """In float32: the buffer is float64, so w - (w - mean) is the mean."""
    norm = f"train.batchnorm={policy}"
    found = after(build(*LENET, norm, *FEDAVG), 2)
    fedavg = after(build(*LENET, norm, "algorithm=fedavg"), 2)

    assert fedavg.server
    for tree, other in ((found.server, fedavg.server), (found.clients, fedavg.clients)):
        for name, value in other.items():
            assert torch.equal(tree[name], value), name


@pytest.mark.slow
def test_a_round_without_an_optimizer_step_changes_nothing():
    built = build("algorithm=fedavgm")
    state, results = played(built, after(built, 1))

    update = built.algorithm.aggregate(state, replace(results, steps=0 * results.steps))

    assert update.server == {}


@pytest.mark.slow
def test_momentum_is_not_sent(tmp_path):
    """Weights of LeNet-5 on 16x16 grey images and its statistics, both ways."""
    weights = 156 + 12 + 2416 + 32 + 1920 + 120 + 10080 + 84 + 840 + 10

    found = traffic(tmp_path, "algorithm=fedavgm", "model.name=lenet5")

    assert found == (4 * weights + STATISTICS,) * 2
