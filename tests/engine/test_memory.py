"""Free memory, what a backward pass saves, the stacks that follow, and memory that is kept."""

import gc
import os
import platform
import subprocess
import sys
import weakref

import pytest
import torch

from flbench.core import control_groups
from flbench.core.storage import memory_of_machine
from flbench.engine import memory
from flbench.models.base import net_leaves
from flbench.testing import after
from tests.support import build

GIB = 2**30

ALLOCATE = """
import ctypes, resource, sys
from flbench.engine.memory import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("not configured")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(2**23) for _ in range(4)]
    for block in blocks:
        libc.memset(block, 1, 2**23)
    for block in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_groups_limit_what_is_free_and_what_the_machine_has(tmp_path, monkeypatch):
    """Version 2 with a limit above a group without one, version 1 with its own names."""
    own, root = tmp_path / "cgroup", tmp_path / "groups"
    own.write_text("4:memory:/box\n3:cpu:/\n0::/user/job\n")
    for name, most, used in (("user/job", "max", GIB), ("user", str(4 * GIB), 3 * GIB)):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "memory.max").write_text(f"{most}\n")
        (root / name / "memory.current").write_text(f"{used}\n")
    (root / "user" / "memory.stat").write_text(f"anon 5\ninactive_file {GIB // 2}\n")
    old = root / "memory" / "box"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text(str(GIB // 4))
    (old / "memory.usage_in_bytes").write_text(str(GIB))
    monkeypatch.setattr(control_groups, "OWN", own)
    monkeypatch.setattr(control_groups, "GROUPS", root)

    assert control_groups.memory() == [(GIB // 4, GIB), (4 * GIB, 5 * GIB // 2)]
    assert memory.free(torch.device("cpu")) == 0
    assert memory_of_machine() == GIB // 4
    monkeypatch.setattr(control_groups, "OWN", tmp_path / "nowhere")
    assert control_groups.memory() == []
    assert memory_of_machine() > GIB // 4


@pytest.mark.parametrize(("model", "numbers"), [("logistic", 64), ("mlp", 64 + 128 + 64)])
def test_a_backward_pass_remembers_the_inputs_of_linear_layers(model, numbers):
    net = build("algorithm=fedavg", f"model={model}").net
    before = {name: leaf.clone() for name, leaf in net_leaves(net).items()}
    x = torch.rand(3, 1, 8, 8)

    assert memory.saved_bytes_per_sample(net, net_leaves(net), frozenset(), x) == 4 * numbers
    assert all(torch.equal(leaf, before[name]) for name, leaf in net_leaves(net).items())


def test_nothing_is_kept_of_the_forward_pass_that_is_measured():
    """PyTorch cannot free an operation that keeps its own result, as sigmoid does."""
    seen = []

    class Watched(torch.nn.Linear):
        def forward(self, x):
            out = super().forward(x).sigmoid()
            seen.append(weakref.ref(out))
            return out

    net = torch.nn.Sequential(Watched(4, 3), torch.nn.Linear(3, 2))
    found = memory.saved_bytes_per_sample(net, net_leaves(net), frozenset(), torch.rand(2, 4))

    assert found == 4 * (4 + 3)
    gc.collect()
    assert [one() for one in seen] == [None]


def test_less_memory_and_larger_batches_make_smaller_stacks(monkeypatch):
    """What fits is written into the configuration: a resume stacks the same clients."""
    blocks = {}
    for free in (2**20, 2**23, 2**30):
        monkeypatch.setattr(memory, "free", lambda device, free=free: free)
        for size in (8, 512):
            keys = ("algorithm=fedavg", "engine.name=vectorized", f"train.batch_size={size}")
            blocks[free, size] = build(*keys).config.engine.block

    assert blocks[2**20, 512] == 1
    assert blocks[2**23, 512] < blocks[2**23, 8]
    assert blocks[2**20, 8] < blocks[2**23, 8]
    assert blocks[2**30, 8] == 5  # all clients
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


def page_faults(what: str) -> int:
    """Return how often memory came anew from the operating system in ten equal steps."""
    command = [sys.executable, "-c", ALLOCATE, what]
    plain = {key: value for key, value in os.environ.items() if key not in memory.VARIABLES}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.processes
def test_equal_steps_need_no_new_memory():
    kept, usual = page_faults("keep"), page_faults("usual")

    assert kept < usual / 10
