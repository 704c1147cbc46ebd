"""Traced steps do what the steps do, bit for bit, for every method; doubtful ones are not kept."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import batch_norm, max_pool2d
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.algorithms import ALGORITHMS
from flbench.client.program import LocalProgram, Statistic
from flbench.config.sources import from_overrides
from flbench.core import ownership
from flbench.core.tree import digest
from flbench.core.types import Dispatch
from flbench.engine import traced
from flbench.engine.traced import Traces, run_and_record, shapes
from flbench.experiment import lifecycle, rounds
from flbench.testing import after
from tests.algorithms.test_contract import KINDS
from tests.support import build, config_of, interrupted_run, run, summary_of


def step(x: torch.Tensor, total: torch.Tensor) -> list[torch.Tensor]:
    """A gradient through vmap, a constant, an operation of several outputs, a write to an input."""
    leaf = x.detach().requires_grad_()
    first, second = torch.vmap(lambda row: (row * torch.arange(4.0)).sin().split(2))(leaf)
    loss = torch.where(first > 0, first, -torch.inf).logsumexp(dim=1) + second.sum(dim=1)
    [gradient] = torch.autograd.grad(loss.sum(), [leaf])
    with torch.no_grad():
        total[1:].mul_(0.5).add_(loss[1:])
    return [gradient, loss.detach(), total.clone()]


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(3, 4, generator=made), torch.randn(3, generator=made)


def take(traces: Traces, kind: Any, step: Callable[..., Any], given: Sequence[torch.Tensor]) -> Any:
    """Take the only step of a phase."""
    inputs = traces.gather(kind, {str(k): x for k, x in enumerate(given)})
    return traces.take(inputs, partial(step, *given))


def known_of(traces: Traces) -> dict[object, traced.Known]:
    """Return what is known of each kind."""
    return {kind._parts[0]: known for (kind, _, _), known in traces._known.items()}


def trace_of(step: Callable[..., Any], given: Sequence[torch.Tensor]) -> traced.Trace:
    _, trace = run_and_record(partial(step, *given), given)
    assert trace is not None
    return trace


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    """Steps of these tests are traced, although flbench does not own them."""
    monkeypatch.setattr(ownership, "PACKAGES", (*ownership.PACKAGES, "tests"))


@pytest.fixture
def soon(monkeypatch):
    """Traces are made after the first look."""
    monkeypatch.setattr(traced, "LOOKS", 1)
    monkeypatch.setattr(traced, "PATIENCE", 0.0)
    monkeypatch.setattr(traced, "LONGEST", 60.0)


def test_a_trace_does_the_same_to_other_inputs():
    trace = trace_of(step, inputs(0))

    for seed in (0, 1, 2):
        x, total = inputs(seed)
        again, written = inputs(seed)
        expected, found = step(x, total), trace.replay(again, written)

        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
        assert torch.equal(total, written)
        assert not torch.equal(written, inputs(seed)[1])


@pytest.mark.usefixtures("soon")
def test_a_kind_of_step_is_replayed_after_a_look_a_trace_and_a_trial():
    taken = []

    def counted(*some: torch.Tensor) -> list[torch.Tensor]:
        taken.append(1)
        return step(*some)

    traces = Traces()
    for seed in range(12):
        x, total = inputs(seed)
        expected, before = step(x, total), inputs(seed)
        found = take(traces, "kind", counted, before)
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
        assert torch.equal(before[1], total)

    assert len(taken) == 3


def test_a_kind_is_traced_when_its_steps_have_cost_as_much_as_a_trace(monkeypatch):
    monkeypatch.setattr(traced, "FIRST", 1e9)
    traces = Traces()

    for _ in range(30):
        take(traces, "kind", step, inputs(0))

    assert known_of(traces)["kind"].count == 30


@pytest.mark.usefixtures("soon")
def test_a_step_that_depends_on_more_than_its_inputs_is_not_trusted():
    """Such a step would be a mistake in flbench; it costs time, and results stay correct."""
    hidden = [0.0]

    def fickle(x: torch.Tensor) -> list[torch.Tensor]:
        hidden[0] += 1
        return [x + hidden[0]]

    traces, found = Traces(), []
    for _ in range(9):
        found += take(traces, "kind", fickle, [torch.zeros(1)])

    assert torch.cat(found).tolist() == list(range(1, 10))


@pytest.mark.usefixtures("soon")
def test_a_step_that_makes_another_number_of_tensors_is_not_trusted():
    made, traces = [0], Traces()

    def growing(x: torch.Tensor) -> list[torch.Tensor]:
        made[0] += 1
        return [x] * made[0]

    found = [len(take(traces, "kind", growing, [torch.zeros(1)])) for _ in range(5)]

    assert found == [1, 2, 3, 4, 5]


READERS = {
    "float": lambda x, t: x * float(t),
    "if": lambda x, t: x if t > 2 else -x,
    "index": lambda x, t: x * torch.arange(9.0)[t.long()],
    "mask": lambda x, t: x[x > t],
    "nonzero": lambda x, t: (x > t).nonzero().double().sum(),
    "distinct": lambda x, t: x * len((x > t).unique()),
    "selected": lambda x, t: x * len(x.masked_select(x > t)),
    "repeated": lambda x, t: x * len(x.repeat_interleave(t.long())),
    "list": lambda x, t: x * t.tolist(),
    "array": lambda x, t: x * float(t.numpy()),
    "shape in place": lambda x, t: (x * t).reshape(2, 2).t_().t(),
    "random numbers": lambda x, t: x + torch.rand_like(x) * 0 + t,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.usefixtures("soon")
def test_a_step_in_which_python_reads_a_value_has_no_trace(reader):
    """The value may be the same in the trial and another one in the next round.

    And a trial would draw PyTorch's random numbers twice.
    """

    def reads(x: torch.Tensor, t: torch.Tensor) -> list[torch.Tensor]:
        return [READERS[reader](x, t)]

    traces = Traces()
    for t in (1.0, 1.0, 1.0, 3.0):
        given = [torch.arange(4.0), torch.tensor(t)]
        [found] = take(traces, "kind", reads, given)
        assert torch.equal(found, reads(*given)[0])

    assert known_of(traces)["kind"].trusted is False


@pytest.mark.usefixtures("soon")
def test_a_step_with_nan_is_compared_bit_by_bit():
    traces = Traces()
    for x in (1.0, 1.0, float("nan"), 2.0):
        take(traces, "kind", lambda x: [x * 2], [torch.tensor([x])])

    assert known_of(traces)["kind"].trusted is True


@pytest.fixture
def examined(monkeypatch):
    """The tensors whose values are examined."""
    seen, bits = [], traced._bits
    monkeypatch.setattr(traced, "_bits", lambda x: (seen.append(x), bits(x))[1])
    return seen


@pytest.mark.usefixtures("soon")
def test_inputs_are_examined_once_in_a_phase(examined):
    """And no longer when they have changed between two steps that were compared."""
    traces = Traces()

    def phase(number, *moving, rate=1.0):
        tree = {"rate": torch.tensor(rate), "moving": torch.tensor(moving[0])}
        inputs = traces.gather("phase", tree)
        for value in moving:
            tree["moving"].fill_(value)
            examined.clear()
            step = partial(lambda rate, moving: [rate * moving], **tree)
            assert traces.take(inputs, step)[0] == rate * value
            yield len(examined)

    assert list(phase(0, 1.0, 2.0, 3.0, 4.0, 5.0)) == [0, 2, 2, 0, 0]  # look, record, compare
    assert list(phase(1, 1.0, 2.0, 3.0)) == [1, 0, 0]
    assert list(phase(2, 1.0, 2.0, 3.0, rate=2.0)) == [2, 0, 0]  # compared again
    assert list(phase(3, 1.0, 2.0, 3.0, rate=3.0)) == [0, 0, 0]


@pytest.mark.usefixtures("soon")
def test_a_batch_that_was_always_the_same_is_examined_in_each_step():
    """A client may have samples of one class in its first steps."""
    traces, found = Traces(), []
    inputs = traces.gather("phase", {})

    def step(x, y):
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            label = y.item()  # without a message
        return [x * label]

    def steps(*labels):
        for label in labels:
            batch = [torch.tensor(float(len(found) + 1)), torch.tensor(label)]
            found.append(float(traces.take(inputs, partial(step, *batch), batch)[0]))

    steps(1.0, 1.0, 1.0, 1.0, 1.0)
    with pytest.warns(traced.TraceWarning):
        steps(2.0, 2.0)

    assert found == [1.0, 2.0, 3.0, 4.0, 5.0, 12.0, 14.0]


@pytest.mark.usefixtures("soon")
def test_a_constant_that_changes_is_noticed():
    """A loss term may own a table that somebody writes to between two phases."""
    table, traces = torch.ones(3), Traces()

    def step(x):
        return [x * table.sum()]

    for number in range(8):
        table.fill_(1.0 + number // 5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", traced.TraceWarning)
            [found] = take(traces, "kind", step, [torch.tensor(float(number))])
        assert found == number * 3.0 * (1.0 + number // 5)


@pytest.mark.usefixtures("soon")
def test_a_constant_that_is_made_in_each_step_has_no_trace():
    """The trace cannot tell from which values the constant was made."""
    traces = Traces()

    def step(x):
        with torch.utils._python_dispatch._disable_current_modes():
            made = torch.ones(1)
        return [x * made]

    for number in range(5):
        assert take(traces, "kind", step, [torch.tensor(float(number))])[0] == number

    assert known_of(traces)["kind"].trusted is False


def test_long_steps_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(traced, "LONGEST", 0.0)
    traces = Traces()
    for seed in range(traced.LOOKS + 2):
        take(traces, "long", step, inputs(seed))

    assert known_of(traces)["long"].trusted is False


@pytest.mark.usefixtures("soon")
def test_recording_ends_after_a_number_of_operations(monkeypatch):
    monkeypatch.setattr(traced, "RECORDED", 1)
    traces = Traces()
    for kind in ("first", "second"):
        for seed in range(traced.LOOKS + 2):
            take(traces, kind, step, inputs(seed))

    assert {kind: known.trusted for kind, known in known_of(traces).items()} == {
        "first": True,
        "second": False,
    }


@pytest.mark.usefixtures("soon")
def test_the_least_recently_used_traces_are_removed(monkeypatch):
    trace = trace_of(step, inputs(0))
    monkeypatch.setattr(traced, "NODES", 2 * trace.size)
    traces = Traces()
    for kind in (1, 2, 3):
        for _ in range(3):
            take(traces, kind, step, inputs(0))

    assert list(known_of(traces)) == [2, 3]
    assert traces._size == 2 * trace.size


def test_the_least_recently_used_kinds_are_removed(monkeypatch):
    monkeypatch.setattr(traced, "KINDS", 4)
    traces = Traces()
    for number in range(9):
        take(traces, number, step, inputs(0))

    assert list(known_of(traces)) == [5, 6, 7, 8]


def test_strides_and_types_belong_to_a_kind():
    x = torch.zeros(3, 3)

    assert shapes([x]) != shapes([x.T[:, :2].T])
    assert shapes([x]) != shapes([x.double()])
    assert shapes([x, x]) == shapes([x.clone(), x + 1])


def test_order_and_sharing_of_tensors_belong_to_a_kind():
    """Outputs come in this order, and a step may write to what two names share."""
    one, other = torch.zeros(2), torch.ones(2)

    def kind(*trees, what="phase"):
        return Traces().gather(what, *trees).kind

    inputs = Traces().gather("phase", {"a": one, "b": other}, {"a": one})
    first = inputs.kind

    assert [id(x) for x in inputs.tensors] == [id(one), id(other)]
    assert first == kind({"a": other, "b": one}, {"a": other})
    assert first != kind({"a": other, "b": one}, {"a": other}, what="another")
    assert first != kind({"b": other, "a": one}, {"a": one})
    assert first != kind({"a": one, "b": other}, {"a": other})
    assert first != kind({"a": one, "b": other, "c": one}, {})


def test_equal_kinds_are_one_object():
    traces = Traces()

    first, second = (traces.gather("phase", {"a": torch.zeros(2)}) for _ in range(2))

    assert first.kind is second.kind
    assert first.number != second.number


def operations(trace: traced.Trace) -> int:
    """Return how many operations a replay does."""

    class Count(TorchDispatchMode):
        done = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.done += 1
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    with Count():
        trace.replay(x)
    return Count.done


CONSTANT = {
    "arithmetic": (lambda x: x + (torch.ones(3) * 2).sum(), 1),
    "shape alone": (lambda x: x + torch.ones_like(x.exp()).cumsum(0), 1),
    "written to": (lambda x: torch.zeros(3).add_(x), 2),
    "written to through a view": (lambda x: _through_a_view(torch.zeros(3), x), 4),
    "returned": (lambda x: torch.ones(3) * 2, 1),
}


@pytest.mark.parametrize("case", CONSTANT)
def test_results_that_depend_on_no_input_are_computed_once_unless_they_are_written_to(case):
    made, needed = CONSTANT[case]
    trace = trace_of(made, [torch.ones(3)])

    assert operations(trace) == needed
    for seed in (1, 2, 1):
        x = torch.full((3,), float(seed))
        found = trace.replay(x)
        assert torch.equal(found, made(x))
        found.mul_(7.0)


def _through_a_view(whole: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    whole[1:].add_(x[1:])
    return whole


def test_views_that_lead_back_are_left_out():
    trace = trace_of(lambda x: [x.view(3, 1).t().view(3).detach().exp()], [torch.ones(3)])
    x = torch.arange(3.0)

    assert operations(trace) == 1
    assert torch.equal(trace.replay(x)[0], x.exp())


def test_a_view_of_another_input_is_not_left_out():
    """Two inputs may share memory when the step is recorded, and not when it is replayed."""
    both = torch.arange(3.0)
    trace = trace_of(lambda x, y: [y.view(3, 1).view(3) - x], [both, both.view(3)])

    assert trace.replay(torch.ones(3), torch.full((3,), 5.0))[0].tolist() == [4.0, 4.0, 4.0]


def test_an_error_of_a_step_is_an_error_of_its_replay():
    """A singular matrix; nothing reads the output of the operation that detects it."""
    trace = trace_of(lambda x: [torch.linalg.inv(x)], [torch.eye(2)])

    with pytest.raises(torch.linalg.LinAlgError):
        trace.replay(torch.zeros(2, 2))


def test_a_replay_gives_no_leaf_away():
    """It may become a gradient, which a leaf cannot be of itself."""
    leaf = torch.ones(3, requires_grad=True)
    trace = trace_of(lambda x: [x.detach()], [torch.ones(3)])

    [found] = trace.replay(leaf)

    assert not found.requires_grad
    assert found.data_ptr() == leaf.data_ptr()


def test_a_constant_without_a_reader_is_not_kept():
    large = torch.ones(1_000_000)
    few = trace_of(lambda x: x + torch.ones(3).sum(), [torch.ones(3)])

    trace = trace_of(lambda x: x + large.sum(), [torch.ones(3)])

    assert trace.size == few.size


@pytest.mark.parametrize("train", [True, False])
def test_batchnorm_writes_to_its_statistics_in_a_replay(train):
    """The operation's schema does not declare the write, and nothing reads its result here."""

    def step(x, mean, var, count):
        if train:
            count.add_(1)
        batch_norm(x, mean, var, training=train)
        return [x * 2]

    def given(seed):
        made = torch.Generator().manual_seed(seed)
        return torch.randn(5, 2, generator=made), torch.zeros(2), torch.ones(2), torch.tensor(3)

    trace = trace_of(step, given(0))
    mine, other = given(1), given(1)
    trace.replay(*mine)
    step(*other)

    assert all(torch.equal(one, two) for one, two in zip(mine, other, strict=True))
    assert mine[1].any() == train


def test_max_pooling_gives_the_same_zeros_and_the_same_positions_of_nan():
    """Windows with zeros of both signs, and with several NaN, in images of many entries."""
    made = torch.Generator().manual_seed(0)
    values = torch.tensor([0.0, -0.0, -1.0, float("nan")])
    first, second = (
        values[torch.randint(4, (4, 2, 96, 96), generator=made)].requires_grad_() for _ in range(2)
    )

    def step(x):
        pooled, positions = max_pool2d(x, 2, return_indices=True)
        return [pooled.detach(), positions, *torch.autograd.grad(pooled.sum(), [x])]

    found = trace_of(step, [first]).replay(second)

    for mine, other in zip(found, step(second), strict=True):
        assert mine.numpy().tobytes() == other.numpy().tobytes()


CALLS = []


@dataclass(frozen=True)
class Sizes:
    """Mean feature of a batch; it records its calls."""

    def __call__(self, context):
        CALLS.append(1)
        return {"mean": context.out.features.mean(dim=0)}


@pytest.mark.usefixtures("soon")
def test_statistics_are_replayed_client_after_client():
    built = build("partition.clients=12", "partition.scheme=iid")
    program = LocalProgram((Statistic("found", Sizes()),))
    CALLS.clear()

    settings = rounds.settings_of(built.algorithm, built.start())
    results = built.engine.run(
        LocalProgram(()),
        torch.arange(12),
        rows=lambda ids: {},
        dispatch=lambda ids: Dispatch(),
        settings=settings,
        observe=program.steps,
    )

    sizes = len(set(built.federation.sizes.tolist()))
    assert len(CALLS) <= 3 * sizes < 12
    x = built.federation.partition.parts["train"][11]
    with torch.no_grad():
        expected = built.net.eval()(built.federation.inputs(x, torch.float32)).features.mean(dim=0)
    assert torch.allclose(results.observed["found.mean"][11], expected, atol=1e-6)


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ["fedpc", "hfcd", "fedcmd"])
@pytest.mark.slow
def test_half_precision_is_replayed_bit_for_bit(name, engine, monkeypatch):
    """fedcmd records while it trains."""
    assert_replayed(name, engine, monkeypatch, "engine.precision=bf16-mixed", "train.clip=0.5")


METHODS = ALGORITHMS.load()
ENGINES = ("sequential", "vectorized")


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.slow
def test_every_kind_of_state_is_replayed_bit_for_bit(name, engine, monkeypatch):
    assert_replayed(name, engine, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", [name for name in METHODS if name not in KINDS])
def test_every_method_is_replayed_bit_for_bit(name, engine, monkeypatch):
    # Stacks of a method that trains few clients at once may have only one shape that comes again.
    assert_replayed(name, engine, monkeypatch, shapes_replayed=1)


def assert_replayed(name, engine, monkeypatch, *more, shapes_replayed=2):
    """Clients of different size: full batches and padded ones, fewer and fewer clients."""
    few = ("partition.samples=400", "train.batch_size=16", "train.local_epochs=2")
    needs = ALGORITHMS.find(name).needs
    keys = (f"algorithm={name}", "model=lenet5", *needs, f"engine.name={engine}", *few, *more)
    monkeypatch.setattr(traced, "PATIENCE", 0.0)
    monkeypatch.setattr(traced, "LONGEST", 60.0)
    ends = []
    for looks in (10**9, 1):
        monkeypatch.setattr(traced, "LOOKS", looks)
        built = build(*keys)
        state = built.start()
        while state.round < 2:
            setup = built.algorithm.stages()[state.stage].setup
            settings = rounds.settings_of(built.algorithm, state, setup=setup)
            trained = rounds.train(built.algorithm, built.engine, state, settings)
            state = rounds.exchange(built.algorithm, state, trained).state
        ends.append(state)

    known = built.engine._environment.traces._known.values()
    assert sum(kind.trusted is True for kind in known) >= shapes_replayed
    assert not any(kind.trusted is False for kind in known)
    for tree, other in zip(*([end.server, end.clients] for end in ends), strict=True):
        assert tree.keys() == other.keys()
        for leaf, value in tree.items():
            assert torch.equal(value, other[leaf]), leaf


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ["fedavg", "hfcd"])
@pytest.mark.usefixtures("soon")
@pytest.mark.slow
def test_without_trace_the_digest_is_the_same_and_nothing_is_recorded(engine, name):
    keys = (f"algorithm={name}", f"engine.name={engine}", "train.local_epochs=3")
    digests, known = [], []
    for trace in ("true", "false"):
        built = build(*keys, f"engine.trace={trace}")
        state = after(built, 2)
        digests.append(digest([state.server, state.clients]))
        known.append(built.engine._environment.traces._known)

    assert digests[0] == digests[1]
    assert any(kind.trusted for kind in known[0].values())
    assert not known[1]


@pytest.mark.slow
def test_a_run_may_switch_traces_on_and_off_when_it_is_resumed(tmp_path):
    _, whole = run(tmp_path / "whole", "algorithm=fedavg")
    folder = interrupted_run(tmp_path / "parts", "algorithm=fedavg")

    lifecycle.resume(folder, from_overrides(["engine.trace=false"]))

    assert summary_of(folder)["weights_digest"] == whole["weights_digest"]
    assert config_of("engine.trace=false").hash() == config_of().hash()
