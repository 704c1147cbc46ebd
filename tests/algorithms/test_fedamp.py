"""FedAMP: a plain loop, its limits Local-Only and FedAvg, groups of twins."""

from math import exp, sqrt

import pytest
import torch

from flbench.core.errors import ConfigError
from flbench.testing import after
from tests.algorithms.loops import (
    KEYS,
    LR,
    NET,
    Clients,
    assert_equal,
    mean_cross_entropy,
    platform,
    weighted_sum,
)
from tests.support import build

DEFAULTS = {
    "similarity": "distance",
    "share": 0.99,
    "self_weight": None,
    "pull": 1e-4,
    "start": "cloud",
}


def squared(a, b):
    return sum(float(((a[name] - b[name]) ** 2).sum()) for name in NET)


def cosine(a, b):
    inner = sum(float((a[name] * b[name]).sum()) for name in NET)
    zero = {name: 0 * value for name, value in a.items()}
    return inner / sqrt(squared(a, zero)) / sqrt(squared(b, zero))


def slow_weights(i, w, known, sigma, alpha, keys):
    """Row i of xi."""
    others = [j for j in sorted(known) if j != i]
    if i not in known or not others:
        return {i: 1.0}
    if keys["similarity"] == "distance":
        xi = {j: alpha * exp(-squared(w[i], w[j]) / sigma) / sigma for j in others}
    else:
        own = 1 / len(w) if keys["self_weight"] is None else keys["self_weight"]
        scores = {j: exp(25.0 * cosine(w[i], w[j])) for j in others}
        xi = {j: (1 - own) * scores[j] / sum(scores.values()) for j in others}
    return xi | {i: 1 - sum(xi.values())}


def slow_rounds(clients, keys, rounds):
    """Returns w_i and u_i of all clients."""
    n = len(clients)
    w, known, sigma = [dict(clients.start) for _ in range(n)], set(), None

    def clouds(t):
        scale = max(0.1 ** (t // 30), LR * keys["pull"])
        alpha = keys["share"] * (sigma or 1.0) / (n - 1) * scale
        found = []
        for i in range(n):
            xi = slow_weights(i, w, known, sigma, alpha, keys)
            found.append(weighted_sum([w[j] for j in xi], list(xi.values())))
        return found, keys["pull"] / scale

    for t in range(rounds):
        u, pull = clouds(t)
        new = list(w)
        for i in clients.cohort(t):

            def loss(leaves, x, y, u=u[i], pull=pull):
                from tests.algorithms.loops import net

                term = sum(((leaves[name] - u[name]) ** 2).sum() for name in NET)
                return mean_cross_entropy(net(leaves, x)[1], y) + pull / 2 * term

            new[i] = clients.descend(i, t, u[i] if keys["start"] == "cloud" else w[i], loss)
        w = new
        known |= set(clients.cohort(t))
        if keys["similarity"] == "distance" and len(known) > 1:
            pairs = [(i, j) for i in known for j in known if i < j]
            sigma = sum(squared(w[i], w[j]) for i, j in pairs) / len(pairs)
    return w, clouds(rounds)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"start": "own", "pull": 0.5},
        {"share": 0.5, "pull": 0.05},
        {"similarity": "cosine", "pull": 0.1},
        {"similarity": "cosine", "self_weight": 0.3, "start": "own", "pull": 1.0},
    ],
    ids=str,
)
def test_rounds_equal_a_loop(keys):
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    built = build("algorithm=fedamp", *KEYS, *overrides)
    clients = Clients(built)
    state = platform("algorithm=fedamp", *overrides, rounds=3)

    w, u = slow_rounds(clients, DEFAULTS | keys, rounds=3)

    found = built.algorithm.clouds(state, torch.arange(len(clients)))
    for name in NET:
        for i in range(len(clients)):
            assert_equal(state.clients[name][i], w[i][name], name)
            assert_equal(found[name][i], u[i][name], name)


@pytest.mark.slow
def test_statistics_of_batchnorm_are_mixed_with_weights_from_parameters():
    exact = ("model.name=lenet5", "train.participation=0.6", "engine.precision=64-true")
    built = build(*exact, "algorithm=fedamp")
    state = after(built, 2)
    known = state.server["known"].nonzero()[:, 0].tolist()
    flat = torch.cat(
        [state.clients[n].flatten(1) for n in built.algorithm.setting.net.parameters], 1
    )

    found = built.algorithm.clouds(state, torch.arange(5))

    far = {(i, j): float((flat[i] - flat[j]).square().sum()) for i in known for j in known}
    sigma = sum(far.values()) / (len(known) * (len(known) - 1))
    for i in known:
        xi = {j: 0.99 / 4 * exp(-far[i, j] / sigma) for j in known}
        xi[i] = 1 - sum(xi[j] for j in known if j != i)
        for name in ("backbone.norm1.running_var", "backbone.norm2.running_mean"):
            rows = state.clients[name]
            assert torch.unique(rows[known], dim=0).shape[0] == len(known)
            expected = sum(weight * rows[j] for j, weight in xi.items())
            assert torch.allclose(found[name][i], expected, rtol=0, atol=1e-12), name


def test_alpha_does_not_fall_below_a_pull_of_one_step_and_twice_as_large_ones_are_refused():
    keys = ("algorithm=fedamp", "algorithm.pull=0.5", "train.optimizer.lr=0.1", "train.rounds=200")
    built = build(*keys)

    pulls = [0.5 / built.algorithm.decayed(t) for t in range(200)]
    assert pulls[0] == pulls[29] == 0.5
    assert pulls[30] == pytest.approx(5)
    assert pulls[60] == pulls[199] == pytest.approx(10)
    with pytest.raises(ConfigError, match=r"algorithm\.pull"):
        build(*keys, "algorithm.pull=20")
    build(*keys, "algorithm.pull=20", "train.optimizer.name=adam")  # its steps have length lr
    near = build(*keys, "algorithm.pull=19").algorithm
    assert [19 / near.decayed(t) for t in range(200)] == [19] * 200
    with pytest.raises(ConfigError, match=r"algorithm\.agg_weights"):  # nothing is averaged
        build(*keys, "algorithm.agg_weights=uniform")
