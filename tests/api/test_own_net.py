"""Nets of the user's own as objects, and by import path."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import flbench as fl
from flbench.config.schema import OwnModelConfig
from flbench.core.given import offered
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


def test_import_path_equals_class_and_resumes(tmp_path):
    path = "tests.api.own_parts:Two"
    by_class, by_path = short(tmp_path, Two), short(tmp_path, path)

    assert by_class.digest == by_path.digest
    assert by_class.config.model.name == path
    assert len(by_class.config.model.sha256) == 64
    assert any("the head is `classifier`" in note for note in by_class.notes)
    assert by_path.model(client=0) is not None
    wide = short(tmp_path, {"name": path, "head": "classifier", "args": {"width": 4}})
    assert wide.config.model.args == {"width": 4}
    assert wide.digest != by_path.digest
    with pytest.raises(fl.ConfigError, match="SHA-256 of the source"):
        short(tmp_path, {"name": path, "sha256": "0" * 64})


def test_arguments_can_be_lists():
    def perceptron(shape, classes, widths):
        sizes = [shape[1] * shape[2], *widths, classes]
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        return nn.Sequential(nn.Flatten(), *layers)

    net = made(perceptron, args={"widths": [8, 4]})
    assert [len(leaf) for leaf in net.parameters() if leaf.ndim == 2] == [8, 4, 10]


def test_resume_asks_for_a_net_without_import_path(tmp_path):
    class Stop(fl.Callback):
        def on_round_end(self, run, metrics):
            if run.round == 1:
                raise KeyboardInterrupt

    def factory(shape, classes):
        return Two(shape, classes)

    keys = {"train": {"rounds": 2}, "output.checkpoint_every": 1}
    whole = short(tmp_path / "whole", factory, **keys)
    with pytest.raises(KeyboardInterrupt):
        short(tmp_path / "cut", factory, callbacks=Stop(), **keys)
    (path,) = (tmp_path / "cut").glob("*/*/")

    with pytest.raises(fl.ConfigError, match=r"must be given again: fl\.resume\(path, model"):
        fl.resume(path, progress=False)
    with pytest.raises(fl.ConfigError, match="SHA-256 of the net"):
        fl.resume(path, model=lambda shape, classes: Two(shape, classes, 8), progress=False)
    assert fl.resume(path, model=factory, progress=False).digest == whole.digest


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
@pytest.mark.slow
def test_nets_of_torchvision_train(tmp_path, name, engine):
    x = torch.rand(24, 3, 32, 32)
    data = fl.Data(x, torch.arange(24) % 2)
    run = fl.run(
        "fedper",
        data=data,
        model={
            "name": f"torchvision.models:{name}",
            "args": {"dropout": 0.0} if name == "mobilenet_v3_small" else None,
        },
        partition=fl.IID(clients=2),
        train={"rounds": 1, "batch_size": 8},
        engine={"name": engine, "threads": 1},
        output={"dir": tmp_path},
        progress=False,
    )

    assert run.digest is not None
    head = "fc" if name == "resnet18" else "classifier.3"
    assert any(f"the head is `{head}`" in note for note in run.notes)


class Post(Two):
    """A net that computes more after its head."""

    def forward(self, x):
        return super().forward(x).softmax(1)


class Shared(Two):
    """A net with two layers of one weight."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.more = nn.Linear(16, classes)
        self.more.weight = self.classifier.weight


class Pair(Two):
    """A net with two outputs."""

    def forward(self, x):
        return super().forward(x), x


class Whole(Two):
    """A net whose output is not floating point."""

    def forward(self, x):
        return super().forward(x).long()


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        (Post, "is not that of the head `classifier`"),
        (Shared, "are one tensor"),
        (Pair, "returns tuple"),
        (Whole, "returns torch.int64"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), r"must return logits \[2, 10\]"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "is not initialized"),
        (nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), "has no linear layer"),
        (nn.Linear(3, 10), "does not accept samples of the shape"),
        (nn.Flatten(), "has no parameters"),
        (nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)), "`1` is dropout with p=0.5"),
        (lambda shape, classes: 3, "must return an nn.Module, got int"),
        (lambda: None, "cannot be made"),
    ],
)
def test_nets_that_cannot_be_used_are_refused(net, sentence):
    with pytest.raises(fl.ConfigError, match=sentence):
        made(net)


def test_wrong_head_is_refused():
    with pytest.raises(fl.ConfigError, match="has no submodule `top`"):
        made(Two, head="top")
    with pytest.raises(fl.ConfigError, match=r"is not that of the head|cannot be divided"):
        made(Two, head="features.1")
