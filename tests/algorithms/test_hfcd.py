"""HFCD's server against loops over its formulas, its schedules, and its options."""

from functools import partial
from math import exp, log

import pytest
import torch

from flbench.algorithms.hfcd import (
    contrast_loss,
    hard_negatives,
    mean_similarity,
    ordinary_distillation,
    similarity_loss,
)
from flbench.algorithms.shared import prototypes
from flbench.client.batchnorm import recalibrate
from flbench.client.program import LocalProgram, Phase, Statistic, bind
from flbench.core.tree import take
from flbench.core.types import Dispatch, Message, Results, State
from flbench.experiment.rounds import settings_of
from flbench.losses.similarity import class_sums, cosines
from flbench.testing import after
from tests.losses.support import TINY, case
from tests.support import build

N, C, D = 6, 5, 4


def method(*overrides: str):
    return build("algorithm=hfcd", "partition.clients=6", *overrides).algorithm


def uploads(seed: int = 0):
    """Prototypes and counts of six clients.

    No client holds class 4, one client holds class 3, and client 0 holds one class.
    """
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 9, (N, C), generator=g, dtype=torch.int32)
    counts[:, 4] = 0
    counts[:, 3] = torch.tensor([0, 0, 5, 0, 0, 0])
    counts[0] = torch.tensor([2, 0, 0, 0, 0])
    own = torch.randn(N, C, D, generator=g, dtype=torch.float64) * (counts > 0)[:, :, None]
    return own, counts


def cos(a, b) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-12))


def test_holder_weights_equal_the_formula():
    """The weights are the softmax over holders of n / max n times the mean cosine with others."""
    own, counts = uploads()

    weights = method().holder_weights(own, counts)

    for k in range(C):
        holders = [i for i in range(N) if counts[i, k] > 0]
        a = {}
        for i in holders:
            size = float(counts[i, k]) / max(float(counts[j, k]) for j in holders)
            others = [cos(own[i, k], own[j, k]) for j in holders if j != i]
            a[i] = size * (sum(others) / len(others) if others else 1.0)
        total = sum(exp(value) for value in a.values())
        for i in range(N):
            expected = exp(a[i]) / total if i in holders else 0.0
            assert float(weights[i, k]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("options", [(), ("algorithm.aggregation=mean",)])
def test_holder_weights_sum_to_one_over_holders_and_are_zero_elsewhere(options):
    own, counts = uploads()

    weights = method(*options).holder_weights(own, counts)

    assert torch.allclose(weights.sum(dim=0), (counts > 0).any(dim=0).double(), rtol=0, atol=1e-12)
    assert (weights[counts == 0] == 0).all()
    assert (weights >= 0).all()


@pytest.mark.parametrize("options", [(), ("algorithm.aggregation=mean",)])
def test_identical_clients_have_equal_weights(options):
    own = torch.randn(1, C, D, dtype=torch.float64).expand(N, C, D)

    weights = method(*options).holder_weights(own, torch.full((N, C), 3, dtype=torch.int32))

    assert torch.allclose(
        weights, torch.full((N, C), 1 / N, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_global_similarity_is_the_mean_over_joint_holders_or_the_tables_cosine():
    own, counts = uploads()
    held = counts > 0
    pairs = (held[:, :, None] & held[:, None, :]).triu(1)
    upper = torch.stack([cosines(own[i], own[i]) for i in range(N)]) * pairs
    table = torch.randn(C, D, dtype=torch.float64)

    found = mean_similarity(upper, held, table)

    for p in range(C):
        for q in range(C):
            both = [i for i in range(N) if held[i, p] and held[i, q]]
            expected = (
                sum(cos(own[i, p], own[i, q]) for i in both) / len(both)
                if both
                else cos(table[p], table[q])
            )
            assert float(found[p, q]) == pytest.approx(1.0 if p == q else expected, abs=1e-12)
    assert torch.equal(found, found.T)


def aggregated(algorithm, own, counts):
    held = counts > 0
    upper = torch.stack([cosines(own[i], own[i]) for i in range(N)]) * (
        held[:, :, None] & held[:, None, :]
    ).triu(1)
    server = {
        "global.prototypes": torch.zeros(C, D, dtype=torch.float64),
        "global.present": torch.zeros(C, dtype=torch.bool),
        "global.similarity": torch.eye(C, dtype=torch.float64),
    }
    clients = {"prototypes": own, "counts": counts, "similarity": upper}
    state = State(0, 1, 1, server, clients, torch.zeros(N), torch.zeros(N))
    ids = torch.arange(2)
    results = Results(ids, torch.ones(2), torch.zeros(2), {}, Message(), {})
    return algorithm.aggregate(state, results).server


def test_aggregate_uses_the_last_uploads_of_absent_clients_too():
    own, counts = uploads()
    algorithm = method()

    server = aggregated(algorithm, own, counts)

    expected = torch.einsum("nc,ncd->cd", algorithm.holder_weights(own, counts), own)
    assert torch.allclose(server["global.prototypes"], expected, rtol=0, atol=1e-12)
    assert server["global.present"].tolist() == [True, True, True, True, False]


def test_class_without_holder_stays_absent():
    own, counts = uploads()

    server = aggregated(method(), own, counts)

    assert not server["global.present"][4]
    assert (server["global.prototypes"][4] == 0).all()


def test_schedules_start_with_cross_entropy_alone():
    algorithm = method("train.rounds=100", "algorithm.lambda0=0.5")
    state = build("algorithm=hfcd", "partition.clients=6").start()

    first = algorithm.dispatch(state, torch.arange(1)).numbers
    later = algorithm.dispatch(
        State(0, 40, 40, state.server, state.clients, state.participation_count, state.steps),
        torch.arange(1),
    ).numbers

    assert first == {"beta": 0.0, "lambda": 0.5, "beta_lambda": 0.0}
    assert later["beta"] == pytest.approx(0.5 * (1 - exp(-0.4)))
    assert later["lambda"] == pytest.approx(0.5 * exp(-0.4))
    assert later["beta_lambda"] == pytest.approx(later["beta"] * later["lambda"])


def test_clients_bank_is_the_mean_feature_of_each_class_after_training():
    built = build("algorithm=hfcd", "engine.precision=64-true", "train.participation=1")

    state = after(built, 1)

    federation = built.federation.to(torch.device("cpu"), torch.float64)
    net = built.net.double().eval()
    names = built.algorithm.setting.net.names("all")
    for client in range(5):
        weights = {name: state.clients[name][client] for name in names}
        rows = federation.partition.parts["train"][client]
        out = torch.func.functional_call(net, weights, (federation.inputs(rows, torch.float64),))
        y = federation.y[torch.from_numpy(rows)]
        for k in range(10):
            mine = out.features[y == k]
            assert int(state.clients["counts"][client, k]) == len(mine)
            expected = mine.mean(dim=0) if len(mine) else torch.zeros(64, dtype=torch.float64)
            assert torch.allclose(
                state.clients["prototypes"][client, k], expected, rtol=0, atol=1e-10
            )


def test_training_never_moves_prototypes_or_similarities():
    """Training ends before they are written, and its optimizer gets the net's parameters only."""
    algorithm = method()

    [train] = [s for s in algorithm.program(None).steps if isinstance(s, Phase)]

    assert train.train == frozenset(algorithm.setting.net.parameters)


@pytest.mark.slow
def test_prototypes_under_dropped_statistics_are_those_of_the_recalibrated_net():
    keys = ("algorithm=hfcd", "model.name=lenet5", "train.batchnorm=drop")
    built = build(*keys, "engine.precision=64-true")
    state = after(built, 1)
    net = built.algorithm.setting.net

    found = {}
    for name, steps in (("anew", recalibrate(net)), ("left behind", ())):
        collect = Statistic("classes", bind(prototypes.sums_by_class, 10))
        found[name] = built.engine.run(
            LocalProgram(steps),
            torch.arange(5),
            rows=partial(take, state.clients),
            dispatch=lambda ids: Dispatch(),
            settings=settings_of(built.algorithm, state),
            observe=(collect,),
        ).observed

    held = state.clients["counts"] > 0
    for name, right in (("anew", True), ("left behind", False)):
        counts = found[name]["classes.counts"].clamp_min(1)[:, :, None]
        means = (found[name]["classes.sums"] / counts)[held]
        close = torch.allclose(means, state.clients["prototypes"][held], rtol=0, atol=1e-12)
        assert close == right, name


# The terms of the loss; tests/algorithms/test_hfcd_loops.py compares them with loops


def test_contrast_is_never_negative_and_without_hard_weight_cross_entropy_of_cosines():
    for seed in range(20):
        assert float(contrast_loss(case(seed).context(), 0.05, 0.7, 1.3)) >= 0.0
    c = case(absent=())
    scores = cosines(c.features, c.ctx["global.prototypes"]) / 0.2

    found = contrast_loss(c.context(), 0.2, 0.7, 1.0)

    expected = torch.nn.functional.cross_entropy(scores, c.y)
    assert torch.allclose(found, expected, rtol=0, atol=TINY)


def test_hard_negatives_are_symmetric_present_and_never_the_class_itself():
    c = case()

    hard = hard_negatives(c.ctx["global.similarity"], c.ctx["global.present"], -1.0)

    assert not hard.diagonal().any()
    assert not hard[:, 3].any()
    assert hard[0, [1, 2, 4]].all()


def test_similarity_loss_of_equal_matrices_is_zero_and_else_has_a_gradient():
    """The only gradient runs through the batch's class means."""
    c = case(n=40, absent=())
    assert set(c.y.tolist()) == set(range(5))
    sums, counts = class_sums(c.features, c.y, 5, torch.ones(40, dtype=torch.bool))
    means = sums / counts[:, None]
    c.ctx["global.similarity"] = cosines(means, means).detach()
    bank = c.leaves["prototypes"].requires_grad_()

    equal = similarity_loss(c.context())
    c.ctx["global.similarity"] = torch.eye(5, dtype=torch.float64)
    other = similarity_loss(c.context())
    other.backward()

    assert abs(float(equal.detach())) < TINY
    assert float(other.detach()) > 0
    assert float(c.features.grad.abs().max()) > 0
    assert bank.grad is None


def test_similarity_loss_of_a_client_with_one_class_is_zero():
    c = case()
    c.leaves["counts"] = torch.tensor([4, 0, 0, 0, 0])

    value = similarity_loss(c.context())

    assert float(value.detach()) == 0.0
    assert not torch.autograd.grad(value, c.features)[0].any()


def test_ordinary_distillation_equals_a_loop_and_has_a_constant_teacher():
    c = case()
    present = [k for k in range(5) if k != 3]
    total = 0.0
    for z, o in zip(c.features, c.logits, strict=True):
        teacher = {k: exp(cos(z, c.ctx["global.prototypes"][k]) / 0.2) for k in present}
        student = {k: exp(float(o[k])) for k in present}
        teacher = {k: v / sum(teacher.values()) for k, v in teacher.items()}
        student = {k: v / sum(student.values()) for k, v in student.items()}
        total += sum(teacher[k] * log(teacher[k] / student[k]) for k in present)

    value = ordinary_distillation(c.context(), 0.2)

    assert float(value.detach()) == pytest.approx(total / len(c.y), abs=1e-11)
    assert torch.autograd.grad(value, c.features, allow_unused=True)[0] is None
