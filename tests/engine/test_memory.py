"""Free memory as the kernel tells it, what a backward pass saves, and the stacks that follow."""

import pytest
import torch

from flbench.engine import memory
from flbench.models.base import net_leaves
from flbench.testing import after
from tests.support import build

GIB = 2**30


def test_what_is_left_is_that_of_the_tightest_group(tmp_path):
    """Version 2 with a limit above a group without one, version 1 with its own names."""
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/box\n3:cpu:/\n0::/user/job\n")
    new, old = tmp_path / "new", tmp_path / "old"
    for folder, most, used in (
        (new / "user/job", "max", GIB),
        (new / "user", str(4 * GIB), 3 * GIB),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    (new / "user" / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    (old / "box").mkdir(parents=True)
    (old / "box" / "limit").write_text(str(6 * GIB))
    (old / "box" / "usage").write_text(str(7 * GIB))
    kinds = (
        ("0::", new, "memory.max", "memory.current", "inactive_file"),
        (":memory:", old, "limit", "usage", "none"),
    )

    assert memory._free_in_groups(own, kinds) == [2 * GIB, 0]
    assert memory._free_in_groups(tmp_path / "nowhere", kinds) == []


def test_free_memory_is_some_of_this_machines():
    assert 0 < memory.free(torch.device("cpu")) < 2**50


@pytest.mark.parametrize(("model", "numbers"), [("logistic", 64), ("mlp", 64 + 128 + 64)])
def test_a_backward_pass_remembers_the_inputs_of_linear_layers(model, numbers):
    net = build("algorithm=fedavg", f"model={model}").net
    before = {name: leaf.clone() for name, leaf in net_leaves(net).items()}
    x = torch.rand(3, 1, 8, 8)

    assert memory.saved_bytes_per_sample(net, net_leaves(net), frozenset(), x) == 4 * numbers
    assert all(torch.equal(leaf, before[name]) for name, leaf in net_leaves(net).items())


def test_less_memory_and_larger_batches_make_smaller_stacks(monkeypatch):
    """What fits is written into the configuration: a resume stacks the same clients."""
    blocks = {}
    for free in (2**20, 2**26):
        monkeypatch.setattr(memory, "free", lambda device, free=free: free)
        for size in (8, 512):
            keys = ("algorithm=fedavg", "engine.name=vectorized", f"train.batch_size={size}")
            blocks[free, size] = build(*keys).config.engine.block

    assert blocks[2**20, 512] == 1
    assert blocks[2**26, 512] < blocks[2**26, 8]
    assert blocks[2**20, 8] < blocks[2**26, 8]
    assert (
        build("algorithm=fedavg", "engine.name=vectorized", "engine.block=3").config.engine.block
        == 3
    )


def test_small_stacks_train_as_large_ones_do(monkeypatch):
    keys = ("algorithm=fedavg", "engine.name=vectorized", "engine.precision=64-true")
    large = after(build(*keys), 2)
    monkeypatch.setattr(memory, "free", lambda device: 0)
    small = after(build(*keys), 2)

    for name, value in large.server.items():
        assert torch.allclose(small.server[name], value, rtol=0, atol=1e-12), name
