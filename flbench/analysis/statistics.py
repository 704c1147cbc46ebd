"""Statistics over repetitions and over places.

The unit of repetition is the run: the clients of one run are not independent of each other. With
fewer than three repetitions there is no interval, no p-value and no claim.

The variance of a mean of n repetitions is (1 / n + overlap) times that of one. The overlap is 0 for
repetitions that are drawn independently. Where the samples of a repetition are largely those of the
others, the variance between repetitions is too small to tell how methods differ on other samples:
the overlap is then n_test / n_train, times the share of samples that two repetitions have in common
(corrected resampled t-test; Nadeau and Bengio, Machine Learning 2003).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan, sqrt
from statistics import stdev
from typing import Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Verdict = Literal["better", "worse", "no significant difference", "no claim"]

ALPHA: Final = 0.05  # significance level; intervals have the confidence level 1 - ALPHA
CLAIM_FROM: Final = 3  # repetitions
POWER: Final = 0.8  # probability to see a difference that is there
MOST_NEEDED: Final = 1000  # repetitions; more are not counted
WILCOXON_FROM: Final = 6  # repetitions; with fewer, the p-value is always above 0.05
MOST_SIGNS: Final = 13  # repetitions of which Wilcoxon's test tries all combinations of signs
MOST_LETTERS: Final = 8  # methods; nobody can read the letters of more
TINY: Final = 1e-12  # a relative deviation that is no more than a rounding error

Values = NDArray[np.float64]


def sample_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation with the divisor n - 1; None for fewer than two values.

    >>> sample_std([1.0, 3.0]), sample_std([1.0])
    (1.4142135623730951, None)
    """
    return stdev(values) if len(values) > 1 else None


def half_interval(
    n: ArrayLike, mean: ArrayLike, std: ArrayLike, overlap: ArrayLike = 0.0
) -> Values:
    """Return half the width of the 95 % intervals of means by Student's t distribution.

    Args:
        n: Numbers of repetitions.
        mean: Their means.
        std: Their standard deviations.
        overlap: What the variance of a mean has beside 1 / n.

    Returns:
        The widths; NaN for fewer than three repetitions, and for repetitions that are all equal,
        because they do not tell how far the mean over others may be.

    >>> half_interval([3, 2], [0.8, 0.8], [0.1, 0.1]).round(4)
    array([0.2484,    nan])
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    count, more = np.maximum(n, 1), np.asarray(overlap, np.float64)
    half = stdtrit(np.maximum(count - 1, 1), 1 - ALPHA / 2) * np.sqrt(1 / count + more)
    return np.where(_are_tested(n, mean, std), half * np.asarray(std, np.float64), nan)


def over_repetitions(
    rows: pd.DataFrame,
    by: Sequence[str],
    column: str,
    overlaps: Mapping[str, float],
    limits: tuple[float, float] | None = None,
) -> pd.DataFrame:
    """Return the number, mean, deviation and 95 % interval of a column over repetitions.

    Args:
        rows: A row for each repetition; NaN stands for a value that it does not have.
        by: Columns that tell apart what the means are over; one of them is `place`.
        column: The column.
        overlaps: Overlap by place; that of others is 0.
        limits: Smallest and largest value at which intervals end.

    Returns:
        The columns `by`, `n`, `mean`, `std`, `low` and `high`, in the order of the rows.
    """
    groups = rows.groupby(list(by), sort=False, dropna=False)[column]
    squares = (rows[column] - groups.transform("mean")) ** 2
    sums = squares.groupby([rows[name] for name in by], sort=False, dropna=False).sum()
    n, mean = groups.count(), groups.mean()
    std = np.sqrt(sums / (n - 1).where(n > 1))
    found = pd.DataFrame({"n": n, "mean": mean, "std": std}).reset_index()
    overlap = found["place"].map(overlaps).astype(float).fillna(0.0)
    half = half_interval(found["n"], found["mean"], found["std"], overlap)
    ends = found["mean"] - half, found["mean"] + half
    low, high = (end if limits is None else end.clip(*limits) for end in ends)
    return found.assign(low=low, high=high)


def differences(
    values: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    *,
    overlap: float = 0.0,
    other_samples: float = 0.0,
) -> pd.DataFrame:
    """Compare pairs of methods over the repetitions that both have.

    Args:
        values: Values [repetitions, methods]; NaN where a method lacks a repetition.
        pairs: First and second method of each pair.
        overlap: Overlap for the population of the claim.
        other_samples: Overlap for a claim about other samples of the same kind; 0 if there is none.

    Returns:
        A row for each pair that shares a repetition: `first`, `second`, `n`, the mean `difference`
        (first minus second) with its 95 % interval `low`, `high`; p-values of the test that decides
        (`p`: paired t-test, or corrected resampled t-test), of the paired t-test (`paired_t`), of
        the corrected resampled t-test for other samples (`corrected`) and of Wilcoxon's signed-rank
        test (`wilcoxon`), NaN where there is no test; `probability`, the share of repetitions in
        which the first is better, with equal values counted half; and `effect`, the difference over
        its standard deviation.
    """
    first, second = (values[[pair[k] for pair in pairs]].to_numpy(np.float64) for k in (0, 1))
    gaps = pd.DataFrame(first - second)  # [repetitions, pairs]
    n, mean, std = gaps.count(), gaps.mean(), gaps.std()
    half = half_interval(n, mean, std, overlap)
    found = pd.DataFrame(
        {
            "first": [pair[0] for pair in pairs],
            "second": [pair[1] for pair in pairs],
            "n": n,
            "difference": mean,
            "low": mean - half,
            "high": mean + half,
            "p": p_values(n, mean, std, overlap),
            "paired_t": p_values(n, mean, std),
            "corrected": p_values(n, mean, std, other_samples) if other_samples else nan,
            "wilcoxon": [_wilcoxon(gaps[k].dropna().to_numpy()) for k in gaps],
            "probability": ((gaps > 0).sum() + (gaps == 0).sum() / 2) / n,
            "effect": np.where(_are_tested(n, mean, std), mean / std, nan),
        }
    )
    return found[found["n"] > 0].reset_index(drop=True)


def p_values(n: ArrayLike, mean: ArrayLike, std: ArrayLike, overlap: float = 0.0) -> Values:
    """Return two-sided p-values of the (corrected resampled) t-test that means are 0.

    Args:
        n: Numbers of differences.
        mean: Their means.
        std: Their standard deviations.
        overlap: What the variance of a mean has beside 1 / n.

    Returns:
        The p-values; NaN for fewer than three differences, and for differences that are all equal.

    >>> p_values([16, 2], 0.5, 1.0).round(4), p_values([16], 0.5, 1.0, 0.25).round(4)
    (array([0.0639,    nan]), array([0.3852]))
    """
    from scipy.special import stdtr

    count = np.maximum(n, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(mean) / (np.asarray(std) * np.sqrt(1 / count + overlap))
    p = 2 * stdtr(np.maximum(count - 1, 1), -ratio)
    return np.where(_are_tested(n, mean, std), p, nan)


def _are_tested(n: ArrayLike, mean: ArrayLike, std: ArrayLike) -> NDArray[np.bool_]:
    """Whether there are enough repetitions, which differ by more than a rounding error."""
    found: NDArray[np.bool_] = np.greater_equal(n, CLAIM_FROM) & np.greater(
        std, TINY * (1 + np.abs(mean))
    )
    return found


def repetitions_needed(effect: ArrayLike, tests: int = 1) -> Values:
    """Return the numbers of repetitions at which a paired t-test sees effects.

    An effect is seen if the test is significant with a probability of 80 %.

    Args:
        effect: Means of the differences over their standard deviations.
        tests: Number of tests; the significance level of each is 0.05 over this number.

    Returns:
        The smallest numbers n >= 3; NaN where it is more than 1,000, and for an effect of NaN.

    >>> repetitions_needed([0.5, 0.0]).tolist()
    [34.0, nan]
    """
    from scipy.special import nctdtr, stdtrit

    size = np.abs(np.asarray(effect, np.float64))
    low, high = np.full(size.shape, CLAIM_FROM), np.full(size.shape, MOST_NEEDED + 1)
    while (low < high).any():  # the power grows with the number of repetitions
        n = (low + high) // 2
        limit, center = stdtrit(n - 1, 1 - ALPHA / tests / 2), size * np.sqrt(n)
        above, below = (nctdtr(n - 1, center, end) for end in (limit, -limit))
        # NaN: too near to 0 or 1
        above = np.where(np.isnan(above), center < limit, above)
        below = np.where(np.isnan(below), center < -limit, below)
        is_enough = 1 - above + below >= POWER
        low, high = np.where(is_enough, low, n + 1), np.where(is_enough, n, high)
        low = np.minimum(low, high)
    return np.where((high <= MOST_NEEDED) & ~np.isnan(size), high, nan)


def correct(values: ArrayLike) -> Values:
    """Correct p-values for several tests by Holm's procedure; NaN stays NaN.

    Source: Holm, Scandinavian Journal of Statistics 1979.

    >>> correct([0.04, float("nan"), 0.01])
    array([0.04,  nan, 0.02])
    """
    p = np.array(values, np.float64)
    order = np.argsort(p)[: int((~np.isnan(p)).sum())]  # NaN comes last
    steps = p[order] * np.arange(len(order), 0, -1)
    p[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return p


def verdicts(difference: ArrayLike, p: ArrayLike) -> list[Verdict]:
    """Return what differences and their corrected p-values say about the first method.

    >>> verdicts([0.1, -0.1, 0.1, 0.1], [0.01, 0.01, 0.2, float("nan")])
    ['better', 'worse', 'no significant difference', 'no claim']
    """
    words: tuple[Verdict, ...] = ("no claim", "no significant difference", "better")
    cases = [np.isnan(p), np.greater_equal(p, ALPHA), np.greater(difference, 0)]
    found: list[Verdict] = np.select(cases, words, "worse").tolist()
    return found


def letters(p: pd.DataFrame) -> dict[str, str]:
    """Return the compact letter display of methods: two methods without a common letter differ.

    Source: Piepho, Journal of Computational and Graphical Statistics 2004.

    Args:
        p: Corrected p-values, methods x methods, from the best to the worst method; NaN where there
            is no test.

    Returns:
        The letters by method; none for a method that no test compares with any other, and none for
        more than eight methods.

    >>> p = pd.DataFrame([[1, 0.2, 0.01], [0.2, 1, 0.3], [0.01, 0.3, 1]], list("xyz"), list("xyz"))
    >>> letters(p)
    {'x': 'a', 'y': 'ab', 'z': 'b'}
    """
    is_tested = p.mask(np.eye(len(p), dtype=bool)).notna().any()
    tested = p.loc[is_tested, is_tested]
    found = dict.fromkeys(map(str, p.index), "")
    if len(tested) and len(p) <= MOST_LETTERS:
        from scikit_posthocs import compact_letter_display

        display = compact_letter_display(tested.fillna(1.0), ALPHA)
        found |= {str(name): text.replace(" ", "") for name, text in display.items()}
    return found


@dataclass(frozen=True)
class Across:
    """Methods compared over several places by their ranks.

    Attributes:
        ranks: Mean rank by method, 1 is best; methods that all places have, best first.
        places: Number of places.
        blocks: Number of blocks of Friedman's test: kinds of places, or places if all are of one
            kind.
        friedman: p-value of Friedman's test that all methods are equal; NaN for fewer than three
            methods.
        nemenyi: p-values of Nemenyi's test, methods x methods.
        critical: Critical difference of mean ranks at the level 0.05.
    """

    ranks: "pd.Series[float]"
    places: int
    blocks: int
    friedman: float
    nemenyi: pd.DataFrame
    critical: float


def across(means: pd.DataFrame, kinds: Mapping[str, str] | None = None) -> Across | None:
    """Compare methods over places.

    The tests take their blocks for independent. Places of one kind rank the methods alike, so their
    ranks are averaged, and a kind is one block. If all places are of one kind, each is a block, and
    the tests hold for places of this kind.

    Source: Demsar, JMLR 2006.

    Args:
        means: Mean of the metric, places x methods. Methods that lack a place, where it is NaN, are
            left out.
        kinds: Kind of each place; a place that is missing is a kind of its own.

    Returns:
        The comparison; None for fewer than two places or two methods.
    """
    complete = means.dropna(axis="columns")
    if min(complete.shape) < 2:
        return None
    import scikit_posthocs as sp
    from scipy.stats import friedmanchisquare, studentized_range

    ranks = _rounded_ranks(-complete)
    held = [(kinds or {}).get(place, place) for place in complete.index]
    if len(set(held)) > 1:
        ranks = _rounded_ranks(ranks.groupby(held, sort=False).mean())
    averages = ranks.mean().sort_values(kind="stable")
    k, n = len(averages), len(ranks)
    quantile = float(studentized_range.ppf(1 - ALPHA, k, np.inf)) / sqrt(2)
    critical = quantile * sqrt(k * (k + 1) / (6 * n))
    nemenyi = sp.posthoc_nemenyi_friedman(ranks.to_numpy())
    nemenyi.index = nemenyi.columns = ranks.columns
    friedman = float(friedmanchisquare(*ranks.to_numpy().T).pvalue) if k > 2 else nan
    return Across(
        ranks=averages,
        places=len(complete),
        blocks=n,
        friedman=friedman,
        nemenyi=nemenyi.loc[averages.index, averages.index],
        critical=critical,
    )


def _rounded_ranks(values: pd.DataFrame) -> pd.DataFrame:
    """Return the ranks of the columns in each row, 1 for the smallest value."""
    return values.apply(rounded).rank(axis="columns")


def rounded(values: "pd.Series[float]") -> "pd.Series[float]":
    """Return numbers with twelve digits: means that differ by the order of a sum are equal then.

    >>> rounded(pd.Series([0.1 + 0.2, 0.3])).tolist()
    [0.3, 0.3]
    """
    return values.map(lambda value: float(f"{value:.12g}"))


def _wilcoxon(gaps: Values) -> float:
    """Return the p-value of Wilcoxon's signed-rank test, exact for few differences."""
    if len(gaps) < WILCOXON_FROM or not gaps.any():
        return nan
    from scipy.stats import rankdata, wilcoxon

    if len(gaps) > MOST_SIGNS:
        return float(wilcoxon(gaps).pvalue)
    # scipy's test has the same number, and with ties takes up to a second for it.
    other = gaps[gaps != 0]
    ranks = rankdata(np.abs(other))
    sums = np.array([*product((-1, 1), repeat=len(other))]) @ ranks  # of all combinations of signs
    return float((np.abs(sums) >= abs(np.sign(other) @ ranks)).mean())
