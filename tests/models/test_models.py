import pytest
import torch
from torch import nn

from flbench.core.errors import ConfigError
from flbench.models import MODELS
from flbench.models.base import MaxPool, build, describe, net_leaves

VARIANTS = [
    ("lenet5", {}),
    ("lenet5", {"norm": "group", "hidden": 1}),
    ("cnn", {}),
    ("cnn4", {}),
    ("mlp", {"hidden": (7,)}),
    ("logistic", {}),
    ("vgg11", {"norm": "batch"}),
    ("resnet18", {"norm": "group"}),
]


def make(name: str, shape=(3, 32, 32), classes: int = 10, seed: int = 0, **options):
    return build(MODELS.find(name).Config(name=name, **options), shape, classes, seed)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8)])
def test_net_returns_features_and_logits_of_the_described_width(name, options, shape):
    net = make(name, shape, 7, **options)
    spec = describe(net, shape)

    out = net.eval()(torch.rand(2, *shape))

    assert out.features.shape == (2, spec.features)
    assert out.logits.shape == (2, 7)
    assert torch.equal(net.head(out.features), out.logits)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_roles_are_a_partition_of_the_leaves(name, options):
    net = make(name, **options)
    spec = describe(net, (3, 32, 32))

    assert spec.names("backbone") | spec.names("head") == spec.names("all") == set(net.state_dict())
    assert not spec.names("backbone") & spec.names("head")
    assert spec.names("head") == {"head.weight", "head.bias"}
    assert set(spec.parameters) == {leaf for leaf, _ in net.named_parameters()}
    assert set(net_leaves(net)) == set(net.state_dict())


@pytest.mark.parametrize(
    ("name", "options", "shape", "size"),
    [
        ("lenet5", {}, (3, 32, 32), 62_050),
        ("cnn", {}, (3, 32, 32), 796_032 + 193 * 10),
        ("cnn4", {}, (1, 28, 28), 582_026),
        ("resnet18", {"norm": "group"}, (3, 32, 32), 11_173_962),
        ("logistic", {}, (1, 8, 8), 650),
    ],
)
def test_parameters_are_as_many_as_published(name, options, shape, size):
    assert describe(make(name, shape, **options), shape).size == size


def test_batchnorm_is_found_by_type_in_shortcuts_too():
    spec = describe(make("resnet18"), (3, 32, 32))

    layers = [layer for layer in spec.layers if layer.kind == "batchnorm"]
    assert len(layers) == 20
    assert "backbone.stage2_block1.shortcut.1.running_mean" in spec.names("batchnorm")
    assert len(spec.statistics) == 60


def test_layers_come_in_forward_order():
    names = [layer.name for layer in describe(make("lenet5"), (3, 32, 32)).layers]

    body = ["conv1", "norm1", "conv2", "norm2", "fc1", "fc2"]
    assert names == [*(f"backbone.{name}" for name in body), "head"]
    assert [
        layer.name
        for layer in describe(make("lenet5"), (3, 32, 32)).layers
        if layer.kind == "linear"
    ] == ["backbone.fc1", "backbone.fc2", "head"]


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = make("lenet5", seed=5)
    before = torch.get_rng_state()
    torch.rand(9)
    second = make("lenet5", seed=5)
    other = make("lenet5", seed=6)

    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    torch.set_rng_state(before)
    make("lenet5", seed=7)
    assert torch.equal(torch.get_rng_state(), before)


def test_small_images_are_padded_with_zeros_around_them():
    net = make("lenet5", (1, 8, 8))
    pad = next(module for module in net.modules() if isinstance(module, nn.ZeroPad2d))
    x = torch.rand(2, 1, 8, 8)

    padded = pad(x)

    assert padded.shape == (2, 1, 16, 16)
    assert torch.equal(padded[:, :, 4:12, 4:12], x)
    assert float(padded.sum()) == pytest.approx(float(x.sum()))


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (2, 3, 7, 5), (3, 2, 2), (0, 1, 4, 4)])
def test_pooling_is_the_same_with_and_without_gradients(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if x.numel():
        x[..., 0, 0] = float("nan")  # NaN must propagate through the pooling

    pooled = MaxPool()(x)
    with torch.no_grad():
        evaluated = MaxPool()(x)

    torch.testing.assert_close(evaluated, pooled, rtol=0, atol=0, equal_nan=True)
    assert evaluated.shape == (*shape[:-2], shape[-2] // 2, shape[-1] // 2)


def test_nets_for_images_refuse_tables():
    with pytest.raises(ConfigError, match=r"model\.name"):
        make("lenet5", (13,))
    assert make("mlp", (13,))(torch.rand(2, 13)).logits.shape == (2, 10)


def test_group_norm_is_never_instance_norm():
    groups = [m for m in make("lenet5", norm="group").modules() if isinstance(m, nn.GroupNorm)]

    assert groups
    assert all(m.num_groups < m.num_channels for m in groups)
