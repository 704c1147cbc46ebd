"""CFL: FedAvg without splits, the correct halves of a split, and clients found by id."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from flbench.algorithms.cfl import bipartition
from flbench.algorithms.shared.mixing import pairwise_cosines
from flbench.core.types import Message, Results, State
from flbench.experiment.new_clients import NewClients
from flbench.testing import played
from tests.algorithms.plain import EPOCHS, FULL, Plain
from tests.support import build, write_npz

SPLITS = ("algorithm.eps1=100", "algorithm.eps2=0", "algorithm.start_round=0")


# The server alone, with updates made by hand: rows of the last bias, all other leaves stay.


def server(*overrides: str, clients: int = 8):
    built = build("algorithm=cfl", f"partition.clients={clients}", *SPLITS, *overrides)
    return built.algorithm, replace(built.start(), is_initial=False)


def after(algorithm, state: State, updates: dict[int, list[float]], steps: int = 1) -> State:
    """The state after a round in which these clients moved the last bias so."""
    ids = torch.tensor(sorted(updates))
    names = algorithm.setting.net.parameters
    sent = {name: state.server[name][state.server["cluster"][ids]].clone() for name in names}
    for row, client in enumerate(ids.tolist()):
        values = torch.tensor(updates[client])
        sent["head.bias"][row, : len(values)] += values
    results = Results(
        ids, torch.full_like(ids, steps), torch.zeros(len(ids)), {}, Message(sent), {}
    )
    update = algorithm.aggregate(state, results)
    return replace(state, server=state.server | update.server, round=state.round + 1)


def groups(state: State) -> set[frozenset[int]]:
    cluster = state.server["cluster"].tolist()
    return {frozenset(np.flatnonzero(np.equal(cluster, c)).tolist()) for c in set(cluster)}


A, B, C = (1, 4, 6), (0, 2), (3, 5, 7)


def each(a, b, c, who=lambda i: i) -> dict[int, list[float]]:
    """One update for the clients of each group."""
    return {who(i): v for group, v in ((A, a), (B, b), (C, c)) for i in group}


def two_splits(algorithm, state: State, who=lambda i: i) -> State:
    """A against B and C first; then B against C, while A agrees with itself."""
    for updates in (
        ([0.01, 0, 0],) * 3,  # all updates agree
        ([2.0, 0, 0], [0, 2.0, 1.9], [0, 1.9, 2.0]),
        ([0.5, 0.1, 0], [0, 1.0, -1], [0, -1.0, 1]),
    ):
        state = after(algorithm, state, each(*updates, who))
    return state


APART = each([2.0, 0.5], [0.5, 2.0], [0.5, 2.0])


@pytest.mark.parametrize(
    ("keys", "splits"),
    [
        ((), True),
        (("algorithm.eps1=1",), False),  # the mean is ||(8.5, 12.5) / 8|| = 1.9
        (("algorithm.eps2=2.1",), False),  # the largest is ||(2, 0.5)|| = 2.06
        (("algorithm.eps1=2", "algorithm.eps2=2"), True),
        (("algorithm.start_round=1",), True),
        (("algorithm.start_round=2",), False),
        (("algorithm.min_size=8",), False),
        (("algorithm.min_size=7",), True),
        (("algorithm.eps1=null", "algorithm.eps2=null"), False),  # 0.4 and 1.6
    ],
)
def test_cluster_splits_only_where_all_conditions_hold(keys, splits):
    algorithm, state = server(*keys)

    state = after(algorithm, replace(state, round=1), APART)

    assert (len(groups(state)) == 2) == splits


@pytest.mark.parametrize(("earlier", "splits"), [(25.0, True), (15.0, False)])
def test_relative_thresholds_are_shares_of_the_largest_mean_norm(earlier, splits):
    """1.9 is below 0.1 of 25 and not below 0.1 of 15; eps2 is switched off."""
    keys = ("algorithm.thresholds=relative", "algorithm.eps1=null", "algorithm.eps2=0")
    algorithm, state = server(*keys)

    state = after(algorithm, state, each(*([earlier],) * 3))
    assert float(state.server["peak"][0]) == pytest.approx(earlier, rel=1e-5)
    state = after(algorithm, state, APART)

    assert (len(groups(state)) == 2) == splits
    assert state.server["peak"].tolist() == pytest.approx([earlier] * (1 + splits), rel=1e-5)


def test_cluster_waits_until_four_fifths_have_an_update():
    """Ten clients: seven are too few, eight are enough."""
    algorithm, state = server(clients=10)
    apart = {i: [0, 1.0] if i in (2, 5, 6) else [1.0, 0] for i in range(8)}

    for count, parts in ((7, 1), (8, 2)):
        some = {i: apart[i] for i in range(count)}
        assert len(groups(after(algorithm, replace(state, round=1), some))) == parts


def test_clusters_without_a_step_stay_as_they_were():
    """A client without an optimizer step has no update."""
    algorithm, state = server()
    state = after(algorithm, replace(state, round=1), APART)

    idle = after(algorithm, state, {0: [5.0]}, steps=0)

    for name, value in idle.server.items():
        assert torch.equal(value, state.server[name]), name


def complete_linkage(cosines: Tensor) -> set[frozenset[int]]:
    """Merge the two groups whose least similar members are most similar, until two are left."""
    parts = [frozenset((i,)) for i in range(len(cosines))]
    while len(parts) > 2:
        worst = {
            (a, b): min(float(cosines[i, j]) for i in a for j in b)
            for k, a in enumerate(parts)
            for b in parts[:k]
        }
        a, b = max(worst, key=worst.__getitem__)
        parts = [part for part in parts if part not in (a, b)] + [a | b]
    return set(parts)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "weights"), [(0, "uniform"), (1, "samples")])
def test_rounds_equal_a_loop(start, weights):
    """Every client's model; a split happens in the first round that allows it.

    Each part then takes the mean of its own participants, and a part without one stays as it was.
    """
    most, coverage, clients, rounds = 1, 0.5, 8, 7
    built = build(
        *("algorithm=cfl", "model.name=mlp", *FULL, f"train.rounds={rounds}"),
        *(f"partition.clients={clients}", "algorithm.eps1=100", "algorithm.eps2=0"),
        *(f"algorithm.start_round={start}", f"algorithm.max_age={most}"),
        *(f"algorithm.coverage={coverage}", f"algorithm.agg_weights={weights}"),
    )
    plain, names = Plain(built), built.algorithm.setting.net.parameters
    parts, models = [list(range(clients))], [plain.start()]
    latest, seen, splits, without = {}, {}, [], 0
    state = built.start()
    for t in range(rounds):
        sent = {}
        of = {i: c for c, part in enumerate(parts) for i in part}
        for i in plain.cohort(t):
            sent[i] = models[of[i]]
            for _ in range(EPOCHS):
                sent[i] = plain.step(sent[i], i, names)
            change = [(sent[i][n] - models[of[i]][n]).flatten() for n in names]
            latest[i], seen[i] = torch.cat(change), t
        for c, part in enumerate(list(parts)):
            known = [i for i in part if i in seen and t - seen[i] <= most]
            if t < start or not set(part) & set(sent) or len(part) <= 2:
                continue
            if len(known) < coverage * len(part):
                continue
            unit = [latest[i] / latest[i].norm() for i in known]
            halves = complete_linkage(torch.stack(unit) @ torch.stack(unit).T)
            first, second = ({known[k] for k in half} for half in halves)
            larger = first if len(first) > len(second) else second
            if len(first) == len(second):  # the part of the first known client
                larger = first if known[0] in first else second
            larger |= set(part) - set(known)
            stays, leaves = (first, second) if known[0] in first else (second, first)
            parts[c] = sorted(stays)
            parts.append(sorted(leaves))
            models.append(models[c])
            splits.append(t)
        for c, part in enumerate(parts):
            mine = {i: sent[i] for i in part if i in sent}
            without += not mine
            models[c] = plain.mean(mine, uniform=weights == "uniform") if mine else models[c]

        state, _ = played(built, state)

        assert groups(state) == {frozenset(part) for part in parts}
        rows = built.algorithm.dispatch(state, torch.arange(clients)).rows.values
        for c, part in enumerate(parts):
            for i in part:
                for name in names:
                    assert torch.allclose(rows[name][i], models[c][name], rtol=0, atol=1e-12)
    assert splits[0] == start < splits[-1]  # several splits, which go by ids
    assert without > 0


def test_bipartition_equals_a_plain_complete_linkage():
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        updates = {n: torch.randn(7, *s, generator=g) for n, s in (("a", (2, 2)), ("b", (1,)))}

        side = bipartition(updates)

        halves = {frozenset(np.flatnonzero(side == k).tolist()) for k in (True, False)}
        assert halves == complete_linkage(pairwise_cosines(updates, updates))
        assert not side[0]


def test_bipartition_with_ties_and_few_clients():
    """Two orthogonal pairs tie at the top; two clients part unless they agree, one never does."""
    eye = {"a": torch.eye(4)[[0, 0, 1, 2]]}

    assert 1 <= int(bipartition(eye).sum()) <= 2
    assert bipartition({"a": torch.eye(2)}).tolist() == [False, True]
    assert bipartition({"a": torch.tensor([[1.0, 2, 3], [2, 4, 6]])}).tolist() == [False, False]
    assert bipartition({"a": torch.ones(1, 3)}).tolist() == [False]


def federation(tmp_path, order=(0, 1, 2, 3, 4, 5)):
    """Six clients of one data set; labels of clients 1, 3 and 5 are turned around."""
    base = np.arange(120) // 4 % 6
    labels = np.arange(120) % 4
    labels = np.where(base % 2 == 1, 3 - labels, labels)
    data = write_npz(
        tmp_path / "groups.npz", train_groups=np.array(order)[base], train_labels=labels[:, None]
    )
    return (
        f"data.path={data}",
        "partition.scheme=natural",
        "partition.clients=null",
        "partition.split=[1,0,0]",
        "train.batch_size=64",
        "train.optimizer.lr=0.1",
        "engine.precision=64-true",
    )


def test_new_clients_go_down_the_tree_of_splits():
    """Updates like those of A, B or C at both splits lead to the cluster of A, B or C."""
    algorithm, state = server()
    who = [1, 0, 2, 3, 4, 5, 6, 7]  # client 0 is in A, so that the second split is of cluster 1
    state = two_splits(algorithm, state, who.__getitem__)
    cluster, parameters = state.server["cluster"], algorithm.setting.net.parameters
    first, second = (
        ([2.0, 0, 0], [0, 2.0, 1.9], [0, 1.9, 2.0]),
        ([1.0, 0, 0], [0, 1, -1], [0, -1, 1]),
    )
    sent = {}
    for s, updates in enumerate((first, second)):
        for name in parameters:
            rows = torch.zeros(3, *state.server[name].shape[1:])
            if name == "head.bias":
                rows[:, :3] = torch.tensor(updates)
            sent[f"tried.{s}.{name}"] = rows
    ids = torch.tensor([0, 1, 2])  # in place of new ids
    results = Results(ids, ids, torch.zeros(3), {}, Message(sent), {})

    joining = algorithm.join(state, ids)
    found = joining.aggregate(state, results).server["cluster"]

    assert len(state.server["tree"]) == 2
    assert found[ids].tolist() == [int(cluster[who[group[0]]]) for group in (A, B, C)]
    assert torch.equal(found[3:], cluster[3:])
    assert joining.program.sends == sent.keys()
    # The models that it tries are those of the splitting clusters at that time: the second one has
    # taken 0.01 and then the mean of B and C.
    models = state.server["tree.w.head.bias"][:, :3] - server()[1].server["head.bias"][0, :3]
    expected = torch.tensor([[0.01, 0, 0], [0.01, 9.7 / 5, 9.8 / 5]])
    assert torch.allclose(models, expected, rtol=0, atol=1e-6)


def test_a_new_client_joins_those_with_labels_like_its_own(tmp_path):
    """Two of six clients are held out; each is served by the cluster of its kind."""
    keys = federation(tmp_path)
    built = build(
        "algorithm=cfl",
        "model.name=logistic",
        *SPLITS,
        "algorithm.min_size=3",
        *keys,
        "partition.new_clients=2",
        "evaluation.adapt.finetune_epochs=[0]",
    )
    state = built.start()
    for _ in range(3):
        state, _ = played(built, state)
    clients = NewClients(built, print)

    grown, adapts, *_ = clients._join(clients.grown(state))
    rows = built.federation.with_new_clients().partition.parts["train"]
    odd = torch.tensor([int(mine[0]) // 4 % 2 == 1 for mine in rows])  # labels turned around
    cluster = grown.server["cluster"]

    assert adapts
    assert len(set(cluster[odd].tolist())) == len(set(cluster[~odd].tolist())) == 1
    assert set(cluster.tolist()) == {0, 1}
