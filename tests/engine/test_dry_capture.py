"""What a CUDA graph cannot contain, found without a GPU.

Tensors of the device `meta` have a shape and no values. Here they stand for those of the GPU: what
reads a value of theirs, as a host sync does, raises an exception, and so does a copy from the host.
"""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flbench.client.program import LocalProgram, Phase, Statistic
from flbench.core.registry import ALGORITHMS
from flbench.engine.captured_step import CapturedSteps, StaticPhase, _layout
from flbench.engine.stack import Stack, StackEnvironment
from flbench.engine.stacked_layers import replace_convolutions
from flbench.engine.stacked_training import StackedOptimizer, StackedPhase
from flbench.losses import CrossEntropy
from flbench.testing import after
from flbench.testing.setting import with_method
from tests.engine.test_vectorized import PROGRAMS, go, phase
from tests.support import build

GPU = torch.device("meta")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OnGpu(TorchDispatchMode):
    """Raises an exception at an operation with tensors of the host and of the GPU.

    A number of the host, such as a factor, is an argument of a kernel.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        found = func(*args, **(kwargs or {}))
        made = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        devices = {one.device.type for one in (*given, *made) if one.dim() or func in COPIES}
        assert not {"cpu", GPU.type} <= devices, func
        return found


class DryEngine:
    """Tries the steps of a program on the pretended GPU; then another engine, or none, runs it."""

    def __init__(self, built, monkeypatch):
        config = built.config.engine.altered(device=GPU.type)
        self.environment = StackEnvironment(deepcopy(built.net), built.federation, config)
        replace_convolutions(self.environment.net, casts=False, patches=True)
        self.engine, self.captured, self.tried = built.engine, CapturedSteps(GPU, config, None), 0
        # PyTorch has neither an optimizer nor autocast for this device.
        monkeypatch.setattr(StackedOptimizer, "step", lambda *given: None)
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
        monkeypatch.setattr(torch, "autocast", lambda *given, **keys: nullcontext())

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def run(self, work, ids):
        for group in work.settings.groups(ids):
            stack = Stack(self.environment, group, work)
            for step in work.program.steps:
                if isinstance(step, Phase):
                    StackedPhase(stack, step).train(self._try)
                else:
                    is_statistic = isinstance(step, Statistic)
                    (stack.run_statistic if is_statistic else stack.run_transform)(step)
        return None if self.engine is None else self.engine.run(work, ids)

    def _try(self, phase):
        static = StaticPhase(phase, _layout(phase), self.captured)
        for kind in {static._kind(phase, step) for step in range(phase.batches.ends.shape[1])}:
            with OnGpu():
                static._step(*kind)
            self.tried += 1
        return True


def dry(monkeypatch, *keys):
    built = build(*keys, "engine.name=vectorized", "engine.precision=64-true", "engine.workers=1")
    return replace(built, engine=DryEngine(built, monkeypatch))


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(ALGORITHMS.load()))
def test_steps_of_methods_stay_on_the_gpu(method, monkeypatch):
    built = dry(monkeypatch, *with_method(method))
    after(built)

    assert built.engine.tried


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_of_hooks_stay_on_the_gpu(name, monkeypatch):
    built = dry(monkeypatch, "model.name=lenet5", "data.augment=[crop, flip]")
    built.engine.engine = None
    go(built, LocalProgram(tuple(PROGRAMS[name])))

    assert built.engine.tried


@pytest.mark.parametrize("net", ["cnn", "cnn4", "resnet18", "vgg11"])
@pytest.mark.slow
def test_steps_of_nets_stay_on_the_gpu(net, monkeypatch):
    built = dry(monkeypatch, f"model.name={net}")
    built.engine.engine = None
    go(built, LocalProgram((phase(epochs=1),)))

    assert built.engine.tried


def copied(context):
    return context.out.logits.mean() * torch.tensor([2.0]).to(context.batch.x.device).sum()


def test_a_copy_from_the_host_is_found(monkeypatch):
    built = dry(monkeypatch, "model.name=mlp")
    with pytest.raises(AssertionError):
        go(built, LocalProgram((phase(terms=(CrossEntropy(), copied)),)))
