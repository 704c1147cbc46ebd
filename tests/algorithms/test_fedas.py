"""FedAS: a plain loop, FedPer, the alignment's loss, the deployed models."""

import pytest
import torch

from flbench.core.tree import only
from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.loops import (
    BACKBONE,
    HEAD,
    KEYS,
    NET,
    WIDTH,
    Clients,
    assert_equal,
    entropy,
    net,
    platform,
    weighted_sum,
)
from tests.support import build


def slow_alignment(z, y, anchors):
    """Sum over classes of the mean over the class's samples and the features."""
    total = 0.0
    for k in set(y):
        rows = [z[j] for j in range(len(y)) if y[j] == k]
        far = sum((row[d] - anchors[k][d]) ** 2 for row in rows for d in range(WIDTH))
        total = total + far / (len(rows) * WIDTH)
    return total


def slow_trace(clients, i, t, weights):
    total = 0.0
    for x, y in clients.batches(i, t, epochs=1):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        entropy(leaves, x, y).backward()
        total += sum(float((leaf.grad**2).sum()) for leaf in leaves.values())
    return total


def slow_rounds(clients, rounds, **optimizer):
    """Returns the body, the models of all clients, and the last traces."""
    body = only(clients.start, BACKBONE)
    own = [only(clients.start, NET) for _ in range(len(clients))]
    for t in range(rounds):
        ids, traces = clients.cohort(t), []
        for i in ids:
            anchors = {k: p.detach() for k, p in clients.prototypes(i, own[i]).items()}

            def align(leaves, x, y, anchors=anchors):
                return slow_alignment(net(leaves, x)[0], y, anchors)

            here = body | only(own[i], HEAD)
            here = clients.descend(i, t, here, align, names=BACKBONE, epochs=1, lr=0.2)
            own[i] = clients.descend(i, t, here, entropy, **optimizer)
            traces.append(slow_trace(clients, i, t, own[i]))
        sent = [only(own[i], BACKBONE) for i in ids]
        body = weighted_sum(sent, [f / sum(traces) for f in traces])
    return body, own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "momentum", "decay"), [("sequential", 0.5, 0.05), ("vectorized", 0.0, 0.0)]
)
def test_rounds_equal_a_loop(engine, momentum, decay):
    """The alignment is plain SGD, and no phase that only records traces takes a step."""
    clients = Clients(build("algorithm=fedavg", *KEYS))
    keys = ("algorithm=fedas", f"engine.name={engine}", "algorithm.align_lr=0.2")
    keys += (f"train.optimizer.momentum={momentum}", f"train.optimizer.weight_decay={decay}")
    state = platform(*keys, rounds=3)

    body, own = slow_rounds(clients, rounds=3, momentum=momentum, decay=decay)

    for name in BACKBONE:
        assert_equal(state.server[name], body[name], name)
    for name in NET:
        for i in range(len(clients)):
            assert_equal(state.clients[f"own.{name}"][i], own[i][name], name)


@pytest.mark.slow
def test_deployed_model_is_that_of_the_last_participation():
    """A client that never took part has the newest body."""
    built = build(*KEYS, "algorithm=fedas")
    state = after(built, 2)
    settings = settings_of(built.algorithm, state)
    stored = list(built.evaluator(print).deployed(state, settings))

    absent = (state.participation_count == 0).tolist()
    assert any(absent)
    assert not all(absent)
    for i, is_absent in enumerate(absent):
        for name in BACKBONE:
            kept = state.server[name] if is_absent else state.clients[f"own.{name}"][i]
            assert torch.equal(stored[i][name], kept)
        for name in HEAD:
            assert torch.equal(stored[i][name], state.clients[name][i])
