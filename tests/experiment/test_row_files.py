"""Checkpoints have the rows of clients in files of their own, and write those that have changed."""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file

from flbench.core import files
from flbench.core.errors import DataError
from flbench.core.storage import Storage
from flbench.core.types import State
from flbench.experiment import checkpoint, row_files
from flbench.experiment.row_files import ClientRows
from flbench.experiment.run_folder import RunFolder
from flbench.results.checkpoint_files import files_of

CLIENTS = 12


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Files have the rows of three clients each."""
    monkeypatch.setattr(row_files, "PIECE", 3 * (4 * 4 + 8 + 1))


def fresh() -> State:
    row = {"w": torch.tensor([0.0, -0.0, torch.nan, 2.0]), "n": torch.tensor(3)}
    clients = {name: value.repeat(CLIENTS, *[1] * value.dim()) for name, value in row.items()}
    clients["own"] = torch.zeros(CLIENTS, dtype=torch.bool)
    clients["none"] = torch.zeros(CLIENTS, 0)
    return State(
        stage=0,
        stage_round=0,
        round=0,
        server={"w": torch.ones(4)},
        clients=clients,
        participation_count=torch.zeros(CLIENTS, dtype=torch.int64),
        steps=torch.zeros(CLIENTS, dtype=torch.int64),
    )


def trained_by(state: State, ids: list[int], changes: ClientRows, number: float) -> State:
    state.clients["w"][ids] = torch.tensor([number, -0.0, torch.nan, 0.0])
    state.clients["n"][ids] = int(number)
    state.clients["own"][ids] = True
    state.participation_count[ids] += 1
    state.steps[ids] += 2
    changes.changed(torch.tensor(ids))
    return replace(state, round=state.round + 1)


def bits(state: State) -> list[object]:
    return [
        state.round,
        [(name, value.dtype, value.numpy().tobytes()) for name, value in state.clients.items()],
        state.participation_count.tolist(),
        state.steps.tolist(),
    ]


def stored(folder: Path) -> list[Path]:
    return sorted(folder.glob("rows-*"))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_checkpoints_of_drawn_rounds_equal_the_states_that_were_saved(seed, tmp_path):
    draw, state, changes = Random(seed), fresh(), ClientRows()
    expected = {}
    for number in range(40):
        cohort = draw.sample(range(CLIENTS), draw.choice((1, 1, 2, 3, CLIENTS)))
        state = trained_by(state, cohort, changes, number)
        if draw.random() < 0.7:
            name = draw.choice(("last", "last", "best"))
            path = tmp_path / f"{name}.safetensors"
            changes = checkpoint.save(path, state, "hash", {"number": number}, changes)
            expected[name] = bits(state)
            found = checkpoint.read(path, "hash", Storage(0.0, tmp_path))
            assert sum(map(len, found.rows.files.values())) <= 2 * CLIENTS
            if draw.random() < 0.3:  # the run is resumed
                state = replace(found.state, server=fresh().server)
                changes = found.rows
        for name, content in expected.items():
            loaded, extra = checkpoint.load(tmp_path / f"{name}.safetensors", "hash")
            assert bits(loaded) == content
            assert extra["number"] <= number
    heads = [tmp_path / f"{name}.safetensors" for name in expected]
    named = {file for head in heads for file in files_of(head)}
    assert set(stored(tmp_path)) == named - set(heads)


def test_a_checkpoint_writes_the_rows_that_have_changed(tmp_path):
    state, changes, path = fresh(), ClientRows(), tmp_path / "last.safetensors"
    changes = checkpoint.save(path, state, "hash", {}, changes)
    assert not stored(tmp_path)  # all clients have the common row

    for ids in ([3], [3, 5], [7]):
        before = set(stored(tmp_path))
        state = trained_by(state, ids, changes, ids[0])
        changes = checkpoint.save(path, state, "hash", {}, changes)
        [new] = set(stored(tmp_path)) - before
        rows = checkpoint.read(path, "hash", Storage()).rows
        assert rows.files[new.name].tolist() == ids


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [([1],), ([1, 2], [2]), (range(12), range(12), range(12))])
def test_a_crash_at_any_moment_leaves_the_old_or_the_new_checkpoint(rounds, tmp_path, monkeypatch):
    folder, moments = tmp_path / "checkpoints", []
    folder.mkdir()
    state, changes, path = fresh(), ClientRows(), folder / "last.safetensors"
    state = trained_by(state, [0, 1, 4, 7], changes, 1)
    changes = checkpoint.save(path, state, "hash", {}, changes)

    def snapshot() -> None:
        moments.append(shutil.copytree(folder, tmp_path / f"moment{len(moments)}"))

    def noticed(function):
        def call(*arguments, **options):
            snapshot()
            result = function(*arguments, **options)
            snapshot()
            return result

        return call

    for ids in rounds:
        before, first = bits(state), len(moments)
        state = trained_by(state, list(ids), changes, 2)
        with monkeypatch.context() as patch:
            patch.setattr(row_files, "save_file", noticed(row_files.save_file))
            patch.setattr(Path, "replace", noticed(Path.replace))
            patch.setattr(files, "discard", noticed(files.discard))
            changes = checkpoint.save(path, state, "hash", {}, changes)
        found = [bits(checkpoint.load(each / path.name, "hash")[0]) for each in moments[first:]]
        assert all(content in (before, bits(state)) for content in found)
        assert found[0] == before
        assert found[-1] == bits(state)


@pytest.mark.parametrize("at", [2, 3])  # a file of rows, or the checkpoint itself
def test_a_full_disk_leaves_the_old_checkpoint_and_no_new_file(at, tmp_path, monkeypatch):
    state, changes, path = fresh(), ClientRows(), tmp_path / "last.safetensors"
    state = trained_by(state, [0], changes, 1)
    changes = checkpoint.save(path, state, "hash", {}, changes)
    before, there = bits(state), sorted(tmp_path.iterdir())
    state = trained_by(state, [1, 2, 3, 4], changes, 2)
    calls = []

    def full(*arguments, **options):
        calls.append(arguments)
        if len(calls) == at:
            raise OSError(28, "No space left on device")
        return write(*arguments, **options)

    write = row_files.save_file
    with monkeypatch.context() as patch:
        patch.setattr(row_files, "save_file", full)
        with pytest.raises(OSError, match="No space"):
            changes = checkpoint.save(path, state, "hash", {}, changes)

    assert sorted(tmp_path.iterdir()) == there
    assert bits(checkpoint.load(path, "hash")[0]) == before
    changes = checkpoint.save(path, state, "hash", {}, changes)
    assert bits(checkpoint.load(path, "hash")[0]) == bits(state)


@pytest.mark.parametrize("damage", ["missing", "outside", "other", "broadcast"])
def test_files_of_rows_of_a_stranger_are_an_error(damage, tmp_path):
    state, changes, path = fresh(), ClientRows(), tmp_path / "last.safetensors"
    state = trained_by(state, [0, 2], changes, 1)
    changes = checkpoint.save(path, state, "hash", {}, changes)
    [file] = stored(tmp_path)
    if damage == "missing":
        file.unlink()
    elif damage == "other":
        rows = {"ids": torch.tensor([0, CLIENTS]), "rows/w": torch.zeros(2, 4)}
        row_files.write_tensors(file, rows, {})
    elif damage == "broadcast":
        row_files.write_tensors(file, load_file(file) | {"rows/w": torch.zeros(2, 1)}, {})
    else:
        content = path.read_bytes()
        path.write_bytes(content.replace(file.name.encode(), b"../" + file.name[3:].encode()))

    with pytest.raises(DataError, match=r"last\.safetensors"):
        checkpoint.load(path, "hash")


def test_files_of_rows_of_a_replaced_best_state_are_removed(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.csv").touch()
    state = trained_by(fresh(), [0, 2], folder.client_rows, 1)
    folder.save_state(["best"], state, "hash", {})
    state = trained_by(state, list(range(CLIENTS)), folder.client_rows, 2)
    folder.save_state(["last"], state, "hash", {})
    before = stored(tmp_path / "checkpoints")

    folder.save_state(["best", "last"], state, "hash", {})

    assert folder.checkpoint("best").samefile(folder.checkpoint("last"))
    assert bits(checkpoint.load(folder.checkpoint("best"), "hash")[0]) == bits(state)
    assert set(stored(tmp_path / "checkpoints")) < set(before)
