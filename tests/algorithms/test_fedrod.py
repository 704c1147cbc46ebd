"""FedRoD: a plain loop, the generic model beside FedAvg's, the personal head, and the bytes."""

from math import log

import pytest
import torch

from flbench.core.tree import only
from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.loops import (
    BACKBONE,
    CLASSES,
    HEAD,
    KEYS,
    WIDTH,
    Clients,
    assert_equal,
    net,
    platform,
    weighted_sum,
)
from tests.algorithms.plain import STATISTICS, lenet5_bytes
from tests.algorithms.test_identities import LENET
from tests.support import build

BODY_AND_HEAD = (*BACKBONE, *HEAD)
HYPER = ("nu.in.weight", "nu.in.bias", "nu.out.weight", "nu.out.bias")


def slow_head(leaves, shares):
    """The personal head: W_i [C, D] and b_i [C] as lists of rows."""
    if "nu.in.weight" not in leaves:
        return leaves["own.head.weight"], leaves["own.head.bias"]
    inside = [
        (row @ shares + bias).clamp_min(0)
        for row, bias in zip(leaves["nu.in.weight"], leaves["nu.in.bias"], strict=True)
    ]
    flat = leaves["nu.out.weight"] @ torch.stack(inside) + leaves["nu.out.bias"]
    return torch.stack(flat[: CLASSES * WIDTH].split(WIDTH)), flat[CLASSES * WIDTH :]


def slow_loss(leaves, x, y, counts, keys):
    """L_G + L_P, sample by sample."""
    shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    own_weight, own_bias = slow_head(leaves, shares)
    z, o = net(only(leaves, BODY_AND_HEAD), x)
    total = 0.0
    for j, label in enumerate(y):
        factors = [n if keys["absent"] == "literal" else max(n, 1) for n in counts]
        factors = [1.0 if keys["gamma"] == 0 else n ** keys["gamma"] for n in factors]
        weighted = sum(f * o[j][k].exp() for k, f in enumerate(factors) if f)
        total = total + weighted.log() - o[j][label] - log(factors[label])
        personal = o[j].detach() + own_weight @ z[j].detach() + own_bias
        total = total + personal.exp().sum().log() - personal[label]
    return total / len(y)


def slow_rounds(clients, keys, nu, rounds):
    """Returns w, nu and the heads that the clients keep."""
    w = only(clients.start, BODY_AND_HEAD)
    factor = 1.0 if keys["init"] == "copy" else 0.0
    own = [
        {} if nu else {f"own.{name}": factor * w[name] for name in HEAD}
        for _ in range(len(clients))
    ]
    for t in range(rounds):
        sent, ids = [], clients.cohort(t)
        for i in ids:
            counts = [clients.count(i, k) for k in range(CLASSES)]

            def loss(leaves, x, y, counts=counts):
                return slow_loss(leaves, x, y, counts, keys)

            here = clients.descend(i, t, w | nu | own[i], loss)
            own[i] = {name: here[name] for name in own[i]}
            sent.append({name: here[name] for name in (*w, *nu)})
        n = [clients.size(i) for i in ids]
        mean = weighted_sum(sent, [k / sum(n) for k in n])
        w, nu = only(mean, w), only(mean, nu)
    return w, nu, own


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"gamma": 0.5, "absent": "one", "init": "copy"},
        {"gamma": 0, "init": "copy"},
        {"head": "hyper"},
        {"head": "hyper", "gamma": 1.5, "hidden": 3},
    ],
    ids=str,
)
def test_rounds_equal_a_loop(keys):
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    built = build("algorithm=fedrod", *KEYS, *overrides)
    clients = Clients(built)
    state = platform("algorithm=fedrod", *overrides, rounds=3)

    nu = {n: v for n, v in built.start().server.items() if n in HYPER}
    keys = {"gamma": 1.0, "absent": "literal", "init": "zero"} | keys
    w, nu, own = slow_rounds(clients, keys, nu, rounds=3)

    assert set(state.server) == {*w, *nu}
    assert set(state.clients) == set(own[0])
    for name, value in (w | nu).items():
        assert_equal(state.server[name], value, name)
    for name in own[0]:
        for i in range(len(clients)):
            assert_equal(state.clients[name][i], own[i][name], name)


def net_of(state):
    return {name: value for name, value in state.server.items() if not name.startswith("nu.")}


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "hyper"])
def test_shared_net_is_fedavgs_with_the_same_loss(head):
    """To the bit: the loss of the personal head reaches no shared parameter."""
    method = ("algorithm=fedrod", f"algorithm.head={head}")
    balanced = "train.terms=[{name: balanced_softmax, instead: true}]"
    cases = {
        ("algorithm.gamma=0",): (),
        ("algorithm.absent=one",): (balanced,),
        (): None,  # the default has another loss
    }
    for keys, terms in cases.items():
        found = net_of(after(build(*LENET, *method, *keys), 2))
        expected = after(build(*LENET, "algorithm=fedavg", *(terms or ())), 2).server
        if terms is None:
            assert not torch.equal(found["head.weight"], expected["head.weight"])
        else:
            assert_same_bits(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "hyper"])
def test_engines_agree(head):
    keys = (*KEYS, "algorithm=fedrod", f"algorithm.head={head}")
    one, many = (
        after(build(*keys, f"engine.name={name}"), 3) for name in ("sequential", "vectorized")
    )

    for a, b in ((one.server, many.server), (one.clients, many.clients)):
        for name, value in a.items():
            assert_equal(b[name], value, name)


@pytest.mark.slow
def test_deployed_models_have_both_heads_and_the_shared_one():
    """The evaluated head of each client is the shared one plus its own."""
    for head in ("linear", "hyper"):
        built = build(*KEYS, "algorithm=fedrod", f"algorithm.head={head}")
        clients, state = Clients(built), after(built, 2)
        evaluator, settings = built.evaluator(print), settings_of(built.algorithm, state)
        found = evaluator.evaluate(state, settings, common=True)

        assert set(found.local) == {
            (name, part) for name in ("personal", "generic") for part in ("validation", "test")
        }
        predicted = dict(evaluator.predictions(state, settings))
        rows = built.federation.partition.parts["test"]
        for i in range(len(clients)):
            counts = torch.tensor([clients.count(i, k) for k in range(CLASSES)]).double()
            own = {name: rows[i] for name, rows in state.clients.items()}
            weight, bias = slow_head(own | state.server, counts / counts.sum())
            summed = state.server | {
                HEAD[0]: state.server[HEAD[0]] + weight,
                HEAD[1]: state.server[HEAD[1]] + bias,
            }
            x = built.federation.to(torch.device("cpu"), torch.float64).inputs(
                rows[i], torch.float64
            )
            logits = net(summed, x.flatten(1))[1]
            assert torch.equal(predicted[i].reshape(-1), logits.argmax(dim=1)), i


@pytest.mark.slow
def test_absent_client_has_the_generic_model_at_first_and_equal_shares_have_equal_heads():
    built = build(*KEYS, "algorithm=fedrod")
    state = built.start()
    assert all(not value.any() for value in state.clients.values())

    hyper = build(*KEYS, "algorithm=fedrod", "algorithm.head=hyper")
    head, server = hyper.algorithm.personal_head(), after(hyper, 2).server
    counts = torch.tensor([3.0, 1, 0, 0, 0, 0, 0, 0, 0, 4], dtype=torch.float64)
    one, double, other = (
        head(server, {"held.counts": c}) for c in (counts, 2 * counts, counts + 1)
    )
    assert_same_bits(double, one)
    assert not torch.equal(other["head.weight"], one["head.weight"])


@pytest.mark.slow
def test_client_with_one_class_does_not_move_the_shared_net():
    """L_G is 0 for every value of the parameters, and so is its gradient."""
    term = build("algorithm=fedrod").algorithm.program(build("algorithm=fedrod").start()).steps[1]
    balanced = term.terms[0]
    logits = torch.randn(4, 3, requires_grad=True)

    def value(counts):
        names = {"logits": logits}
        batch = {"y": torch.tensor([1, 1, 0, 1]), "mask": torch.tensor([True, True, False, True])}
        context = {"out": type("O", (), names), "batch": type("B", (), batch)}
        return balanced(type("C", (), context | {"ctx": {"held.counts": torch.tensor(counts)}}))

    loss = value([0.0, 5.0, 0.0])
    assert float(loss) == 0.0
    assert torch.equal(torch.autograd.grad(loss, logits)[0], torch.zeros(4, 3))
    gradient = torch.autograd.grad(value([2.0, 5.0, 0.0]), logits)[0]
    assert torch.equal(gradient[:, 2], torch.zeros(4))  # the absent class
    assert gradient[0, 0] > 0


@pytest.mark.slow
def test_bytes_are_those_of_fedavg_and_of_the_hypernetwork(tmp_path):
    weights = 4 * 62_050 + STATISTICS
    c, d, h = 10, 84, 32
    nu = 4 * (c * h + h + (h + 1) * (c * d + c))
    assert nu == 4 * 28_402

    assert lenet5_bytes(tmp_path, "algorithm=fedrod") == (weights, weights)
    up, down = lenet5_bytes(tmp_path, "algorithm=fedrod", "algorithm.head=hyper")
    assert up == weights + nu
    assert down == weights + 2 * nu  # of two rounds; the seeded net costs nothing in the first
