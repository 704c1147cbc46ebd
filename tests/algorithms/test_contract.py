"""What every method of the registry must hold, those to come included.

A new file enters without a new line here.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flbench.algorithms import ALGORITHMS
from flbench.client.program import Phase, Transform
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_overrides
from flbench.core.errors import ConfigError
from flbench.core.tree import digest, is_finite
from flbench.core.types import Dispatch, Message, State
from flbench.experiment import assembly, checkpoint, lifecycle, rounds
from flbench.experiment.communication import apply_mask, apply_masks
from flbench.experiment.rounds import visible
from tests.support import SMALL, Silent, build, run, summary_of, write_npz

METHODS = ALGORITHMS.load()
NET = (
    "model.name=lenet5",
    "train.participation=0.6",
    "train.local_epochs=2",
)  # BatchNorm, several linear layers, absent clients, epochs for two phases


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


@pytest.fixture(scope="module", params=METHODS)
def straight(request, tmp_path_factory):
    """One run of three rounds per method, shared by the tests that compare with it."""
    path, summary = run(tmp_path_factory.mktemp(request.param), *with_method(request.param))
    return request.param, path, summary


def test_run_is_finite_and_says_what_the_design_promises(straight):
    _, path, summary = straight

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


def test_same_seed_same_digest_other_seed_another(straight, tmp_path):
    name, path, summary = straight

    again_path, again = run(tmp_path, *with_method(name))
    _, other = run(tmp_path, *with_method(name, "seed=1"))

    assert again["weights_digest"] == summary["weights_digest"]
    assert (again_path / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()
    assert other["weights_digest"] != summary["weights_digest"]


class CrashError(Exception):
    pass


class Crashing(Silent):
    def __init__(self, when: int) -> None:
        super().__init__()
        self._when = when

    def round_done(self, done: int, loss: float) -> None:
        if done == self._when:
            raise CrashError


@pytest.mark.parametrize("when", [1, 2, 3])
def test_crash_and_resume_end_like_the_straight_run(straight, tmp_path, when):
    """The crash falls after the round's figures were written and before its state was saved."""
    name, path, summary = straight
    items = [*SMALL, f"output.dir={tmp_path}", *with_method(name, "output.checkpoint_every=2")]
    config, origins = resolve([from_overrides(items)])
    with pytest.raises(CrashError):
        lifecycle.run(config, origins, Crashing(when))
    [folder] = tmp_path.glob("*/*")

    lifecycle.resume(folder, Layer({}), Silent())

    assert summary_of(folder)["weights_digest"] == summary["weights_digest"]
    assert (folder / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()
    for table in ("clients.csv", "per_class.csv", "confusion.csv"):
        assert (folder / table).read_bytes() == (path / table).read_bytes()


def test_evaluation_changes_nothing(straight, tmp_path):
    """T10."""
    name, _, summary = straight

    _, often = run(tmp_path, *with_method(name, "evaluation.every=1", "evaluation.common.every=1"))

    assert often["weights_digest"] == summary["weights_digest"]
    assert often["communication"] == summary["communication"]


def test_unpaid_leaves_filled_with_nan_change_nothing(straight, tmp_path, monkeypatch):
    """The wire rule.

    Hidden rows, and what lies outside a message's mask, never reach the server or the client.
    """
    name, _, summary = straight

    def poisoned_rows(state: State, program) -> State:
        hidden = {
            key: torch.full_like(value, torch.nan)
            if value.is_floating_point()
            else torch.full_like(value, 99)
            for key, value in state.clients.items()
            if key not in program.sends
        }
        return replace(state, clients=state.clients | hidden)

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

    monkeypatch.setattr(rounds, "visible", poisoned_rows)
    monkeypatch.setattr(rounds, "apply_mask", lambda message: apply_mask(poisoned(message)))
    monkeypatch.setattr(
        rounds,
        "apply_masks",
        lambda d: apply_masks(Dispatch(poisoned(d.shared), poisoned(d.rows), d.numbers)),
    )
    _, summary_poisoned = run(tmp_path, *with_method(name))

    assert summary_poisoned["weights_digest"] == summary["weights_digest"]


def test_bytes_cross_exactly_where_the_method_says_so(straight):
    name, _, summary = straight
    wire, traffic = ALGORITHMS[name].communication, summary["communication"]

    assert (traffic["up_bytes"] + traffic["peer_bytes"] > 0) == (wire.up != "nothing")
    assert (traffic["down_bytes"] + traffic["peer_bytes"] > 0) == (wire.down != "nothing")


@pytest.mark.parametrize("name", METHODS)
def test_dispatch_and_deploy_change_nothing(name):
    built = build(*with_method(name))
    state = after(built)
    before = fingerprint(state)

    built.algorithm.dispatch(visible(state, built.algorithm.program(state)), torch.arange(5))
    deployments = built.algorithm.deploy(state, torch.arange(5))

    assert fingerprint(state) == before
    assert next(iter(deployments)) == "personal"


@pytest.mark.parametrize("name", METHODS)
def test_dispatch_of_a_client_depends_on_its_id_alone(name):
    built = build(*with_method(name))
    state = after(built)
    seen = visible(state, built.algorithm.program(state))

    together = built.algorithm.dispatch(seen, torch.arange(5))

    for client in range(5):
        alone = built.algorithm.dispatch(seen, torch.tensor([client]))
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


@pytest.mark.parametrize("name", METHODS)
def test_rows_of_absent_clients_stay_as_they_were(name):
    built = build(*with_method(name))
    state = after(built, 1)
    before = {key: value.clone() for key, value in state.clients.items()}

    now, results = played(built, state)

    absent = [i for i in range(5) if i not in results.ids.tolist()]
    if not absent:
        pytest.skip("all clients take part")
    for key, value in now.clients.items():
        assert torch.equal(value[absent], before[key][absent]), key


@pytest.mark.parametrize("name", METHODS)
def test_order_of_the_cohort_does_not_matter(name):
    """T9, in float64: sums over clients in another order differ in the last bits only."""
    built = build(*with_method(name, "engine.precision=64-true"))
    first, second = after(built, 1), after(built, 1)
    ids = torch.tensor([0, 2, 4])

    forth, _ = played(built, first, ids)
    back, _ = played(built, second, ids.flip(0))

    for tree_a, tree_b in ((forth.server, back.server), (forth.clients, back.clients)):
        for key, value in tree_a.items():
            assert torch.allclose(value.double(), tree_b[key].double(), rtol=0, atol=1e-12), key


@pytest.mark.parametrize("name", METHODS)
def test_programs_of_a_stage_are_equal_and_hashable(name):
    built = build(*with_method(name))
    first, later = built.start(), after(built, 2)

    if first.stage == later.stage:
        assert built.algorithm.program(first) == built.algorithm.program(later)
        assert hash(built.algorithm.program(first)) == hash(built.algorithm.program(later))


@pytest.mark.parametrize("name", METHODS)
def test_nothing_that_a_client_learns_from_is_test_data(name):
    built = build(*with_method(name))
    state = built.start()
    for stage in range(len(built.algorithm.stages())):
        program = built.algorithm.program(replace(state, stage=stage))
        parts = {step.samples.part for step in program.steps if not isinstance(step, Transform)}
        parts |= {c.samples.part for s in program.steps if isinstance(s, Phase) for c in s.record}
        assert parts <= {"train", "validation"}


@pytest.mark.parametrize("name", METHODS)
def test_models_can_be_judged_when_all_rounds_are_done(name):
    built = build(*with_method(name))
    state = after(built, 3)

    assert "personal" in built.algorithm.deploy(state, torch.arange(5))
    assert state.stage == len(built.algorithm.stages()) - 1


@pytest.mark.parametrize("net", ["mlp", "lenet5"])
@pytest.mark.parametrize("name", METHODS)
def test_vectorized_engine_does_what_the_sequential_one_does(name, net):
    """In float64, with clients that are absent; BatchNorm in LeNet-5."""
    keys = (*with_method(name), f"model.name={net}", "engine.precision=64-true")
    try:
        one, many = build(*keys), build(*keys, "engine.name=vectorized")
    except ConfigError as refusal:
        assert net == "mlp"  # a method may need convolutions or BatchNorm; lenet5 has all
        pytest.skip(str(refusal))

    a, b = after(one, 3), after(many, 3)

    for trees in ((a.server, b.server), (a.clients, b.clients)):
        assert list(trees[0]) == list(trees[1])
        for key, value in trees[0].items():
            difference = (value.double() - trees[1][key].double()).abs().max()
            assert float(difference) <= 1e-9, key
    settings = [rounds.settings_of(x.config, x.algorithm, a) for x in (one, many)]
    costs = [
        rounds.exchange(x.algorithm, s, rounds.train(x.algorithm, x.engine, s, settings[0])).costs
        for x, s in ((one, a), (many, b))
    ]
    assert {k: v for k, v in costs[0].items() if k != "loss"} == {
        k: v for k, v in costs[1].items() if k != "loss"
    }
    found = [
        x.evaluator(print).evaluate(s, settings[0], common=True).own["personal", "test"]
        for x, s in ((one, a), (many, b))
    ]
    assert torch.equal(found[0].confusion, found[1].confusion)


@pytest.mark.parametrize("name", METHODS)
def test_state_round_trips_through_a_checkpoint(name, tmp_path):
    built = build(*with_method(name))
    state = after(built, 1)

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


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_every_batchnorm_policy_runs(name, policy, tmp_path):
    _, summary = run(tmp_path, *with_method(name, f"train.batchnorm={policy}", "train.rounds=2"))

    assert summary["last"]["test"]["accuracy"] > 0
    assert any("BatchNorm statistics are" in note for note in summary["notes"])


@pytest.mark.parametrize("name", METHODS)
def test_poor_clients_run_without_nan(name, tmp_path):
    """T19: one sample, one class, no test data.

    Absent classes never become zero prototypes (T20).
    """
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
        tmp_path, *with_method(name, f"data.path={data}", *natural, "train.participation=1")
    )

    assert summary["diverged"] == 0
    assert "nan" not in (path / "metrics.csv").read_text()
    last, _ = checkpoint.load(path / "checkpoints" / "last.safetensors", summary["config_hash"])
    assert is_finite(last.server)
    assert is_finite(last.clients)
    if "global.prototypes" in last.server:  # T20
        table, present = last.server["global.prototypes"], last.server["global.present"]
        assert torch.equal(present, (table != 0).any(dim=1))


@pytest.mark.parametrize("name", METHODS)
def test_a_round_whose_clients_all_diverge_changes_nothing(name, tmp_path):
    keys = with_method(name, "train.optimizer.lr=1e36")
    path, summary = run(tmp_path, *keys)

    built = build(*keys)
    start = built.start()
    for number, stage in enumerate(built.algorithm.stages()):
        for turn in range(stage.rounds if stage.setup else 0):  # what needs no training went on
            start, _ = played(built, replace(start, stage=number, stage_round=turn))
    last, _ = checkpoint.load(path / "checkpoints" / "last.safetensors", summary["config_hash"])
    assert summary["diverged"] == summary["client_trainings"] > 0
    assert fingerprint(last) == fingerprint(start)
    assert int(last.participation_count.sum()) == 0


@pytest.mark.parametrize("name", METHODS)
def test_stages_add_up_to_the_rounds(name):
    stages = build(*with_method(name)).algorithm.stages()

    assert sum(stage.rounds for stage in stages if not stage.setup) == 3


@pytest.mark.parametrize("name", METHODS)
def test_free_numbers_of_a_dispatch_follow_from_the_round_alone(name):
    """Both sides must be able to compute them: nothing that the server learnt goes in."""
    built = build(*with_method(name))
    state = after(built)
    seen = visible(state, built.algorithm.program(state))
    fresh = built.start()
    blank = replace(
        seen,
        server={key: torch.zeros_like(value) for key, value in seen.server.items()},
        clients={key: value for key, value in fresh.clients.items() if key in seen.clients},
    )

    numbers = built.algorithm.dispatch(seen, torch.arange(5)).numbers

    assert numbers == built.algorithm.dispatch(blank, torch.arange(5)).numbers
    assert all(isinstance(number, float) for number in numbers.values())


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedavg"])
def test_no_method_is_off_by_default(name, tmp_path):
    """With its defaults a method ends with other models than FedAvg."""
    _, summary = run(tmp_path, *with_method(name))
    _, fedavg = run(tmp_path, *with_method("fedavg"))

    assert summary["weights_digest"] != fedavg["weights_digest"]


@pytest.mark.parametrize("name", METHODS)
def test_method_says_where_it_is_from_and_what_it_is(name):
    method = ALGORITHMS[name]

    assert method.paper.title
    assert method.paper.venue
    assert method.communication.down
    assert method.communication.up
    assert method.communication.keeps
    assert method.__doc__
