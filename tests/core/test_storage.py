"""Leaves in a mapped file have the same values as in main memory, and take none of it."""

import errno
import os
from pathlib import Path

import pytest
import torch

from flbench.config.sources import Layer
from flbench.core.errors import RunError
from flbench.core.storage import Storage, only_rows
from flbench.core.tree import weighted_mean
from flbench.core.types import Failure, Message, Results
from flbench.engine.base import gathered
from flbench.experiment import lifecycle
from tests.support import build, interrupted_run, reproducible, run, summary_of


def anonymous() -> int:
    """Bytes of this process's anonymous memory, which is not backed by a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def rows(clients: int = 7) -> dict[str, torch.Tensor]:
    start = {"w": torch.randn(3, 2), "n": torch.tensor(4), "b": torch.tensor([True, False])}
    empty = {"none": torch.zeros(0)}
    return {name: value.expand(clients, *value.shape) for name, value in (start | empty).items()}


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_own_rows_equal_the_given_ones_and_share_nothing_with_them(limit, tmp_path):
    given = rows()

    owned = Storage(limit, tmp_path / "new").copied(given)

    assert list(owned) == list(given)
    for name, value in given.items():
        assert torch.equal(owned[name], value)
        assert owned[name].dtype == value.dtype
    owned["w"][0] = 5.0
    assert not torch.equal(owned["w"][0], given["w"][0])
    assert torch.equal(owned["w"][1:], given["w"][1:])
    assert not list(tmp_path.glob("**/.state-*"))


@pytest.mark.slow
def test_mapped_rows_take_no_memory_of_the_process(tmp_path):
    given = {"w": torch.ones(1).expand(256, 2**18)}  # 256 MiB if copied
    before = anonymous()

    owned = Storage(0.1, tmp_path).copied(given)

    assert anonymous() - before < 64 * 2**20
    assert float(owned["w"].sum()) == 256 * 2**18


def test_full_disk_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    def full(*args: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)

    with pytest.raises(RunError, match=r"engine\.state_memory"):
        Storage(0.0, tmp_path).copied(rows())

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "engine"),
    [("local", "sequential"), ("dispfl", "sequential"), ("cfl", "vectorized")],
)
@pytest.mark.slow
def test_run_with_mapped_rows_is_the_run_in_memory_also_after_a_resume(tmp_path, method, engine):
    base = (f"algorithm={method}", f"engine.name={engine}", "engine.block=2")
    keys = (*base, "engine.state_memory=0")
    assert not build(*keys).storage.holds(1)
    _, plain = run(tmp_path / "memory", *base)
    straight_path, straight = run(tmp_path / "mapped", *keys)
    folder = interrupted_run(tmp_path / "interrupted", *keys)

    lifecycle.resume(folder, Layer({}))

    assert reproducible(straight) == reproducible(plain)
    assert reproducible(summary_of(folder)) == reproducible(plain)
    assert (folder / "metrics.csv").read_bytes() == (straight_path / "metrics.csv").read_bytes()
    assert not list(tmp_path.glob("**/.state-*"))


def test_rows_that_are_not_measured_take_no_memory():
    clients = 2**20
    shared = torch.arange(1.0, 2049.0).expand(clients, 2048)  # 8 GiB with memory of its own
    before = anonymous()

    found = only_rows({"w": shared, "none": torch.zeros(clients, 0)}, torch.tensor([3, 9]))

    assert found["w"].shape == shared.shape
    assert found["none"].shape == (clients, 0)
    assert torch.equal(found["w"][[3, 9]], shared[[3, 9]])
    assert not found["w"][[2, clients - 1]].any()
    found["w"][5] = 1.0
    assert anonymous() - before < 2**26


@pytest.mark.slow
def test_results_above_the_limit_take_no_memory_of_the_process(tmp_path):
    before = anonymous()

    def trained(client):
        if client % 2:
            none = torch.zeros(0, dtype=torch.int64)
            return Results(none, none, none, {}, Message(), {}, (Failure(client, "its loss"),))
        sent = Message({"w": torch.full((1, 2**18), float(client))})
        one = torch.tensor([client])
        return Results(one, one, torch.zeros(1), {}, sent, {})

    found = gathered(map(trained, range(256)), torch.arange(256), Storage(0.1, tmp_path))
    some = found.sent.values

    assert anonymous() - before < 64 * 2**20
    assert some["w"][:, 5].tolist() == [float(client) for client in range(0, 256, 2)]
    mean = weighted_mean(some, torch.ones(128))
    assert float(mean["w"][7]) == 127.0


def test_large_tensors_of_the_server_are_mapped_and_keep_their_values(tmp_path):
    before = {"w": torch.ones(3), "old": torch.ones(2**19), "changed": torch.zeros(2**19)}
    server = {**before, "w": torch.zeros(3), "changed": torch.arange(2.0**19)}

    kept = Storage(1.0, tmp_path).of_server(server, before)
    mapped = Storage(0.0, tmp_path).of_server(server, before)

    assert kept is server
    assert list(mapped) == list(server)
    assert mapped["old"] is before["old"]
    assert mapped["changed"] is not server["changed"]
    assert all(torch.equal(mapped[name], server[name]) for name in server)


def test_one_client_gets_a_copy_too(tmp_path):
    given = rows(1)

    owned = Storage(1.0, tmp_path).copied(given)
    owned["w"].zero_()

    assert given["w"].abs().sum() > 0
