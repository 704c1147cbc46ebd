"""Statistics over repetitions and over places.

The unit of repetition is the run: the clients of one run are not independent of each other. With
fewer than three repetitions there is no interval, no p-value and no claim.
"""

import gc
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
BOOTSTRAP_FROM: Final = 10  # repetitions; with fewer, the interval of a bootstrap is too narrow
MODERATE_FROM: Final = 17  # differences from one method; fewer do not tell their common variance
POWER: Final = 0.8  # probability to see a difference that is there
SPREAD: Final = 0.8  # confidence level of numbers of repetitions
MOST_NEEDED: Final = 1000  # repetitions; more are not counted
RESAMPLES: Final = 5000  # of a bootstrap
WILCOXON_FROM: Final = 6  # repetitions; with fewer, the p-value is always above 0.05
MOST_SIGNS: Final = 13  # repetitions of which Wilcoxon's test tries all combinations of signs
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

    The interval and `p` belong to one test, which decides after the correction for several tests:
    the paired t-test, or the corrected resampled t-test where `overlap` is not 0.

    Attributes:
        n: Number of repetitions that both methods have.
        mean: Mean difference, first minus second.
        sd: Standard deviation of the differences; NaN for fewer than three repetitions, and for
            differences that are all equal, as are the interval and the p-values of t-tests.
        overlap: What is added to 1 / n in the variance of the mean, in units of `sd` squared.
        low: Lower end of the 95 % interval of the mean.
        high: Upper end of the 95 % interval of the mean.
        p: p-value of the test that decides.
        paired_t: p-value of the paired t-test.
        wilcoxon: p-value of Wilcoxon's signed-rank test; NaN for fewer than six repetitions.
        probability: Probability of improvement: that the first method is better than the second in
            a repetition, with equal values counted half.
    """

    n: int
    mean: float
    sd: float
    overlap: float
    low: float
    high: float
    p: float
    paired_t: float
    wilcoxon: float
    probability: float


@dataclass(frozen=True)
class Repetitions:
    """Numbers of repetitions at which a test sees a difference with a probability of 80 %.

    NaN stands for more than 1,000 repetitions, and for a number that does not exist, because the
    variance of the corrected resampled t-test has a floor.

    Attributes:
        value: For the difference as it was measured.
        low: For the larger end of the 80 % interval of the difference over its standard deviation.
        high: For the smaller end of this interval; NaN if it contains 0.
        floor: The difference below which no number of repetitions suffices; 0 for the paired
            t-test.
    """

    value: float
    low: float
    high: float
    floor: float


def sample_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation with the divisor n - 1; None for fewer than two values.

    >>> sample_std([1.0, 3.0]), sample_std([1.0])
    (1.4142135623730951, None)
    """
    return stdev(values) if len(values) > 1 else None


def mean(values: Sequence[float], overlap: float = 0.0) -> MeanInterval:
    """Return the mean over repetitions with its interval by Student's t distribution.

    Values that are all equal have no interval, because they do not tell how far the mean over other
    repetitions may be.

    Args:
        values: At least one value.
        overlap: See `difference`.

    >>> estimate = mean([0.7, 0.8, 0.9])
    >>> [round(number, 4) for number in (estimate.value, estimate.low, estimate.high)]
    [0.8, 0.5516, 1.0484]
    """
    found = intervals(np.asarray(values, dtype=np.float64)[:, None], overlap)
    value, low, high = (float(end[0]) for end in found)
    return MeanInterval(value, low, high)


def interquartile_mean(groups: Sequence[Sequence[float]]) -> MeanInterval:
    """Return the mean of the middle half of all values, with a stratified bootstrap interval.

    The bootstrap draws repetitions within each place. It has 5,000 resamples of a fixed seed, and
    the interval is that of their percentiles 2.5 and 97.5. With fewer than ten repetitions in a
    place there is no interval: it would be too narrow.

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
    if min(map(len, data)) < BOOTSTRAP_FROM or all(map(_is_constant, data)):
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
    first: Mapping[int, float], second: Mapping[int, float], *, overlap: float = 0.0
) -> Difference | None:
    """Compare two methods over the repetitions that both have.

    Repetitions that are drawn independently are tested by the paired t-test. Where the samples of a
    repetition are largely those of the others, the variance between repetitions is too small to
    tell how the methods differ on other samples. The corrected resampled t-test therefore adds
    n_test / n_train to 1 / n in the variance of the mean.

    Source: Nadeau and Bengio, Machine Learning 2003.

    Args:
        first: Values by repetition.
        second: Values by repetition.
        overlap: What the variance of a mean of n repetitions has beside 1 / n, in units of the
            variance of one: n_test / n_train, times the share of samples that two repetitions have
            in common. 0 for repetitions that are drawn independently.

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
    sd = low = high = p = paired = nan
    if n >= CLAIM_FROM and not _is_constant(gaps):
        sd = float(gaps.std(ddof=1))
        low, high = (float(end[0]) for end in intervals(gaps[:, None], overlap)[1:])
        p, paired = (p_value_of_t(average, sd, n, extra) for extra in (overlap, 0.0))
    return Difference(
        *(n, average, sd, overlap, low, high, p, paired),
        wilcoxon=_wilcoxon(gaps),
        probability=float((gaps > 0).mean() + (gaps == 0).mean() / 2),
    )


def p_value_of_t(average: float, sd: float, n: int, overlap: float = 0.0) -> float:
    """Return the two-sided p-value of the (corrected resampled) t-test that a mean is 0.

    Args:
        average: Mean of the differences.
        sd: Their standard deviation.
        n: Their number.
        overlap: See `difference`.

    >>> round(p_value_of_t(0.5, 1.0, 16), 4), round(p_value_of_t(0.5, 1.0, 16, 0.25), 4)
    (0.0639, 0.3852)
    """
    from scipy.stats import t

    return float(2 * t.sf(abs(average) / (sd * sqrt(1 / n + overlap)), n - 1))


def moderated(gaps: Sequence[Difference]) -> list[float]:
    """Return the p-values of differences from one method, whose variances are not far from equal.

    Five repetitions tell a variance badly. If many methods are compared with one, their variances
    are shrunk towards a common one: s2 = (d0 s0^2 + d sd^2) / (d0 + d), with d = n - 1 degrees of
    freedom, and d0 and s0 estimated from all variances. The moderated t has d0 + d degrees of
    freedom.

    Source: Smyth, Statistical Applications in Genetics and Molecular Biology 2004, sections 4 and
    6.2.

    Deviation: a variance of 0 has no logarithm; such a difference has no p-value, as without
    moderation.

    Args:
        gaps: The differences.

    Returns:
        The p-values, NaN where `Difference.p` is NaN; those of `Difference.p` if there are fewer
        than 17 that have one.
    """
    from scipy.special import digamma, polygamma
    from scipy.stats import t

    tested = [gap for gap in gaps if not np.isnan(gap.p)]
    if len(tested) < MODERATE_FROM:
        return [gap.p for gap in gaps]
    sd, n, average, overlap = (
        np.array([getattr(gap, name) for gap in tested], dtype=np.float64)
        for name in ("sd", "n", "mean", "overlap")
    )
    d = n - 1
    # With z = log sd^2, e = z - digamma(d / 2) + log(d / 2) has the mean
    # log s0^2 - digamma(d0 / 2) + log(d0 / 2), and trigamma(d / 2) + trigamma(d0 / 2) as variance.
    e = 2 * np.log(sd) - digamma(d / 2) + np.log(d / 2)
    excess = float(e.var(ddof=1) - polygamma(1, d / 2).mean())  # trigamma(d0 / 2)
    if excess > 0:
        d0 = 2 * _inverse_trigamma(excess)
        prior = np.exp(e.mean() + digamma(d0 / 2) - np.log(d0 / 2))  # s0^2
        variance = (d0 * prior + d * sd**2) / (d0 + d)
    else:  # the variances differ by no more than chance
        d0, variance = np.inf, np.full_like(sd, np.exp(e.mean()))
    found = iter(2 * t.sf(np.abs(average) / np.sqrt(variance * (1 / n + overlap)), d0 + d))
    return [nan if np.isnan(gap.p) else float(next(found)) for gap in gaps]


def _inverse_trigamma(value: float) -> float:
    """Return the positive x at which trigamma(x) is a positive value."""
    from scipy.optimize import brentq
    from scipy.special import polygamma

    # trigamma falls from infinity to 0, between 1 / x and 1 / x + 1 / x^2.
    low, high = 1 / value, 1 / value + 1 / sqrt(value) + 1
    return float(brentq(lambda x: float(polygamma(1, x)) - value, low * 0.5, high))


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
    """Return the number of repetitions at which a (corrected) paired t-test sees an effect.

    It is seen if the test is significant with a probability of 80 %.

    Args:
        effect: Mean of the differences over their standard deviation.
        overlap: See `difference`.
        tests: Number of tests; the significance level of each is 0.05 over this number.

    Returns:
        The smallest number n >= 3; NaN if it is more than 1,000.

    >>> repetitions_needed(0.5)
    34.0
    """
    from scipy.special import stdtrit

    def is_enough(n: int) -> bool:
        shift = abs(effect) / sqrt(1 / n + overlap)  # noncentrality of t
        limit = stdtrit(n - 1, 1 - ALPHA / tests / 2)
        power = 1 - _below(limit, n - 1, shift) + _below(-limit, n - 1, shift)
        return power >= POWER

    # The power grows with the number of repetitions.
    n = bisect_left(range(MOST_NEEDED + 1), True, lo=CLAIM_FROM, key=is_enough)
    return float(n) if n <= MOST_NEEDED else nan


def repetitions(gap: Difference, tests: int = 1) -> Repetitions | None:
    """Return how many repetitions let the test see a difference, as far as those there are tell.

    Args:
        gap: The difference.
        tests: Number of tests for which its p-value is corrected.

    Returns:
        The numbers; None for a difference without a test.
    """
    if np.isnan(gap.p):
        return None
    from scipy.stats import norm

    unit = sqrt(1 / gap.n + gap.overlap)
    effect = abs(gap.mean) / gap.sd
    low, high = (end * unit for end in _noncentralities(effect / unit, gap.n - 1))
    z = norm.ppf(1 - ALPHA / tests / 2) + norm.ppf(POWER)
    return Repetitions(
        repetitions_needed(effect, gap.overlap, tests),
        repetitions_needed(high, gap.overlap, tests),
        repetitions_needed(low, gap.overlap, tests) if low > 0 else nan,
        float(gap.sd * sqrt(gap.overlap) * z),
    )


def _noncentralities(value: float, degrees: int) -> tuple[float, float]:
    """Return the noncentralities of t that have a value as their 90 % and 10 % quantile."""
    from scipy.optimize import brentq

    reach = 10 * (1 + value)

    def solved(level: float) -> float:
        return float(
            brentq(lambda center: _below(value, degrees, center) - level, -reach, value + reach)
        )

    return solved((1 + SPREAD) / 2), solved((1 - SPREAD) / 2)


def _below(value: float, degrees: int, center: float) -> float:
    """Return the probability that a noncentral t is below a value."""
    from scipy.special import nctdtr  # the same number as that of scipy.stats in a 15th of the time

    found = float(nctdtr(degrees, center, value))
    return float(center < value) if np.isnan(found) else found  # NaN: too near to 0 or 1


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """Let `gc.collect` find nothing to search in the context.

    statsmodels calls it for each correction by Holm's procedure. PyTorch and pandas consist of a
    million objects, so that a call takes 0.1 to 0.3 s.
    """
    if gc.get_freeze_count():  # most objects are left out already, and the caller wants it so
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def correct(values: Sequence[float]) -> list[float]:
    """Correct p-values for several tests by Holm's procedure; NaN stays NaN.

    Source: Holm, Scandinavian Journal of Statistics 1979.

    >>> [round(p, 4) for p in correct([0.04, float("nan"), 0.01])]
    [0.04, nan, 0.02]
    """
    from statsmodels.stats.multitest import multipletests

    known = [p for p in values if not np.isnan(p)]
    with _no_search_for_garbage():
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
        blocks: Number of blocks of Friedman's test: kinds of places, or places if all are of one
            kind.
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
    blocks: int
    friedman: float
    nemenyi: pd.DataFrame
    critical: float
    groups: tuple[tuple[str, ...], ...]
    profiles: pd.DataFrame
    interquartile: Mapping[str, MeanInterval]


def across(
    values: Mapping[str, Mapping[str, Sequence[float]]], kinds: Mapping[str, str] | None = None
) -> Across | None:
    """Compare methods over places.

    The tests take their blocks for independent. Places of one kind rank the methods alike, so their
    ranks are averaged, and a kind is one block. If all places are of one kind, each is a block, and
    the tests hold for places of this kind.

    Source: Demsar, JMLR 2006; Agarwal et al., NeurIPS 2021.

    Args:
        values: Values of the repetitions by method and place. Methods that lack a place are left
            out.
        kinds: Kind of each place; a place that is missing is a kind of its own.

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
    ranks = rankdata(-rounded(means), axis=1)  # [places, methods]
    held: dict[str, list[int]] = {}
    for row, place in enumerate(places):
        held.setdefault((kinds or {}).get(place, place), []).append(row)
    if len(held) > 1:
        alike = np.stack([ranks[rows].mean(axis=0) for rows in held.values()])
        ranks = rankdata(rounded(alike), axis=1)  # [blocks, methods]
    averages = pd.Series(ranks.mean(axis=0), index=names).sort_values(kind="stable")
    k, n = len(names), len(ranks)
    critical = studentized(k) * sqrt(k * (k + 1) / (6 * n))
    nemenyi = sp.posthoc_nemenyi_friedman(ranks)
    nemenyi.index = nemenyi.columns = pd.Index(names)
    friedman = float(friedmanchisquare(*ranks.T).pvalue) if k > 2 else nan
    return Across(
        ranks=averages,
        places=len(places),
        blocks=n,
        friedman=friedman,
        nemenyi=nemenyi.loc[averages.index, averages.index],
        critical=critical,
        groups=_neighbours(averages, critical),
        profiles=_profiles(complete),
        interquartile={name: interquartile_mean(list(complete[name].values())) for name in names},
    )


def rounded(values: "Values | Sequence[float]") -> Values:
    """Return numbers with twelve digits: means that differ by the order of a sum are equal then.

    >>> rounded([0.1 + 0.2, 0.3]).tolist()
    [0.3, 0.3]
    """
    array = np.asarray(values, dtype=np.float64)
    found = np.array([float(f"{value:.12g}") for value in array.ravel()])
    return found.reshape(array.shape)


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
    from scipy.stats import permutation_test, rankdata, wilcoxon

    if len(gaps) > MOST_SIGNS:
        return float(wilcoxon(gaps).pvalue)
    # scipy's `wilcoxon` has the same number, and with ties takes up to a second for it.
    other = gaps[gaps != 0]
    ranks = np.sign(other) * rankdata(np.abs(other))
    if len(ranks) == 1:  # scipy permutes two values or more; either sign is equally far from 0
        return 1.0

    def positive(signed: Values, axis: int) -> Values:
        found: Values = np.where(signed > 0, signed, 0.0).sum(axis=axis)
        return found

    found = permutation_test(
        (ranks,), positive, permutation_type="samples", vectorized=True, n_resamples=np.inf
    )
    return float(found.pvalue)
