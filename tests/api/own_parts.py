"""Data and nets that tests name by their import path."""

import numpy as np
from torch import nn

from flbench.data.sources import digits
from flbench.losses.similarity import masked_mean


def arrays(count=300):
    """Images [n, 8, 8] and labels [n] of digits."""
    found = digits()
    return found.x[:count, 0], found.y[:count]


def failing():
    raise OSError("the disk is away")


class Two(nn.Module):
    """A net with features, a classifier and an option."""

    def __init__(self, shape, classes, width=16):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x):
        return self.classifier(self.features(x).relu())


def confidence(context, *, size=1.0):
    """The mean negative entropy of the predictions."""
    logs = context.out.logits.log_softmax(dim=1)  # [B, C]
    return size * masked_mean((logs.exp() * logs).sum(dim=1), context.batch.mask)


def every_kth(y, clients, rng, shift=0):
    """Samples in turn; client 0 begins at the position `shift`."""
    return [np.flatnonzero((np.arange(len(y)) - shift) % clients == k) for k in range(clients)]


def failing_scheme(y, clients, rng):
    raise OSError("the disk is away")


def error_rate(confusion):
    """The share of wrong predictions; small values are good."""
    return 1 - float(confusion.diagonal().sum()) / float(confusion.sum())


error_rate.higher_is_better = False


def accuracy(confusion):
    """The share of right predictions."""
    return float(confusion.diagonal().sum()) / float(confusion.sum())
