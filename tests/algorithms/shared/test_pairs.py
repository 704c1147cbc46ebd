"""Matrices of pairs of clients that are stored by entries, against dense ones."""

import tracemalloc
from dataclasses import replace

import pytest
import torch

from flbench.algorithms import ALGORITHMS
from flbench.algorithms.shared import pairs
from flbench.core.tree import digest
from flbench.experiment import rounds
from tests.support import build

CLIENTS = 90


def test_entries_are_those_of_a_dense_matrix_at_every_moment():
    draw = torch.Generator().manual_seed(0)
    matrix, wanted = pairs.zeros(CLIENTS), torch.zeros(CLIENTS, CLIENTS, dtype=torch.float64)
    kinds = set()
    for _ in range(200):
        places = torch.randperm(CLIENTS**2, generator=draw)[:25]
        row, column = places // CLIENTS, places % CLIENTS
        value = torch.randn(25, generator=draw)
        matrix = pairs.with_entries(matrix, row, column, value, CLIENTS)
        wanted[row, column] = value.double()
        ids = torch.randperm(CLIENTS, generator=draw)[:7]
        assert torch.equal(pairs.rows(matrix, ids, CLIENTS), wanted[ids])
        kinds.add(matrix.ndim)

    assert torch.equal(pairs.dense(matrix, CLIENTS), wanted)
    assert kinds == {2, 3}  # it became dense when that took less memory


def test_a_few_pairs_of_many_clients_take_little_memory():
    clients = 1_000_000
    matrix = pairs.with_entries(
        pairs.zeros(clients),
        torch.tensor([999_999, 3]),
        torch.tensor([3, 999_999]),
        torch.tensor([0.5, 0.25]),
        clients,
    )

    assert matrix.numel() == 6
    assert float(pairs.rows(matrix, torch.tensor([3]), clients)[0, 999_999]) == 0.25


@pytest.mark.parametrize("method", ["pfedsim", "fedfomo"])
def test_methods_have_the_same_models_with_dense_matrices(method, monkeypatch):
    keys = (f"algorithm={method}", "model.name=mlp", "train.participation=0.4", "train.rounds=4")

    def trained():
        built = build(*keys, "partition.clients=6")
        state, matrices = built.start(), set()
        for _ in range(4):
            settings = rounds.settings_of(built.algorithm, state)
            done = rounds.train(built.algorithm, built.engine, state, settings)
            state = rounds.exchange(built.algorithm, state, done).state
            matrices |= {value.ndim for value in state.server.values() if value.dtype.itemsize == 8}
        evaluator = built.evaluator(lambda text: None)
        models = [dict(one) for one in evaluator.deployed(state, settings)]
        tables = [table.values for table in built.algorithm.learned(state)]
        return digest(models), tables, matrices

    dense, tables, _ = trained()
    monkeypatch.setattr(pairs, "DENSE", 0)
    sparse, others, matrices = trained()

    assert 3 in matrices
    assert sparse == dense
    for table, other in zip(tables, others, strict=True):
        assert torch.equal(table.nan_to_num(), other.nan_to_num())


def test_the_need_of_all_pairs_is_named_before_they_are_allocated():
    built = build("algorithm=fedap", "model.name=lenet5")
    many = replace(built.algorithm.setting, clients=200_000)
    tracemalloc.start()
    [sentence] = ALGORITHMS["fedap"](built.config.algorithm, many).requires()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert "partition.clients" in sentence
    assert peak < 2**20
    assert pairs.too_large("a", 10, "b", memory=80) == []
    assert pairs.too_large("a", 11, "b", memory=80) != []
