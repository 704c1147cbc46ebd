"""FedAvgM: the paper's formulas in a plain loop, FedAvg without momentum."""

import pytest
import torch

from flbench.testing import after, played
from tests.algorithms.plain import EPOCHS, FULL, ROUNDS, Plain, assert_close
from tests.support import build


@pytest.mark.slow
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("beta", "server_lr"), [(0.9, 1.0), (0.6, 0.5)])
def test_server_equals_a_loop(beta, server_lr, nesterov):
    keys = (f"algorithm.beta={beta}", f"algorithm.server_lr={server_lr}")
    if not nesterov:
        keys += ("algorithm.nesterov=false",)
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
            step = delta + beta * v[name] if nesterov else v[name]
            statistics[name] = w[name] - server_lr * step
        w = {name: statistics[name] for name in w}

    state = after(built, ROUNDS)

    assert_close(state.server, w | {f"momentum.{name}": v[name] for name in names}, tiny=1e-12)
    assert set(state.server) == set(w) | {f"momentum.{name}" for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("nesterov", [True, False])
def test_server_equals_an_optimizer_of_pytorch(nesterov):
    """torch.optim.SGD with the gradient w - mean of w_k, in float64."""
    keys = ("algorithm.beta=0.8", "algorithm.server_lr=0.7", f"algorithm.nesterov={nesterov}")
    built = build("algorithm=fedavgm", "engine.precision=64-true", *(key.lower() for key in keys))
    names = built.algorithm.setting.net.parameters
    state = built.start()
    w = {name: state.server[name].clone().requires_grad_() for name in names}
    server = torch.optim.SGD(w.values(), lr=0.7, momentum=0.8, nesterov=nesterov)

    for _ in range(4):
        state, results = played(built, state)
        mean = built.algorithm.mean(results)
        for name in names:
            w[name].grad = w[name].detach() - mean[name]
        server.step()

        assert_close({name: state.server[name] for name in names}, w, tiny=1e-12)
