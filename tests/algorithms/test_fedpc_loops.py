"""FedPC against loops over the equations of its paper, in float64: the pull, and whole rounds."""

from functools import cache
from math import sqrt

import pytest
import torch
from torch import Tensor

from flbench.algorithms.fedpc import TABLE, class_pull
from flbench.core.types import Tree
from tests.algorithms.loops import (
    BACKBONE,
    CLASSES,
    HEAD,
    KEYS,
    WIDTH,
    Clients,
    assert_equal,
    class_means,
    mean_cross_entropy,
    platform,
    weighted_sum,
)
from tests.losses.support import case
from tests.support import build

ROUNDS, GROUPS = 4, 3
ALPHA, GAMMA = 0.5, 0.5  # section 4 of the paper
FORMS = ("per_sample_mse", "class_mean")

Table = dict[int, Tensor]
"""Prototypes [D] by class."""


def pull_loss(z: Tensor, y: list[int], table: Table, form: str) -> Tensor:
    """L_p: eq. 3 for a batch (class_mean), its mean square, or that over samples and features."""
    if form != "per_sample_mse":
        total = z.sum() * 0
        for k, mean in class_means(z, y).items():
            if k in table:
                squares = (mean - table[k]) ** 2
                is_mean = form == "mse"
                total = total + (squares.mean() if is_mean else (squares.sum() + 1e-12).sqrt())
        return total
    squares = [
        sum((feature[d] - table[k][d]) ** 2 for d in range(len(feature))) / len(feature)
        for feature, k in zip(z, y, strict=True)
        if k in table
    ]
    return sum(squares) / len(squares) if squares else z.sum() * 0


# The pull alone


@pytest.mark.parametrize("form", [*FORMS, "mse"])
@pytest.mark.parametrize("seed", range(2))
def test_pull_equals_the_loop_in_value_and_gradient(seed, form):
    c = case(seed)
    algorithm = build("algorithm=fedpc", f"algorithm.pull={form}").algorithm
    table = {k: c.ctx[TABLE[0]][k] for k in range(5) if c.ctx[TABLE[1]][k]}

    found = algorithm.pull()(c.context())
    [gradient] = torch.autograd.grad(found, c.features)

    expected = pull_loss(c.features, c.y.tolist(), table, form)
    assert_equal(found.detach(), expected.detach(), "value")
    assert_equal(gradient, torch.autograd.grad(expected, c.features)[0], "gradient")


def test_pull_of_class_means_leaves_their_samples_alone():
    """Samples around their prototype: the mean lies on it, and there the gradient is finite."""
    c = case(n=4, absent=())
    around = torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0], [0, 2, 0, 0], [0, -2, 0, 0]]).double()
    c.y = torch.tensor([2, 2, 2, 2])
    c.features = (c.ctx[TABLE[0]][2] + around).requires_grad_()

    value = class_pull(c.context(), False)

    assert float(value.detach()) == pytest.approx(1e-6)  # sqrt(0 + 1e-12)
    assert torch.autograd.grad(value, c.features)[0].abs().max() < 1e-6


# Whole rounds


class Group:
    """What the server keeps of a group: theta^ and P^ of lines 13-14."""

    def __init__(self, backbone: Tree) -> None:
        self.backbone, self.table, self.seen = backbone, {}, False


def similarity(one: Group, other: Group) -> float:
    """M of eq. 5-6, over the classes that both groups have."""
    both = sorted(set(one.table) & set(other.table))
    dot = sum(float(one.table[k] @ other.table[k]) for k in both)
    squares = [sum(float(g.table[k] @ g.table[k]) for k in both) for g in (one, other)]
    lengths = sqrt(squares[0]) * sqrt(squares[1])
    return dot / lengths if lengths > 1e-12 else 0.0


def shares(groups: list[Group], j: int) -> list[float]:
    """rho_j of eq. 5-6: what group j takes from each group."""
    scores = []
    for other_number, other in enumerate(groups):
        if not other.seen:
            scores.append(0.0)
        elif not groups[j].seen or other_number == j:
            scores.append(1.0)
        else:
            scores.append(max(0.0, similarity(groups[j], other)))
    return [score / sum(scores) for score in scores]


def mixed_table(groups: list[Group], rho: list[float]) -> Table:
    """P^(j) of eq. 8, over the groups that have the class."""
    found = {}
    for k in range(CLASSES):
        have = [(share, g.table[k]) for share, g in zip(rho, groups, strict=True) if k in g.table]
        total = sum(share for share, _ in have)
        if total > 0:
            found[k] = sum(share * prototype for share, prototype in have) / total
    return found


def rounds_by_loops(
    clients: Clients, members: list[int], form: str, by_samples: bool
) -> tuple[dict[int, Tree], list[Tree], list[Table], Tree]:
    """Return the clients' heads, theta^(j), P^(j) and the backbone of the global model."""
    backbone = {name: clients.start[name] for name in BACKBONE}
    heads = {i: {name: clients.start[name] for name in HEAD} for i in range(len(clients))}
    groups = [Group(backbone) for _ in range(GROUPS)]
    theta, tables = [backbone] * GROUPS, [{}] * GROUPS
    for t in range(ROUNDS):
        trained, sent = {}, {}
        for i in clients.cohort(t):
            table = tables[members[i]]

            def loss(z, logits, y, table=table):
                pull = pull_loss(z, y, table, form)
                return ALPHA * mean_cross_entropy(logits, y) + GAMMA * pull

            after = clients.train(i, t, theta[members[i]] | heads[i], loss)
            heads[i] = {name: after[name] for name in HEAD}
            trained[i] = {name: after[name] for name in BACKBONE}
            sent[i] = clients.prototypes(i, after)  # eq. 2 with the trained backbone
        for j, group in enumerate(groups):
            mine = [i for i in trained if members[i] == j]
            if not mine:
                continue
            group.seen = True
            weight = {i: clients.size(i) if by_samples else 1 for i in mine}
            parts = [weight[i] / sum(weight.values()) for i in mine]
            group.backbone = weighted_sum([trained[i] for i in mine], parts)
            for k in range(CLASSES):
                held = [i for i in mine if k in sent[i]]
                if held:
                    total = sum(weight[i] for i in held)
                    group.table[k] = sum(weight[i] / total * sent[i][k] for i in held)
        rho = [shares(groups, j) for j in range(GROUPS)]
        theta = [weighted_sum([g.backbone for g in groups], row) for row in rho]
        tables = [mixed_table(groups, row) for row in rho]
    sizes = [sum(clients.size(i) for i in heads if members[i] == j) for j in range(GROUPS)]
    of_all = weighted_sum(theta, [size / sum(sizes) for size in sizes])
    return heads, theta, tables, of_all


@cache
def expected_of(form: str, agg_weights: str, members: tuple[int, ...]):
    """The results of the loops, which do not depend on the engine."""
    clients = Clients(build(*KEYS, "algorithm=fedpc"))
    groups_of_rounds = [{members[i] for i in clients.cohort(t)} for t in range(ROUNDS)]
    assert any(len(groups) < GROUPS for groups in groups_of_rounds)
    return rounds_by_loops(clients, list(members), form, agg_weights == "samples")


def global_model(state) -> Tree:
    """The leaves of the model `gm` in a state of the platform."""
    algorithm = build(*KEYS, "algorithm=fedpc", f"algorithm.groups={GROUPS}").algorithm
    return algorithm.deploy(state, torch.arange(1))["gm"].dispatch.shared.values


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("form", "agg_weights"), [*((form, "uniform") for form in FORMS), (FORMS[0], "samples")]
)
def test_rounds_equal_loops_over_the_equations(form, agg_weights, engine):
    """Four rounds with absent clients and groups; only the groups' members are flbench's."""
    keys = (f"algorithm.groups={GROUPS}", f"algorithm.pull={form}", f"engine.name={engine}")
    keys += (f"algorithm.agg_weights={agg_weights}",)
    state = platform("algorithm=fedpc", *keys, rounds=ROUNDS)
    members = state.server["groups"].tolist()

    heads, theta, tables, of_all = expected_of(form, agg_weights, tuple(members))
    gm = global_model(state)

    for name in HEAD:
        expected = torch.stack([heads[i][name] for i in sorted(heads)])
        assert_equal(state.clients[name], expected, name)
    for name in BACKBONE:
        assert_equal(state.server[name], torch.stack([tree[name] for tree in theta]), name)
        assert_equal(gm[name], of_all[name], f"gm {name}")
    assert set(members) == set(range(GROUPS))
    for j, table in enumerate(tables):
        assert state.server[TABLE[1]][j].tolist() == [k in table for k in range(CLASSES)]
        for k, prototype in table.items():
            assert prototype.shape == (WIDTH,)
            assert_equal(state.server[TABLE[0]][j, k], prototype, f"prototype {k} of group {j}")
