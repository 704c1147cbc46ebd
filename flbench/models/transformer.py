"""A small transformer for sequences of tokens: `transformer`."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from flbench.config.schema import ModelConfig
from flbench.core.errors import ConfigError
from flbench.core.registry import MODELS
from flbench.core.shapes import TokenShape
from flbench.models.base import Net
from flbench.models.gru import token_shape


class TransformerConfig(ModelConfig):
    """Section `model` for the transformer."""

    width: int = Field(64, ge=1, description="width of embeddings and features; divisible by heads")
    heads: int = Field(4, ge=1, description="heads of an attention")
    layers: int = Field(2, ge=1, description="number of encoder layers")
    feedforward: int = Field(128, ge=1, description="width of the hidden layer after an attention")


class EncoderLayer(nn.Module):
    """Self-attention and a feedforward net, each after a LayerNorm and with a residual connection.

    Equal to `nn.TransformerEncoderLayer` with `norm_first=True`, `activation="gelu"` and without
    dropout, but composed of operations that `torch.func.vmap` can vectorize over clients.

    Args:
        width: Width of a token, D.
        heads: Heads of the attention; they divide D.
        feedforward: Width of the hidden layer.
    """

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)  # queries, keys and values
        self.attention_out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, feedforward)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(feedforward, width)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the tokens [B, L, D] after the layer.

        Args:
            x: Tokens [B, L, D].
            real: [B, L] bool: tokens where it is False are not attended to; None for all.
        """
        x = x + self._attend(self.norm1(x), real)
        after: Tensor = x + self.fc2(self.gelu(self.fc1(self.norm2(x))))
        return after

    def _attend(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Return the attention's result [B, L, D] for tokens [B, L, D]."""
        batch, length, width = x.shape
        heads = self.attention_in(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)  # [B, heads, L, D / heads]
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        if real is not None:
            # Not -inf, whose softmax over a sequence of padding alone would be NaN.
            scores = torch.where(real[:, None, None], scores, torch.finfo(scores.dtype).min)
        found = scores.softmax(dim=-1) @ value
        result: Tensor = self.attention_out(found.transpose(1, 2).reshape(batch, length, width))
        return result


class TransformerBackbone(nn.Module):
    """Embeddings of tokens and positions, encoder layers, and the mean over tokens.

    Args:
        config: Section `model`.
        shape: Length, vocabulary and padding of the sequences.
    """

    def __init__(self, config: TransformerConfig, shape: TokenShape) -> None:
        super().__init__()
        self.padding = shape.padding
        self.embedding = nn.Embedding(shape.vocabulary, config.width)
        self.position = nn.Embedding(shape[0], config.width)
        self.layers = nn.ModuleList(
            EncoderLayer(config.width, config.heads, config.feedforward)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean [B, D] over the tokens that are not padding of tokens [B, L]."""
        real = None if self.padding is None else x != self.padding
        found: Tensor = self.embedding(x) + self.position.weight
        for layer in self.layers:
            found = layer(found, real)
        found = self.norm(found)
        if real is None:
            return found.mean(dim=1)
        weights = real.to(found.dtype)[:, :, None]
        return (found * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1.0)


@MODELS.register("transformer")
class Transformer(Net):
    """Encoder of a small transformer with learned positions, and a linear head on the mean token.

    Positions of padding are neither attended to nor part of the mean. There is no dropout.

    Source: Vaswani et al., "Attention is all you need" (2017), with the LayerNorm before each part
    (Xiong et al., "On layer normalization in the transformer architecture", 2020), GELU, and
    learned positions, as in later encoders.
    """

    Config: ClassVar[type[ModelConfig]] = TransformerConfig
    takes_tokens = True

    def __init__(self, config: TransformerConfig, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if config.width % config.heads:
            raise ConfigError(
                f"`model.width={config.width}` is not divisible by `model.heads={config.heads}`."
                " Each head has an equal share of the width: change one of the two."
            )
        self.backbone = TransformerBackbone(config, token_shape(shape, self.name))
        self.head = nn.Linear(config.width, classes)
