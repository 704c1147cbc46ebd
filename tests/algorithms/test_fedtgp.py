"""FedTGP: a plain loop, the server's loss and margin, Local-Only."""

from math import sqrt

import pytest
import torch

from flbench.algorithms.fedtgp import PSI, adaptive_margin, generated, margin_loss
from flbench.core.rng import Draw
from flbench.core.tree import only
from tests.algorithms.loops import (
    KEYS,
    NET,
    WIDTH,
    Clients,
    assert_equal,
    mean_cross_entropy,
    platform,
)
from tests.support import build


def slow_prototypes(psi):
    """P_k: an embedding, a linear layer, ReLU, a linear layer."""
    embedding, first, first_bias, last, last_bias = (psi[name] for name in PSI)
    return [last @ (first @ row + first_bias).clamp_min(0) + last_bias for row in embedding]


def slow_margin(pairs, tau):
    means = {}
    for k in {k for _, k in pairs}:
        mine = [p for p, label in pairs if label == k]
        means[k] = sum(mine) / len(mine)
    if len(means) == 1:
        return tau
    gaps = [
        min(sqrt(float(((q - r) ** 2).sum())) for other, r in means.items() if other != k)
        for k, q in means.items()
    ]
    return min(max(gaps), tau)


def slow_server_loss(psi, pairs, delta):
    table, total = slow_prototypes(psi), 0.0
    for p, k in pairs:
        logits = [
            -((((p - row) ** 2).sum() + 1e-12).sqrt() + (delta if c == k else 0.0))
            for c, row in enumerate(table)
        ]
        total = total + sum(one.exp() for one in logits).log() - logits[k]
    return total / len(pairs)


def slow_rounds(clients, keys, psi, config, rounds):
    """Returns the models of all clients, Psi and P."""
    seed, size = config.seed, config.train.batch_size
    models = [only(clients.start, NET) for _ in range(len(clients))]
    table = None
    for t in range(rounds):
        pairs = []
        for i in clients.cohort(t):

            def loss(z, logits, y, table=table):
                far = 0.0
                if table is not None:
                    far = sum(((z[j] - table[k]) ** 2).mean() for j, k in enumerate(y)) / len(y)
                return mean_cross_entropy(logits, y) + keys["lam"] * far

            models[i] = clients.train(i, t, models[i], loss)
            found = clients.prototypes(i, models[i])
            pairs += [(found[k].detach(), k) for k in sorted(found)]

        delta = slow_margin(pairs, keys["tau"])
        for epoch in range(keys["server_epochs"]):
            order = Draw(seed, (t,), len(clients)).sample_order(len(clients), epoch, len(pairs))
            for first in range(0, len(pairs), size):
                batch = [pairs[j] for j in order[first : first + size]]
                leaves = {name: value.clone().requires_grad_() for name, value in psi.items()}
                slow_server_loss(leaves, batch, delta).backward()
                psi = {n: v - keys["server_lr"] * leaves[n].grad for n, v in psi.items()}
        table = [row.detach() for row in slow_prototypes(psi)]
    return models, psi, table


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("keys", [{}, {"tau": 0.4}], ids=str)
def test_rounds_equal_a_loop(keys, engine):
    keys = {"lam": 2.0, "server_epochs": 2, "server_lr": 0.05} | keys
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    built = build("algorithm=fedtgp", *KEYS, *overrides)
    clients = Clients(built)
    state = platform("algorithm=fedtgp", f"engine.name={engine}", *overrides, rounds=3)

    psi = only(built.start().server, PSI)
    keys = {"tau": 100.0} | keys
    models, psi, table = slow_rounds(clients, keys, psi, built.config, rounds=3)

    for name, value in psi.items():
        assert_equal(state.server[name], value, name)
    assert_equal(state.server["global.prototypes"], torch.stack(table), "P")
    for name in NET:
        for i in range(len(clients)):
            assert_equal(state.clients[name][i], models[i][name], name)


def random_psi(classes, seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = [(classes, WIDTH), (WIDTH, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
    drawn = [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]
    return dict(zip(PSI, drawn, strict=True))


def test_gradient_is_finite_where_a_prototype_meets_an_upload():
    psi = random_psi(4)
    table = generated(psi)

    slope = torch.func.grad(margin_loss)(psi, table, torch.arange(4), torch.tensor(0.0).double())
    assert all(value.isfinite().all() for value in slope.values())


def test_margin_is_the_largest_gap_to_the_nearest_class():
    rows = torch.tensor([[0.0, 0], [4, 0], [4, 1], [4, -1]]).double()
    y = torch.tensor([0, 1, 2, 2])

    # the means of classes 1 and 2 are equal
    assert float(adaptive_margin(rows, y, 100.0)) == 4
    assert float(adaptive_margin(rows, y, 3.0)) == 3
    assert float(adaptive_margin(rows[:1], y[:1], 100.0)) == 100
