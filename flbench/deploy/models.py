"""A net with the parameters of one client or of the server, and the normalization of inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench.client.forward import apply
from flbench.core.types import Batch, Context, Outputs, Tree
from flbench.data import unlabelled
from flbench.data.unlabelled import Layout
from flbench.models.base import net_leaves

if TYPE_CHECKING:
    import pandas as pd

RawSamples: TypeAlias = "pd.DataFrame | Tensor | NDArray[Any] | Sequence[Sequence[int]]"
"""Raw samples; tables may be a DataFrame, and sequences of tokens a list."""
CHUNK: Final = 512  # samples that `TrainedModel.predict` computes at once


class DeployedNet(nn.Module):
    """A net with the parameters of one deployment, and the rule by which it predicts.

    Args:
        net: The net, with the parameters and buffers that it is called with.
        rule: `Deployment.predict`; None takes the net's logits.
        leaves: Leaves for the rule that are not those of `net`.
        ctx: Entries of ctx for the rule.

    Attributes:
        unsaved: Names of the buffers that training has changed and that `state_dict` leaves out.
    """

    unsaved: tuple[str, ...] = ()

    def __init__(
        self,
        net: nn.Module,
        rule: Callable[[Context], Tensor] | None = None,
        leaves: Tree | None = None,
        ctx: Tree | None = None,
    ) -> None:
        super().__init__()
        self.net, self.rule = net, rule
        self._read: dict[str, dict[str, str]] = {}  # by kind and name; buffers have no dots
        for kind, tree in (("leaf", leaves or {}), ("ctx", ctx or {})):
            self._read[kind] = {name: f"{kind}_{k}" for k, name in enumerate(tree)}
            for name, value in tree.items():
                self.register_buffer(self._read[kind][name], value)
        self.requires_grad_(False)
        self.eval()

    @property
    def scores(self) -> str:
        """What the scores are: `logits`, whose softmax are probabilities, or something else."""
        return str(getattr(self.rule, "scores", "logits"))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores [B, C] of normalized inputs [B, ...]; the largest one is predicted."""
        if self.rule is None:
            out: Outputs = self.net(x)
            return out.logits
        leaves, ctx = (
            {name: getattr(self, buffer) for name, buffer in names.items()}
            for names in self._read.values()
        )
        leaves = net_leaves(self.net) | leaves
        # [B]; made from x, so that exported programs keep the axis B variable.
        zeros = torch.zeros_like(x.flatten(1)[:, 0], dtype=torch.int64)
        batch = Batch(x, y=zeros, mask=zeros == 0, key=zeros, step=torch.tensor(0))
        forward, called = partial(self.net, x), partial(apply, self.net)
        return self.rule(
            Context(forward, batch=batch, ctx=ctx, leaves=leaves, start=leaves, apply=called)
        )


class RawInputs(nn.Module):
    """Raw samples to normalized inputs of the net, as `Federation.inputs` gives them.

    Grey images are [B, height, width], others [B, height, width, channels]; series are
    [B, channels, length]; tokens are [B, length] int64 and stay as they are; rows of tables are
    [B, columns] float32, with NaN for missing values and with the position of the word in a column
    of words.

    Args:
        shape: Shape of one sample, as the data set stores it.
        offset: Offset of the normalization (x - offset) * scale; it broadcasts against one input.
        scale: Factor of the normalization.
        is_tokens: Whether samples are tokens.

    Attributes:
        source: Column of the table that each input comes from, [width] int64; None without a table.
        word: Position of the word that an input stands for, [width] int64; -1 for numbers.
        fill: Values that replace missing ones, [width].
    """

    offset: Tensor
    scale: Tensor
    source: Tensor | None
    word: Tensor | None
    fill: Tensor | None

    def __init__(
        self, shape: tuple[int, ...], offset: Tensor, scale: Tensor, *, is_tokens: bool = False
    ) -> None:
        super().__init__()
        self.shape, self.is_tokens = tuple(shape), is_tokens
        self.register_buffer("offset", offset)
        self.register_buffer("scale", scale)
        for name in ("source", "word", "fill"):
            self.register_buffer(name, None)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one raw sample."""
        if len(self.shape) < 3:
            return self.shape
        channels, height, width = self.shape
        return (height, width) if channels == 1 else (height, width, channels)

    def encoded(self, raw: Tensor) -> Tensor:
        """Return inputs before the normalization; NaN where a value of a table is missing."""
        x = raw.to(self.offset.dtype)
        if self.source is not None and self.word is not None:
            x = x[:, self.source]  # [B, columns] -> [B, width]
            has_word = (x == self.word).to(x.dtype)
            return torch.where((self.word >= 0) & ~torch.isnan(x), has_word, x)
        if len(self.shape) == 3:  # [B, H, W] or [B, H, W, C] -> [B, C, H, W]
            return x[:, None] if self.shape[0] == 1 else x.permute(0, 3, 1, 2)
        return x

    def forward(self, raw: Tensor) -> Tensor:
        """Return normalized inputs [B, ...] of raw samples; tokens as they are."""
        if self.is_tokens:
            return raw.to(torch.int64)
        x = self.encoded(raw)
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self.fill, x)
        return (x - self.offset) * self.scale


@dataclass(frozen=True)
class TrainedModel:
    """A model of a run, to predict with.

    Attributes:
        net: The net in eval mode, on the CPU: normalized inputs [B, ...] to scores [B, C].
        inputs: The module that normalizes raw samples for `net`.
        classes: Names of the C classes; empty for targets that are not classes.
        layout: What samples the model takes, to read them from arrays and files.
        card: What the model is: method, client, classes, inputs, normalization, metrics, the run's
            configuration and summary; JSON values.
    """

    net: DeployedNet
    inputs: RawInputs
    classes: tuple[str, ...]
    layout: Layout
    card: dict[str, Any]

    @property
    def module(self) -> nn.Module:
        """The whole model as one module: raw samples [B, ...] to scores [B, C]."""
        return nn.Sequential(self.inputs, self.net).eval()

    @property
    def normalization(self) -> dict[str, Any]:
        """The normalization (x - mean) / std of raw samples, which `predict` applies; JSON values.

        `mean` and `std` have a number for each channel, or column of the net's input, in the units
        of the raw samples (pixels of uint8 images are not divided by 255 first). `std` is the
        standard deviation; None stands for infinity: a channel or column of one value, whose input
        is 0. For rows of tables, `columns` has the names of the net's input, `NAME=WORD` for a
        column of words, and `fill` the values that replace missing ones; for other samples both are
        empty, and for tokens all are.
        """
        if self.inputs.is_tokens:
            return {"mean": [], "std": [], "columns": [], "fill": []}
        both = self.inputs.offset.double(), 1.0 / self.inputs.scale.double()
        mean, std = (value.flatten().tolist() for value in both)
        found = {"mean": mean, "std": [value if isfinite(value) else None for value in std]}
        source, word, fill = self.inputs.source, self.inputs.word, self.inputs.fill
        if source is None or word is None or fill is None:
            return found | {"columns": [], "fill": []}
        names, words = self.layout.columns, self.layout.words
        columns = [
            names[k] if place < 0 else f"{names[k]}={words[k][place]}"
            for k, place in zip(source.tolist(), word.tolist(), strict=True)
        ]
        return found | {"columns": columns, "fill": fill.tolist()}

    def predict(self, x: RawSamples) -> Tensor:
        """Return the scores of raw samples; the largest score is the predicted class.

        The samples are normalized as in training. Equal calls have equal results, also of a net
        that draws random numbers.

        Args:
            x: Samples as the data set stores them: [B, height, width] or [B, height, width, 3], or
                [B, channels, height, width], uint8 where the data set has uint8 images; series
                [B, channels, length]; tokens [B, length], integers; rows of tables [B, columns],
                NaN for missing values and the position of the word in a column of words, or a
                DataFrame, as a file that has it. With a padding id, sequences of tokens may be
                shorter, and a list of sequences may have several lengths.

        Returns:
            Scores [B, C] on the CPU.

        Raises:
            DataError: The samples have another shape, type or range than those of the data set.
        """
        module = self.module
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            return torch.cat([module(part) for part in torch.split(self.raw(x), CHUNK)])

    def raw(self, x: RawSamples) -> Tensor:
        """Return samples [B, ...] as the exported model takes them.

        Args:
            x: See `predict`.

        Raises:
            DataError: See `predict`.
        """
        given = x.detach().cpu().numpy() if isinstance(x, Tensor) else x
        array = unlabelled.as_stored(given, self.layout, "the samples")
        stored = torch.from_numpy(np.require(array, requirements="W"))  # files may be read-only
        if len(self.inputs.shape) == 3:  # [B, C, H, W] -> [B, H, W] or [B, H, W, C]
            return stored[:, 0] if stored.shape[1] == 1 else stored.permute(0, 2, 3, 1)
        return stored

    def unknown_words(self, x: NDArray[Any]) -> list[str]:
        """Return a sentence for each column with words that no training part has.

        Args:
            x: Raw samples; `predict` takes them.
        """
        source, word = self.inputs.source, self.inputs.word
        if source is None or word is None:
            return []
        found = []
        for k, name in enumerate(self.layout.columns):
            known = word[source == k].numpy()
            count = int((~np.isnan(x[:, k]) & ~np.isin(x[:, k], known)).sum())
            if self.layout.words[k] and count:
                found.append(
                    f"{count} of {len(x)} values of the column `{name}` are words that no training"
                    " part has; they are 0 in the columns of all words."
                )
        return found
