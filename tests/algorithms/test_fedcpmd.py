"""FedCPMD: its votes and its mixing against slow loops, bytes, cohorts, the change of phases."""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from flbench.algorithms.fedcpmd import elected
from flbench.algorithms.shared.shift import DISTANCES, Gaussian
from flbench.core.rng import Draw
from flbench.core.types import Message, Results, State, Tree
from flbench.experiment.rounds import exchange, settings_of, train
from flbench.models.base import net_leaves
from flbench.results import metrics_file
from flbench.testing import after, played
from tests.support import build, run

KEYS = ("algorithm=fedcpmd", "model.name=lenet5", "engine.precision=64-true", "algorithm.k_p=1")
FULL = (*KEYS, "train.participation=1")
LAYERS = ("backbone.fc1", "backbone.fc2", "head")


def layer_of(name: str) -> int | None:
    """Return the number of a leaf's candidate layer; None for the rest of the body."""
    found = [k for k, layer in enumerate(LAYERS) if name.startswith(f"{layer}.")]
    return found[0] if found else None


def elect(state: State, layers: list[int | None]) -> State:
    """Return the state in which client i has voted once, for layers[i]."""
    votes = torch.zeros_like(state.server["votes"])
    for client, layer in enumerate(layers):
        if layer is not None:
            votes[client, layer] = 1
    return replace(state, server=state.server | {"votes": votes})


# The vote


def raw_gaussian(values: torch.Tensor) -> tuple[float, float]:
    return float(values.mean()), max(1e-3, float(values.std(correction=0)))


def gaussian(values: torch.Tensor) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return 0.5, 1e-3
    scaled = (values - low) / (high - low)
    return float(scaled.mean()), max(1e-3, float(scaled.std(correction=0)))


def distance(name: str, p: tuple[float, float], q: tuple[float, float]) -> float:
    """A distance of flbench; shared/test_shift.py compares them with quadratures."""
    return float(DISTANCES[name](*(Gaussian(*torch.tensor(one).double()) for one in (p, q))))


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("net", "name", "scale"),
    [("lenet5", "js", "channels"), ("mlp", "wasserstein", "raw")],
)
def test_scores_are_those_of_a_slow_loop_over_samples(engine, net, name, scale):
    """Eq. 7 is computed with hooks, sample by sample.

    It has the pixels of the file in [0, 1], or, without scaling, the inputs of the net.
    """
    keys = (f"model.name={net}", f"engine.name={engine}", f"algorithm.distance={name}")
    built = build(*FULL, *keys, f"algorithm.inputs={scale}")
    state = after(built, 1)
    model, federation = built.net.double().eval(), built.federation.to("cpu", torch.float64)
    layers = [built.net.get_submodule(name) for name in LAYERS]
    seen: dict[int, list[torch.Tensor]] = {}

    def watch(k: int, module, args, out) -> None:
        seen.setdefault(k, []).append(args[0].flatten())
        seen.setdefault(k + 10, []).append(out.flatten())

    handles = [layer.register_forward_hook(partial(watch, k)) for k, layer in enumerate(layers)]
    for client in range(5):
        seen.clear()
        for leaf_name, leaf in net_leaves(model).items():
            leaf.data.copy_(state.clients[leaf_name][client])
        rows = federation.partition.parts["train"][client]
        inputs = [federation.inputs([row], torch.float64) for row in rows]
        with torch.no_grad():
            for sample in inputs:
                model(sample)
        labels = federation.y[torch.from_numpy(rows)].double()
        outputs = [torch.cat(seen[k]) for k in (0, 1, 2, 12)]
        if scale == "raw":
            x, y = raw_gaussian(torch.cat(inputs)), raw_gaussian(labels)
            outputs = [raw_gaussian(values) for values in outputs]
        else:
            x = gaussian(built.federation.x[rows].double() / 16)
            y = raw_gaussian(labels / 9)
            outputs = [gaussian(values) for values in outputs]
        gap = [distance(name, o, y) - distance(name, o, x) for o in outputs]
        scores = [abs(later - first) for first, later in pairwise(gap)]

        assert state.server["score_sums"][client].tolist() == pytest.approx(scores, abs=1e-6)
        assert state.server["votes"][client].tolist() == [
            int(k == scores.index(min(scores))) for k in range(3)
        ]
    for handle in handles:
        handle.remove()


# Phase 1


def settings_of_last(built, state: State):
    return settings_of(built.algorithm, replace(state, round=state.round - 1))


@pytest.mark.slow
def test_layer_with_most_votes_so_far_is_personal_in_phase_1_if_configured():
    """Algorithm 2, line 13; a client without a vote keeps the classifier."""
    built = build(*FULL, "algorithm.k_p=3", "algorithm.phase1_personal=majority")
    first, _ = played(built, built.start())
    layers = [0, 0, 1, 2, 2]
    state = elect(first, layers)
    rows = built.algorithm.dispatch(state, torch.arange(5)).rows

    second, _ = played(built, state)

    sizes = built.federation.sizes.double()
    assert torch.equal(first.server["head.weight"], built.start().server["head.weight"])
    for client, layer in enumerate(layers):
        for name in (f"{candidate}.weight" for candidate in LAYERS):
            sent = layer_of(name) != layer
            assert bool(rows.mask[name][client]) == sent
    for name in (f"{candidate}.weight" for candidate in LAYERS):
        some = [k for k in range(5) if layers[k] != layer_of(name)]
        mean = sum(sizes[k] * second.clients[name][k] for k in some) / sizes[some].sum()
        assert torch.allclose(second.server[name], mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rounds", [3, 4])
def test_coverage_selects_clients_without_a_vote_in_the_last_rounds_of_phase_1(rounds):
    """With two of five clients per round, three rounds are just enough for all."""
    keys = (*KEYS, "train.participation=0.4", f"algorithm.k_p={rounds}", "train.rounds=9")
    built = build(*keys)
    state, votes = built.start(), torch.zeros(5, 3, dtype=torch.int32)

    for turn in range(rounds):
        state = replace(state, stage_round=turn, round=turn, server=state.server | {"votes": votes})
        draw = Draw(3, (turn,), 5)
        ids = built.algorithm.cohort(state, draw)

        assert len(set(ids.tolist())) == 2
        assert ids.tolist() == sorted(ids.tolist())
        if turn == 0 and rounds == 4:
            assert torch.equal(ids, draw.cohort(0.4))
        votes = votes.clone()
        votes[ids, 0] += 1

    assert bool((votes.sum(dim=1) > 0).all())


# The change of phases


def test_new_client_receives_the_body_of_phase_1_except_for_its_own_layer():
    """Client 0 has participated in phase 2; clients 1 to 3 have voted; client 4 has not."""
    built = build(*FULL)
    built_state = elect(after(built, 1), [0, 0, 2, 1, None])
    participated = torch.tensor([True, False, False, False, False])
    state = replace(built_state, server=built_state.server | {"participated": participated})

    models = list(built.evaluator(print).deployed(state, settings_of_last(built, state)))

    assert state.stage == 1
    for name in built.algorithm.setting.net.names("all"):
        own, body = state.clients[name], state.server.get(name)
        for client, layer in ((0, None), (1, 0), (2, 2), (3, 1), (4, 2)):
            from_server = client != 0 and layer_of(name) not in (2, layer)
            expected = body if from_server else own[client]
            assert torch.equal(models[client][name], expected), (client, name)


# Phase 2


def mixed(layers, ids, rows, sizes, steps, option) -> dict[str, list]:
    """Compute eq. 12 and 13, or eq. 5, by loops over clients and leaves."""
    result = {}
    for name in rows:
        result[name] = []
        for a, i in enumerate(ids):
            if layers[i] == layer_of(name) and option != "only_cluster":
                result[name].append(None)  # phi stays
                continue
            top, bottom = torch.zeros_like(rows[name][0]), 0.0
            for b, j in enumerate(ids):
                if layers[i] != layers[j]:
                    continue
                if option == "only_cluster":
                    weight = float(sizes[j])
                else:
                    own = [f"{LAYERS[layers[i]]}.{kind}" for kind in ("weight", "bias")]
                    p = torch.cat([rows[leaf][a].flatten() for leaf in own])
                    q = torch.cat([rows[leaf][b].flatten() for leaf in own])
                    weight = float(p @ q) / (float(p.norm()) * float(q.norm()) + 1e-8)
                    weight = 1.0 if i == j else max(0.0, weight)
                if steps[b] == 0 and (i != j or option == "only_cluster"):
                    continue
                top, bottom = top + weight * rows[name][b], bottom + weight
            result[name].append(top / bottom if bottom > 1e-8 else rows[name][a])
    return result


def server_of(built, layers, ids, seed: int = 0):
    """Return phase 2 with random uploads; in layer 2 client 4 is the negative of client 2."""
    algorithm = built.algorithm
    state = elect(replace(built.start(), stage=1, stage_round=0, round=1), layers)
    g = torch.Generator().manual_seed(seed)
    rows = {}
    for name, leaf in state.clients.items():
        if leaf.is_floating_point():
            rows[name] = torch.randn(len(ids), *leaf.shape[1:], generator=g, dtype=leaf.dtype)
    for name in ("head.weight", "head.bias"):
        rows[name] += 0.5
        if 4 in ids and 2 in ids:
            rows[name][ids.index(4)] = -rows[name][ids.index(2)]
    return algorithm, state, rows


@pytest.mark.parametrize("option", ["none", "only_cluster"])
def test_mixing_is_equation_12_and_13_by_a_slow_loop(option):
    """Client 5 is alone in its cluster; client 3 took no step."""
    layers, ids = [0, 0, 2, 2, 2, 1, 0], [0, 1, 2, 3, 4, 5]
    built = build(*KEYS, "partition.clients=7", f"algorithm.ablation={option}")
    algorithm, state, rows = server_of(built, layers, ids)
    steps = torch.tensor([5, 5, 5, 0, 5, 5])
    results = Results(torch.tensor(ids), steps, torch.zeros(6), {}, Message(dict(rows)), {})

    update = algorithm.aggregate(state, results)

    sizes = algorithm.setting.sizes.tolist()
    expected = mixed(layers, ids, rows, sizes, steps.tolist(), option)
    assert update.reply is not None
    for name, values in expected.items():
        for k in range(len(ids)):
            inside = bool(update.reply.mask[name][k])
            assert inside == (values[k] is not None), (name, k)
            if inside:
                close = torch.allclose(update.reply.values[name][k], values[k], rtol=0, atol=1e-9)
                assert close, (name, k)
    if option == "none":
        assert torch.equal(
            update.reply.values["backbone.conv1.weight"][5], rows["backbone.conv1.weight"][5]
        )
    assert update.server["participated"].tolist() == [True] * 6 + [False]
    assert [update.metrics[f"members_{name}"] for name in ("fc1", "fc2", "head")] == [3, 1, 3]
    assert [update.metrics[f"active_{name}"] for name in ("fc1", "fc2", "head")] == [2, 1, 3]


@pytest.mark.slow
def test_whole_models_of_one_cluster_averaged_are_fedavg():
    """Without votes there is one cluster, in which `only_cluster` averages all layers."""
    keys = ("model.name=lenet5", "engine.precision=64-true", "train.participation=1")
    mine = ("algorithm.k_p=0", "algorithm.ablation=only_cluster")

    fedavg = after(build("algorithm=fedavg", *keys), 3)
    fedcpmd = after(build("algorithm=fedcpmd", *keys, *mine), 3)

    for name, value in fedavg.server.items():
        assert torch.allclose(
            fedcpmd.clients[name].double(), value.double().expand(5, *value.shape), atol=1e-12
        ), name


def test_cohort_has_its_share_of_every_cluster():
    keys = (*KEYS, "partition.clients=10", "train.participation=0.4")
    layers = [0, 0, 0, 0, 0, 0, 0, 2, 2, 1]
    built = build(*keys)
    state = elect(replace(built.start(), stage=1), layers)

    ids = built.algorithm.cohort(state, Draw(0, (4,), 10))

    assert ids.tolist() == sorted(set(ids.tolist()))
    assert torch.tensor(layers)[ids].bincount(minlength=3).tolist() == [3, 1, 1]
    assert not torch.equal(ids, built.algorithm.cohort(state, Draw(0, (5,), 10)))


# Bytes


@pytest.mark.slow
def test_bytes_of_both_phases_are_those_of_the_table():
    """Down | up: body | body, vote and a score per layer, then w - l*_i | w."""
    keys = ("algorithm=fedcpmd", "model.name=lenet5", "algorithm.k_p=2", "train.participation=1")
    built = build(*keys)
    layers = [0, 0, 1, 2, 2]
    size = {0: 16 * 120 + 120, 1: 120 * 84 + 84, 2: 84 * 10 + 10}
    rest = (25 * 6 + 6) + 12 + (6 * 25 * 16 + 16) + 32
    w = 4 * (rest + sum(size.values())) + 4 * 44 + 2 * 8  # statistics, two counters
    body = w - 4 * size[2]

    costs, state = [], built.start()
    for number in range(4):
        settings = settings_of(built.algorithm, state)
        over = exchange(
            built.algorithm, state, train(built.algorithm, built.engine, state, settings)
        )
        costs.append((over.costs["down_bytes"], over.costs["up_bytes"]))
        state = elect(over.state, layers) if number == 1 else over.state
    without_own = sum(w - 4 * size[layer] for layer in layers)
    first_contact = sum(body - (4 * size[layer] if layer != 2 else 0) for layer in layers)

    assert costs[0] == (0, 5 * (body + 4 + 3 * 4))  # the seeded start is free
    assert costs[1] == (5 * body, 5 * (body + 4 + 3 * 4))
    assert costs[2] == (first_contact + without_own, 5 * w)
    assert costs[3] == (without_own, 5 * w)
    assert over.metrics["phi_bytes"] == sum(4 * size[layer] for layer in layers)


# What is evaluated, what is refused


@pytest.mark.slow
def test_paper_evaluation_is_that_of_a_rounds_clients_at_three_moments(tmp_path):
    """Round by round and sample by sample: two rounds of votes, two with clusters."""
    keys = ("algorithm=fedcpmd", "model.name=lenet5", "algorithm.k_p=2", "train.rounds=4")
    keys = (*keys, "partition.clients=10", "train.participation=0.4", "evaluation.every=4")
    keys = (*keys, "partition.samples=null")
    path, _ = run(tmp_path, *keys, "algorithm.paper_evaluation=true")
    rows = metrics_file.read(path / "metrics.csv")
    found = {
        (row.round, row.protocol): row.value
        for row in rows
        if row.split == "test" and row.metric == "accuracy_group_mean"
    }
    built = build(*keys)
    algorithm, state = built.algorithm, built.start()
    net, federation = built.net.eval(), built.federation.to("cpu", torch.float32)

    @torch.no_grad()
    def mean_over_clusters(models: dict[int, Tree], cluster_of: list[int]) -> float:
        right: Counter[int] = Counter()
        total: Counter[int] = Counter()
        for client, leaves in models.items():
            for name, leaf in net_leaves(net).items():
                leaf.data.copy_(leaves[name])
            for row in federation.partition.parts["test"][client]:
                logits = net(federation.inputs([row], torch.float32)).logits
                right[cluster_of[client]] += int(logits.argmax()) == int(federation.y[row])
                total[cluster_of[client]] += 1
        return sum(right[cluster] / total[cluster] for cluster in total) / len(total)

    clusters = set()
    for number in range(1, 5):
        cluster_of = [0] * 10
        if number > 2:
            cluster_of = elected(state.server).tolist()
        settings = settings_of(algorithm, state)
        before = list(built.evaluator(print).deployed(state, settings))
        trained = train(algorithm, built.engine, state, settings)
        ids = trained.results.ids.tolist()
        local = trained.results.kept | trained.results.sent.values
        state = exchange(algorithm, state, trained).state
        over = list(built.evaluator(print).deployed(state, settings))

        moments = {
            "personal@before": {i: before[i] for i in ids},
            "personal@local": {
                i: {name: leaf[k] for name, leaf in local.items()} for k, i in enumerate(ids)
            },
            "personal@aggregated": {i: over[i] for i in ids},
        }
        for protocol, models in moments.items():
            expected = mean_over_clusters(models, cluster_of)
            assert found[number, protocol] == pytest.approx(expected, abs=1e-12), (number, protocol)
        clusters |= {cluster_of[i] for i in ids}

    assert len(clusters) > 1
    assert len({found[4, protocol] for protocol in moments}) == 3
