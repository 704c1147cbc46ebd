"""How the repetitions of a place were drawn, and for which population their tests hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import fmean
from typing import Final, Literal

import numpy as np

from flbench.data.dataset import PARTS
from flbench.results.partition_arrays import Samples
from flbench.results.reading import StoredRun

Vary = Literal["nothing", "training", "partition", "both"]
VARIED: Final[dict[Vary, str]] = {
    "nothing": "there is one run of each method",
    "training": "the seed of the training differs between repetitions; the partition is the same",
    "partition": "the partition differs between repetitions; the seed of the training is the same",
    "both": "the seed of the training and the partition differ between repetitions",
}
"""What differs between repetitions, in words."""
FIXED: Final = ("natural", "file")  # schemes with given clients
MOST: Final = 20  # partitions whose samples are counted
ENOUGH: Final = 0.5
"""Share of common samples from which their owners tell whether clients are fixed."""


@dataclass(frozen=True)
class Sampling:
    """How the repetitions of a place were drawn.

    Attributes:
        vary: What differs between repetitions.
        has_fixed_clients: Whether each sample belongs to the same client in all repetitions that
            have it, so that only the split of the client's samples into parts, and which clients
            and samples take part, is drawn anew. False where the partition is the same.
        shared: Share of the samples of a repetition that another one has too, in [0, 1]; 0 where
            the partition is the same.
        ratio: n_test / n_train, the number of test samples over that of training samples.
        validation: Smallest number of validation samples of all clients together in a repetition;
            None if it is not known.
        is_crossed: Whether some repetitions have a seed of the training or a partition in common,
            although both vary.
        is_repeated: Whether there are several repetitions that differ in nothing.
    """

    vary: Vary
    has_fixed_clients: bool = False
    shared: float = 0.0
    ratio: float = 0.0
    validation: int | None = None
    is_crossed: bool = False
    is_repeated: bool = False

    @property
    def overlap(self) -> float:
        """What the variance of a mean has beside 1 / n; see `statistics.difference`.

        It is 0 where repetitions are independent draws of the population that the claim names:
        seeds on one partition, or new partitions of the same samples. Splits of the samples of
        fixed clients are too much alike for that.
        """
        return self.other_samples if self.has_fixed_clients else 0.0

    @property
    def other_samples(self) -> float:
        """What the variance of a mean has beside 1 / n in a test for other samples."""
        return self.ratio * self.shared

    @property
    def population(self) -> str:
        """For what a claim holds, in words; "" if no seed varies, or repetitions share seeds."""
        if self.is_crossed:
            return ""
        new = "partitions of these samples"
        if self.has_fixed_clients:
            new = "splits of these clients" if self.shared == 1 else "draws from these clients"
        words: dict[Vary, str] = {
            "nothing": "",
            "training": "on this one partition",
            "partition": "for this one seed of the training",
            "both": f"over new {new}",
        }
        return words[self.vary]

    @property
    def supports_claims(self) -> bool:
        """Whether a test can say that a method is better; see `why_not`."""
        return not self.why_not

    @property
    def why_not(self) -> str:
        """Which repetitions support no claim that a method is better, in words; "" if they do.

        The luck of a seed of the training, such as its initial weights, is the same in all
        repetitions that have it, so equal methods differ significantly too often.
        """
        if self.vary == "partition":
            return "repetitions with one seed of the training"
        if self.is_crossed:
            return "repetitions that share a seed of the training or a partition"
        return "repetitions with the same seeds and the same partition" if self.is_repeated else ""


def sampling_of(runs: Sequence[StoredRun], vary: Vary, repetitions: int) -> Sampling:
    """Return how the runs of a place were drawn.

    Whether clients are fixed, and how many samples repetitions share, is counted in the stored
    partitions. Where fewer than two runs have them, because the others are of an earlier version,
    all samples are taken to be shared.

    Args:
        runs: Finished runs of one place.
        vary: What differs between its repetitions.
        repetitions: Number of its repetitions.

    Raises:
        DataError: A partition is damaged.
    """
    partitions = {run.summary["partition_hash"]: run for run in runs}
    seeds = {run.config.seed for run in runs}
    is_crossed = vary == "both" and min(len(seeds), len(partitions)) < repetitions
    is_repeated = vary == "nothing" and repetitions > 1
    stored = [run.samples() for run in islice(partitions.values(), MOST)]
    known = [samples for samples in stored if samples is not None]
    parts = [int((samples.part == PARTS.index("validation")).sum()) for samples in known]
    validation = min(parts) if len(known) == len(stored) else None
    if vary in ("nothing", "training"):  # methods without a common partition are not paired
        return Sampling(vary, validation=validation, is_crossed=is_crossed, is_repeated=is_repeated)
    table = runs[0].client_table()
    ratio = float(table["test_size"].sum() / max(1, table["train_size"].sum()))
    is_given = runs[0].config.partition.scheme in FIXED
    shared, is_fixed = 1.0, is_given
    if len(known) > 1:
        found = [_common(one, other) for one, other in pairwise(known)]
        shared = fmean(share for share, _ in found)
        is_fixed |= all(share >= ENOUGH and is_same for share, is_same in found)
    return Sampling(vary, is_fixed, shared, ratio, validation, is_crossed, is_repeated)


def _common(one: Samples, other: Samples) -> tuple[float, bool]:
    """Return the share of samples that two partitions have in common, and whether these have the
    same owners in both, whatever the numbers of the clients are.

    A single client tells nothing about owners.
    """
    both, here, there = np.intersect1d(one.index, other.index, return_indices=True)
    share = 2 * len(both) / max(1, len(one.index) + len(other.index))
    owners = np.stack([one.client[here], other.client[there]])  # [2, common samples]
    counts = [len(np.unique(row)) for row in owners]
    pairs = np.unique(owners, axis=1).shape[1]
    return share, counts[0] > 1 and counts == [pairs, pairs]
