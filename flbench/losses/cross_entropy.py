"""Cross entropy of logits and labels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import Context, Outputs


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of values [B] where mask [B] is True, 0-dim; 0 if it is nowhere True."""
    count = mask.sum().clamp_min(1).to(values.dtype)
    return torch.where(mask, values, 0.0).sum() / count


def mean_cross_entropy(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the batch of -log softmax(logits)[label], in nats, 0-dim.

    Args:
        logits: [B, C].
        y: [B] int64 labels in [0, C).
        mask: [B] bool; rows where it is False do not count. The mean over no row is 0.

    Example:
        >>> logits, y = torch.zeros(3, 4), torch.tensor([0, 1, 3])
        >>> mean_cross_entropy(logits, y, torch.tensor([True, True, False]))  # ln 4
        tensor(1.3863)
    """
    return masked_mean(cross_entropies(logits, y), mask)


def sum_cross_entropy(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over the batch of -log softmax(logits)[label], in nats, 0-dim.

    Args:
        logits: [B, C].
        y: [B] int64 labels in [0, C).
        mask: [B] bool; rows where it is False do not count.
    """
    return torch.where(mask, cross_entropies(logits, y), 0.0).sum()


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Return -log softmax(logits)[label] of each sample, [B], for logits [B, C] and labels [B]."""
    # Two operations instead of `F.cross_entropy`, which vmap decomposes in Python in every step.
    logarithms = logits.log_softmax(dim=1)  # [B, C]
    return -logarithms.gather(1, y[:, None])[:, 0]


@dataclass(frozen=True)
class CrossEntropy:
    """Mean over the batch of -log softmax(logits)[label], in nats.

    Reads the logits [B, C] of `outputs`, those of the net, and the labels [B]. A subclass that
    overrides `outputs` computes the cross entropy of other logits, and the terms of `train.terms`
    read them too.

    Attributes:
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the mean cross entropy, 0-dim."""
        logits = self.outputs(context).logits
        return mean_cross_entropy(logits, context.batch.y, context.batch.mask)

    def outputs(self, context: Context) -> Outputs:
        """Return features [B, D] and logits [B, C]: the net's outputs."""
        return context.out


@dataclass(frozen=True, kw_only=True)
class ScoresCrossEntropy(CrossEntropy):
    """Mean over the batch of -log softmax(scores)[label], in nats, for scores of another rule.

    Attributes:
        scores: The rule, a frozen dataclass or function that maps a Context to scores [B, C].
            A method gives the same one to `Deployment.predict`.
    """

    scores: Callable[[Context], Tensor]

    def outputs(self, context: Context) -> Outputs:
        """Return the net's features [B, D] and the scores of the rule [B, C]."""
        return Outputs(context.out.features, self.scores(context))
