"""One round of methods made for these tests: set-up, stages, peers, replies, rows of a dispatch."""

from dataclasses import dataclass, replace

import pytest
import torch

from flbench.algorithms.base import Algorithm, state_of
from flbench.client.program import LocalProgram, Statistic, Transform
from flbench.core.errors import ConfigError
from flbench.core.types import Dispatch, Message, Results, Stage, State, Update
from flbench.experiment import checkpoint, hook_checks, rounds
from flbench.experiment.rounds import visible_to_server
from tests.support import build

N = 5


class Made(Algorithm):
    """Each client keeps `a` and `b`, two numbers each; the server has a counter."""

    def init(self, start):
        clients = {"a": torch.zeros(N, 2), "b": torch.zeros(N, 2)}
        return {"count": torch.zeros(1)}, clients

    def program(self, state: State) -> LocalProgram:
        return LocalProgram((Transform(AddOne(("a",))),), frozenset({"a", "b"}), frozenset({"a"}))

    def dispatch(self, state: State, ids) -> Dispatch:
        return Dispatch()

    def aggregate(self, state: State, results: Results) -> Update:
        return Update({"count": state.server["count"] + len(results.ids)})


@dataclass(frozen=True)
class AddOne:
    names: tuple[str, ...]

    def __call__(self, context):
        return {name: context.leaves[name] + 1 for name in self.names}


@pytest.fixture(scope="module")
def built():
    return build("algorithm=fedavg", "partition.clients=5", "train.rounds=4")


def made(built, kind: type[Algorithm]) -> Algorithm:
    return kind(built.config.algorithm, built.algorithm.setting)


def start_of(algorithm: Algorithm) -> State:
    return state_of(algorithm, {})


def play(built, algorithm: Algorithm, state: State, ids=None) -> rounds.Exchange:
    setup = algorithm.stages()[state.stage].setup
    settings = rounds.settings_of(algorithm, state, setup=setup)
    ids = None if ids is None else torch.tensor(ids)
    trained = rounds.train(algorithm, built.engine, state, settings, ids=ids)
    return rounds.exchange(algorithm, state, trained)


def test_kept_rows_are_stored_for_the_cohort_alone(built):
    algorithm = made(built, Made)

    over = play(built, algorithm, start_of(algorithm), [1, 3])

    assert over.state.clients["a"][:, 0].tolist() == [0, 1, 0, 1, 0]
    assert float(over.state.server["count"]) == 2
    assert over.costs["up_bytes"] == 2 * 2 * 4
    assert over.costs["down_bytes"] == 0


def test_program_without_a_phase_does_not_count_as_training(built):
    algorithm = made(built, Made)

    over = play(built, algorithm, start_of(algorithm))

    assert over.costs["trainings"] == over.costs["without_step"] == 0
    assert int(over.state.participation_count.sum()) == 0


class WithSetup(Made):
    def stages(self):
        return (Stage("look", 2, setup=True), Stage("train", 4))


def test_setup_reaches_all_clients_counts_no_round_and_lists_its_bytes_separately(built):
    algorithm = made(built, WithSetup)
    state = start_of(algorithm)

    first = play(built, algorithm, state)
    second = play(built, algorithm, first.state)

    assert first.costs["setup_bytes"] == N * 2 * 4
    assert "up_bytes" not in first.costs
    assert (first.state.stage, first.state.stage_round, first.state.round) == (0, 1, 0)
    assert (second.state.stage, second.state.stage_round, second.state.round) == (1, 0, 0)


class OneByOne(WithSetup):
    def cohort(self, state: State, draw):
        first = self.stages()[state.stage].setup
        return torch.tensor([state.stage_round]) if first else super().cohort(state, draw)


def test_setup_may_ask_some_clients_only(built):
    algorithm = made(built, OneByOne)

    first = play(built, algorithm, start_of(algorithm))
    second = play(built, algorithm, first.state)
    third = play(built, algorithm, second.state)

    assert [x.costs.get("setup_bytes") for x in (first, second, third)] == [8, 8, None]
    assert third.costs["up_bytes"] == N * 2 * 4
    assert second.state.clients["a"][:, 0].tolist() == [2, 2, 1, 1, 1]


def test_last_stage_stays_when_all_rounds_are_done(built):
    algorithm = made(built, WithSetup)
    state = start_of(algorithm)
    for _ in range(6):
        state = play(built, algorithm, state).state

    assert (state.stage, state.stage_round, state.round) == (1, 4, 4)
    algorithm.program(state)


class TwoStages(Made):
    """First stage: clients send `a` and keep `b`. Second stage: some of the clients send `b`."""

    def stages(self):
        return (Stage("first", 1), Stage("second", 3))

    def program(self, state: State) -> LocalProgram:
        sends = frozenset({"a"} if state.stage == 0 else {"b"})
        return LocalProgram((Transform(AddOne(("a", "b"))),), frozenset({"a", "b"}), sends)


def test_what_was_kept_in_one_stage_is_hidden_in_the_next_until_it_is_sent(built, tmp_path):
    algorithm = made(built, TwoStages)
    state = play(built, algorithm, start_of(algorithm), [0, 1, 2]).state
    program = algorithm.program(state)

    before = visible_to_server(state, program).clients["b"][:, 0].tolist()
    state = play(built, algorithm, state, [1, 4]).state
    after = visible_to_server(state, program).clients["b"][:, 0].tolist()
    checkpoint.save(tmp_path / "x.safetensors", state, "hash")
    loaded, _ = checkpoint.load(tmp_path / "x.safetensors", "hash")

    assert state.clients["b"][:, 0].tolist() == [1, 2, 1, 0, 1]
    assert before == [0, 0, 0, 0, 0]
    assert after == [0, 2, 0, 0, 1]
    assert visible_to_server(loaded, program).clients["b"][:, 0].tolist() == after


class Gossip(Made):
    """Client k mixes with the next one of the cohort."""

    def links(self, state: State, ids):
        return torch.eye(len(ids)) / 2 + torch.eye(len(ids)).roll(1, dims=1) / 2


class SilentGossip(Gossip):
    def program(self, state: State) -> LocalProgram:
        return LocalProgram((), frozenset({"a"}))


def test_peers_pay_for_each_edge_but_not_for_themselves(built):
    algorithm = made(built, Gossip)

    over = play(built, algorithm, start_of(algorithm), [0, 2, 3, 4])

    assert over.costs["peer_bytes"] == 4 * 2 * 4
    assert over.costs["up_bytes"] == over.costs["down_bytes"] == 0
    silent = made(built, SilentGossip)
    assert play(built, silent, start_of(silent)).costs["peer_bytes"] == 0


class Replies(Made):
    """The server replies with 100 for the second entry of `b`."""

    def aggregate(self, state: State, results: Results) -> Update:
        rows = torch.full((len(results.ids), 2), 100.0)
        mask = torch.tensor([False, True]).expand(len(rows), 2)
        return Update({}, Message({"b": rows}, {"b": mask}))


def test_reply_is_written_and_charged_inside_its_mask(built):
    algorithm = made(built, Replies)

    over = play(built, algorithm, start_of(algorithm), [1, 2])

    assert over.state.clients["b"].tolist() == [[0, 0], [0, 100], [0, 100], [0, 0], [0, 0]]
    assert over.costs["down_bytes"] == 2 * 4


class Rowwise(Made):
    """The server sends every client but client 3 a number of its own."""

    def dispatch(self, state: State, ids) -> Dispatch:
        values = (10.0 * ids)[:, None].expand(len(ids), 2)
        return Dispatch(rows=Message({"b": values}, {"b": (ids != 3)[:, None].expand(-1, 2)}))


def test_rows_of_a_dispatch_reach_their_client_and_are_charged_inside_the_mask(built):
    algorithm = made(built, Rowwise)

    over = play(built, algorithm, start_of(algorithm), [1, 3, 4])

    assert over.state.clients["b"][:, 0].tolist() == [0, 10, 0, 0, 40]
    assert over.costs["down_bytes"] == 2 * 2 * 4


class ToAll(Made):
    """The server sends all clients the same message with the first entry of `b` alone."""

    def dispatch(self, state: State, ids) -> Dispatch:
        return Dispatch(Message({"b": torch.full((2,), 7.0)}, {"b": torch.tensor([True, False])}))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Rowwise, [[10, 10], [31, 31], [40, 40]]), (ToAll, [[7, 11], [7, 31], [7, 41]])],
)
def test_a_leaf_stays_the_clients_own_outside_the_mask_of_a_dispatch(kind, expected, engine):
    built = build("algorithm=fedavg", f"engine.name={engine}")
    algorithm = made(built, kind)
    state = start_of(algorithm)
    state.clients["b"] += 1 + 10 * torch.arange(N)[:, None]

    over = play(built, algorithm, state, [1, 3, 4])

    assert over.state.clients["b"][[1, 3, 4]].tolist() == expected


class Spy(Made):
    def aggregate(self, state: State, results: Results) -> Update:
        assert results.kept == {}
        assert results.observed == {}
        assert bool(results.losses.isnan().all())
        assert set(state.clients) == {"a"}
        return Update()


@dataclass(frozen=True)
class Ones:
    def __call__(self, context):
        return {"n": context.batch.mask.sum()}


def test_aggregate_sees_what_is_paid_for_and_nothing_else(built):
    algorithm = made(built, Spy)
    state = start_of(algorithm)
    settings = rounds.settings_of(algorithm, state)

    trained = rounds.train(
        algorithm, built.engine, state, settings, observe=(Statistic("seen", Ones()),)
    )

    assert trained.results.observed
    rounds.exchange(algorithm, state, trained)


class Warm(Algorithm):
    """FedAvg after a set-up stage that does not change the net."""

    def stages(self):
        return (Stage("look", 1, setup=True), Stage("train", 4))

    def aggregate(self, state: State, results: Results) -> Update:
        return Update() if state.stage == 0 else super().aggregate(state, results)


def test_seeded_net_is_free_until_the_server_changes_it(built):
    algorithm = made(built, Warm)
    start, _ = built.algorithm.init({n: v.clone() for n, v in built.start().server.items()})
    state = state_of(algorithm, start)

    first = play(built, algorithm, state)
    second = play(built, algorithm, first.state)
    third = play(built, algorithm, second.state)

    assert second.costs["down_bytes"] == 0
    assert third.costs["down_bytes"] == N * 4 * built.algorithm.setting.net.size


def test_the_server_may_grow(built):
    """Clusters have entries of their own, and a round may change one and add one."""
    server = {name: torch.zeros(2) for name in ("center_0", "center_1")}
    state = State(0, 0, 0, server, {}, torch.zeros(3), torch.zeros(3))

    grown = Update({name: torch.ones(2) for name in ("center_1", "center_2")})
    hook_checks.update(built.algorithm, grown, state, 3)
    with pytest.raises(ConfigError, match="`center_1`"):
        hook_checks.update(built.algorithm, Update({"center_1": 3}), state, 3)


def test_setup_rounds_have_streams_of_their_own(built):
    algorithm = made(built, WithSetup)
    state = start_of(algorithm)
    keys = {
        rounds.settings_of(algorithm, replace(state, stage=s, stage_round=t), setup=True).draw.key
        for s in range(2)
        for t in range(2)
    }

    assert len(keys | {rounds.settings_of(algorithm, state).draw.key}) == 5
