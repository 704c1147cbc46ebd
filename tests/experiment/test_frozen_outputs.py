"""Outputs of a frozen part that are computed once."""

import numpy as np
import pytest
import torch
from torch import nn

import flbench as fl
from flbench.experiment import rounds
from flbench.testing import after, build
from flbench.testing.setting import with_method

FEW = fl.Dirichlet(alpha=1.0, clients=3, samples=120)
BACKBONE = "model.freeze=backbone"
FIRST = "model.freeze=[conv1, norm1]"


def seen(*keys):
    """State, deployed weights and predictions after two rounds in float64."""
    built = build(*keys, "train.rounds=2", "engine.precision=64-true")
    state = after(built, 2)
    settings = rounds.settings_of(built.algorithm, state)
    evaluator = built.evaluator(print)
    confusion = evaluator.evaluate(state, settings, common=True).local["personal", "test"].confusion
    return built, [state.server, state.clients, *evaluator.deployed(state, settings)], confusion


@pytest.mark.one_of("method", "frozen")
@pytest.mark.parametrize(
    ("method", "frozen"),
    [("fedper", BACKBONE), ("moon", BACKBONE), ("ft", BACKBONE), ("fedbn", FIRST), ("hfcd", FIRST)],
)
@pytest.mark.slow
def test_cached_equals_uncached(method, frozen):
    keys = with_method(method, frozen)
    _, wanted, confusion = seen(*keys, "model.cache=off")
    for engine in ("sequential", "vectorized"):
        built, found, counts = seen(*keys, f"engine.name={engine}")

        assert built.cached is not None
        assert not built.cached.held.keys() & dict(built.cached.net.named_parameters()).keys()
        for tree, other in zip(wanted, found, strict=True):
            assert tree.keys() == other.keys()
            for name, leaf in tree.items():
                assert torch.allclose(leaf.double(), other[name].double(), rtol=0, atol=1e-9), name
        assert torch.equal(confusion, counts)


def test_outputs_are_those_of_the_backbone():
    built = build("model.name=lenet5", BACKBONE)
    rows = torch.from_numpy(built.federation.partition.parts["test"][0])
    x = built.federation.inputs(rows, torch.float32)

    with torch.no_grad():
        features = built.net.eval()(x).features
    assert torch.allclose(built.cached.federation.x[rows], features, rtol=0, atol=1e-6)
    again = build("model.name=lenet5", BACKBONE, "algorithm.name=local")
    assert again.cached.federation.x is built.cached.federation.x  # of one process
    other = build("model.name=lenet5", BACKBONE, "seed=1", "partition.seed=0")
    assert not torch.equal(other.cached.federation.x, built.cached.federation.x)


def test_outputs_of_another_net_with_the_same_tensors_are_not_taken(tmp_path):
    name = tmp_path / "tokens.npz"
    x = np.random.default_rng(0).integers(1, 9, (60, 4))
    np.savez(name, train_images=x, train_labels=x[:, 0] % 3, test_images=x, test_labels=x[:, 0] % 3)
    keys = ("data.name=npz", f"data.path={name}", "partition.samples=60", "partition.clients=2")
    net = ("model.name=transformer", "model.width=8", "model.layers=1", BACKBONE)
    one, other, again = (build(*keys, *net, f"model.heads={heads}") for heads in (2, 4, 4))

    # Neither the tensors nor the printed forms of the two nets differ.
    assert str(one.net) == str(other.net)
    assert not torch.allclose(one.cached.federation.x, other.cached.federation.x)
    assert again.cached.federation.x is other.cached.federation.x


@pytest.mark.parametrize(
    "keys",
    [
        (BACKBONE, "data.augment=[flip]"),
        (BACKBONE, "engine.precision=bf16-mixed"),
        ("model.freeze=[conv2, norm2]",),
    ],
)
def test_frozen_parts_that_do_not_fit_train_as_they_are(keys):
    assert build("model.name=lenet5", *keys).cached is None


class Body(nn.Module):
    """A net whose body may draw random numbers or have a buffer."""

    def __init__(self, shape, classes, kind="plain"):
        super().__init__()
        self.kind = kind
        self.drop = nn.Dropout(0.5 if kind == "layer" else 0.0)
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, classes)
        if kind == "buffer":
            self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        x = self.drop(self.body(x.flatten(1)).relu())
        if self.kind == "function":
            x = nn.functional.dropout(x, 0.5, self.training)
        if self.kind == "always":
            x = nn.functional.dropout(x, 0.5, True)
        return self.head(x)


def short(out, model, method="ft", **keys):
    return fl.run(
        method,
        model=model,
        partition=FEW,
        train={"rounds": 2, "local_epochs": 1},
        engine={"threads": 1, **keys.pop("engine", {})},
        output={"dir": out},
        progress=False,
        **keys,
    )


@pytest.mark.parametrize(
    ("kind", "is_cached"),
    [("layer", True), ("function", True), ("always", False), ("buffer", False)],
)  # frozen dropout is off
def test_bodies_are_cached_if_their_outputs_do_not_change(kind, is_cached):
    name = "model.name=tests.experiment.test_frozen_outputs:Body"
    built = build("algorithm=fedavg", name, f"model.args.kind={kind}", BACKBONE)

    assert (built.cached is not None) == is_cached


class Stop(fl.Callback):
    """Interrupts the run after its first round."""

    def on_round_end(self, run, metrics):
        if run.round == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_resumes_predicts_and_exports_with_the_whole_net(tmp_path):
    model = {"name": "tests.experiment.test_frozen_outputs:Body", "freeze": "backbone"}
    whole = short(tmp_path / "whole", model)
    plain = short(tmp_path / "plain", {**model, "cache": "off"})
    with pytest.raises(KeyboardInterrupt):
        short(tmp_path / "cut", model, callbacks=Stop())
    (path,) = (tmp_path / "cut").glob("*/*/")

    assert fl.resume(path, progress=False).digest == whole.digest
    x = torch.randint(0, 16, (20, 8, 8), dtype=torch.uint8)
    scores = [run.predict(x, client=1) for run in (whole, plain)]
    assert torch.allclose(*scores, rtol=0, atol=1e-5)
    model = whole.model(client=1).net
    assert torch.equal(model.backbone.body.weight, plain.model(client=1).net.backbone.body.weight)
    assert whole.config.hash() != plain.config.hash()
