"""FedCMD: votes of batches and mixing against slow loops, bytes, the change of phases."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from flbench.algorithms.fedcmd import majority
from flbench.algorithms.shared.election import smallest
from flbench.core.types import Message, Results, State
from flbench.data import batches
from flbench.experiment.rounds import exchange, settings_of, train
from flbench.models.base import net_leaves
from flbench.testing import after, played
from tests.support import build

KEYS = ("algorithm=fedcmd", "model.name=lenet5", "engine.precision=64-true")
LAYERS = ("backbone.fc1", "backbone.fc2", "head")


def elect(state: State, layer: int) -> State:
    """Return the state at the beginning of phase 2 with l* = LAYERS[layer]."""
    votes = torch.nn.functional.one_hot(torch.tensor(layer), 3).to(torch.int32)
    return replace(
        state, stage=1, stage_round=0, server=state.server | {"votes": votes}, is_initial=False
    )


def unit_mean(values: torch.Tensor) -> float:
    low, high = float(values.min()), float(values.max())
    return float((values.mean() - low) / (high - low)) if high > low else 0.5


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_votes_are_those_of_a_slow_loop_over_batches(engine):
    """With learning rate 0 every batch is scored with the seeded weights."""
    keys = ("train.optimizer.lr=0", "model.norm=none", "train.batch_size=8")
    built = build(*KEYS, *keys, f"engine.name={engine}")
    start = built.start()
    settings = settings_of(built.algorithm, start)

    state, results = played(built, start, torch.arange(5))

    model, federation = built.net.double().eval(), built.federation.to("cpu", torch.float64)
    for name, leaf in net_leaves(model).items():
        leaf.data.copy_(start.server[name])
    seen: dict[int, torch.Tensor] = {}

    def watch(k: int, module, args, out) -> None:
        seen[k], seen[k + 10] = args[0], out

    handles = [
        built.net.get_submodule(name).register_forward_hook(partial(watch, k))
        for k, name in enumerate(LAYERS)
    ]

    def first(equals: list[int]) -> int:
        return 1 if 1 in equals else equals[0]

    expected = []
    for client in range(5):
        rows, votes = federation.partition.parts["train"][client], [0, 0, 0]
        given = client, 0, settings.draw, settings.train
        order = batches.epoch_order(rows, *given, skip_single=False)
        epoch = batches.epoch(federation, order, *given, dtype=torch.float64)
        for batch in epoch:
            with torch.no_grad():
                model(batch.x)
            x, y = unit_mean(batch.x), unit_mean(batch.y.double())
            outputs = [unit_mean(seen[k]) for k in (0, 1, 2, 12)]
            scores = [
                abs(abs(abs(now - y) - abs(before - y)) - abs(abs(now - x) - abs(before - x)))
                for before, now in pairwise(outputs)
            ]
            # Equal scores are the rule: outputs on one side of x and y have s = 0.
            votes[first([k for k in range(3) if scores[k] <= min(scores) + 1e-9])] += 1
        expected.append(first([k for k in range(3) if votes[k] == max(votes)]))
    for handle in handles:
        handle.remove()
    assert results.sent.values["vote"].tolist() == expected
    assert state.server["votes"].tolist() == [expected.count(k) for k in range(3)]


@pytest.mark.parametrize(
    ("votes", "layer"), [([2, 2, 2], 1), ([3, 0, 3], 0), ([0, 3, 3], 1), ([1, 2, 3], 2)]
)
def test_ties_go_to_the_second_layer_then_to_the_lowest(votes, layer):
    assert int(majority(torch.tensor(votes))) == layer


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("behind", ["softmax", "mean"])
def test_mixing_equals_a_slow_loop(layer, behind):
    """Client 3 took no step: it has weight 0 and receives mixed layers all the same."""
    built = build(*KEYS, f"algorithm.behind={behind}")
    algorithm, ids, steps = built.algorithm, [0, 1, 3, 4], [5, 5, 0, 5]
    state = elect(built.start(), layer)
    g = torch.Generator().manual_seed(0)
    rows = {
        name: torch.randn(4, *leaf.shape, generator=g, dtype=leaf.dtype)
        for name, leaf in built.start().server.items()
        if name in algorithm.setting.net.names("all") and leaf.is_floating_point()
    }
    results = Results(
        torch.tensor(ids), torch.tensor(steps), torch.zeros(4), {}, Message(dict(rows)), {}
    )

    update = algorithm.aggregate(state, results)

    order = [one.name for one in algorithm.setting.net.layers]
    sizes = algorithm.setting.sizes[ids].double()
    own = [f"{LAYERS[layer]}.{kind}" for kind in ("weight", "bias")]
    flat = torch.stack([torch.cat([rows[leaf][k].flatten() for leaf in own]) for k in range(4)])
    reply = {} if update.reply is None else update.reply.values
    for name, value in rows.items():
        place = order.index(name.rpartition(".")[0]) - order.index(LAYERS[layer])
        assert (name in update.server) == (place < 0 or (place > 0 and behind == "mean"))
        assert (name in reply) == (place > 0 and behind == "softmax")
        if name in update.server:
            top = sum(sizes[k] * value[k] for k in (0, 1, 3))
            mean = top / sizes[[0, 1, 3]].sum()
            assert torch.allclose(update.server[name], mean, rtol=0, atol=1e-12)
        if name in reply:
            for i in range(4):
                cos = torch.nn.functional.cosine_similarity(flat[i][None], flat[[0, 1, 3]])
                mixed = sum(a * value[k] for a, k in zip(cos.exp(), (0, 1, 3), strict=True))
                assert torch.allclose(reply[name][i], mixed / cos.exp().sum(), rtol=0, atol=1e-12)
    assert update.server["participated"].tolist() == [True, True, False, True, True]


def test_a_round_in_which_no_client_took_a_step_changes_no_weight():
    built = build(*KEYS)
    state = elect(built.start(), 0)
    sent = {name: value[None].expand(2, *value.shape) for name, value in state.server.items()}
    results = Results(torch.arange(2), torch.zeros(2), torch.zeros(2), {}, Message(sent), {})

    update = built.algorithm.aggregate(state, results)

    assert set(update.server) == {"participated"}
    assert update.reply is None


def test_absent_clients_keep_their_layer_and_those_behind_it_and_receive_the_others():
    """l* = fc2. Client 4 is new in phase 2: it has phase 1's model but for the layers before l*."""
    built = build(*KEYS, "train.participation=1")
    first = elect(after(built, 1), 1)
    second, _ = played(built, first, torch.arange(4))
    before = {name: value.clone() for name, value in second.clients.items()}
    third, _ = played(built, second, torch.tensor([0, 1]))

    settings = settings_of(built.algorithm, second)
    models = list(built.evaluator(print).deployed(third, settings))

    assert set(built.algorithm.deploy(third, torch.arange(5))) == {"personal"}
    for client in (2, 3, 4):
        for name in built.algorithm.setting.net.names("all"):
            late = name.startswith(("backbone.fc2", "head"))
            expected = third.server[name]
            if late:
                expected = before[name][client] if client != 4 else first.server[name]
            assert torch.equal(models[client][name], expected), (client, name)
    assert not torch.equal(before["head.weight"][2], before["head.weight"][3])


@pytest.mark.slow
def test_bytes_of_both_phases_are_those_of_the_table():
    """Down | up: w | w and a vote, then w - l* | w; a new client in phase 2 receives l* once."""
    built = build("algorithm=fedcmd", "model.name=lenet5", "train.participation=1")
    sizes = {"fc1": 16 * 120 + 120, "fc2": 120 * 84 + 84, "head": 84 * 10 + 10}
    rest = (25 * 6 + 6) + 12 + (6 * 25 * 16 + 16) + 32
    w = 4 * (rest + sum(sizes.values())) + 4 * 44 + 2 * 8

    costs, state = [], built.start()
    for number in range(3):
        settings = settings_of(built.algorithm, state)
        trained = train(built.algorithm, built.engine, state, settings)
        over = exchange(built.algorithm, state, trained)
        costs.append((over.costs["down_bytes"] / 5, over.costs["up_bytes"] / 5))
        state = elect(over.state, 0) if number == 0 else over.state

    behind = 4 * (sizes["fc2"] + sizes["head"])
    assert costs[0] == (0, w + 4)
    assert costs[1] == (w + behind, w)  # phase 1's model, then the mixed layers
    assert costs[2] == (w - 4 * sizes["fc1"], w)


def test_scores_that_differ_by_rounding_are_equal():
    scores = torch.tensor([2e-17, 0.0, 0.3], dtype=torch.float64)

    assert smallest(scores).tolist() == [1, 1, 0]
    assert smallest(scores + torch.tensor([1e-6, 0, 0])).tolist() == [0, 1, 0]


def test_without_a_vote_the_classifier_is_personal():
    built = build(*KEYS)

    assert built.algorithm.personal_layer(built.start()).name == "head"
