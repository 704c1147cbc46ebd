"""The contract of every method in the registry, including methods that are added later.

A new file in `flbench/algorithms` is tested here without a new line. What several tests of one
method need (a run of three rounds, the states after each round) is computed once: see `Played`.
`make test` runs every method at one crash point, and one method of each kind of state (`KINDS`) at
all crash points, under all BatchNorm policies, and where all clients diverge; `make test-all` runs
the full product.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flbench.algorithms import ALGORITHMS
from flbench.client.program import Phase, Transform
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_overrides
from flbench.core.errors import ConfigError
from flbench.core.tree import copied, digest, is_finite
from flbench.core.types import Dispatch, Message, State
from flbench.experiment import assembly, checkpoint, lifecycle, rounds
from flbench.experiment.communication import apply_mask, apply_masks
from flbench.experiment.rounds import visible_to_server
from flbench.tuning.deployments import scorable
from tests.support import SMALL, Silent, build, reproducible, run, summary_of, write_npz

pytestmark = pytest.mark.slow

METHODS = ALGORITHMS.load()
NET = (
    "model.name=lenet5",
    "train.participation=0.6",
    "train.local_epochs=2",
)  # BatchNorm, several linear layers, absent clients, epochs for two phases

# One method for each kind of state that a run can hold.
KINDS = {
    "fedavg": "the weights of one global model",
    "scaffold": "control variates at the server and at the clients",
    "ditto": "a second model at each client",
    "hfcd": "prototypes and similarities of classes",
    "fedcpmd": "stages, votes and stored bodies",
    "fedap": "stages of set-up rounds",
    "cfl": "groups of clients that split",
    "dispfl-hp": "masks and a hypernetwork, exchanged between neighbours",
}
CRASHES = (1, 2, 3)
POLICIES = ("local", "drop")  # the other tests run with the default policy, `average`


def with_method(name: str, *overrides: str) -> tuple[str, ...]:
    return (f"algorithm.name={name}", *NET, *overrides)


def played(built: assembly.Experiment, state: State, ids=None) -> tuple[State, object]:
    """One round, without files."""
    stage = built.algorithm.stages()[state.stage]
    settings = rounds.settings_of(built.config, built.algorithm, state, setup=stage.setup)
    trained = rounds.train(built.algorithm, built.engine, state, settings, ids=ids)
    return rounds.exchange(built.algorithm, state, trained).state, trained.results


def after(built: assembly.Experiment, rounds: int = 2) -> State:
    state = built.start()
    while state.round < rounds:
        state, _ = played(built, state)
    return state


def fingerprint(state: State) -> str:
    return digest([state.server, state.clients])


def independent(state: State) -> State:
    """A copy that shares no memory with the state: rounds write clients in place."""
    return replace(
        state,
        server=copied(state.server),
        clients=copied(state.clients),
        participation_count=state.participation_count.clone(),
        stale=copied(state.stale),
    )


class States:
    """An experiment, and its states after 0, 1, 2, ... rounds, each computed once."""

    def __init__(self, built: assembly.Experiment) -> None:
        self.built = built
        self._known = [independent(built.start())]

    def after(self, number: int) -> State:
        """Return a copy of the state after so many rounds; set-up rounds do not count."""
        while self._known[-1].round < number:
            state = independent(self._known[-1])
            before = state.round
            while state.round == before:
                state, _ = played(self.built, state)
            self._known.append(independent(state))
        return independent(next(state for state in self._known if state.round == number))


class Played:
    """One method on the setting of the contract; each attribute is computed on first use.

    Args:
        name: Name of the method.
        folder: Function that returns a new empty folder.
    """

    def __init__(self, name: str, folder: Callable[[], Path]) -> None:
        self.name = name
        self._folder = folder

    @cached_property
    def straight(self) -> tuple[Path, dict[str, Any]]:
        """Folder and summary of a run of three rounds."""
        return run(self._folder(), *with_method(self.name))

    @cached_property
    def float32(self) -> States:
        return States(build(*with_method(self.name)))

    @cached_property
    def float64(self) -> States:
        return States(build(*with_method(self.name, "engine.precision=64-true")))


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    return Played("fedavg", lambda: tmp_path_factory.mktemp("fedavg"))


@pytest.fixture(scope="module", params=METHODS)
def method(request, tmp_path_factory, fedavg):
    name = request.param
    return fedavg if name == "fedavg" else Played(name, lambda: tmp_path_factory.mktemp(name))


def test_run_is_finite_and_its_summary_is_complete(method):
    path, summary = method.straight

    for moment in ("last", "best"):
        for split in ("validation", "test"):
            figures = summary[moment][split]
            names = (
                "accuracy",
                "accuracy_mean",
                "balanced_accuracy",
                "macro_f1",
                "worst10_accuracy",
                "client_std",
            )
            assert all(0 <= figures[name] <= 1 for name in names)
    assert summary["rounds"] == summary["last"]["round"] == 3
    assert summary["client_trainings"] >= 9
    assert len(summary["weights_digest"]) == 64
    files = {
        "config.yaml",
        "metrics.csv",
        "clients.csv",
        "per_class.csv",
        "confusion.csv",
        "summary.json",
    }
    assert files <= {file.name for file in path.iterdir()}


def test_another_seed_gives_another_state(method):
    other = after(build(*with_method(method.name, "seed=1")), 1)

    assert fingerprint(other) != fingerprint(method.float32.after(1))


class CrashError(Exception):
    pass


class Crashing(Silent):
    def __init__(self, when: int) -> None:
        super().__init__()
        self._when = when

    def round_done(self, done: int, loss: float) -> None:
        if done == self._when:
            raise CrashError


def crash_points(name: str) -> tuple[int, ...]:
    """The rounds in which `make test` lets a method crash."""
    return CRASHES if name in KINDS else (CRASHES[METHODS.index(name) % len(CRASHES)],)


def assert_resumed_like_straight(method: Played, when: int, folder: Path) -> None:
    """The crash falls after the round's metrics were written and before its state was saved.

    The first checkpoint is that of round 2. A run that crashes in round 1 or 2 starts again from
    the beginning, so this also shows that the same seed gives the same digest and metrics.
    """
    path, summary = method.straight
    keys = with_method(method.name, "output.checkpoint_every=2")
    config, origins = resolve([from_overrides([*SMALL, f"output.dir={folder}", *keys])])
    with pytest.raises(CrashError):
        lifecycle.run(config, origins, Crashing(when))
    [crashed] = folder.glob("*/*")

    lifecycle.resume(crashed, Layer({}), Silent())

    assert reproducible(summary_of(crashed)) == reproducible(summary)
    for table in ("metrics.csv", "clients.csv", "per_class.csv", "confusion.csv"):
        assert (crashed / table).read_bytes() == (path / table).read_bytes()


def test_crash_and_resume_end_like_the_straight_run(method, tmp_path):
    for when in crash_points(method.name):
        assert_resumed_like_straight(method, when, tmp_path / str(when))


@pytest.mark.full
@pytest.mark.parametrize("when", CRASHES)
def test_crash_in_any_round_and_resume_end_like_the_straight_run(method, when, tmp_path):
    if when in crash_points(method.name):
        pytest.skip("part of the test above")
    assert_resumed_like_straight(method, when, tmp_path)


def test_evaluation_and_unpaid_values_change_nothing(method, tmp_path, monkeypatch):
    """One run with two changes; each of them must leave the digest and the bytes as they are.

    Models are evaluated after every round. What the method does not pay for is replaced by NaN:
    rows that clients keep and do not send, and the values outside a message's mask.
    """
    _, summary = method.straight

    def poisoned_rows(state: State, program) -> State:
        unpaid = {
            key: torch.full_like(value, torch.nan)
            if value.is_floating_point()
            else torch.full_like(value, 99)
            for key, value in state.clients.items()
            if key not in program.sends
        }
        return replace(state, clients=state.clients | unpaid)

    def poisoned(message: Message) -> Message:
        values = dict(message.values)
        for key, mask in message.mask.items():
            value = values[key]
            inside = mask.reshape(*mask.shape, *(1,) * (value.dim() - mask.dim()))
            wrong = (
                torch.nan
                if value.is_floating_point()
                else True
                if value.dtype == torch.bool
                else 99
            )
            values[key] = torch.where(inside, value, torch.full_like(value, wrong))
        return Message(values, message.mask)

    monkeypatch.setattr(rounds, "visible_to_server", poisoned_rows)
    monkeypatch.setattr(rounds, "apply_mask", lambda message: apply_mask(poisoned(message)))
    monkeypatch.setattr(
        rounds,
        "apply_masks",
        lambda d: apply_masks(Dispatch(poisoned(d.shared), poisoned(d.rows), d.numbers)),
    )
    often = ("evaluation.every=1", "evaluation.common.every=1")
    _, poisoned_summary = run(tmp_path, *with_method(method.name, *often))

    assert poisoned_summary["weights_digest"] == summary["weights_digest"]
    assert poisoned_summary["communication"] == summary["communication"]


def test_bytes_cross_exactly_where_the_method_names_them(method):
    _, summary = method.straight
    described, traffic = ALGORITHMS[method.name].communication, summary["communication"]

    assert (traffic["up_bytes"] + traffic["peer_bytes"] > 0) == (described.up != "nothing")
    assert (traffic["down_bytes"] + traffic["peer_bytes"] > 0) == (described.down != "nothing")


def test_no_method_is_off_by_default(method, fedavg):
    """With its defaults a method ends with other models than FedAvg."""
    if method.name == "fedavg":
        pytest.skip("FedAvg itself")

    assert method.straight[1]["weights_digest"] != fedavg.straight[1]["weights_digest"]


def test_dispatch_and_deploy_change_nothing(method):
    algorithm, state = method.float32.built.algorithm, method.float32.after(2)
    before = fingerprint(state)

    algorithm.dispatch(visible_to_server(state, algorithm.program(state)), torch.arange(5))
    deployments = algorithm.deploy(state, torch.arange(5))

    assert fingerprint(state) == before
    assert next(iter(deployments)) == "personal"


def test_dispatch_of_a_client_depends_on_its_id_alone(method):
    algorithm, state = method.float32.built.algorithm, method.float32.after(2)
    seen = visible_to_server(state, algorithm.program(state))

    together = algorithm.dispatch(seen, torch.arange(5))

    for client in range(5):
        alone = algorithm.dispatch(seen, torch.tensor([client]))
        assert alone.numbers == together.numbers
        for one, all_ in ((alone.shared, together.shared), (alone.rows, together.rows)):
            assert one.values.keys() == all_.values.keys()
            assert one.mask.keys() == all_.mask.keys()
        for one, all_, row in (
            (alone.shared.values, together.shared.values, ...),
            (alone.shared.mask, together.shared.mask, ...),
            (alone.rows.values, together.rows.values, slice(client, client + 1)),
            (alone.rows.mask, together.rows.mask, slice(client, client + 1)),
        ):
            assert all(torch.equal(value, all_[key][row]) for key, value in one.items())


def test_rows_of_absent_clients_stay_as_they_were(method):
    built, state = method.float32.built, method.float32.after(1)
    before = {key: value.clone() for key, value in state.clients.items()}

    now, results = played(built, state)

    absent = [i for i in range(5) if i not in results.ids.tolist()]
    if not absent:
        pytest.skip("all clients take part")
    for key, value in now.clients.items():
        assert torch.equal(value[absent], before[key][absent]), key


def test_order_of_the_cohort_does_not_matter(method):
    """In float64: sums over clients in another order differ in the last bits only."""
    built = method.float64.built
    first, second = method.float64.after(1), method.float64.after(1)
    ids = torch.tensor([0, 2, 4])

    forth, _ = played(built, first, ids)
    back, _ = played(built, second, ids.flip(0))

    for tree_a, tree_b in ((forth.server, back.server), (forth.clients, back.clients)):
        for key, value in tree_a.items():
            assert torch.allclose(value.double(), tree_b[key].double(), rtol=0, atol=1e-12), key


def test_programs_of_a_stage_are_equal_and_hashable(method):
    algorithm = method.float32.built.algorithm
    first, later = method.float32.after(0), method.float32.after(2)

    if first.stage == later.stage:
        assert algorithm.program(first) == algorithm.program(later)
        assert hash(algorithm.program(first)) == hash(algorithm.program(later))


def test_nothing_that_a_client_learns_from_is_test_data(method):
    algorithm, state = method.float32.built.algorithm, method.float32.after(0)
    for stage in range(len(algorithm.stages())):
        program = algorithm.program(replace(state, stage=stage))
        parts = {step.samples.part for step in program.steps if not isinstance(step, Transform)}
        parts |= {c.samples.part for s in program.steps if isinstance(s, Phase) for c in s.record}
        assert parts <= {"train", "validation"}


def test_models_can_be_evaluated_when_all_rounds_are_done(method):
    algorithm, state = method.float32.built.algorithm, method.float32.after(3)

    deployments = algorithm.deploy(state, torch.arange(5))
    assert "personal" in deployments
    assert state.stage == len(algorithm.stages()) - 1
    # The models that can score a trial of `flbench tune` are known before the first round.
    known = [name for name in deployments if name != "gm"]
    assert list(scorable(method.float32.built)) == known


def assert_vectorized_like_sequential(one: States, many: assembly.Experiment) -> None:
    """In float64, with clients that are absent."""
    a, b = one.after(3), after(many, 3)

    for trees in ((a.server, b.server), (a.clients, b.clients)):
        assert list(trees[0]) == list(trees[1])
        for key, value in trees[0].items():
            difference = (value.double() - trees[1][key].double()).abs().max()
            assert float(difference) <= 1e-9, key
    settings = [rounds.settings_of(x.config, x.algorithm, a) for x in (one.built, many)]
    found = [
        x.evaluator(print).evaluate(s, settings[0], common=True).local["personal", "test"]
        for x, s in ((one.built, a), (many, b))
    ]
    costs = [
        rounds.exchange(x.algorithm, s, rounds.train(x.algorithm, x.engine, s, settings[0])).costs
        for x, s in ((one.built, a), (many, b))
    ]
    assert {k: v for k, v in costs[0].items() if k != "loss"} == {
        k: v for k, v in costs[1].items() if k != "loss"
    }
    assert torch.equal(found[0].confusion, found[1].confusion)


def test_vectorized_engine_does_what_the_sequential_one_does(method):
    """LeNet-5, which has BatchNorm."""
    many = build(
        *with_method(method.name, "engine.precision=64-true", "engine.name=vectorized"),
    )

    assert_vectorized_like_sequential(method.float64, many)


def without_batchnorm(method: Played) -> None:
    keys = (*with_method(method.name), "model.name=mlp", "engine.precision=64-true")
    try:
        one, many = build(*keys), build(*keys, "engine.name=vectorized")
    except ConfigError as refusal:  # a method may need convolutions or BatchNorm
        pytest.skip(str(refusal))
    assert_vectorized_like_sequential(States(one), many)


def test_vectorized_engine_does_what_the_sequential_one_does_without_batchnorm(method):
    if method.name not in KINDS:
        pytest.skip("part of make test-all")
    without_batchnorm(method)


@pytest.mark.full
def test_vectorized_engine_does_so_without_batchnorm_for_all_methods(method):
    if method.name in KINDS:
        pytest.skip("part of the test above")
    without_batchnorm(method)


def test_state_round_trips_through_a_checkpoint(method, tmp_path):
    state = method.float32.after(1)

    checkpoint.save(tmp_path / "x.safetensors", state, "hash", {"a": 1})
    loaded, extra = checkpoint.load(tmp_path / "x.safetensors", "hash")

    assert fingerprint(loaded) == fingerprint(state)
    assert (loaded.stage, loaded.stage_round, loaded.round, extra) == (
        state.stage,
        state.stage_round,
        state.round,
        {"a": 1},
    )
    assert list(loaded.server) == list(state.server)


def assert_runs_with_policy(name: str, policy: str, folder: Path) -> None:
    _, summary = run(folder, *with_method(name, f"train.batchnorm={policy}", "train.rounds=2"))

    assert summary["last"]["test"]["accuracy"] > 0
    assert any("BatchNorm statistics are" in note for note in summary["notes"])


def test_batchnorm_policies_run(method, tmp_path):
    _, summary = method.straight
    assert any("train.batchnorm=average" in note for note in summary["notes"])

    for policy in POLICIES if method.name in KINDS else ():
        assert_runs_with_policy(method.name, policy, tmp_path / policy)


@pytest.mark.full
@pytest.mark.parametrize("policy", POLICIES)
def test_every_batchnorm_policy_runs(method, policy, tmp_path):
    if method.name in KINDS:
        pytest.skip("part of the test above")
    assert_runs_with_policy(method.name, policy, tmp_path)


def test_poor_clients_run_without_nan(method, tmp_path):
    """One sample, one class, no test data; absent classes never become zero prototypes."""
    groups = np.full(120, 3)
    groups[0] = 0
    groups[[4, 8, 12]] = 1
    groups[[1, 2]] = 2
    data = write_npz(tmp_path / "poor.npz", train_groups=groups)
    natural = (
        "partition.scheme=natural",
        "partition.clients=null",
        "partition.min_samples=1",
        "train.rounds=2",
    )

    path, summary = run(
        tmp_path, *with_method(method.name, f"data.path={data}", *natural, "train.participation=1")
    )

    assert summary["diverged"] == 0
    assert "nan" not in (path / "metrics.csv").read_text()
    last, _ = checkpoint.load(path / "checkpoints" / "last.safetensors", summary["config_hash"])
    assert is_finite(last.server)
    assert is_finite(last.clients)
    if "global.prototypes" in last.server:
        table, present = last.server["global.prototypes"], last.server["global.present"]
        assert torch.equal(present, (table != 0).any(dim=1))


def assert_unchanged_where_all_diverge(method: Played, folder: Path) -> None:
    keys = with_method(method.name, "train.optimizer.lr=1e36")
    path, summary = run(folder, *keys)

    built = build(*keys)
    start = built.start()
    for number, stage in enumerate(built.algorithm.stages()):
        for turn in range(stage.rounds if stage.setup else 0):  # a set-up may need no training
            start, _ = played(built, replace(start, stage=number, stage_round=turn))
    last, _ = checkpoint.load(path / "checkpoints" / "last.safetensors", summary["config_hash"])
    assert summary["diverged"] == summary["client_trainings"] > 0
    assert fingerprint(last) == fingerprint(start)
    assert int(last.participation_count.sum()) == 0


def test_a_round_whose_clients_all_diverge_changes_nothing(method, tmp_path):
    if method.name not in KINDS:
        pytest.skip("part of make test-all")
    assert_unchanged_where_all_diverge(method, tmp_path)


@pytest.mark.full
def test_a_round_whose_clients_all_diverge_changes_nothing_for_all_methods(method, tmp_path):
    if method.name in KINDS:
        pytest.skip("part of the test above")
    assert_unchanged_where_all_diverge(method, tmp_path)


def test_stages_add_up_to_the_rounds(method):
    stages = method.float32.built.algorithm.stages()

    assert sum(stage.rounds for stage in stages if not stage.setup) == 3


def test_free_numbers_of_a_dispatch_follow_from_the_round_alone(method):
    """Server and client must both be able to compute them from the round, so they cost nothing."""
    algorithm, state = method.float32.built.algorithm, method.float32.after(2)
    seen = visible_to_server(state, algorithm.program(state))
    start = method.float32.after(0)
    blank = replace(
        seen,
        server={key: torch.zeros_like(value) for key, value in seen.server.items()},
        clients={key: value for key, value in start.clients.items() if key in seen.clients},
    )

    numbers = algorithm.dispatch(seen, torch.arange(5)).numbers

    assert numbers == algorithm.dispatch(blank, torch.arange(5)).numbers
    assert all(isinstance(number, float) for number in numbers.values())


@pytest.mark.parametrize("name", METHODS)
def test_method_names_its_source_and_what_it_is(name):
    described = ALGORITHMS[name]

    assert described.paper.title
    assert described.paper.venue
    assert described.communication.down
    assert described.communication.up
    assert described.communication.keeps
    assert described.__doc__
