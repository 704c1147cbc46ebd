"""FedRoD: a plain loop, the generic model beside FedAvg's, the personal head."""

from math import log

import pytest
import torch

from flbench.core.tree import only
from flbench.testing import after
from tests.algorithms.loops import (
    CLASSES,
    HEAD,
    KEYS,
    NET,
    Clients,
    assert_equal,
    assert_predicts,
    net,
    platform,
)
from tests.losses.support import COUNTS, case
from tests.support import build


def slow_loss(leaves, x, y, counts, gamma):
    """L_G + L_P, sample by sample."""
    own_weight, own_bias = leaves["own.head.weight"], leaves["own.head.bias"]
    z, o = net(only(leaves, NET), x)
    total = 0.0
    for j, label in enumerate(y):
        factors = [1.0 if gamma == 0 else n**gamma for n in counts]
        weighted = sum(f * o[j][k].exp() for k, f in enumerate(factors) if f)
        total = total + weighted.log() - o[j][label] - log(factors[label])
        personal = o[j].detach() + own_weight @ z[j].detach() + own_bias
        total = total + personal.exp().sum().log() - personal[label]
    return total / len(y)


def slow_rounds(clients, gamma, rounds):
    """Returns w and the heads that the clients keep."""
    w = only(clients.start, NET)
    own = [{f"own.{name}": torch.zeros_like(w[name]) for name in HEAD} for _ in range(len(clients))]
    for t in range(rounds):
        sent, ids = [], clients.cohort(t)
        for i in ids:
            counts = [clients.count(i, k) for k in range(CLASSES)]

            def loss(leaves, x, y, counts=counts):
                return slow_loss(leaves, x, y, counts, gamma)

            here = clients.descend(i, t, w | own[i], loss)
            own[i] = {name: here[name] for name in own[i]}
            sent.append(only(here, w))
        w = clients.mean(ids, sent)
    return w, own


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1.0, 0.5, 0])
def test_rounds_equal_a_loop(gamma):
    keys = f"algorithm.gamma={gamma}"
    clients = Clients(build("algorithm=fedrod", *KEYS, keys))
    state = platform("algorithm=fedrod", keys, rounds=3)

    w, own = slow_rounds(clients, gamma, rounds=3)

    assert set(state.server) == {*w}
    assert set(state.clients) == set(own[0])
    for name, value in w.items():
        assert_equal(state.server[name], value, name)
    for name in own[0]:
        for i in range(len(clients)):
            assert_equal(state.clients[name][i], own[i][name], name)


@pytest.mark.slow
def test_deployed_models_have_both_heads_and_the_shared_one():
    """The evaluated head of each client is the shared one plus its own."""
    built = build(*KEYS, "algorithm=fedrod")
    state = after(built, 2)

    def logits(i, x):
        own = {name: state.server[name] + state.clients[f"own.{name}"][i] for name in HEAD}
        return net(state.server | own, x)[1]

    models = built.algorithm.deploy(state, torch.arange(5))
    assert models.keys() == {"personal", "generic", "gm"}
    # Right after local training a program of the deployment would not run.
    assert models["personal"].program is None
    assert_predicts(built, state, logits)


def test_client_with_one_class_does_not_move_the_shared_net():
    """L_G is 0 for every value of the parameters, and so is its gradient."""
    algorithm = build("algorithm=fedrod").algorithm
    balanced = algorithm.program(None).steps[1].terms[0]
    c = case(absent=(0, 2, 3, 4))
    c.y = torch.ones_like(c.y)
    c.ctx["held.counts"] = c.ctx[COUNTS]

    loss = balanced(c.context())

    assert float(loss) == 0.0
    assert not torch.autograd.grad(loss, c.logits)[0].any()
