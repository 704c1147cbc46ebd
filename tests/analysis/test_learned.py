"""What methods have learned, as a run writes it and a report shows it."""

import json
import shutil
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from flbench.algorithms.base import Algorithm
from flbench.algorithms.shared.gossip import Gossip
from flbench.analysis.arrangement import arrange
from flbench.analysis.page import page_of
from flbench.analysis.tables import Analysis
from flbench.comparison.collect import collect
from flbench.core.errors import DataError
from flbench.core.learned import LearnedTable
from flbench.core.registry import ALGORITHMS
from flbench.deploy.loading import load
from flbench.results.learned import MOST_NUMBERS, read, text_of
from tests.support import pictures_in_pages, run

pytestmark = pytest.mark.slow

MLP = "model.name=mlp"
GOSSIP = sorted(name for name in ALGORITHMS.names() if issubclass(ALGORITHMS.find(name), Gossip))


def learned(folder, *overrides):
    path, _ = run(folder, *overrides)
    return path, {one.name: as_tensors(one) for one in read(path)}


def as_tensors(one):
    arrays = {key: torch.from_numpy(v) for key, v in vars(one).items() if isinstance(v, np.ndarray)}
    return replace(one, **arrays)


def test_what_is_too_large_for_the_file_is_left_out():
    def table(size):
        return LearnedTable("t", "", torch.zeros(size, size), "client", "client")

    written = json.loads(text_of([table(3), table(int(MOST_NUMBERS**0.5)), table(2)]))

    assert [len(one["values"]) for one in written["learned"]] == [3]


TABLE = {"name": "t", "about": "", "rows": "class", "columns": "class"}
TABLE |= {"values": [[1.0, None]], "labels": []}


@pytest.mark.parametrize(
    "item",
    [
        7,
        TABLE | {"values": [[1.0], [1.0, 2.0]]},
        TABLE | {"values": [["a"]]},
        TABLE | {"labels": [1, 2]},
        TABLE | {"values": [[1e308, -1e308]]},
        TABLE | {"more": 1},
    ],
    ids=str,
)
def test_damaged_files_are_named(item, tmp_path):
    file = tmp_path / "learned.json"
    file.write_text(json.dumps({"learned": [TABLE, TABLE]}))
    assert len(read(tmp_path)) == 2

    file.write_text(json.dumps({"learned": [item]}))
    with pytest.raises(DataError, match="learned"):
        read(tmp_path)


def test_cosines_of_slapfl_are_those_of_the_clients_nets(tmp_path):
    path, found = learned(tmp_path, "algorithm=slapfl", "model.name=lenet5")

    table = found["cosines by layer"]
    nets = [dict(load(path, k, checkpoint="last").net.net.named_parameters()) for k in range(5)]
    for column, layer in enumerate(table.labels):
        names = [name for name in nets[0] if name.rpartition(".")[0] == layer]
        rows = [torch.cat([net[name].double().ravel() for name in names]) for net in nets]
        means = torch.zeros(5, dtype=torch.float64)
        for i, j in permutations(range(5), 2):
            means[i] += torch.cosine_similarity(rows[i], rows[j], dim=0) / 4
        torch.testing.assert_close(table.values[:, column], means, rtol=0, atol=1e-6)


LEARNING = sorted(
    {name for name in ALGORITHMS.names() if ALGORITHMS.find(name).learned is not Algorithm.learned}
    - {*GOSSIP}
)
KEYS = {
    "fedcpmd": ("algorithm.k_p=1",),
    "fedpc": ("algorithm.groups=2",),
    "slapfl": ("algorithm.last_only=true",),
}


@pytest.mark.one_of("method")
@pytest.mark.parametrize("method", LEARNING)
def test_tables_have_the_sizes_that_they_say(method, tmp_path):
    keys = (f"algorithm={method}", MLP, "train.rounds=2", *KEYS.get(method, ()))
    _, found = learned(tmp_path, *keys)

    assert found
    lengths = {"class": 10, "client": 5}
    for one in found.values():
        values = one.values
        rows, columns = values.shape
        assert rows == lengths.get(one.rows, rows)
        assert columns == lengths.get(one.columns, len(one.labels))
        if one.rows == one.columns == "class":  # cosines
            torch.testing.assert_close(values, values.T, equal_nan=True)
            assert set(values.diagonal().nan_to_num(1.0).round(decimals=9).tolist()) == {1.0}
            assert (values.nan_to_num().abs() <= 1 + 1e-6).all()
        if one.rows == "group":
            assert values.sum(dim=0).tolist() == [1.0] * columns
        if method == "fedcpmd":  # those of the first phase, which has one round
            assert values.sum(dim=1).tolist() == [1.0] * rows


def test_similarities_of_pfedsim_are_those_of_pairs_that_were_compared(tmp_path):
    keys = (MLP, "train.rounds=2", "algorithm.rho=0.5", "train.participation=0.6")
    _, found = learned(tmp_path, "algorithm=pfedsim", *keys)

    known = ~found["client similarity"].values.isnan()
    assert torch.equal(known, known.T)
    assert not known.diagonal().any()
    assert int(known.sum()) <= 3 * 2  # of one cohort of three clients


@pytest.mark.one_of("method")
@pytest.mark.parametrize("method", GOSSIP)
def test_topology_has_the_weights_of_the_last_round(method, tmp_path):
    keys = (f"algorithm={method}", MLP, "train.rounds=2", "train.participation=0.6")
    _, found = learned(tmp_path, *keys)

    weights = found["topology"].values
    rows = weights.nansum(dim=1)
    assert weights.shape == (5, 5)
    assert sorted(rows.round(decimals=5).tolist()) == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert not (weights == 0).any()


def test_page_shows_what_the_run_has_written_and_needs_no_checkpoint(tmp_path):
    path, found = learned(tmp_path / "runs", "algorithm=hfcd", MLP)
    shutil.rmtree(path / "checkpoints")

    def drawn():
        collected = collect([path])
        with pictures_in_pages():
            page = page_of(Analysis(arrange(collected.runs, labels=collected.labels)))
        pictures = (one for chapter in page.chapters for one in chapter.pictures())
        return [one for one in pictures if one.name.startswith("learned-")]

    shown = drawn()
    assert [name in one.title for one, name in zip(shown, found, strict=True)] == [True] * len(
        found
    )
    assert all(one.is_map for one in shown)
    similarity = shown[0].figure.axes[0].images[0].get_array().filled(np.nan)
    np.testing.assert_array_equal(similarity, found["class similarity"].values)
    (path / "learned.json").unlink()
    assert not drawn()
