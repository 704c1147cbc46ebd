"""What all decentralized methods share, tested with DFedAvg."""

import pytest
import torch

from flbench.algorithms.shared.topology import graph_of
from flbench.core.tree import only, put_
from flbench.experiment import rounds
from flbench.testing import after, played
from tests.algorithms.test_dfedhp import SMALL
from tests.support import build

DOUBLE = "engine.precision=64-true"
METHOD = "algorithm=dfedavg"


def trained(built, state):
    settings = rounds.settings_of(built.algorithm, state)
    return rounds.train(built.algorithm, built.engine, state, settings)


@pytest.mark.slow
def test_complete_network_is_fedavg_with_uniform_weights():
    """BatchNorm's statistics and counters included."""
    keys = ("model.name=lenet5", DOUBLE)
    complete = ("algorithm.topology=complete", "algorithm.mixing=metropolis")
    fedavg = after(build("algorithm=fedavg", "algorithm.agg_weights=uniform", *keys), 3)

    gossip = after(build(METHOD, *complete, *keys), 3)

    for name, value in fedavg.server.items():
        for mine in (gossip.server[name], *gossip.clients[name]):
            assert torch.allclose(mine.double(), value.double(), rtol=0, atol=1e-12), name


@pytest.mark.parametrize("topology", ["star", "random"])
def test_round_is_a_loop_over_neighbours_and_what_they_sent(topology):
    """All clients mix at once, from the models before mixing; absent clients keep theirs."""
    keys = ("partition.clients=6", "train.participation=0.7", "algorithm.neighbours=2", DOUBLE)
    built = build(METHOD, f"algorithm.topology={topology}", *keys)
    state = after(built, 1)
    before = {name: value.clone() for name, value in state.clients.items()}
    done = trained(built, state)
    ids = done.results.ids.tolist()

    now = rounds.exchange(built.algorithm, state, done).state

    draw = rounds.settings_of(built.algorithm, state).draw
    graph = graph_of(built.algorithm.config, draw, done.results.ids)
    for name, sent in done.results.sent.values.items():
        for i, client in enumerate(ids):
            heard = [sent[j] for j in range(len(ids)) if bool(graph[i, j])] + [sent[i]]
            assert torch.allclose(now.clients[name][client], sum(heard) / len(heard), atol=1e-12)
        for client in set(range(6)) - set(ids):
            assert torch.equal(now.clients[name][client], before[name][client])


def test_gm_is_the_mean_of_all_models():
    keys = ("train.participation=0.6", "partition.clients=7", "algorithm.neighbours=2", DOUBLE)
    built = build(METHOD, "model.name=lenet5", *keys)

    state = after(built, 3)

    gm = built.algorithm.deploy(state, torch.arange(1))["gm"].dispatch.shared.values
    assert set(gm) == built.algorithm.setting.net.names("all")
    for name, value in gm.items():
        rows = state.clients[name]
        expected = rows.mean(dim=0) if rows.is_floating_point() else rows.amax(dim=0)
        assert torch.allclose(value, expected, atol=1e-12), name


def test_there_is_no_gm_where_a_part_is_kept():
    built = build(METHOD, "model.name=lenet5", "train.batchnorm=local")

    assert not built.start().server
    assert set(built.algorithm.deploy(after(built, 1), torch.arange(5))) == {"personal"}


def test_client_that_diverges_neither_sends_nor_mixes():
    """Its row stays; the others mix among themselves."""
    built = build(METHOD, "algorithm.topology=complete", DOUBLE)
    state = built.start()
    for value in state.clients.values():
        value[1] = 1e200

    now, results = played(built, state)

    assert results.ids.tolist() == [0, 2, 3, 4]
    for name, value in now.clients.items():
        assert bool((value[1] == 1e200).all())
        assert torch.allclose(value[2], results.sent.values[name].mean(dim=0), atol=1e-12)


def test_star_without_its_hub_leaves_every_client_alone():
    """A star without its hub: everyone trains alone in that round, and it is counted."""
    built = build(METHOD, "algorithm.topology=star", "partition.clients=6", DOUBLE)
    state = after(built, 1)
    settings = rounds.settings_of(built.algorithm, state)
    ids = torch.tensor([1, 2, 5])
    done = rounds.train(built.algorithm, built.engine, state, settings, ids=ids)

    over = rounds.exchange(built.algorithm, state, done)

    assert over.metrics == {"peers": 0.0, "isolated": 3.0}
    assert over.costs["peer_bytes"] == 0
    for name, sent in done.results.sent.values.items():
        assert torch.equal(over.state.clients[name][ids], sent)


@pytest.mark.parametrize("method", ["dfedavg", "dispfl-hp"])
@pytest.mark.slow
def test_models_before_mixing_are_evaluated_with_after_training(method):
    """The models are those last trained; training and mixing are the same as without the key."""
    keys = (f"algorithm={method}", "model.name=lenet5", DOUBLE)
    keys += SMALL if "hp" in method else ()
    keys += ("train.participation=0.6", "algorithm.topology=complete", "partition.clients=4")
    plain, asked = build(*keys), build(*keys, "algorithm.after_training=true")
    unmixed = plain.start()
    state, same = plain.start(), asked.start()
    for _ in range(2):
        done = trained(plain, state)
        known = only({**done.results.kept, **done.results.sent.values}, unmixed.clients)
        put_(unmixed.clients, done.results.ids, known)
        state = rounds.exchange(plain.algorithm, state, done).state
        same, _ = played(asked, same)
    settings = rounds.settings_of(plain.algorithm, state)

    expected, found, mixed = (
        list(built.evaluator(print).deployed(after_, settings))
        for built, after_ in ((plain, unmixed), (asked, same), (plain, state))
    )

    for name, value in state.clients.items():
        assert torch.equal(same.clients[name], value), name
    for right, mine in zip(expected, found, strict=True):
        assert list(mine) == list(right)
        assert all(torch.equal(value, mine[name]) for name, value in right.items())
    name = "backbone.fc1.weight"
    assert any(not torch.equal(a[name], b[name]) for a, b in zip(found, mixed, strict=True))
