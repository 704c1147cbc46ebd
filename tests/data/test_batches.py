import numpy as np
import pytest
import torch

from flbench.config.schema import TrainConfig
from flbench.core.rng import Draw
from flbench.data import batches
from tests.support import build


@pytest.mark.parametrize(
    ("n", "last", "single", "sizes"),
    [
        (70, "keep", False, [32, 32, 6]),
        (70, "drop", False, [32, 32]),
        (70, "wrap", False, [32, 32, 32]),
        (65, "keep", True, [32, 32]),
        (65, "keep", False, [32, 32, 1]),
        (65, "wrap", True, [32, 32, 32]),
        (5, "wrap", True, [32]),
        (5, "drop", True, []),
        (1, "keep", True, []),
        (64, "drop", True, [32, 32]),
    ],
)
def test_arrange_cuts_an_epoch_into_these_batches(n, last, single, sizes):
    order = np.random.default_rng(0).permutation(n)

    arranged = batches.arrange(order, TrainConfig(last_batch=last), skip_single=single)

    assert [
        len(part) for part in np.split(arranged, range(32, len(arranged), 32)) if len(part)
    ] == sizes
    assert np.array_equal(arranged[: min(n, len(arranged))], order[: len(arranged)])


def epoch(federation, number: int = 0, size: int = 32):
    rows = federation.partition.parts["train"][1]
    given = 1, number, Draw(0, (0,), 5), TrainConfig(batch_size=size)
    order = batches.epoch_order(rows, *given, skip_single=False)
    return list(batches.epoch(federation, order, *given, dtype=torch.float32))


def test_epoch_shows_every_sample_once_with_its_label():
    federation = build().federation
    rows = federation.partition.parts["train"][1]

    found = epoch(federation)

    x = torch.cat([batch.x for batch in found])
    every = federation.inputs(rows, torch.float32)
    assert sorted(x.flatten(1).tolist()) == sorted(every.flatten(1).tolist())
    assert [int(batch.step) for batch in found] == list(range(len(found)))
    assert sorted(torch.cat([batch.y for batch in found]).tolist()) == sorted(
        federation.y[rows].tolist()
    )


def test_pieces_do_not_change_batches(monkeypatch):
    federation = build("data.augment=[crop]").federation
    whole = epoch(federation, size=16)

    monkeypatch.setattr(batches, "PIECE", 33)
    pieces = epoch(federation, size=16)

    assert len(whole) == len(pieces)
    assert all(
        torch.equal(a.x, b.x) and torch.equal(a.key, b.key)
        for a, b in zip(whole, pieces, strict=True)
    )


def test_statistics_see_all_rows_in_order_or_one_masked_row():
    federation = build().federation
    rows = federation.partition.parts["test"][1]

    found = list(batches.in_order(federation, rows, torch.float32, 7))

    assert torch.equal(torch.cat([batch.y for batch in found]), federation.y[rows])
    [empty] = batches.in_order(federation, rows[:0], torch.float32, 7)
    assert empty.mask.tolist() == [False]
