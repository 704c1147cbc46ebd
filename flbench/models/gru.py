"""A recurrent net for sequences of tokens: `gru`."""

from itertools import pairwise
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from flbench.config.schema import ModelConfig
from flbench.core.registry import MODELS
from flbench.core.shapes import TokenShape
from flbench.models.base import Net, unlike


class GruConfig(ModelConfig):
    """Section `model` for the recurrent net."""

    embedding: int = Field(8, ge=1, description="width of the embedding of a token")
    hidden: int = Field(128, ge=1, description="width of a recurrent layer, and of the features")
    layers: int = Field(1, ge=1, description="number of recurrent layers")


class GruLayer(nn.Module):
    """A layer of gated recurrent units, equal to one of `nn.GRU` but composed of operations.

    `torch.func.vmap` cannot vectorize `nn.GRU` over clients, and can vectorize these operations.

    Args:
        width: Width of an input, D.
        hidden: Width of a state, H.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden, width))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the states [B, L, H] of inputs [B, L, D].

        Args:
            x: Inputs.
            real: [B, L] bool: where it is False, the state stays as it is; None for everywhere.
        """
        given = functional.linear(x, self.weight_ih, self.bias_ih)  # [B, L, 3 H]
        state = given.new_zeros(x.shape[0], self.weight_hh.shape[1])
        states = []
        for step in range(x.shape[1]):
            own = functional.linear(state, self.weight_hh, self.bias_hh)
            gates = [part.chunk(3, dim=1) for part in (given[:, step], own)]
            (reset_x, update_x, new_x), (reset_h, update_h, new_h) = gates
            reset = torch.sigmoid(reset_x + reset_h)
            update = torch.sigmoid(update_x + update_h)
            new = torch.tanh(new_x + reset * new_h)
            after = new + update * (state - new)
            state = after if real is None else torch.where(real[:, step, None], after, state)
            states.append(state)
        return torch.stack(states, dim=1)


class GruBackbone(nn.Module):
    """Embeddings of tokens and recurrent layers.

    Args:
        config: Section `model`.
        shape: Length, vocabulary and padding of the sequences.
    """

    def __init__(self, config: GruConfig, shape: TokenShape) -> None:
        super().__init__()
        self.padding = shape.padding
        self.embedding = nn.Embedding(shape.vocabulary, config.embedding)
        widths = [config.embedding, *[config.hidden] * config.layers]
        self.layers = nn.ModuleList(GruLayer(*pair) for pair in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Return the state [B, H] after the last token that is not padding of tokens [B, L]."""
        real = None if self.padding is None else x != self.padding
        states = self.embedding(x)  # [B, L, D]
        for layer in self.layers:
            states = layer(states, real)
        last: Tensor = states[:, -1]
        return last


@MODELS.register("gru")
class Gru(Net):
    """Embeddings of tokens, gated recurrent units, and a linear head on the last state.

    The state does not change at positions of padding.

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical
    machine translation" (2014). Tokens have embeddings of width 8, as in the net of LEAF for
    Shakespeare, which has two LSTM layers of width 256.
    """

    Config: ClassVar[type[ModelConfig]] = GruConfig
    takes_tokens = True

    def __init__(self, config: GruConfig, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.backbone = GruBackbone(config, token_shape(shape, self.name))
        self.head = nn.Linear(config.hidden, classes)


def token_shape(shape: tuple[int, ...], name: str) -> TokenShape:
    """Return the shape of sequences of tokens.

    Args:
        shape: Shape of one sample.
        name: Name of the net, for the error message.

    Raises:
        ConfigError: The samples are not tokens.
    """
    if not isinstance(shape, TokenShape):
        raise unlike(name, "sequences of tokens, integers [n, length]", shape)
    return shape
