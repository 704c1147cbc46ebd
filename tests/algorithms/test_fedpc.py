"""FedPC: its set-up, its server's edges, and the global model."""

from dataclasses import replace

import pytest
import torch

from flbench.algorithms.fedpc import TABLE
from flbench.algorithms.shared.prototypes import NearestPrototype
from flbench.core.types import Message, State
from flbench.experiment import rounds
from flbench.models.base import net_leaves
from flbench.testing import after, played
from tests.support import build, write_npz

DOUBLE = "engine.precision=64-true"


# Set-up


def test_clients_of_the_same_classes_are_grouped_by_the_prototypes_of_the_seeded_net(tmp_path):
    """Prototypes are those of eq. 2 with the seeded net; three clients have other classes."""
    classes = torch.arange(120) % 4
    owners = (torch.arange(120) // 4) % 3 + 3 * (classes >= 2)
    data = write_npz(tmp_path / "camps.npz", train_groups=owners.numpy())
    natural = ("partition.scheme=natural", "partition.clients=null", "algorithm.groups=2")
    built = build("algorithm=fedpc", f"data.path={data}", *natural, DOUBLE)

    state, _ = played(built, built.start())

    assert state.server["groups"].tolist() == [0, 0, 0, 1, 1, 1]
    assert (state.round, int(state.participation_count.sum())) == (0, 0)
    federation = built.federation.to(torch.device("cpu"), torch.float64)
    for client, rows in enumerate(federation.partition.parts["train"]):
        features = built.net.double()(federation.inputs(rows, torch.float64)).features
        y = federation.y[torch.from_numpy(rows)]
        for k in y.unique():
            slow = features[y == k].mean(dim=0)
            found = state.clients["prototypes"][client, k]
            assert torch.allclose(found, slow, rtol=0, atol=1e-12)


def test_more_groups_than_clients_make_each_client_a_group():
    state = after(build("algorithm=fedpc", "algorithm.groups=50"), 1)

    assert state.server["groups"].tolist() == [0, 1, 2, 3, 4]
    assert state.server[TABLE[1]].any(dim=1).all()


# The server's formulas


@pytest.fixture(scope="module")
def round_of_five():
    """An experiment in which every client is a group, its state, and results of a round."""
    built = build("algorithm=fedpc", "algorithm.groups=5", DOUBLE)
    state = after(built, 1)
    settings = rounds.settings_of(built.algorithm, state)
    return built.algorithm, state, rounds.train(built.algorithm, built.engine, state, settings)


def test_opposed_groups_take_nothing_from_each_other(round_of_five):
    """A negative cosine counts as 0."""
    algorithm, state, trained = round_of_five
    sent = trained.results.sent
    signs = torch.tensor([1.0, -1, -1, -1, -1]).double()[:, None, None]
    opposed = Message(
        sent.values | {"prototypes": signs.expand_as(sent.values["prototypes"])},
        {"prototypes": torch.ones_like(sent.mask["prototypes"])},
    )

    server = algorithm.aggregate(state, replace(trained.results, sent=opposed)).server

    for name in algorithm.split()[1]:
        assert torch.allclose(server[name][0], sent.values[name][0], rtol=0, atol=1e-12)


def test_few_clients_a_round_leave_groups_that_never_took_part():
    """Every client is a group, and one of five clients participates in a round."""
    keys = ("algorithm=fedpc", "algorithm.groups=5", "train.participation=0.2", "train.rounds=6")
    built = build(*keys)

    state = after(built, 3)

    names = built.algorithm.split()[1]
    seen = state.server[f"intra.{TABLE[1]}"].any(dim=1)
    assert 1 <= int(seen.sum()) <= 3
    for name in names:
        mean = state.server[f"intra.{name}"][seen].double().mean(dim=0)
        unseen = state.server[name][~seen].double()
        assert torch.allclose(unseen, mean.expand_as(unseen), rtol=0, atol=1e-6)


# Options


def gm_of(built, state: State):
    return built.algorithm.deploy(state, torch.arange(5)).get("gm")


@pytest.mark.slow
def test_head_of_the_global_model_is_chosen():
    """The head is the seeded one, the mean of the clients' heads, or the nearest prototype."""
    keys = ("algorithm=fedpc", "algorithm.groups=2", DOUBLE)
    found = {}
    for kind in ("init_head", "mean_head", "nearest_proto"):
        built = build(*keys, f"algorithm.gm={kind}")
        state = after(built, 2)
        found[kind] = gm_of(built, state)

    values = {kind: deployment.dispatch.shared.values for kind, deployment in found.items()}
    start = net_leaves(build(*keys).net)
    sizes = built.federation.sizes.double()
    for name in ("head.weight", "head.bias"):
        mean = torch.einsum("n,n...->...", sizes / sizes.sum(), state.clients[name])
        assert torch.allclose(values["init_head"][name], start[name].double(), atol=1e-7)
        assert torch.allclose(values["mean_head"][name], mean, rtol=0, atol=1e-12)
    body = built.algorithm.split()[1]
    assert all(torch.equal(values["init_head"][n], values["mean_head"][n]) for n in body)
    assert found["init_head"].predict is found["mean_head"].predict is None
    assert found["nearest_proto"].predict == NearestPrototype(False, *TABLE)
    share = torch.bincount(state.server["groups"], sizes, minlength=2) / sizes.sum()
    for k in range(10):
        have = [j for j in range(2) if state.server[TABLE[1]][j, k]]
        slow = sum(share[j] * state.server[TABLE[0]][j, k] for j in have) / sum(share[have])
        assert torch.allclose(values["nearest_proto"][TABLE[0]][k], slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("policy", ["average", "local"])
def test_there_is_a_global_model_where_clients_keep_no_statistics(policy):
    built = build("algorithm=fedpc", "model.name=lenet5", f"train.batchnorm={policy}")

    assert (gm_of(built, built.start()) is not None) == (policy == "average")
