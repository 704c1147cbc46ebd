"""Traced steps do what the steps do, bit for bit, for every method; doubtful ones are not kept."""

import pytest
import torch

from flbench import rounds
from flbench.algorithms import ALGORITHMS
from flbench.engine import traced
from flbench.engine.traced import Traces, shapes, written_down
from tests.support import build


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


def test_a_trace_does_the_same_to_other_inputs():
    _, trace = written_down(step, inputs(0))

    for seed in (0, 1, 2):
        x, total = inputs(seed)
        again, written = inputs(seed)
        expected, found = step(x, total), trace(again, written)

        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
        assert torch.equal(total, written)
        assert not torch.equal(written, inputs(seed)[1])


def test_a_kind_of_step_is_replayed_after_a_few_looks_a_trace_and_a_trial():
    taken = []

    def counted(*some: torch.Tensor) -> list[torch.Tensor]:
        taken.append(1)
        return step(*some)

    traces = Traces()
    for seed in range(12):
        x, total = inputs(seed)
        expected, before = step(x, total), inputs(seed)
        found = traces.take("kind", counted, before)
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
        assert torch.equal(before[1], total)

    assert len(taken) == traced.LOOKS + 2


def test_a_step_that_depends_on_more_than_its_inputs_is_not_trusted():
    """It would be a mistake of ours; it costs time and no figure."""
    hidden = [0.0]

    def fickle(x: torch.Tensor) -> list[torch.Tensor]:
        hidden[0] += 1
        return [x + hidden[0]]

    traces, found = Traces(), []
    for _ in range(9):
        found += traces.take("kind", fickle, [torch.zeros(1)])

    assert torch.cat(found).tolist() == list(range(1, 10))


def test_long_steps_and_too_many_kinds_are_not_kept(monkeypatch):
    monkeypatch.setattr(traced, "WORTH", 0.0)
    traces = Traces()
    for seed in range(traced.LOOKS + 2):
        traces.take("long", step, inputs(seed))
    assert traces._known["long"].trusted is False

    monkeypatch.setattr(traced, "MOST", 4)
    for number in range(9):
        traces.take(number, step, inputs(0))
    assert list(traces._known) == [5, 6, 7, 8]


def test_strides_belong_to_a_kind():
    x = torch.zeros(3, 3)

    assert shapes([x]) != shapes([x.T[:, :2].T])
    assert shapes([x]) != shapes([x.double()])
    assert shapes([x, x]) == shapes([x.clone(), x + 1])


@pytest.mark.parametrize("name", ALGORITHMS.load())
def test_every_method_is_replayed_bit_for_bit(name, monkeypatch):
    """Clients of different size: full batches and padded ones, fewer and fewer clients."""
    keys = (f"algorithm={name}", "model=lenet5", "engine.name=vectorized")
    monkeypatch.setattr(traced, "WORTH", 60.0)
    ends = []
    for looks in (10**9, 1):
        monkeypatch.setattr(traced, "LOOKS", looks)
        built = build(*keys, "train.batch_size=16", "train.local_epochs=3")
        state = built.start()
        while state.round < 2:
            setup = built.algorithm.stages()[state.stage].setup
            settings = rounds.settings_of(built.config, built.algorithm, state, setup=setup)
            trained = rounds.train(built.algorithm, built.engine, state, settings)
            state = rounds.exchange(built.algorithm, state, trained).state
        ends.append(state)

    known = built.engine._bench.traces._known.values()
    assert sum(kind.trusted is True for kind in known) >= 2
    assert not any(kind.trusted is False for kind in known)
    for tree, other in zip(*([end.server, end.clients] for end in ends), strict=True):
        assert tree.keys() == other.keys()
        for leaf, value in tree.items():
            assert torch.equal(value, other[leaf]), leaf
