"""The contract that every method keeps, as test classes that pytest collects from a subclass.

What several tests of one method need (a run of three rounds, the states after each round) is
computed once: see `Played`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pytest
import torch

from flbench.algorithms import ALGORITHMS, Algorithm
from flbench.callbacks import RunView
from flbench.client.program import LocalProgram, Phase, Transform
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_overrides
from flbench.core.errors import ConfigError
from flbench.core.tree import is_finite
from flbench.core.types import Message, State
from flbench.data.dataset import PARTS
from flbench.data.partition import ClientParts
from flbench.experiment import assembly, checkpoint, communication, lifecycle, rounds
from flbench.experiment.communication import apply_mask, apply_masks
from flbench.experiment.new_clients import NewClients
from flbench.experiment.rounds import as_received, visible_to_server
from flbench.models import freezing
from flbench.reports import run as run_report
from flbench.results.metrics_file import Row
from flbench.testing.setting import (
    SMALL,
    Silent,
    States,
    after,
    build,
    fingerprint,
    played,
    reproducible,
    run,
    summary_of,
    with_method,
    write_npz,
)

ENGINES: Final = ("sequential", "vectorized")
STEPS: Final = ("train.local_epochs=null", "train.local_steps=3")
"""Overrides: a round ends within the second epoch of clients with two batches."""
REFERENCE: Final = "fedavg"
"""The method that all others must differ from."""
POLICIES: Final = ("local", "drop")
"""Values of `train.batchnorm`, besides `average`, with which the other tests run."""


class Played:
    """One method in the setting of the contract; each attribute is computed on first use.

    Args:
        name: Name of the method.
        folder: Function that returns a new empty folder.

    Attributes:
        name: Name of the method.
    """

    def __init__(self, name: str, folder: Callable[[], Path]) -> None:
        self.name = name
        self._folder = folder

    @cached_property
    def straight(self) -> tuple[Path, dict[str, Any]]:
        """Folder and summary of a run of three rounds."""
        return run(self._folder(), *with_method(self.name))

    def predictions(self) -> dict[int, torch.Tensor]:
        """Classes that each client's model predicts for its test part after three rounds."""
        built, state = self.float32.built, self.float32.after(3)
        settings = rounds.settings_of(built.algorithm, state)
        return dict(built.evaluator(print).predictions(state, settings))

    @cached_property
    def float32(self) -> States:
        """States of an experiment in float32."""
        return States(build(*with_method(self.name)))

    @cached_property
    def float64(self) -> States:
        """States of an experiment in float64."""
        return States(build(*with_method(self.name, "engine.precision=64-true")))


_kept: dict[str, Played] = {}


def _played(name: str, folders: pytest.TempPathFactory) -> Played:
    """Return what was played of a method; the reference and the last other method are kept."""
    if name not in _kept:
        for other in [other for other in _kept if other != REFERENCE]:
            del _kept[other]
        _kept[name] = Played(name, lambda: folders.mktemp(name))
    return _kept[name]


class _CrashError(BaseException):
    """A crash. It is not an `Exception`: the run is not saved, as after a kill of the process."""


class _Crashing(Silent):
    """A callback that crashes the run after the round `when`."""

    when = 0

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        super().on_round_end(run, metrics)
        if run.round == self.when:
            raise _CrashError


class Contract:
    """The contract of methods; a subclass names the methods.

    The tests of a method train LeNet-5 on scikit-learn's digits for three rounds: about half a
    minute for each method on one core. They check among others that

    - a run that crashed and was resumed ends with the bytes of the uninterrupted run,
    - the vectorized engine computes what the sequential one does, up to rounding,
    - evaluation changes nothing, and neither does what the server must not see,
    - frozen parameters are neither changed, kept nor sent,
    - clients with one sample or one class, absent clients and diverging ones are handled,
    - the method differs from FedAvg.

    Attributes:
        methods: Names of the methods.
    """

    methods: ClassVar[Sequence[str]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if isinstance(self.methods, str) or not self.methods:
            raise pytest.UsageError(
                f"{type(self).__name__}.methods must be a tuple with the names of methods, such as"
                f' ("fedavg",), got {self.methods!r}.'
            )
        # The scope keeps the tests of one method together, so that they share what was played.
        if "method" in metafunc.fixturenames:
            metafunc.parametrize("method", self.methods, indirect=True, scope="module")

    @pytest.fixture(scope="module")
    @classmethod
    def method(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Played:
        return _played(request.param, tmp_path_factory)

    @pytest.fixture(scope="module")
    @classmethod
    def reference(cls, tmp_path_factory: pytest.TempPathFactory) -> Played:
        return _played(REFERENCE, tmp_path_factory)

    @pytest.fixture
    def _no_page(self, method: Played, monkeypatch: pytest.MonkeyPatch) -> None:
        """Write no report.html: it takes longer than the training. `Played.straight` has one."""
        assert method.straight
        monkeypatch.setattr(run_report, "render", lambda run: "")

    @pytest.mark.usefixtures("_no_page")
    def test_crash_and_resume_end_like_the_straight_run(
        self, method: Played, tmp_path: Path
    ) -> None:
        """Crashes fall after the round's metrics were written and before its state was saved.

        The first checkpoint is that of round 2. So a run that crashes in round 2 starts again from
        the beginning, which also shows that the same seed gives the same digest and metrics.
        """
        path, summary = method.straight
        keys = with_method(method.name, "output.checkpoint_every=2")
        config, origins = resolve([from_overrides([*SMALL, f"output.dir={tmp_path}", *keys])])
        crashing = _Crashing()
        crashing.when = 2
        with pytest.raises(_CrashError):
            lifecycle.run(config, origins, [crashing])
        [crashed] = tmp_path.glob("*/*")
        crashing.when = 3
        with pytest.raises(_CrashError):
            lifecycle.resume(crashed, Layer({}), [crashing])
        crashing.when, before = 0, len(crashing.rounds)

        lifecycle.resume(crashed, Layer({}), [crashing])

        assert 1 not in crashing.rounds[before:]
        assert reproducible(summary_of(crashed)) == reproducible(summary)
        for table in ("metrics.csv", "clients.csv", "per_class.csv", "confusion.csv"):
            assert (crashed / table).read_bytes() == (path / table).read_bytes()

    def test_vectorized_engine_does_what_the_sequential_one_does_without_batchnorm(
        self, method: Played
    ) -> None:
        keys = with_method(method.name, "model.name=mlp", "engine.precision=64-true")
        refusals = []
        for length in ((), STEPS):  # epochs give clients different numbers of steps
            try:
                one, many = (build(*keys, *length, f"engine.name={name}") for name in ENGINES)
            except ConfigError as why:  # a method may need other layers, or divide epochs
                refusals.append(str(why))
            else:
                _assert_vectorized_like_sequential(States(one), many)
        if len(refusals) == 2:
            pytest.skip(refusals[0])

    def test_batchnorm_policies_run(self, method: Played) -> None:
        for policy in POLICIES:
            keys = with_method(method.name, f"train.batchnorm={policy}", "train.rounds=2")
            built = build(*keys)
            state = after(built, 2)

            settings = rounds.settings_of(built.algorithm, state)
            found = built.evaluator(print).evaluate(state, settings, common=True)
            assert found.local["personal", "test"].correct.any()

    @pytest.mark.usefixtures("_no_page")
    def test_a_round_whose_clients_all_diverge_changes_nothing(
        self, method: Played, tmp_path: Path
    ) -> None:
        keys = with_method(method.name, "train.optimizer.lr=1e36")
        try:
            built = build(*keys)
        except ConfigError as refusal:  # a method may refuse such a learning rate
            pytest.skip(str(refusal))
        path, summary = run(tmp_path, *keys)
        start = built.start()
        for number, stage in enumerate(built.algorithm.stages()):
            for turn in range(stage.rounds if stage.setup else 0):  # a set-up may need no training
                start, _ = played(built, replace(start, stage=number, stage_round=turn))
        last, _ = checkpoint.load(path / "checkpoints" / "last.safetensors", summary["config_hash"])
        assert summary["diverged"] == summary["client_trainings"] > 0
        assert fingerprint(last) == fingerprint(start)
        assert int(last.participation_count.sum()) == 0

    def test_run_is_finite_and_its_summary_is_complete(self, method: Played) -> None:
        path, summary = method.straight

        for moment in ("last", "best"):
            for split in ("validation", "test"):
                metrics = summary[moment][split]
                names = (
                    "accuracy",
                    "accuracy_mean",
                    "balanced_accuracy",
                    "macro_f1",
                    "worst10_accuracy",
                    "client_std",
                )
                assert all(0 <= metrics[name] <= 1 for name in names)
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

    def test_another_seed_gives_another_state(self, method: Played) -> None:
        other = after(build(*with_method(method.name, "seed=1")), 1)

        assert fingerprint(other) != fingerprint(method.float32.after(1))

    @pytest.mark.usefixtures("_no_page")
    def test_evaluation_and_unpaid_values_change_nothing(
        self, method: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One run with two changes; each of them must leave the digest and the bytes as they are.

        Models are evaluated after every round. What the method does not pay for is replaced by NaN:
        rows that clients keep and do not send, and the values outside a message's mask.
        """
        _, summary = method.straight

        def poisoned_rows(state: State, program: LocalProgram) -> State:
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
            communication,
            "apply_masks",
            lambda d: apply_masks(replace(d, shared=poisoned(d.shared), rows=poisoned(d.rows))),
        )
        often = ("evaluation.every=1", "evaluation.common.every=1")
        _, poisoned_summary = run(tmp_path, *with_method(method.name, *often))

        assert poisoned_summary["weights_digest"] == summary["weights_digest"]
        assert poisoned_summary["communication"] == summary["communication"]

    def test_bytes_cross_exactly_where_the_method_names_them(self, method: Played) -> None:
        _, summary = method.straight
        described, traffic = ALGORITHMS.find(method.name).communication, summary["communication"]

        assert (traffic["up_bytes"] + traffic["peer_bytes"] > 0) == (described.up != "nothing")
        assert (traffic["down_bytes"] + traffic["peer_bytes"] > 0) == (described.down != "nothing")

    def test_no_method_is_off_by_default(self, method: Played, reference: Played) -> None:
        """With its defaults a method ends with other models than FedAvg, or predicts otherwise."""
        if method.name == REFERENCE:
            pytest.skip("FedAvg itself")

        if method.straight[1]["weights_digest"] != reference.straight[1]["weights_digest"]:
            return
        found, expected = (one.predictions() for one in (method, reference))
        assert any(not torch.equal(classes, expected[i]) for i, classes in found.items())

    def test_dispatch_and_deploy_change_nothing(self, method: Played) -> None:
        algorithm, state = method.float32.built.algorithm, method.float32.after(2)
        before = fingerprint(state)

        algorithm.dispatch(visible_to_server(state, algorithm.program(state)), torch.arange(5))
        deployments = algorithm.deploy(state, torch.arange(5))

        assert fingerprint(state) == before
        assert next(iter(deployments)) == "personal"

    def test_dispatch_of_a_client_depends_on_its_id_alone(self, method: Played) -> None:
        algorithm, state = method.float32.built.algorithm, method.float32.after(2)
        seen = visible_to_server(state, algorithm.program(state))

        together = algorithm.dispatch(seen, torch.arange(5))

        for client in range(5):
            alone = algorithm.dispatch(seen, torch.tensor([client]))
            assert alone.numbers == together.numbers
            for one, all_ in ((alone.shared, together.shared), (alone.rows, together.rows)):
                assert one.values.keys() == all_.values.keys()
                assert one.mask.keys() == all_.mask.keys()
            for tree, whole, row in (
                (alone.shared.values, together.shared.values, ...),
                (alone.shared.mask, together.shared.mask, ...),
                (alone.rows.values, together.rows.values, slice(client, client + 1)),
                (alone.rows.mask, together.rows.mask, slice(client, client + 1)),
            ):
                assert all(torch.equal(value, whole[key][row]) for key, value in tree.items())

    def test_rows_of_absent_clients_stay_as_they_were(self, method: Played) -> None:
        built, state = method.float32.built, method.float32.after(1)
        before = {key: value.clone() for key, value in state.clients.items()}

        now, results = played(built, state)

        absent = [i for i in range(5) if i not in results.ids.tolist()]
        if not absent:
            pytest.skip("all clients take part")
        for key, value in now.clients.items():
            assert torch.equal(value[absent], before[key][absent]), key

    def test_order_of_the_cohort_does_not_matter(self, method: Played) -> None:
        """In float64: sums over clients in another order differ in the last bits only."""
        built = method.float64.built
        first, second = method.float64.after(1), method.float64.after(1)
        ids = torch.tensor([0, 2, 4])

        forth, _ = played(built, first, ids)
        back, _ = played(built, second, ids.flip(0))

        for tree_a, tree_b in ((forth.server, back.server), (forth.clients, back.clients)):
            for key, value in tree_a.items():
                assert torch.allclose(value.double(), tree_b[key].double(), rtol=0, atol=1e-12), key

    def test_personal_leaves_stay_with_their_client(self, method: Played) -> None:
        """A client begins a round with the personal leaves that it had at the end of its last one.

        Also where it sends them, so that the server can read them. A `dispatch` of the method's own
        or a reply may send other values of a leaf.
        """
        algorithm, ids = method.float32.built.algorithm, torch.arange(5)
        personal = algorithm.personal() - algorithm.setting.net.statistics
        for before in (method.float32.after(number) for number in range(3)):
            program = algorithm.program(replace(before, clients={}))
            # A program without training, such as that of a set-up, need not keep what it does not
            # change: the clients' rows stay as they are.
            unkept = personal - program.keeps
            assert not unkept or not any(isinstance(step, Phase) for step in program.steps)
            rows = {name: before.clients[name].clone() for name in unkept}
            seen = visible_to_server(before, program)
            default = Algorithm.dispatch(algorithm, seen, ids).shared.values
            assert not personal & default.keys(), "the default `dispatch` sends personal leaves"

            state, results = played(method.float32.built, before, ids)

            sent = algorithm.dispatch(visible_to_server(state, program), ids)
            received = as_received(results, results.sent)
            reply = algorithm.aggregate(visible_to_server(before, program), received).reply
            replied = frozenset() if reply is None else frozenset(reply.values)
            unsent = personal - sent.shared.values.keys() - sent.rows.values.keys()
            for name in unsent - replied:
                kept = state.clients[name][results.ids]
                if name in unkept:
                    assert torch.equal(kept, rows[name][results.ids]), f"`{name}` has changed"
                    continue
                ended = {**received.sent.values, **results.kept}[name]
                assert torch.equal(kept, ended), f"`{name}` has changed at a client"

    def test_tensors_that_a_phase_trains_at_the_client_change(self, method: Played) -> None:
        """A kept tensor on which the loss does not depend would stay as it was, without a word."""
        algorithm = method.float64.built.algorithm
        layers = algorithm.setting.net.layers
        # BatchNorm subtracts the bias of a convolution again, so its gradient is zero.
        without_effect = tuple(f"{layer.name}.bias" for layer in layers if layer.kind == "conv")
        changed: dict[str, bool] = {}
        for number in range(3):
            before, after = method.float64.after(number), method.float64.after(number + 1)
            program = algorithm.program(replace(before, clients={}))
            for step in program.steps:
                if not isinstance(step, Phase) or isinstance(step.train, str):
                    continue
                for name in step.train & program.keeps & before.clients.keys():
                    if name.endswith(without_effect):
                        continue
                    same = torch.equal(before.clients[name], after.clients[name])
                    changed[name] = changed.get(name, False) or not same
        unchanged = sorted(name for name, is_changed in changed.items() if not is_changed)
        assert not unchanged, f"phases train {unchanged}, but no client's values have changed"

    def test_frozen_parameters_stay_as_they_are(self, method: Played) -> None:
        """Of a frozen part, nothing is kept, sent or changed, in copies of the method's own either.

        The backbone is frozen, or the first layers if the method needs a backbone that it trains.
        With adapters (`needs`) all other layers are frozen already.
        """
        keys, reason = with_method(method.name, "train.rounds=2"), "frozen"
        try:
            built = build(*keys, "model.freeze=backbone")
        except ConfigError as refusal:
            reason = str(refusal)
            has_adapters = bool(method.float32.built.algorithm.setting.net.adapters)
            built = build(*keys, *(() if has_adapters else ("model.freeze=[conv1, norm1]",)))
        assert "frozen" in reason, "the refusal must say that the backbone is frozen"
        known = built.algorithm.setting.net.fixed
        before = {name: leaf.clone() for name, leaf in freezing.values(built.net).items()}
        assert before.keys() == known

        state = after(built, 2)

        for name in (*state.server, *state.clients):
            parts = name.split(".")
            assert not any(".".join(parts[k:]) in known for k in range(len(parts))), name
        settings = rounds.settings_of(built.algorithm, state)
        [weights] = built.evaluator(print).deployed(state, settings, torch.tensor([1]))
        for name, leaf in before.items():
            assert torch.equal(weights[name], leaf), name

    def test_programs_of_a_stage_are_equal_and_hashable(self, method: Played) -> None:
        algorithm = method.float32.built.algorithm
        states = [method.float32.after(rounds) for rounds in range(3)]
        for state in states:  # a program that is made again, and so consists of other objects
            assert algorithm.program(state) == algorithm.program(state)
            assert hash(algorithm.program(state)) == hash(algorithm.program(state))
        pairs = [(a, b) for a, b in pairwise(states) if a.stage == b.stage]
        if len(algorithm.stages()) < len(states):
            assert pairs
        for earlier, later in pairs:
            assert algorithm.program(earlier) == algorithm.program(later)

    def test_nothing_that_a_client_learns_from_is_test_data(self, method: Played) -> None:
        algorithm, state = method.float32.built.algorithm, method.float32.after(0)
        for stage in range(len(algorithm.stages())):
            program = algorithm.program(replace(state, stage=stage))
            parts = {step.samples.part for step in program.steps if not isinstance(step, Transform)}
            parts |= {
                c.samples.part for s in program.steps if isinstance(s, Phase) for c in s.record
            }
            assert parts <= {"train", "validation"}

    def test_models_can_be_evaluated_when_all_rounds_are_done(self, method: Played) -> None:
        algorithm, state = method.float32.built.algorithm, method.float32.after(3)

        deployments = algorithm.deploy(state, torch.arange(5))
        assert "personal" in deployments
        assert state.stage == len(algorithm.stages()) - 1

    def test_vectorized_engine_does_what_the_sequential_one_does(self, method: Played) -> None:
        """LeNet-5, which has BatchNorm."""
        many = build(
            *with_method(method.name, "engine.precision=64-true", "engine.name=vectorized"),
        )

        _assert_vectorized_like_sequential(method.float64, many)

    def test_clients_that_join_later_are_evaluated_and_change_nothing(self, method: Played) -> None:
        """After no epoch and one: finite scores, the state as it was, alike in both engines."""
        state = method.float64.after(3)
        before = fingerprint(state)
        built = method.float64.built
        stacked = built.config.engine.altered(name="vectorized")
        many = replace(built, config=built.config.altered(engine=stacked))

        one, other = (_evaluated_new_clients(experiment, state) for experiment in (built, many))

        assert fingerprint(state) == before
        assert {row.protocol for row in one} >= {"new@0", "new@1", "seen@0", "seen@1"}
        assert all(isfinite(row.value) for row in one)
        assert one == other

    def test_state_round_trips_through_a_checkpoint(self, method: Played, tmp_path: Path) -> None:
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

    @pytest.mark.usefixtures("_no_page")
    def test_poor_clients_run_without_nan(self, method: Played, tmp_path: Path) -> None:
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
            tmp_path,
            *with_method(method.name, f"data.path={data}", *natural, "train.participation=1"),
        )

        assert summary["diverged"] == 0
        assert "nan" not in (path / "metrics.csv").read_text()
        last, _ = checkpoint.load(path / "checkpoints" / "last.safetensors", summary["config_hash"])
        assert is_finite(last.server)
        assert is_finite(last.clients)
        if "global.prototypes" in last.server:
            table, present = last.server["global.prototypes"], last.server["global.present"]
            assert torch.equal(present, (table != 0).any(dim=1))

    def test_stages_add_up_to_the_rounds(self, method: Played) -> None:
        stages = method.float32.built.algorithm.stages()

        assert sum(stage.rounds for stage in stages if not stage.setup) == 3

    def test_free_numbers_of_a_dispatch_follow_from_the_round_alone(self, method: Played) -> None:
        """Server and client must both compute them from the round, so they cost nothing."""
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

    def test_method_names_its_source_and_what_it_is(self, method: Played) -> None:
        described = ALGORITHMS[method.name]

        assert described.paper.title
        assert described.paper.venue
        assert described.communication.down
        assert described.communication.up
        assert described.communication.keeps
        assert described.__doc__


def _evaluated_new_clients(built: assembly.Experiment, state: State) -> list[Row]:
    """Return the metrics of two clients that join after the training, with samples of no other."""
    federation = built.federation
    of_others = [rows for part in PARTS for rows in federation.partition.parts[part]]
    free = np.setdiff1d(np.arange(len(federation.y)), np.concatenate(of_others))[:60]
    parts = {
        part: [rows[low:high] for rows in (free[:30], free[30:])]
        for part, low, high in zip(PARTS, (0, 16, 22), (16, 22, 30), strict=True)
    }
    new = ClientParts(parts, federation.partition.labels)
    adapt = built.config.evaluation.adapt.altered(finetune_epochs=(0, 1))
    evaluation = built.config.evaluation.altered(adapt=adapt)
    clients = NewClients(
        replace(
            built,
            config=built.config.altered(evaluation=evaluation),
            federation=replace(federation, new=new),
        ),
        print,
    )
    counts = federation.clients, clients.experiment.federation.clients
    small, large = (one.sketch().server for one in (built, clients.experiment))
    for name, entry in small.items():
        shapes = zip(entry.shape, large[name].shape, strict=True)
        axes = tuple(axis for axis, sizes in enumerate(shapes) if sizes == counts)
        assert built.algorithm.client_axes(name) == axes, f"`by_client` of `{name}`"
    try:
        return clients.rows(clients.evaluate(state), state.round)
    finally:
        clients.close()


def _assert_vectorized_like_sequential(one: States, many: assembly.Experiment) -> None:
    """In float64, with clients that are absent."""
    a, b = one.after(3), after(many, 3)

    for trees in ((a.server, b.server), (a.clients, b.clients)):
        assert list(trees[0]) == list(trees[1])
        for key, value in trees[0].items():
            other = trees[1][key]
            assert value.shape == other.shape, key
            assert bool(((value.double() - other.double()).abs() <= 1e-9).all()), key
    settings = [rounds.settings_of(x.algorithm, a) for x in (one.built, many)]
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
