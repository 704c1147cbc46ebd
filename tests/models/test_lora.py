"""Low-rank adapters by PEFT."""

import lightning
import pytest
import torch
from torch import nn

import flbench as fl
from flbench.config.schema import LoraConfig, OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.models import freezing
from flbench.models.base import build, describe
from flbench.models.lenet5 import LeNet5Config
from tests.installed import needs

pytestmark = needs("peft")

SHAPE = (1, 8, 8)
FEW = fl.Dirichlet(alpha=1.0, clients=3, samples=120)
ADAPTERS = {f"backbone.1.lora_{part}.default.weight" for part in "AB"}


def base():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def made(source, seed=0, **keys):
    with offered({"model": source}):
        return build(OwnModelConfig(name="object", lora=LoraConfig(**keys)), SHAPE, 10, seed)


def short(out, model, method="fedper", engine="sequential"):
    return fl.run(
        method,
        model=model,
        partition=FEW,
        train={"rounds": 2, "local_epochs": 1},
        engine={"name": engine, "threads": 1, "precision": "64-true"},
        output={"dir": out},
        progress=False,
    )


GROUPED = (nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1, groups=4))
"""Convolutions, the second of which can have no adapter."""


class ByHand(nn.Module):
    """The same adapter, without PEFT: W + alpha / rank * B A, of rank 2 and alpha 6."""

    def __init__(self):
        super().__init__()
        first, last = base()[1], base()[3]
        self.w = nn.Parameter(first.weight.detach().clone(), requires_grad=False)
        self.b = nn.Parameter(first.bias.detach().clone(), requires_grad=False)
        start = dict(made(base(), rank=2).named_parameters())
        self.A = nn.Parameter(start["backbone.1.lora_A.default.weight"].detach().clone())
        self.B = nn.Parameter(torch.zeros(8, 2))
        self.head = last

    def forward(self, x):
        weight = self.w + 3.0 * self.B @ self.A
        return self.head(nn.functional.linear(x.flatten(1), weight, self.b).relu())


def test_only_adapters_and_head_are_leaves():
    net = made(base(), rank=2)
    spec = describe(net, SHAPE)

    assert set(spec.leaves) == {*ADAPTERS, "head.weight", "head.bias"}
    assert freezing.of(net).parameters == {f"backbone.1.base_layer.{k}" for k in ("weight", "bias")}
    x = torch.randn(3, *SHAPE)
    assert torch.equal(net(x).logits, base()(x))  # B is zero at first
    other = dict(made(base(), seed=1, rank=2).named_parameters())
    name = min(ADAPTERS)
    assert not torch.equal(other[name], dict(net.named_parameters())[name])
    lenet = LeNet5Config(name="lenet5", lora=LoraConfig(rank=1))
    spec = describe(build(lenet, SHAPE, 10, seed=0), SHAPE)
    assert not spec.names("batchnorm")  # a frozen BatchNorm keeps its statistics
    assert len(spec.names("backbone")) == 4


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.slow
def test_training_equals_adapters_written_by_hand(tmp_path, engine):
    model = {"name": base(), "lora": {"rank": 2, "alpha": 6.0}}
    found = short(tmp_path, model, engine=engine)
    wanted = short(tmp_path, ByHand(), engine=engine)

    assert found.summary["communication"] == wanted.summary["communication"]
    ours, theirs = (run.model(client=1, checkpoint="last").net for run in (found, wanted))
    for name, leaf in (("A", theirs.backbone.A), ("B", theirs.backbone.B)):
        mine = ours.get_parameter(f"backbone.1.lora_{name}.default.weight")
        assert torch.allclose(mine, leaf, rtol=0, atol=1e-12)
    assert torch.allclose(ours.head.weight, theirs.head.weight, rtol=0, atol=1e-12)
    assert torch.equal(ours.backbone[1].base_layer.weight, base()[1].weight.double())
    assert ours.backbone[1].lora_B.default.weight.abs().max() > 0


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.slow
def test_export_holds_the_adapters(tmp_path):
    model = {"name": base(), "lora": {"rank": 2, "dropout": 0.5}}
    run = short(tmp_path, model, "ft")
    file = run.export(tmp_path / "net.pt2", client=0)
    x = torch.randint(0, 16, (4, 8, 8), dtype=torch.uint8)

    program = torch.export.load(file).module()
    assert torch.allclose(program(x), run.predict(x, client=0), atol=1e-12)
    assert run.digest == short(tmp_path, model, "ft").digest


@pytest.mark.parametrize(
    ("net", "keys", "key"),
    [
        (base(), {"rank": 2, "targets": ["fc9"]}, r"model\.lora\.targets"),
        (base(), {"rank": 2, "targets": ["3"]}, r"model\.lora\.targets"),  # the head
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), {"rank": 2}, r"model\.lora\.rank"),
        (nn.Sequential(*GROUPED, nn.Flatten(), nn.Linear(144, 10)), {"rank": 2}, "targets"),
    ],
)
def test_targets_without_a_layer_are_refused(net, keys, key):
    with pytest.raises(ConfigError, match=key):
        made(net, **keys)


def test_rank_is_at_most_that_of_the_weight():
    layers = (
        nn.Flatten(),
        nn.Linear(64, 40),
        nn.Linear(40, 6),
        nn.Linear(6, 10),
        nn.Linear(10, 10),
    )
    net = made(nn.Sequential(*layers), rank=30)

    shapes = {name: tuple(one.shape) for name, one in net.named_parameters() if one.requires_grad}
    factors = {
        name: [shapes[f"backbone.{name}.lora_{part}.default.weight"] for part in "AB"]
        for name in (1, 2, 3)
    }
    assert factors == {1: [(30, 64), (40, 30)], 2: [(6, 40), (6, 6)], 3: [(6, 6), (10, 6)]}


class Lit(lightning.LightningModule):
    """A module whose head is found by what it returns."""

    def __init__(self):
        super().__init__()
        self.net = base()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_head_of_a_lightning_module_trains_and_has_no_adapter():
    """It is the layer that computes the output, also if `model.head` does not name it."""
    with offered({"model": Lit()}):
        config = OwnModelConfig(name="object", lightning=True, lora=LoraConfig(rank=2))
        spec = describe(build(config, SHAPE, 10, 0), SHAPE)

    assert spec.names("head") == {"module.net.3.weight", "module.net.3.bias"}
    assert [one.layer for one in spec.adapters] == ["module.net.1"]
    assert spec.names("lora_A") | spec.names("lora_B") == spec.names("backbone")
