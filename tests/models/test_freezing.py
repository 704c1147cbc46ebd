"""What is frozen by hand and by the key `model.freeze`, tied weights, and what a run stores."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import flbench as fl
from flbench.client.forward import apply
from flbench.config.schema import ModelConfig, OwnModelConfig
from flbench.core.errors import ConfigError, DataError
from flbench.core.parts import offered
from flbench.models import freezing
from flbench.models.base import build, describe, net_leaves
from flbench.models.freezing import freeze, mode
from flbench.models.lenet5 import LeNet5Config
from flbench.models.mlp import MlpConfig

SHAPE = (1, 8, 8)
FEW = fl.Dirichlet(alpha=1.0, clients=3, samples=120)


def short(out, model, method="fedavg", **keys):
    keys = {"train": {"rounds": 2, "local_epochs": 1}, "engine": {"threads": 1}, **keys}
    return fl.run(method, model=model, partition=FEW, output={"dir": out}, progress=False, **keys)


def lenet(**keys):
    return LeNet5Config(name="lenet5", **keys)


def made(source, **keys):
    with offered({"model": source}):
        return build(OwnModelConfig(name="object", **keys), SHAPE, 10, seed=0)


def user_net():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3)),
        *(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 10)),
    )


def test_backbone_and_patterns():
    whole = build(lenet(freeze="backbone"), SHAPE, 10, seed=0)
    spec = describe(whole, SHAPE)
    assert set(spec.leaves) == {"head.weight", "head.bias"}
    inside = {name for name, _ in whole.named_modules() if name.startswith("backbone")}
    assert freezing.of(whole).modules == inside
    assert spec.size == describe(build(lenet(), SHAPE, 10, seed=0), SHAPE).size

    some = build(lenet(freeze=["conv?.weight", "backbone.norm1"]), SHAPE, 10, seed=0)
    parameters = {"backbone.conv1.weight", "backbone.conv2.weight"}
    assert freezing.of(some).parameters == {
        *parameters,
        *("backbone.norm1.weight", "backbone.norm1.bias"),
    }
    assert freezing.of(some).modules == {"backbone.norm1"}
    # Half of a layer that normalizes is trained, so its statistics move, too.
    half = build(lenet(freeze=["norm1.weight"]), SHAPE, 10, seed=0)
    assert not freezing.of(half).modules
    without = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    freeze(without, ModelConfig(freeze=["0"]))
    assert [module.training for module in without] == [False, True]
    own = freezing.of(made(user_net(), freeze=["0", "1.*", "8.bias"]))
    assert own.modules == {"backbone.0", "backbone.1"}
    assert "head.bias" in own.parameters
    for wrong in ("conv9", "*"):
        with pytest.raises(ConfigError, match=r"model\.freeze"):
            build(lenet(freeze=[wrong]), SHAPE, 10, seed=0)
    with pytest.raises(ConfigError, match=r"model\.freeze"):
        made(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), freeze="backbone")


@pytest.mark.slow
def test_key_equals_freezing_by_hand(tmp_path):
    net = user_net()
    net[:2].requires_grad_(False).eval()
    by_hand = short(tmp_path, net)
    by_key = short(tmp_path, {"name": user_net(), "freeze": ["0", "1"], "cache": "off"})

    assert by_key.digest == by_hand.digest
    assert by_key.config.model.fixed == by_hand.config.model.fixed
    up = by_key.summary["communication"]["up_bytes"]
    assert up == by_hand.summary["communication"]["up_bytes"]


class Stop(fl.Callback):
    """Interrupts the run after its first round."""

    def on_round_end(self, run, metrics):
        if run.round == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_frozen_part_is_stored_once_and_decides(tmp_path):
    """The values of the file count, even if the net is made with other ones now."""
    model = {"name": "mlp", "freeze": "backbone"}
    whole = short(tmp_path / "whole", model)
    first = freezing.values(build(MlpConfig(freeze="backbone"), SHAPE, 10, seed=0))
    folder = whole.path / "checkpoints"
    stored = load_file(folder / "frozen.safetensors")
    assert stored.keys() == first.keys()
    assert all(torch.equal(stored[name], leaf) for name, leaf in first.items())
    assert not any("backbone" in name for name in load_file(folder / "last.safetensors"))
    weights = whole.model().net.state_dict()
    assert all(torch.equal(weights[name], leaf) for name, leaf in first.items())

    save_file({name: 2 * leaf for name, leaf in stored.items()}, folder / "frozen.safetensors")
    now = fl.load(whole.path).model().net.state_dict()
    assert all(torch.equal(now[name], 2 * leaf) for name, leaf in first.items())

    with pytest.raises(KeyboardInterrupt):
        short(tmp_path / "cut", model, callbacks=Stop())
    (path,) = (tmp_path / "cut").glob("*/*/")
    file = path / "checkpoints" / "frozen.safetensors"
    content = file.read_bytes()
    save_file({next(iter(stored)): torch.zeros(2)}, file)
    with pytest.raises(DataError, match=r"frozen\.safetensors"):
        fl.resume(path, progress=False)
    file.write_bytes(content[:40])
    with pytest.raises(DataError, match=r"frozen\.safetensors"):
        fl.resume(path, progress=False)
    file.write_bytes(content)
    assert fl.resume(path, progress=False).digest == whole.digest


class Tied(nn.Module):
    """Two layers with one weight; `shared` says whether they are two modules."""

    def __init__(self, *, shared, head=False, counts=False):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 10, bias=False)
        self.enc = nn.Linear(10, 10, bias=False)
        if counts:
            self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.dec = nn.Linear(10, 10, bias=False) if shared else None
        torch.manual_seed(1)
        self.fc = nn.Linear(10, 10)
        if shared:
            self.dec.weight = self.enc.weight
        if head:
            self.fc.weight = self.enc.weight

    def forward(self, x):
        if self.training and hasattr(self, "calls"):
            self.calls += 1
        x = self.enc(self.first(x.flatten(1)).relu()).relu()
        return self.fc((self.enc if self.dec is None else self.dec)(x))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.slow
def test_tied_weights_are_one_leaf(tmp_path, engine):
    """Equal to a net that calls one layer twice: the gradient is the sum over both places."""
    keys = {"engine": {"name": engine, "threads": 1}}
    tied = short(tmp_path, Tied(shared=True), "fedper", **keys)
    once = short(tmp_path, Tied(shared=False), "fedper", **keys)

    assert tied.digest == once.digest
    sent = tied.summary["communication"]["up_bytes"]
    assert sent == once.summary["communication"]["up_bytes"]
    weights = tied.model(client=1).net.backbone
    assert weights.dec.weight is weights.enc.weight
    file = tied.export(tmp_path / "net.safetensors", client=1)
    other = made(Tied(shared=True))
    other.load_state_dict(load_file(file))
    assert torch.equal(other.backbone.dec.weight, once.model(client=1).net.backbone.enc.weight)


@pytest.mark.slow
def test_tied_weights_and_buffers_that_are_not_persistent_survive_a_resume(tmp_path):
    whole = short(tmp_path / "whole", Tied(shared=True, counts=True), "local")
    with pytest.raises(KeyboardInterrupt):
        short(tmp_path / "cut", Tied(shared=True, counts=True), "local", callbacks=Stop())
    (path,) = (tmp_path / "cut").glob("*/*/")
    resumed = fl.resume(path, model=Tied(shared=True, counts=True), progress=False)

    assert resumed.digest == whole.digest
    calls = [run.model(0, checkpoint="last").net.backbone.calls for run in (resumed, whole)]
    assert calls[0] == calls[1] > 1


@pytest.mark.slow
def test_a_head_that_is_tied_to_the_backbone_cannot_be_divided(tmp_path):
    net = Tied(shared=True, head=True)
    assert "head.weight" not in net_leaves(made(copy.deepcopy(net)))
    assert short(tmp_path, copy.deepcopy(net)).digest
    with pytest.raises(ConfigError, match=r"`head\.weight`"):
        short(tmp_path, net, "fedper")


def half_frozen():
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


class Frozen(nn.Sequential):
    """A net whose own `train` keeps its BatchNorm in eval mode."""

    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self


def test_description_leaves_out_what_is_fixed():
    found = made(half_frozen())
    spec = describe(found, (1, 8, 8))

    statistics = {f"backbone.1.running_{name}" for name in ("mean", "var")}
    statistics |= {"backbone.1.num_batches_tracked"}
    frozen = {"backbone.0.weight", "backbone.0.bias", "backbone.7.weight"}
    assert spec.fixed == statistics | frozen
    everything = {name for name, _ in (*found.named_parameters(), *found.named_buffers())}
    assert set(spec.leaves) == everything - spec.fixed
    assert [layer.name for layer in spec.layers if layer.kind == "conv"] == ["backbone.3"]
    assert spec.names("batchnorm") >= {"backbone.1.weight", "backbone.4.running_mean"}


def test_modes_are_kept_in_training_and_restored():
    found = made(half_frozen())

    with mode(found, train=True):
        assert [found.backbone[k].training for k in (0, 1, 4)] == [True, False, True]
    assert [found.backbone[k].training for k in (0, 1, 4)] == [True, False, True]
    with mode(found, train=False):
        assert not any(module.training for module in found.modules())
    assert not found.backbone[1].training
    assert found.backbone[4].training


def test_missing_fixed_leaves_have_the_values_of_the_net():
    found, x = made(half_frozen()), torch.randn(3, 1, 8, 8)
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
    headless = half_frozen()
    headless[9].requires_grad_(False)
    spec = describe(made(headless), (1, 8, 8))
    with pytest.raises(ConfigError, match="head"):
        spec.names("head")
    bodiless = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 10))
    bodiless[1].requires_grad_(False)
    with pytest.raises(ConfigError, match="backbone"):
        describe(made(bodiless), (1, 8, 8)).names("backbone")
