"""Statistics over repetitions and over places.

The unit of repetition is the run: the clients of one run are not independent of each other. With
fewer than three repetitions there is no interval, no p-value and no claim.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import nan, sqrt
from statistics import stdev
from string import ascii_letters
from typing import Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Verdict = Literal["better", "worse", "no significant difference", "no claim"]

ALPHA: Final = 0.05  # significance level; intervals have the confidence level 1 - ALPHA
CLAIM_FROM: Final = 3  # repetitions
POWER: Final = 0.8  # probability to see a difference that is there
MOST_NEEDED: Final = 1000  # repetitions; more are not counted
RESAMPLES: Final = 5000  # of a bootstrap
WILCOXON_FROM: Final = 6  # repetitions; with fewer, the p-value is always above 0.05
TINY: Final = 1e-12  # a relative deviation that is no more than a rounding error
MULTIPLE: Final = "holm"  # correction for several tests

Values = NDArray[np.float64]


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its 95 % interval; NaN where there are too few values.

    Attributes:
        value: The mean.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The paired difference between two methods in a place.

    Attributes:
        n: Number of repetitions that both methods have.
        mean: Mean difference, first minus second.
        low: Lower end of its 95 % interval; NaN for fewer than three repetitions.
        high: Upper end of its 95 % interval.
        p: p-value of the paired t-test; NaN for fewer than three repetitions, and for differences
            that are all equal.
        corrected: p-value of the corrected resampled t-test, which the interval belongs to; NaN
            where it does not apply.
        wilcoxon: p-value of Wilcoxon's signed-rank test; NaN for fewer than six repetitions.
        probability: Probability of improvement: that a run of the first method is better than one
            of the second, with equal values counted half.
        needed: Number of repetitions at which a difference of this size is seen with a probability
            of 80 %, after the correction for all tests; NaN if it is more than 1,000, or not known.
        is_limited: Whether no number of repetitions suffices for that, because the variance of the
            corrected test has a floor; see `is_beyond_repetitions`.
    """

    n: int
    mean: float
    low: float
    high: float
    p: float
    corrected: float
    wilcoxon: float
    probability: float
    needed: float
    is_limited: bool = False

    @property
    def decisive(self) -> float:
        """The p-value of the test that the interval belongs to: the corrected one where it applies,
        otherwise that of the paired t-test. It decides after the correction for all pairs.
        """
        return self.p if np.isnan(self.corrected) else self.corrected


def sample_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation with the divisor n - 1; None for fewer than two values.

    >>> sample_std([1.0, 3.0]), sample_std([1.0])
    (1.4142135623730951, None)
    """
    return stdev(values) if len(values) > 1 else None


def mean(values: Sequence[float]) -> MeanInterval:
    """Return the mean over repetitions with its interval by Student's t distribution.

    Args:
        values: At least one value.

    >>> estimate = mean([0.7, 0.8, 0.9])
    >>> [round(number, 4) for number in (estimate.value, estimate.low, estimate.high)]
    [0.8, 0.5516, 1.0484]
    """
    from scipy.stats import ttest_1samp

    data = np.asarray(values, dtype=np.float64)
    if len(data) < CLAIM_FROM:
        return MeanInterval(float(data.mean()), nan, nan)
    if _is_constant(data):
        return MeanInterval(float(data.mean()), float(data.mean()), float(data.mean()))
    interval = ttest_1samp(data, 0.0).confidence_interval(1 - ALPHA)
    return MeanInterval(float(data.mean()), float(interval.low), float(interval.high))


def interquartile_mean(groups: Sequence[Sequence[float]]) -> MeanInterval:
    """Return the mean of the middle half of all values, with a stratified bootstrap interval.

    The bootstrap draws repetitions within each place. It has 5,000 resamples of a fixed seed, and
    the interval is that of their percentiles 2.5 and 97.5.

    Source: Agarwal et al., NeurIPS 2021.

    Args:
        groups: Values of the repetitions by place.

    >>> interquartile_mean([[0.1, 0.5, 0.6, 0.7]]).value
    0.55
    """
    from scipy.stats import bootstrap, trim_mean

    def middle(*samples: Values, axis: int = -1) -> Values:
        found: Values = trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)
        return found

    data = [np.asarray(group, dtype=np.float64) for group in groups]
    value = float(middle(*data))
    if min(map(len, data)) < CLAIM_FROM:
        return MeanInterval(value, nan, nan)
    # scipy draws from each of several samples on its own.
    interval = bootstrap(
        data,
        middle,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=1 - ALPHA,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return MeanInterval(value, float(interval.low), float(interval.high))


def difference(
    first: Mapping[int, float],
    second: Mapping[int, float],
    *,
    overlap: float = 0.0,
    tests: int = 1,
) -> Difference | None:
    """Compare two methods over the repetitions that both have.

    Where repetitions draw their partitions from one pool of samples, their training sets overlap,
    and the variance between them is too small to tell how the methods differ on other samples. The
    corrected resampled t-test adds n_test / n_train to 1 / n in the variance of the mean.

    Source: Nadeau and Bengio, Machine Learning 2003.

    Args:
        first: Values by repetition.
        second: Values by repetition.
        overlap: n_test / n_train, the number of test samples over that of training samples, if the
            repetitions draw from one pool; 0 if they do not.
        tests: Number of tests for which the p-value will be corrected.

    Returns:
        The difference; None if no repetition has both.
    """
    both = sorted(first.keys() & second.keys())
    if not both:
        return None
    x = np.array([first[k] for k in both], dtype=np.float64)
    y = np.array([second[k] for k in both], dtype=np.float64)
    gaps = x - y
    n, average = len(gaps), float(gaps.mean())
    low = high = p = corrected = needed = nan
    is_limited = False
    if n >= CLAIM_FROM and not _is_constant(gaps):
        from scipy.stats import t, ttest_1samp

        p = float(ttest_1samp(gaps, 0.0).pvalue)
        sd = float(gaps.std(ddof=1))
        error = sd * sqrt(1 / n + overlap)
        low, high = (float(end[0]) for end in intervals(gaps[:, None], overlap)[1:])
        if overlap:
            corrected = float(2 * t.sf(abs(average) / error, n - 1))
        needed = repetitions_needed(average / sd, overlap, tests)
        is_limited = is_beyond_repetitions(average / sd, overlap, tests)
    return Difference(
        n, average, low, high, p, corrected, _wilcoxon(gaps), _probability(x, y), needed, is_limited
    )


def intervals(gaps: Values, overlap: float = 0.0) -> tuple[Values, Values, Values]:
    """Return mean differences with the 95 % intervals of the (corrected) paired t-test.

    Args:
        gaps: Differences [R, K] of K quantities over R repetitions; NaN where there is none.
        overlap: See `difference`.

    Returns:
        Means [K], lower and upper ends [K]. The ends are NaN for fewer than three repetitions, and
        for differences that are all equal.
    """
    from scipy.stats import t

    known = ~np.isnan(gaps)  # [R, K]
    n = known.sum(axis=0)  # [K]
    few = np.maximum(n, 1)
    means = np.where(known, gaps, 0.0).sum(axis=0) / few
    means[n == 0] = nan
    squares = np.where(known, gaps - means, 0.0) ** 2
    sd = np.sqrt(squares.sum(axis=0) / np.maximum(n - 1, 1))
    half = t.ppf(1 - ALPHA / 2, np.maximum(n - 1, 1)) * sd * np.sqrt(1 / few + overlap)
    half[(n < CLAIM_FROM) | (sd <= TINY * (1 + np.abs(means)))] = nan
    return means, means - half, means + half


def repetitions_needed(effect: float, overlap: float = 0.0, tests: int = 1) -> float:
    """Return the number of repetitions at which a paired t-test sees an effect with power 0.8.

    Args:
        effect: Mean of the differences over their standard deviation.
        overlap: See `difference`.
        tests: Number of tests; the significance level of each is 0.05 over this number.

    Returns:
        The smallest number n >= 3; NaN if it is more than 1,000.

    >>> repetitions_needed(0.5)
    34.0
    """
    from scipy.stats import nct, t

    def is_enough(n: int) -> bool:
        shift = abs(effect) / sqrt(1 / n + overlap)  # noncentrality of t
        limit = t.ppf(1 - ALPHA / tests / 2, n - 1)
        # The second term is cdf(-limit, n - 1, shift), which is NaN where it underflows.
        power = nct.sf(limit, n - 1, shift) + nct.sf(limit, n - 1, -shift)
        return bool(power >= POWER)

    # The power grows with the number of repetitions.
    n = bisect_left(range(MOST_NEEDED + 1), True, lo=CLAIM_FROM, key=is_enough)
    return float(n) if n <= MOST_NEEDED else nan


def is_beyond_repetitions(effect: float, overlap: float, tests: int = 1) -> bool:
    """Return whether no number of repetitions lets the test see an effect with power 0.8.

    The variance of the corrected test is 1 / n + `overlap` in units of that of the differences, so
    more repetitions cannot make it smaller than `overlap`.

    Args:
        effect: Mean of the differences over their standard deviation.
        overlap: See `difference`.
        tests: Number of tests; the significance level of each is 0.05 over this number.

    >>> is_beyond_repetitions(0.3, overlap=0.25), is_beyond_repetitions(0.3, overlap=0.0)
    (True, False)
    """
    from scipy.stats import norm

    if not overlap:
        return False
    shift, limit = abs(effect) / sqrt(overlap), norm.ppf(1 - ALPHA / tests / 2)
    return bool(norm.sf(limit - shift) + norm.sf(limit + shift) < POWER)


def correct(values: Sequence[float]) -> list[float]:
    """Correct p-values for several tests by Holm's procedure; NaN stays NaN.

    Source: Holm, Scandinavian Journal of Statistics 1979.

    >>> [round(p, 4) for p in correct([0.04, float("nan"), 0.01])]
    [0.04, nan, 0.02]
    """
    from statsmodels.stats.multitest import multipletests

    known = [p for p in values if not np.isnan(p)]
    found = iter(multipletests(known, ALPHA, MULTIPLE)[1].tolist() if known else [])
    return [p if np.isnan(p) else next(found) for p in values]


def verdict(average: float, p: float) -> Verdict:
    """Return what a mean difference and its corrected p-value say about the first method.

    >>> verdict(0.1, 0.01), verdict(-0.1, 0.01), verdict(0.1, 0.2), verdict(0.1, float("nan"))
    ('better', 'worse', 'no significant difference', 'no claim')
    """
    if np.isnan(p):
        return "no claim"
    if p >= ALPHA:
        return "no significant difference"
    return "better" if average > 0 else "worse"


def letters(p: pd.DataFrame) -> dict[str, str]:
    """Return the compact letter display of methods: two methods without a common letter differ.

    A letter stands for a maximal clique of the graph whose edges are the pairs without a
    significant difference. Their number can grow exponentially with that of the methods.

    Source: Piepho, Journal of Computational and Graphical Statistics 2004.

    Args:
        p: Corrected p-values, methods x methods, from the best to the worst method; NaN where there
            is no test.

    Returns:
        The letters by method. Methods that no test compares with any other have none, and none has
        any if the display would need more than 52 letters.

    >>> p = pd.DataFrame([[1, 0.2, 0.01], [0.2, 1, 0.3], [0.01, 0.3, 1]], list("xyz"), list("xyz"))
    >>> letters(p)
    {'x': 'a', 'y': 'ab', 'z': 'b'}
    """
    import networkx as nx

    others = p.mask(np.eye(len(p), dtype=bool))
    tested = np.flatnonzero(others.notna().any())
    graph = nx.Graph()
    graph.add_nodes_from(tested.tolist())
    values = p.to_numpy()
    graph.add_edges_from(
        (int(i), int(j)) for i, j in combinations(tested, 2) if not values[i, j] < ALPHA
    )
    cliques = list(islice(nx.find_cliques(graph), len(ascii_letters) + 1))
    if len(cliques) > len(ascii_letters):
        return dict.fromkeys(map(str, p.index), "")
    groups = sorted(map(sorted, cliques))
    return {
        str(name): "".join(
            letter for letter, group in zip(ascii_letters, groups, strict=False) if k in group
        )
        for k, name in enumerate(p.index)
    }


@dataclass(frozen=True)
class Across:
    """Methods compared over several places by their ranks.

    Attributes:
        ranks: Mean rank by method, 1 is best; methods that all places have, best first.
        places: Number of places.
        friedman: p-value of Friedman's test that all methods are equal; NaN for fewer than three
            methods.
        nemenyi: p-values of Nemenyi's test, methods x methods.
        critical: Critical difference of mean ranks at the level 0.05.
        groups: Methods that the test does not tell apart, as maximal groups of neighbours by rank.
        profiles: Performance profiles: columns `method`, `tau`, and `share`, the share of runs with
            a value above tau, as the mean over places.
        interquartile: Interquartile mean over all places by method.
    """

    ranks: "pd.Series[float]"
    places: int
    friedman: float
    nemenyi: pd.DataFrame
    critical: float
    groups: tuple[tuple[str, ...], ...]
    profiles: pd.DataFrame
    interquartile: Mapping[str, MeanInterval]


def across(values: Mapping[str, Mapping[str, Sequence[float]]]) -> Across | None:
    """Compare methods over places.

    Source: Demsar, JMLR 2006; Agarwal et al., NeurIPS 2021.

    Args:
        values: Values of the repetitions by method and place. Methods that lack a place are left
            out.

    Returns:
        The comparison; None for fewer than two places or two methods.
    """
    places = list(dict.fromkeys(place for some in values.values() for place in some))
    complete = {method: some for method, some in values.items() if len(some) == len(places)}
    if len(places) < 2 or len(complete) < 2:
        return None
    import scikit_posthocs as sp
    from scipy.stats import friedmanchisquare, rankdata

    names = list(complete)
    means = np.array([[np.mean(complete[name][place]) for name in names] for place in places])
    ranks = rankdata(-means, axis=1)  # [places, methods]
    averages = pd.Series(ranks.mean(axis=0), index=names).sort_values(kind="stable")
    k, n = len(names), len(places)
    critical = studentized(k) * sqrt(k * (k + 1) / (6 * n))
    nemenyi = sp.posthoc_nemenyi_friedman(-means)
    nemenyi.index = nemenyi.columns = pd.Index(names)
    friedman = float(friedmanchisquare(*means.T).pvalue) if k > 2 else nan
    return Across(
        ranks=averages,
        places=n,
        friedman=friedman,
        nemenyi=nemenyi.loc[averages.index, averages.index],
        critical=critical,
        groups=_neighbours(averages, critical),
        profiles=_profiles(complete),
        interquartile={name: interquartile_mean(list(complete[name].values())) for name in names},
    )


def studentized(methods: int) -> float:
    """Return the quantile q of Nemenyi's test at the level 0.05: of the Studentized range over the
    square root of 2.

    >>> [round(studentized(k), 3) for k in (2, 4, 10)]  # table 5 of Demsar
    [1.96, 2.569, 3.164]
    """
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - ALPHA, methods, np.inf)) / sqrt(2)


def _neighbours(ranks: "pd.Series[float]", critical: float) -> tuple[tuple[str, ...], ...]:
    """Return the maximal groups of at least two methods whose mean ranks differ by less."""
    names, values = list(ranks.index), ranks.to_numpy()
    groups: list[tuple[str, ...]] = []
    end = 0
    for begin in range(len(names)):
        last = int(np.flatnonzero(values - values[begin] < critical)[-1])
        if last > begin and last > end - 1 + (not groups):
            groups.append(tuple(names[begin : last + 1]))
            end = last + 1
    return tuple(groups)


def _profiles(values: Mapping[str, Mapping[str, Sequence[float]]]) -> pd.DataFrame:
    """Return the performance profiles of methods."""
    data = [v for some in values.values() for repetitions in some.values() for v in repetitions]
    limits = np.linspace(min(data), max(data), 101)
    rows = []
    for method, some in values.items():
        shares = [
            (np.asarray(repetitions)[:, None] > limits).mean(axis=0)
            for repetitions in some.values()
        ]
        for tau, share in zip(limits, np.mean(shares, axis=0), strict=True):
            rows.append((method, float(tau), float(share)))
    return pd.DataFrame(rows, columns=["method", "tau", "share"])


def _is_constant(values: Values) -> bool:
    """Whether the deviation of values is no more than a rounding error."""
    return bool(values.std() <= TINY * (1 + abs(values.mean())))


def _wilcoxon(gaps: Values) -> float:
    if len(gaps) < WILCOXON_FROM or not gaps.any():
        return nan
    from scipy.stats import wilcoxon

    return float(wilcoxon(gaps).pvalue)


def _probability(x: Values, y: Values) -> float:
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(x, y).statistic) / (len(x) * len(y))
