"""Steps as functions of static tensors, which a GPU captures, against the ordinary ones.

On a CPU a graph is a call of its function, so that all but the capture itself is tried.
"""

import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

from flbench.client.program import LocalProgram
from flbench.config.resolve import resolve
from flbench.config.schema import TrainConfig
from flbench.config.sources import from_overrides, from_values
from flbench.core.parts import offered
from flbench.core.registry import ALGORITHMS
from flbench.engine import base, captured_step, memory, vectorized
from flbench.engine.vectorized import VectorizedEngine
from flbench.experiment import assembly
from flbench.losses import CrossEntropy
from flbench.testing import after
from flbench.testing.setting import with_method
from tests.engine.test_vectorized import (
    CLIENTS,
    PROGRAMS,
    StopWhenLow,
    assert_close,
    go,
    phase,
)
from tests.support import SMALL, build

EXACT = 1e-12
STATIC = ("cpu",)
KEYS = ("engine.name=vectorized", "engine.precision=64-true", "engine.workers=1")
COHORTS = (CLIENTS, (2, 3, 1, 0), (4, 0, 2, 3))


def pair(monkeypatch, *keys):
    """The same experiment with ordinary and with static steps."""
    found = []
    for devices in ((), STATIC):
        monkeypatch.setattr(captured_step, "DEVICES", devices)
        found.append(build(*KEYS, *keys))
    return found


def assert_states_are_close(one, other, tiny=EXACT):
    for a, b in ((one.server, other.server), (one.clients, other.clients)):
        assert list(a) == list(b)
        filled = [name for name, value in a.items() if value.numel()]
        assert_close({n: a[n] for n in filled}, {n: b[n] for n in filled}, tiny)
        assert all(value.isfinite().all() for value in a.values())


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 32])
@pytest.mark.parametrize("name", PROGRAMS)
def test_static_steps_are_the_ordinary_ones_over_rounds_of_changing_clients(
    name, size, monkeypatch
):
    few = ("model.name=mlp", "partition.alpha=0.2", "partition.samples=600")
    engines = pair(monkeypatch, *few)
    names = engines[0].algorithm.setting.net.names("all")
    keeps = names | ({"made"} if name == "record" else set())
    for ids in COHORTS:
        one, many = (
            go(
                each,
                LocalProgram(tuple(PROGRAMS[name]), keeps),
                ids,
                train=TrainConfig(batch_size=size),
            )
            for each in engines
        )
        assert one.steps.tolist() == many.steps.tolist()
        assert torch.allclose(one.losses, many.losses, rtol=1e-6)
        assert_close(one.kept, many.kept, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        ("algorithm=hfcd", "model.name=lenet5"),
        ("algorithm=ditto", "train.batch_size=7"),
        ("algorithm=scaffold", "train.schedule.name=cosine"),
        ("algorithm=fedrep", "train.local_epochs=2"),
        ("algorithm=fedavg", "model.name=lenet5", "data.augment=[crop, flip]"),
        ("algorithm=fedavg", "engine.block=2"),
    ],
    ids=lambda keys: " ".join(keys),
)
def test_methods_have_the_same_weights(keys, monkeypatch):
    one, many = (after(each) for each in pair(monkeypatch, *keys))

    assert_states_are_close(one, many)


@pytest.mark.full
def test_every_method_has_the_same_weights(monkeypatch, subtests):
    for method in sorted(ALGORITHMS.load()):
        with subtests.test(method=method):
            one, many = map(after, pair(monkeypatch, *with_method(method)))
            assert_states_are_close(one, many)


def test_a_learning_rate_that_changes_is_read_by_the_same_graphs(monkeypatch):
    """In float32 it is a tensor."""
    keys = ("algorithm=fedavg", "train.schedule.name=cosine", "engine.precision=32-true")
    made = []
    init = captured_step.StaticPhase.__init__
    monkeypatch.setattr(
        captured_step.StaticPhase, "__init__", lambda *given: (made.append(1), init(*given))[1]
    )
    one, many = (after(each) for each in pair(monkeypatch, *keys))

    assert_states_are_close(one, many, 1e-6)
    assert len(made) == 1


def test_a_phase_has_at_most_four_graphs(monkeypatch):
    kinds = set()
    step = captured_step.StaticPhase._step
    monkeypatch.setattr(
        captured_step.StaticPhase, "_step", lambda self, *kind: (kinds.add(kind), step(self, *kind))
    )
    _, many = pair(monkeypatch, "partition.alpha=0.2", "partition.samples=600")
    for ids in COHORTS:
        go(many, LocalProgram((phase(epochs=5),)), ids, train=TrainConfig(batch_size=4))

    assert 2 <= len(kinds) <= 4


class Dropping(nn.Module):
    """A net that draws random numbers in each step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.3))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        return self.fc(self.body(x))


def test_dropout_draws_the_same_numbers_where_all_clients_take_full_batches(monkeypatch):
    keys = [*SMALL, *KEYS, "algorithm=fedavg", "partition.scheme=iid", "train.batch_size=8"]
    keys += ["train.last_batch=drop"]
    found = []
    for devices in ((), STATIC):
        monkeypatch.setattr(captured_step, "DEVICES", devices)
        with offered({"model": Dropping()}):
            layers = [from_overrides(keys), from_values({"model": {"name": "object"}}, "test")]
            found.append(after(assembly.build(resolve(layers)[0])))

    assert_states_are_close(*found)


def test_a_phase_that_the_host_ends_takes_ordinary_steps_with_one_note(monkeypatch):
    monkeypatch.setattr(captured_step, "DEVICES", STATIC)
    monkeypatch.setattr(captured_step, "StaticPhase", None)
    built, notes = build(*KEYS), []
    engine = VectorizedEngine(built.net, built.federation, built.config.engine, notes.append)
    program = LocalProgram((phase(epochs=5, until=StopWhenLow(0.6)),))
    for _ in range(2):
        assert go(replace(built, engine=engine), program).failures == ()

    assert len(notes) == 1
    assert "until" in notes[0]


def test_the_memory_of_graphs_makes_blocks_smaller(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 2**24)
    one, many = pair(monkeypatch, "algorithm=fedavg", "train.batch_size=16")

    assert 1 <= many.config.engine.block < one.config.engine.block <= 5


@pytest.mark.full  # the compiler takes a minute
@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_gradients_are_the_ordinary_ones(monkeypatch):
    """With random layers, whose numbers are those of ordinary steps."""
    keys = [*SMALL, *KEYS, "algorithm=fedavg", "partition.scheme=iid", "train.batch_size=16"]
    keys += ["train.last_batch=drop", "train.rounds=2", "engine.compile=on"]
    found = []
    for devices in ((), STATIC):
        monkeypatch.setattr(captured_step, "DEVICES", devices)
        with offered({"model": Dropping()}):
            layers = [from_overrides(keys), from_values({"model": {"name": "object"}}, "test")]
            found.append(after(assembly.build(resolve(layers)[0]), 2))

    assert_states_are_close(*found)


class Scaled:
    """A loss term whose factor the method sets in each round; a subclass compares factors."""

    weight, of_parameters, factor = 1.0, False, 1.0

    def __call__(self, context):
        return self.factor * CrossEntropy()(context)


class Compared(Scaled):
    def __eq__(self, other):
        return self.factor == other.factor

    __hash__ = None


@pytest.mark.parametrize("kind", [Scaled, Compared])
def test_a_term_whose_attribute_changes_is_read_in_each_round(kind, monkeypatch):
    """A graph of operations has the numbers of Python at its capture, as a CUDA graph has."""
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    ordinary, static = pair(monkeypatch, "model.name=mlp", "engine.compile=on")
    term = kind()
    names = static.algorithm.setting.net.names("all")
    for term.factor in (1.0, 0.1, 1.0):
        program = LocalProgram((phase(terms=(term,)),), names)
        one, many = (go(each, program) for each in (ordinary, static))
        assert_close(one.kept, many.kept, EXACT)


class Pretended(captured_step.CapturedSteps):
    """Steps of a GPU that is `gain` times as fast in TF32; on a CPU the ordinary ones."""

    gain, flags = 1.94, ()

    def __init__(self, *given):
        super().__init__(*given)
        self._tries_tf32 = True

    def _seconds(self, step):
        for _ in range(3):
            step()
        now = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        type(self).flags = (*self.flags, now)
        if self.gain is None:
            raise RuntimeError
        return 1.0 if any(now) else self.gain


def rounds_with_tf32(monkeypatch, gain):
    """Train two rounds with the measurement of TF32; return results, notes and flags in it."""
    base.allow_tf32(False)
    monkeypatch.setattr(Pretended, "gain", gain)
    monkeypatch.setattr(Pretended, "flags", ())
    monkeypatch.setattr(captured_step, "DEVICES", STATIC)
    built, notes = build("engine.name=vectorized", "engine.workers=1", "model.name=lenet5"), []
    program = LocalProgram((phase(epochs=2),), built.algorithm.setting.net.names("all"))
    results = []
    for kind in (captured_step.CapturedSteps, Pretended):
        monkeypatch.setattr(vectorized, "CapturedSteps", kind)
        engine = VectorizedEngine(built.net, built.federation, built.config.engine, notes.append)
        try:
            results += [go(replace(built, engine=engine), program) for _ in range(2)]
        finally:
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.backends.cudnn.allow_tf32
    return results, notes, Pretended.flags


@pytest.mark.parametrize(("gain", "told"), [(1.94, 1), (1.1, 0)])
def test_a_note_names_tf32_once_and_leaves_the_weights_as_they_are(gain, told, monkeypatch):
    results, notes, flags = rounds_with_tf32(monkeypatch, gain)

    assert len(notes) == told
    assert all("engine.precision=tf32" in note and "1.9" in note for note in notes)
    assert flags == ((False, False), (True, True))
    first, *others = results
    for other in others:
        assert torch.equal(first.losses, other.losses)
        assert all(torch.equal(first.kept[name], other.kept[name]) for name in first.kept)


def test_tf32_is_off_after_a_measurement_that_fails(monkeypatch):
    with pytest.raises(RuntimeError):
        rounds_with_tf32(monkeypatch, None)


class Fallible(captured_step.CapturedSteps):
    """Captures of which the second one fails; then PyTorch cannot replay the first one either."""

    captures = 0

    def captured(self, step):
        def replay():
            assert not self.has_failed
            step()

        self.captures += 1
        self.has_failed |= self.captures == 2
        return step if self.has_failed else replay


def test_no_graph_is_replayed_after_a_capture_that_has_failed(monkeypatch):
    ordinary, static = pair(monkeypatch, "model.name=mlp")
    monkeypatch.setattr(vectorized, "CapturedSteps", Fallible)
    engine = VectorizedEngine(static.net, static.federation, static.config.engine)
    names = static.algorithm.setting.net.names("all")
    program = LocalProgram((phase(epochs=5), phase(epochs=5, terms=(Scaled(),))), names)
    for _ in range(2):
        one, many = (go(each, program) for each in (ordinary, replace(static, engine=engine)))
        assert_close(one.kept, many.kept, EXACT)
    assert engine._captured.has_failed
