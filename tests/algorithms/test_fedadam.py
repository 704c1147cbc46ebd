"""FedAdam, FedYogi and FedAdagrad: the paper's formulas in a plain loop, limits."""

import pytest
import torch

from flbench.testing import after
from tests.algorithms.loops import KEYS, Clients, assert_equal, mean_cross_entropy, platform
from tests.algorithms.plain import assert_close
from tests.algorithms.test_identities import LENET
from tests.support import build

METHODS = ("fedadam", "fedyogi", "fedadagrad")
CASES = [
    *((name, {}) for name in METHODS),
    ("fedadagrad", {"server_lr": 0.2}),
    ("fedadam", {"beta2": 0.9}),
    ("fedyogi", {"v0": 0.01, "beta1": 0.0, "tau": 0.1}),
    ("fedyogi", {"agg_weights": "uniform"}),
]


def slow_server(method, clients, keys, rounds):
    """Algorithm 2, number by number; returns w, m and v by the name of a parameter."""
    c = {"server_lr": 0.1 if method == "fedadagrad" else 0.03, "tau": 1e-3, "beta2": 0.99}
    c |= {"beta1": 0.0 if method == "fedadagrad" else 0.9}
    c |= {"v0": None, "agg_weights": "samples"} | keys
    v0 = c["tau"] ** 2 if c["v0"] is None else c["v0"]
    w = dict(clients.start)
    m, v = ({name: torch.zeros_like(value) for name, value in w.items()} for _ in "mv")
    v = {name: value + v0 for name, value in v.items()}
    for t in range(rounds):
        ids = clients.cohort(t)
        trained = [
            clients.train(i, t, w, lambda z, logits, y: mean_cross_entropy(logits, y)) for i in ids
        ]
        n = [1 if c["agg_weights"] == "uniform" else clients.size(i) for i in ids]
        new = {}
        for name, old in w.items():
            delta = sum(k * (one[name] - old) for k, one in zip(n, trained, strict=True)) / sum(n)
            square = delta * delta
            m[name] = c["beta1"] * m[name] + (1 - c["beta1"]) * delta
            if method == "fedadagrad":
                v[name] = v[name] + square
            elif method == "fedyogi":
                up = (v[name] < square).double() - (v[name] > square).double()
                v[name] = v[name] + up * (1 - c["beta2"]) * square
            else:
                v[name] = c["beta2"] * v[name] + (1 - c["beta2"]) * square
            new[name] = old + c["server_lr"] * m[name] / (v[name] ** 0.5 + c["tau"])
        w = new
    return w, m, v


@pytest.mark.slow
@pytest.mark.parametrize(("method", "keys"), CASES)
def test_server_equals_a_loop(method, keys):
    overrides = [f"algorithm.{key}={str(value).lower()}" for key, value in keys.items()]
    clients = Clients(build("algorithm=fedavg", *KEYS))
    state = platform(f"algorithm={method}", *overrides, rounds=3)

    w, m, v = slow_server(method, clients, keys, rounds=3)

    assert set(state.server) == {*w, *(f"m.{n}" for n in w), *(f"v.{n}" for n in w)}
    for name in w:
        assert_equal(state.server[name], w[name], name)
        assert_equal(state.server[f"m.{name}"], m[name], name)
        assert_equal(state.server[f"v.{name}"], v[name], name)


PLAIN_STEP = ("algorithm.server_lr=1e8", "algorithm.tau=1e8", "algorithm.v0=0")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_with_a_large_tau_it_is_fedavg(method):
    """eta = tau: the step is m / (1 + sqrt(v) / tau), and m = delta without momentum."""
    exact = ("engine.precision=64-true",)
    fedavg = after(build(*LENET, *exact, "algorithm=fedavg"), 2)
    keys = () if method == "fedadagrad" else ("algorithm.beta1=0",)
    found = after(build(*LENET, *exact, f"algorithm={method}", *PLAIN_STEP, *keys), 2)

    assert_close(fedavg.server, found.server, tiny=1e-7)


@pytest.mark.slow
def test_with_a_large_tau_and_momentum_it_is_fedavgm():
    """m = (1 - beta1) times the momentum of FedAvgM, whose step is then 1 - beta1."""
    exact = ("engine.precision=64-true",)
    fedavgm = ("algorithm.nesterov=false", "algorithm.beta=0.6", "algorithm.server_lr=0.4")
    expected = after(build(*LENET, *exact, "algorithm=fedavgm", *fedavgm), 2)
    found = after(build(*LENET, *exact, "algorithm=fedyogi", *PLAIN_STEP, "algorithm.beta1=0.6"), 2)

    weights = {name: found.server[name] for name in expected.server if "momentum" not in name}
    assert_close(weights, expected.server, tiny=1e-7)


@pytest.mark.slow
def test_statistics_of_batchnorm_are_averaged_without_a_step_of_the_server():
    """In the first round, clients do what they do in FedAvg."""
    fedavg = after(build(*LENET, "algorithm=fedavg"), 1).server
    built = build(*LENET, "algorithm=fedadam")
    found = after(built, 1).server

    statistics = fedavg.keys() - set(built.algorithm.setting.net.parameters)
    assert len(statistics) == 6
    assert all(torch.equal(found[name], fedavg[name]) for name in statistics)
    assert not torch.equal(found["head.weight"], fedavg["head.weight"])
