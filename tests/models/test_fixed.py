"""Frozen parameters and modules in eval mode of a user's net."""

import copy

import pytest
import torch
from torch import nn

from flbench.client.forward import apply
from flbench.config.schema import OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.models import freezing
from flbench.models.base import build, describe
from flbench.models.freezing import mode


def net():
    """Two convolutions with BatchNorm; fixed are the first of each kind."""
    torch.manual_seed(0)
    made = nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()),
        *(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 10)),
    )
    made[0].requires_grad_(False)
    made[7].weight.requires_grad_(False)
    made[1].eval()
    return made


def made(source, **keys):
    with offered({"model": source}):
        return build(OwnModelConfig(name="object", **keys), (1, 8, 8), 10, seed=0)


class Frozen(nn.Sequential):
    """A net whose own `train` keeps its BatchNorm in eval mode."""

    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self


def test_description_leaves_out_what_is_fixed():
    found = made(net())
    spec = describe(found, (1, 8, 8))

    statistics = {f"backbone.1.running_{name}" for name in ("mean", "var")}
    statistics |= {"backbone.1.num_batches_tracked"}
    frozen = {"backbone.0.weight", "backbone.0.bias", "backbone.7.weight"}
    assert spec.fixed == statistics | frozen
    everything = {name for name, _ in (*found.named_parameters(), *found.named_buffers())}
    assert set(spec.leaves) == everything - spec.fixed
    assert [layer.name for layer in spec.layers if layer.kind == "conv"] == ["backbone.3"]
    assert spec.names("batchnorm") >= {"backbone.1.weight", "backbone.4.running_mean"}
    assert str(freezing.of(found)) == "frozen parameters: 3, modules in eval mode: 1"
    assert len(freezing.notes(found)) == 2


def test_modes_are_kept_in_training_and_restored():
    found = made(net())

    with mode(found, train=True):
        assert [found.backbone[k].training for k in (0, 1, 4)] == [True, False, True]
    assert [found.backbone[k].training for k in (0, 1, 4)] == [True, False, True]
    with mode(found, train=False):
        assert not any(module.training for module in found.modules())
    assert not found.backbone[1].training
    assert found.backbone[4].training


def test_missing_fixed_leaves_have_the_values_of_the_net():
    found, x = made(net()), torch.randn(3, 1, 8, 8)
    leaves = {**dict(found.named_parameters()), **dict(found.named_buffers())}
    known = freezing.of(found).leaves
    some = {name: leaf for name, leaf in leaves.items() if name not in known}

    assert torch.equal(apply(found, some, x).logits, apply(found, leaves, x).logits)
    with pytest.raises(KeyError):
        apply(found, {name: leaf for name, leaf in some.items() if "head" not in name}, x)


def test_own_train_method_and_whole_eval_mode():
    layers = (nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))
    assert freezing.of(made(Frozen(*layers))).modules == {"backbone.2"}
    whole = made(nn.Sequential(*copy.deepcopy(layers)).eval())
    assert not freezing.of(whole).modules
    assert whole.backbone[2].training


def test_what_cannot_be_trained_is_refused():
    headless = net()
    headless[9].requires_grad_(False)
    spec = describe(made(headless), (1, 8, 8))
    with pytest.raises(ConfigError, match=r"head of the net.*frozen.*head\.bias"):
        spec.names("head")
    bodiless = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 10))
    bodiless[1].requires_grad_(False)
    with pytest.raises(ConfigError, match=r"backbone of the net.*frozen"):
        describe(made(bodiless), (1, 8, 8)).names("backbone")
