"""FedPAC: a plain loop, the weights of heads beside scipy, FedRep."""

from itertools import chain, combinations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from flbench.algorithms.fedpac import head_weights, least_quadratic
from flbench.core.tree import only
from tests.algorithms.loops import (
    BACKBONE,
    CLASSES,
    HEAD,
    KEYS,
    WIDTH,
    Clients,
    assert_equal,
    class_means,
    entropy,
    mean_cross_entropy,
    net,
    platform,
    weighted_sum,
)
from tests.support import build


def slow_alpha(i, h, v):
    """The weights of client i: the best minimum over all sets of clients, by brute force."""
    k = len(h)
    q = np.zeros((k, k))
    for j in range(k):
        for m in range(k):
            q[j, m] = sum(float((h[i][c] - h[j][c]) @ (h[i][c] - h[m][c])) for c in range(CLASSES))
        q[j, j] += v[j]
    best, least = None, np.inf
    for some in chain.from_iterable(combinations(range(k), size) for size in range(1, k + 1)):
        system = np.zeros((len(some) + 1, len(some) + 1))  # Lagrange: 2 Q a + mu = 0, sum a = 1
        system[:-1, :-1] = 2 * q[np.ix_(some, some)]
        system[:-1, -1] = system[-1, :-1] = 1
        a = np.zeros(k)
        a[list(some)] = np.linalg.solve(system, [0] * len(some) + [1])[:-1]
        if a.min() >= 0 and a @ q @ a < least:
            best, least = a, a @ q @ a
    best[best < 1e-3] = 0
    return best / best.sum()


def slow_rounds(clients, keys, rounds):
    """Returns the body, the prototypes by class, and the heads of all clients."""
    body = only(clients.start, BACKBONE)
    heads = [only(clients.start, HEAD) for _ in range(len(clients))]
    table = {}
    for t in range(rounds):
        ids, sent, h, v, means = clients.cohort(t), [], [], [], []
        trained = list(heads)
        for i in ids:
            z, _ = net(body | heads[i], clients.x[i])
            n, own = clients.size(i), class_means(z, clients.y[i])
            zero = torch.zeros(WIDTH, dtype=torch.float64)
            h.append([clients.count(i, k) / n * own.get(k, zero) for k in range(CLASSES)])
            v.append(float(sum(row @ row for row in z) / n - sum(one @ one for one in h[-1])) / n)

            def body_loss(leaves, x, y, own=own):
                z, logits = net(leaves, x)
                anchors = own | table if table else {}
                far = [((z[j] - anchors[k]) ** 2).mean() for j, k in enumerate(y) if k in anchors]
                pull = sum(far) / len(far) if far else 0.0
                return mean_cross_entropy(logits, y) + keys["lam"] * pull

            here = body | heads[i]
            here = clients.descend(i, t, here, entropy, names=HEAD, epochs=1, lr=keys["head_lr"])
            here = clients.descend(i, t, here, body_loss, names=BACKBONE)
            trained[i] = only(here, HEAD)
            sent.append(only(here, BACKBONE))
            means.append(clients.prototypes(i, here))
        sizes = [clients.size(i) for i in ids]
        body = weighted_sum(sent, [n / sum(sizes) for n in sizes])
        for k in range(CLASSES):
            holders = [
                (clients.count(i, k), m[k]) for i, m in zip(ids, means, strict=True) if k in m
            ]
            if holders:
                table[k] = sum(n * m for n, m in holders) / sum(n for n, _ in holders)
        heads = list(trained)
        for place, i in enumerate(ids):
            alpha = slow_alpha(place, h, v)
            heads[i] = weighted_sum([trained[j] for j in ids], alpha.tolist())
    return body, table, heads


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("keys", [{}, {"lam": 0.3, "head_lr": 0.05}], ids=str)
def test_rounds_equal_a_loop(keys, engine):
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    clients = Clients(build("algorithm=fedavg", *KEYS))
    state = platform("algorithm=fedpac", f"engine.name={engine}", *overrides, rounds=3)

    body, table, heads = slow_rounds(clients, {"lam": 1.0, "head_lr": 0.1} | keys, rounds=3)

    for name in BACKBONE:
        assert_equal(state.server[name], body[name], name)
    assert state.server["global.present"].nonzero()[:, 0].tolist() == sorted(table)
    for k, mean in table.items():
        assert_equal(state.server["global.prototypes"][k], mean, "prototypes")
    for name in HEAD:
        for i in range(len(clients)):
            assert_equal(state.clients[name][i], heads[i][name], name)


def problems():
    """Class means and variances of several clients: ordinary, few classes, twins, one sample."""
    rng = torch.Generator().manual_seed(0)
    for number in range(12):
        k = 2 + number
        h = torch.randn(k, 4, 5, generator=rng, dtype=torch.float64)
        h *= (torch.rand(k, 4, 1, generator=rng) < 0.4) * [0.05, 1.0, 5.0][number % 3]
        v = torch.rand(k, generator=rng, dtype=torch.float64) * 0.1
        if number > 6:
            h[1] = h[0]
        if number > 9:
            v[-1] = 0.0
        yield h, v


def test_weights_are_the_minimum_that_scipy_finds():
    for h, v in problems():
        distance = (h[0] - h).flatten(1)
        q = v.diag() + distance @ distance.T
        alpha = least_quadratic(q, first=0)

        # 1/2 x^T Q x - sum x = 1/2 ||R x - b||^2 + constant, with Q = R^T R and R^T b = 1
        ridge = 1e-13 * q.diagonal().mean() * torch.eye(len(q))
        r = torch.linalg.cholesky((q + ridge).double()).T
        x, _ = nnls(r.numpy(), torch.linalg.solve(r.T, torch.ones(len(q)).double()).numpy())
        assert np.allclose(alpha.numpy(), x / x.sum(), rtol=0, atol=1e-7)

        # Karush-Kuhn-Tucker: the gradient is the value on the support, and no less elsewhere
        value = alpha @ q @ alpha
        slope = q @ alpha
        assert float((slope - value).min()) > -1e-9 * float(q.diagonal().mean())
        on_support = alpha > 0
        assert torch.allclose(slope[on_support], value, rtol=0, atol=1e-9 * float(q.max()))
        assert float(alpha.sum()) == pytest.approx(1, abs=1e-12)


def test_weights_of_special_clients():
    torch.manual_seed(0)
    h, v = torch.randn(4, 3, 2).double(), torch.tensor([0.1, 0.2, 0.4, 0.5]).double()

    same = head_weights(h[:1].expand(4, 3, 2), v)  # alpha_j is proportional to 1 / v_j
    assert torch.allclose(same, (1 / v / (1 / v).sum()).expand(4, 4), rtol=0, atol=1e-10)
    assert torch.equal(head_weights(h, 0 * v), torch.eye(4).double())
    assert torch.equal(head_weights(h[:1], v[:1]), torch.ones(1, 1).double())

    order = torch.tensor([2, 0, 3, 1])  # permuting clients permutes rows and columns
    close = 0.2 * h
    permuted = head_weights(close[order], v[order])
    assert torch.allclose(permuted, head_weights(close, v)[order][:, order], rtol=0, atol=1e-9)
    assert (permuted > 0).sum() > 4
