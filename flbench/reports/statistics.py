"""Means over seeds, differences seed by seed, and what may be said of them.

Seeds are the samples here: the clients of one run are not independent of each other. A sample of
fewer than three seeds supports no claim, whatever its interval; Wilcoxon's test cannot get below
p = 0.05 with fewer than six.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Final, Literal

Word = Literal["better", "worse", "not told apart", "no claim"]

ALPHA: Final = 0.05
CLAIM_FROM: Final = 3
WILCOXON_FROM: Final = 6


@dataclass(frozen=True)
class Sample:
    """A mean over seeds.

    Attributes:
        n: how many values.
        mean: of the values.
        sd: standard deviation (n - 1); None for one value.
        half: half the width of the 95 % t-interval of the mean; None for one value.
    """

    n: int
    mean: float
    sd: float | None
    half: float | None


@dataclass(frozen=True)
class Gap:
    """A difference, seed by seed.

    Attributes:
        seeds: that both sides have, ascending.
        sample: the differences' mean, spread and interval.
        p: of the paired t-test, two-sided; None for fewer than three seeds, or where the difference
            is the same in every seed, so that nothing says how far it would vary.
        wilcoxon: p of the signed-rank test, two-sided; None for fewer than six seeds.
    """

    seeds: tuple[int, ...]
    sample: Sample
    p: float | None
    wilcoxon: float | None

    def word(self, p: float | None) -> Word:
        """Return what may be said, by the p given: the gap's own, or one corrected for many."""
        if p is None:
            return "no claim"
        if p >= ALPHA:
            return "not told apart"
        return "better" if self.sample.mean > 0 else "worse"


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation (n - 1); None for fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def sample(values: Sequence[float]) -> Sample:
    """Return mean, spread and t-interval of at least one value.

    The interval is mean +- t(n - 1, 0.975) sd / sqrt(n).
    """
    if not values:
        raise ValueError("a sample must have at least one value, got none.")
    n, sd = len(values), spread(values)
    half = None if sd is None else _quantile(n) * sd / sqrt(n)
    return Sample(n, fmean(values), sd, half)


def gap(before: Mapping[int, float], after: Mapping[int, float]) -> Gap | None:
    """Return the difference `after - before` over the seeds that both have; None without any.

    Args:
        before: values by seed.
        after: the same.
    """
    seeds = tuple(sorted(before.keys() & after.keys()))
    if not seeds:
        return None
    differences = [after[seed] - before[seed] for seed in seeds]
    found = sample(differences)
    return Gap(seeds, found, _t_test(found), _wilcoxon(differences))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, in their order.

    Sorted ascending, the k-th of m is max over j <= k of min(1, (m - j + 1) p_j).
    Source: Holm, Scandinavian Journal of Statistics 1979.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, largest = [0.0] * len(values), 0.0
    for rank, k in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[k]))
        corrected[k] = largest
    return corrected


def _quantile(n: int) -> float:
    from scipy.stats import t

    return float(t.ppf(1 - ALPHA / 2, n - 1))


def _t_test(found: Sample) -> float | None:
    """Return p of mean 0 against a t distribution of n - 1 degrees of freedom."""
    # Equal differences leave a spread of rounding errors, whose t would look like proof.
    if found.n < CLAIM_FROM or found.sd is None or found.sd <= 1e-12 * (1 + abs(found.mean)):
        return None
    from scipy.stats import t

    return float(2 * t.sf(abs(found.mean) * sqrt(found.n) / found.sd, found.n - 1))


def _wilcoxon(differences: Sequence[float]) -> float | None:
    if len(differences) < WILCOXON_FROM or not any(differences):
        return None
    from scipy.stats import wilcoxon

    return float(wilcoxon(differences).pvalue)
