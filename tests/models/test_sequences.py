"""The nets for series and tokens, compared with PyTorch's modules."""

import lightning
import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from flbench.config.schema import OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.core.shapes import TokenShape, examples
from flbench.models import MODELS
from flbench.models.base import build, describe
from flbench.models.gru import GruLayer
from flbench.models.transformer import EncoderLayer

TOKENS = TokenShape(7, vocabulary=11, padding=0)
NETS = [
    ("cnn1d", {"channels": (4, 5), "kernel": 3, "hidden": 6}, (3, 20)),
    ("gru", {"hidden": 6, "layers": 2}, TOKENS),
    ("transformer", {"width": 8, "heads": 2, "feedforward": 12}, TOKENS),
]


def make(name, options, shape, seed=0):
    return build(MODELS.find(name).Config(name=name, **options), shape, 4, seed)


@pytest.mark.parametrize(("name", "options", "shape"), NETS)
def test_net_has_features_and_head_and_is_vectorized_over_clients(name, options, shape):
    nets = [make(name, options, shape, seed).double().eval() for seed in range(3)]
    spec = describe(nets[0], shape)
    x = examples(shape, 5, torch.float64)
    parameters, buffers = stack_module_state(nets)

    def forward(leaves, fixed):
        return functional_call(nets[0], (leaves, fixed), (x,)).logits

    stacked = vmap(forward)(parameters, buffers)

    for net, logits in zip(nets, stacked, strict=True):
        out = net(x)
        assert out.features.shape == (5, spec.features)
        assert torch.equal(net.head(out.features), out.logits)
        torch.testing.assert_close(logits, out.logits, rtol=1e-9, atol=1e-9)
    assert spec.names("head") == {"head.weight", "head.bias"}


def test_gru_layer_equals_that_of_pytorch():
    torch.manual_seed(0)
    layer, other = GruLayer(5, 6).double(), nn.GRU(5, 6, batch_first=True).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            getattr(other, f"{name}_l0").copy_(parameter)
    x = torch.randn(4, 9, 5, dtype=torch.float64)

    torch.testing.assert_close(layer(x), other(x)[0], rtol=1e-10, atol=1e-10)


def test_encoder_layer_equals_that_of_pytorch_with_and_without_padding():
    torch.manual_seed(0)
    layer = EncoderLayer(8, 2, 12).double()
    other = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    same = {
        "self_attn.in_proj_weight": "attention_in.weight",
        "self_attn.in_proj_bias": "attention_in.bias",
        "self_attn.out_proj.weight": "attention_out.weight",
        "self_attn.out_proj.bias": "attention_out.bias",
        **{f"linear{k}.{leaf}": f"fc{k}.{leaf}" for k in (1, 2) for leaf in ("weight", "bias")},
        **{f"norm{k}.{leaf}": f"norm{k}.{leaf}" for k in (1, 2) for leaf in ("weight", "bias")},
    }
    own = layer.state_dict()
    other.load_state_dict({name: own[mine] for name, mine in same.items()})
    x, real = torch.randn(3, 6, 8, dtype=torch.float64), torch.ones(3, 6, dtype=torch.bool)
    real[0, 4:] = False

    torch.testing.assert_close(layer(x), other(x), rtol=1e-10, atol=1e-10)
    masked = other(x, src_key_padding_mask=~real)
    torch.testing.assert_close(layer(x, real)[real], masked[real], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options", "shape"), NETS[1:])
def test_what_is_padding_has_no_influence(name, options, shape):
    net = make(name, options, shape).double().eval()
    short = build(net_config(name, options), TokenShape(4, 11, 0), 4, 0).double().eval()
    leaves = net.state_dict()
    if name == "transformer":
        leaves["backbone.position.weight"] = leaves["backbone.position.weight"][:4]
    short.load_state_dict(leaves)
    x = torch.tensor([[3, 5, 7, 2, 0, 0, 0]])

    torch.testing.assert_close(net(x).logits, short(x[:, :4]).logits, rtol=1e-9, atol=1e-9)
    assert net(torch.zeros_like(x)).logits.isfinite().all()  # padding alone


def net_config(name, options):
    return MODELS.find(name).Config(name=name, **options)


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("cnn1d", {}, (9, 27)),
        ("cnn1d", {}, (1, 9, 128)),
        ("cnn1d", {}, TOKENS),
        ("mlp", {}, TOKENS),
        ("gru", {}, (9, 128)),
        ("lenet5", {}, (9, 128)),
        ("transformer", {"heads": 5}, TOKENS),
    ],
)
def test_samples_that_a_net_does_not_take_are_refused(name, options, shape):
    with pytest.raises(ConfigError, match=rf"model\.(name={name}|heads=5|kernel)"):
        make(name, options, shape)


class Embedded(lightning.LightningModule):
    def __init__(self, rows):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(rows, 2), nn.Flatten(), nn.Linear(14, 4))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("is_lightning", [False, True])
def test_embedding_of_the_user_has_a_row_for_each_token(is_lightning):
    """The trial has 14 tokens, and the vocabulary 30."""

    def built(rows):
        module = Embedded(rows)
        with offered({"model": module if is_lightning else module.net}):
            config = OwnModelConfig(name="object", lightning=is_lightning)
            return build(config, TokenShape(7, vocabulary=30), 4, seed=0)

    built(30)
    with pytest.raises(ConfigError, match=r"model\.name=object"):
        built(29)
