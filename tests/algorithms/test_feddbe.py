"""FedDBE: a plain loop, FedAvg, the deployed models, refused settings."""

import pytest
import torch

from flbench.core.rng import Draw
from flbench.core.tree import only
from flbench.testing import after
from tests.algorithms.loops import (
    BATCH,
    HEAD,
    KEYS,
    LR,
    NET,
    WIDTH,
    Clients,
    assert_equal,
    assert_predicts,
    entropy,
    mean_cross_entropy,
    net,
    platform,
)
from tests.support import build

ZERO = torch.zeros(WIDTH, dtype=torch.float64)


def slow_consensus(clients, keys, seed):
    """zbar: every client trains the initial net once and sends a mean of its features."""
    clients.draws[8] = Draw(seed, (0, 1, 1), len(clients))  # the stream of a set-up's batches
    total, n = ZERO, 0
    for i in range(len(clients)):
        w, means, sizes = only(clients.start, NET), [], []
        for x, y in clients.batches(i, 8):
            means.append(net(w, x)[0].mean(dim=0))
            sizes.append(len(y))
            leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
            entropy(leaves, x, y).backward()
            w = {name: w[name] - LR * leaves[name].grad for name in w}
        full = [k for k, size in enumerate(sizes) if size == BATCH]
        r = ZERO
        for mean in means[: (full[-1] if full else len(sizes) - 1) + 1]:
            r = (1 - keys["mu"]) * r + keys["mu"] * mean
        total, n = total + clients.size(i) * r, n + clients.size(i)
    return total / n


def slow_rounds(clients, keys, seed, rounds):
    """Returns the net, the vectors e_i of all clients, and zbar."""
    zbar = slow_consensus(clients, keys, seed) if keys["kappa"] else ZERO
    w, own, mu = only(clients.start, NET), [ZERO] * len(clients), keys["mu"]
    for t in range(rounds):
        ids, sent = clients.cohort(t), []
        for i in ids:
            here, r = {**w, "e": own[i]}, ZERO
            for x, y in clients.batches(i, t):
                leaves = {name: value.clone().requires_grad_() for name, value in here.items()}
                z, _ = net(leaves, x)
                r = (1 - mu) * r.detach() + mu * z.mean(dim=0)
                shifted = (z + leaves["e"]) @ leaves[HEAD[0]].T + leaves[HEAD[1]]
                far = sum((r[d] - zbar[d]) ** 2 for d in range(WIDTH)) / WIDTH
                (mean_cross_entropy(shifted, y) + keys["kappa"] * far / 2).backward()
                here = {name: here[name] - LR * leaves[name].grad for name in here}
            own[i] = here.pop("e")
            sent.append(here)
        w = clients.mean(ids, sent)
    return w, own, zbar


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("keys", [{"kappa": 2.0}, {"kappa": 5.0, "mu": 0.3}, {"kappa": 0}], ids=str)
def test_rounds_equal_a_loop(keys, engine):
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    built = build("algorithm=fedavg", *KEYS)
    clients = Clients(built)
    state = platform("algorithm=feddbe", f"engine.name={engine}", *overrides, rounds=3)
    keys = {"mu": 1.0} | keys

    w, own, zbar = slow_rounds(clients, keys, built.config.seed, rounds=3)

    for name in NET:
        assert_equal(state.server[name], w[name], name)
    for i in range(len(clients)):
        assert_equal(state.clients["prbm"][i], own[i], "e")
    if keys["kappa"]:
        assert_equal(state.server["consensus"], zbar, "zbar")
        took_part = {i for t in range(3) for i in clients.cohort(t)}
        assert state.server["informed"].nonzero()[:, 0].tolist() == sorted(took_part)
        for i in took_part:
            assert_equal(state.clients["consensus"][i], zbar, "zbar at a client")


@pytest.mark.slow
def test_deployed_models_have_the_vector_or_none():
    built = build(*KEYS, "algorithm=feddbe", "algorithm.kappa=2")
    state = after(built, 2)

    def logits(i, x):
        z, _ = net(state.server, x)
        return (z + state.clients["prbm"][i]) @ state.server[HEAD[0]].T + state.server[HEAD[1]]

    assert built.algorithm.deploy(state, torch.arange(5)).keys() == {"personal", "noprbm", "gm"}
    assert state.clients["prbm"].any(dim=1).tolist() == (state.participation_count > 1).tolist()
    assert_predicts(built, state, logits)
