"""Nets of the user's own as objects, and by import path."""

import pytest
import torch
from torch import nn

import flbench as fl
from flbench.config.schema import OwnModelConfig
from flbench.core.parts import offered
from flbench.models import own
from flbench.models.base import build
from flbench.models.mlp import MlpConfig
from flbench.models.own import OwnNet
from tests.api.own_parts import Two

FEW = fl.Dirichlet(alpha=1.0, clients=3, samples=120)


def short(out, model, algorithm="fedper", **keys):
    """A run of one round."""
    keys = {"train": {"rounds": 1}, "engine": {"threads": 1}, **keys}
    return fl.run(
        algorithm, model=model, partition=FEW, output={"dir": out}, progress=False, **keys
    )


def made(net, classes=10, shape=(1, 8, 8), **keys):
    """The net as flbench uses it."""
    with offered({"model": net}):
        return build(OwnModelConfig(name="object", **keys), shape, classes, seed=0)


@pytest.mark.slow
def test_built_in_net_as_object_equals_its_name(tmp_path):
    net = build(MlpConfig(), (1, 8, 8), 10, seed=0)

    assert short(tmp_path, net).digest == short(tmp_path, "mlp").digest


def test_division_keeps_the_function():
    torch.manual_seed(0)
    net = Two((1, 8, 8), 10).eval()
    x = torch.randn(5, 1, 8, 8)
    found = made(net).eval()
    out = found(x)

    assert isinstance(found, OwnNet)
    assert torch.equal(out.logits, net(x))
    assert torch.equal(out.features, net.features(x).relu())
    assert {name.partition(".")[0] for name, _ in found.named_parameters()} == {"backbone", "head"}
    assert isinstance(net.classifier, nn.Linear)  # the user's net is as before


@pytest.mark.slow
def test_an_import_path_has_a_head_arguments_and_a_hash(tmp_path):
    path = "tests.api.own_parts:Two"
    wide = short(tmp_path, {"name": path, "head": "classifier", "args": {"width": 4}})

    assert wide.config.model.args == {"width": 4}
    assert wide.model(client=0).net.head.in_features == 4
    with pytest.raises(fl.ConfigError, match=r"model\.sha256"):
        short(tmp_path, {"name": path, "sha256": "0" * 64})


@pytest.mark.slow
def test_a_net_of_torchvision_trains_and_is_divided_at_its_head(tmp_path):
    run = fl.run(
        "fedper",
        data=fl.Data(torch.rand(24, 3, 16, 16), torch.arange(24) % 2),
        model="torchvision.models:resnet18",
        partition=fl.IID(clients=2),
        train={"rounds": 1, "local_epochs": 1, "batch_size": 8},
        engine={"name": "sequential", "threads": 1},
        output={"dir": tmp_path},
        progress=False,
    )

    assert run.digest is not None
    assert run.model(client=0).net.head.in_features == 512


class Scaled(Two):
    """A net with a parameter that a hook or a function uses."""

    def __init__(self, shape, classes, change):
        super().__init__(shape, classes)
        self.scale = nn.Parameter(torch.ones(()))
        self.width = 3.0
        change(self)

    def times(self, layer, x, out):
        return out * self.scale


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.features.register_forward_hook(lambda layer, x, out: out * net.scale),
        lambda net: net.scale.register_hook(lambda gradient: 0 * gradient),
    ],
)
def test_what_copies_of_a_net_would_not_have_is_refused(change):
    for net in (
        lambda shape, classes: Scaled(shape, classes, change),
        Scaled((1, 8, 8), 10, change),
    ):
        with pytest.raises(fl.ConfigError):
            made(net, shape=(1, 8, 8))
    of_the_net = Scaled((1, 8, 8), 10, lambda net: net.features.register_forward_hook(net.times))
    assert made(of_the_net)  # copies have this one


def test_wrong_head_is_refused():
    with pytest.raises(fl.ConfigError, match=r"`model\.head`"):
        made(Two, head="top")
    with pytest.raises(fl.ConfigError, match=r"model\.name=object"):
        made(Two, head="features.1")


def with_fixed_parts():
    """A net with a frozen layer, a frozen weight, and a BatchNorm in eval mode."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3)),
        *(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 10)),
    )
    net[0].requires_grad_(False)
    net[6].weight.requires_grad_(False)
    net[1].eval()
    return net


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.slow
def test_what_is_fixed_keeps_its_bits(tmp_path, engine):
    """In float64, where a mean of equal numbers may be rounded."""
    optimizer = {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.01}
    run = short(
        tmp_path,
        with_fixed_parts(),
        "ditto",
        train={"rounds": 2, "local_epochs": 1, "optimizer": optimizer},
        engine={"name": engine, "threads": 1, "precision": "64-true"},
    )

    found = {
        name.removeprefix("backbone."): leaf
        for name, leaf in run.model(client=1).net.state_dict().items()
    }
    start = with_fixed_parts().double().state_dict()
    fixed = {"0.weight", "0.bias", "6.weight", *(name for name in start if name[:9] == "1.running")}
    for name in fixed:
        assert torch.equal(found[name], start[name]), name
    for name in ("1.weight", "3.weight", "4.running_mean", "6.bias"):
        assert not torch.equal(found[name], start[name]), name


@pytest.mark.slow
def test_frozen_parameters_are_not_sent_and_methods_without_work_are_refused(tmp_path):
    def net(frozen):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        net[frozen].requires_grad_(False)
        return net

    run = short(tmp_path, net(1), "fedavg")
    assert run.summary["communication"]["up_bytes"] == 3 * 4 * 330
    for frozen, method in ((1, "fedbabu"), (1, "dfedalt"), (3, "fedper"), (3, "fednh")):
        with pytest.raises(fl.ConfigError, match="frozen"):
            short(tmp_path, net(frozen), method)


class ScaledByHidden(nn.Module):
    """A net with a buffer that its state_dict does not have."""

    def __init__(self, scale):
        super().__init__()
        self.fc = nn.Linear(64, 10)
        self.register_buffer("scale", torch.tensor(scale), persistent=False)

    def forward(self, x):
        return self.fc(x.flatten(1)) * self.scale.item()


def test_all_tensors_are_in_the_hash_of_an_object():
    def hashed(scale):
        torch.manual_seed(0)
        net = ScaledByHidden(scale)
        with offered({"model": net}):
            return own.sha256(OwnModelConfig(name="object"), net)

    assert hashed(2.0) == hashed(2.0) != hashed(3.0)


class Counted(nn.Module):
    """A net with a buffer of integers."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += self.training
        return self.fc(x.flatten(1) / (1 + self.calls))


@pytest.mark.slow
def test_inputs_of_a_net_with_a_buffer_of_integers_are_not_rounded(tmp_path):
    model = short(tmp_path, Counted(), "fedavg").trained(1)
    raw = torch.randint(0, 17, (4, 8, 8), dtype=torch.uint8)

    [mean], [std] = (model.normalization[key] for key in ("mean", "std"))
    x = (raw.double() - mean) / std
    assert torch.allclose(model.inputs(raw)[:, 0].double(), x, atol=1e-5)
    assert model.predict(raw).isfinite().all()
