"""Means over seeds, paired differences, and verdicts about them.

The observations are runs with different seeds, because the clients of one run are not independent
of each other. Fewer than three seeds support no claim. With fewer than six seeds, the p-value of
Wilcoxon's signed-rank test is always above 0.05.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Final, Literal

Verdict = Literal["better", "worse", "no significant difference", "no claim"]

ALPHA: Final = 0.05  # significance level; intervals have the confidence level 1 - ALPHA
CLAIM_FROM: Final = 3  # seeds
WILCOXON_FROM: Final = 6  # seeds
ON_ONE_PARTITION: Final = "on this one partition"
"""What a claim is restricted to if its runs differ in the seed of the training only."""


@dataclass(frozen=True)
class Sample:
    """Mean and standard deviation of values over seeds.

    Attributes:
        n: Number of values.
        mean: Mean of the values.
        sd: Sample standard deviation, with the divisor n - 1; None for one value.
        half: Half the width of the 95 % confidence interval of the mean (Student's t); None for
            one value.
    """

    n: int
    mean: float
    sd: float | None
    half: float | None


@dataclass(frozen=True)
class PairedDifference:
    """Difference between two sets of runs, paired by seed.

    Attributes:
        seeds: Seeds that both sets have, in ascending order.
        sample: Mean, standard deviation and interval of the differences.
        p: Two-sided p-value of the paired t-test. None for fewer than three seeds, and if the
            difference is the same for every seed, because its variance is unknown then.
        wilcoxon: Two-sided p-value of Wilcoxon's signed-rank test; None for fewer than six seeds.
    """

    seeds: tuple[int, ...]
    sample: Sample
    p: float | None
    wilcoxon: float | None

    def verdict(self, p: float | None) -> Verdict:
        """Return the verdict for a p-value, which may be corrected for multiple tests.

        Returns:
            `better` or `worse` if p < 0.05, by the sign of the mean difference; `no significant
            difference` if p >= 0.05; `no claim` without a p-value.
        """
        if p is None:
            return "no claim"
        if p >= ALPHA:
            return "no significant difference"
        return "better" if self.sample.mean > 0 else "worse"


def sample_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation with the divisor n - 1; None for fewer than two values.

    >>> sample_std([1.0, 3.0]), sample_std([1.0])
    (1.4142135623730951, None)
    """
    return stdev(values) if len(values) > 1 else None


def sample(values: Sequence[float]) -> Sample:
    """Return mean, standard deviation and 95 % confidence interval of values.

    Half the width of the interval is t(n - 1, 0.975) sd / sqrt(n), with the quantile t of
    Student's distribution.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("a sample must have at least one value, got none.")
    n, sd = len(values), sample_std(values)
    half = None if sd is None else _quantile(n) * sd / sqrt(n)
    return Sample(n, fmean(values), sd, half)


def paired_difference(
    before: Mapping[int, float], after: Mapping[int, float]
) -> PairedDifference | None:
    """Return the difference `after - before`, paired by seed.

    Args:
        before: Values by seed.
        after: Values by seed.

    Returns:
        The difference over the seeds that both have; None if there is no such seed.
    """
    seeds = tuple(sorted(before.keys() & after.keys()))
    if not seeds:
        return None
    differences = [after[seed] - before[seed] for seed in seeds]
    summary = sample(differences)
    return PairedDifference(seeds, summary, _t_test(summary, differences), _wilcoxon(differences))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests by Holm's procedure.

    With m p-values in ascending order, the k-th one becomes the maximum over j <= k of
    min(1, (m - j + 1) p_j). The result has the order of the input.

    Source: Holm, Scandinavian Journal of Statistics 1979.

    >>> holm([0.04, 0.01])
    [0.04, 0.02]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, largest = [0.0] * len(values), 0.0
    for rank, k in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[k]))
        corrected[k] = largest
    return corrected


def _quantile(n: int) -> float:
    """Return the quantile 1 - ALPHA / 2 of Student's t with n - 1 degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf(1 - ALPHA / 2, n - 1))


def _t_test(summary: Sample, differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of a t-test against mean 0; None if there is no claim."""
    # The deviation of equal differences is a rounding error, which would make t very large.
    if (
        summary.n < CLAIM_FROM
        or summary.sd is None
        or summary.sd <= 1e-12 * (1 + abs(summary.mean))
    ):
        return None
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)


def _wilcoxon(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Wilcoxon's signed-rank test; None for too few seeds."""
    if len(differences) < WILCOXON_FROM or not any(differences):
        return None
    from scipy.stats import wilcoxon

    return float(wilcoxon(differences).pvalue)
