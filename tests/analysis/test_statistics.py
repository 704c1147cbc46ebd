"""Statistics against scipy, statsmodels, scikit-posthocs, and an example of a paper."""

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import scikit_posthocs
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from flbench.analysis import statistics

# Demsar, JMLR 2006, table 6: areas under the ROC curve of C4.5 and three variants on 14 data sets.
# The third and fourth variant are printed as 0.975 on one data set, but ranked second and third.
DEMSAR = """
0.763 0.768 0.771 0.798
0.599 0.591 0.590 0.569
0.954 0.971 0.968 0.967
0.628 0.661 0.654 0.657
0.882 0.888 0.886 0.898
0.936 0.931 0.916 0.931
0.661 0.668 0.609 0.685
0.583 0.583 0.563 0.625
0.775 0.838 0.866 0.875
1.000 1.000 1.000 1.000
0.940 0.962 0.965 0.962
0.619 0.666 0.614 0.669
0.972 0.981 0.9751 0.975
0.957 0.978 0.946 0.970
"""
VARIANTS = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


def of_demsar():
    table = np.array([line.split() for line in DEMSAR.split("\n") if line], dtype=float)
    return pd.DataFrame(table, columns=list(VARIANTS), index=[str(k) for k in range(len(table))])


def difference(first, second, **overlaps):
    """The row about two methods, whose values are given by repetition."""
    values = pd.DataFrame({"a": pd.Series(first), "b": pd.Series(second)})
    return statistics.differences(values, [("a", "b")], **overlaps).iloc[0]


def mean(values, overlap=0.0):
    rows = pd.DataFrame({"place": "p", "value": values})
    return statistics.over_repetitions(rows, ["place"], "value", {"p": overlap}).iloc[0]


def test_ranks_and_critical_difference_are_those_of_demsar():
    found = statistics.across(of_demsar())

    n, k = 14, 4
    ranks = {"C4.5": 3.143, "C4.5+m": 2.000, "C4.5+cf": 2.893, "C4.5+m+cf": 1.964}
    assert found.ranks.to_dict() == pytest.approx(ranks, abs=5e-4)
    assert list(found.ranks.index) == sorted(ranks, key=ranks.get)
    squares = sum(rank**2 for rank in found.ranks)
    chi2 = 12 * n / (k * (k + 1)) * (squares - k * (k + 1) ** 2 / 4)
    assert chi2 == pytest.approx(9.28, abs=5e-3)
    assert (n - 1) * chi2 / (n * (k - 1) - chi2) == pytest.approx(3.69, abs=5e-3)
    assert found.critical == pytest.approx(1.25, abs=5e-3)
    # "not even the difference between the best and the worst" is significant.
    assert found.ranks.max() - found.ranks.min() < found.critical
    assert found.nemenyi.min(axis=None) > 0.05


def test_tests_over_places_are_those_of_scipy_and_scikit_posthocs():
    found = statistics.across(of_demsar())

    table = of_demsar().to_numpy()
    assert found.friedman == pytest.approx(stats.friedmanchisquare(*table.T).pvalue, rel=1e-12)
    # The statistic of Nemenyi's test by hand: difference of mean ranks over its standard error.
    error = math.sqrt(4 * 5 / (6 * 14))
    for first, second in combinations(VARIANTS, 2):
        q = abs(found.ranks[first] - found.ranks[second]) / error * math.sqrt(2)
        p = stats.studentized_range.sf(q, 4, np.inf)
        assert found.nemenyi.loc[first, second] == pytest.approx(p, abs=1e-6)
    plain = scikit_posthocs.posthoc_nemenyi_friedman(table)
    assert found.nemenyi.loc["C4.5", "C4.5+m"] == plain.loc[0, 1]


def test_methods_that_lack_a_place_are_not_ranked():
    values = pd.DataFrame({"a": [1.0, 1.0], "b": [0.5, 2.0], "c": [3.0, math.nan]}, list("pq"))

    assert set(statistics.across(values).ranks.index) == {"a", "b"}
    assert statistics.across(values.loc[["p"]]) is None
    assert statistics.across(values[["a", "c"]]) is None


def test_std_is_the_sample_deviation():
    values = [3.0, 4.5, 9.0]

    assert statistics.sample_std(values) == pytest.approx(np.std(values, ddof=1))
    assert statistics.sample_std([1.0]) is None


@pytest.mark.parametrize("n", [3, 12])
def test_mean_has_the_interval_of_scipy(n):
    values = np.random.default_rng(n).normal(size=n)

    found = mean(values)

    interval = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(interval, rel=1e-12)
    assert found["mean"] == pytest.approx(values.mean())


@pytest.mark.parametrize("values", [[0.1, 0.3], [0.1 + 0.2, 0.3, 0.3]])
def test_few_values_and_those_that_are_equal_but_for_rounding_have_no_interval(values):
    found = mean(values)

    assert found["mean"] == pytest.approx(np.mean(values))
    assert found[["low", "high"]].isna().all()


@pytest.mark.parametrize("n", [3, 8])
def test_difference_is_the_paired_test_of_scipy(n):
    first, second = np.random.default_rng(n).normal(size=(2, n))

    found = difference(first, second)

    test = stats.ttest_rel(first, second)
    interval = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.paired_t == found.p
    assert found.probability == pytest.approx(np.mean(first > second))
    if n < 6:
        assert math.isnan(found.wilcoxon)
    else:
        assert found.wilcoxon == pytest.approx(stats.wilcoxon(first, second).pvalue)


def test_corrected_test_adds_the_overlap_to_the_variance():
    first, second = np.random.default_rng(5).normal([[0.5], [0.0]], 0.1, size=(2, 10))
    gaps = first - second

    found = difference(first, second, overlap=0.25)

    t = gaps.mean() / math.sqrt((1 / 10 + 0.25) * gaps.var(ddof=1))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), 9), rel=1e-9)
    assert found.paired_t == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-9)
    plain = difference(first, second)
    # The interval belongs to the corrected test: sqrt((1/n + 1/4) / (1/n)) times as wide.
    assert (found.high - found.low) / (plain.high - plain.low) == pytest.approx(math.sqrt(3.5))


def test_only_shared_repetitions_are_paired():
    found = difference({0: 1.0, 1: 2.0, 5: 9.0}, {1: 1.0, 0: 0.5, 7: 0.0})

    assert (found.n, found["difference"]) == (2, 0.75)
    assert math.isnan(found.p)
    values = pd.DataFrame({"a": [1.0, math.nan], "b": [math.nan, 1.0]})
    assert statistics.differences(values, [("a", "b")]).empty


@pytest.mark.parametrize("n", [6, 10, 14])
def test_wilcoxon_with_ties_and_zeros_is_that_of_scipy(n):
    rng = np.random.default_rng(n)
    zero = dict.fromkeys(range(n), 0.0)
    some = [rng.integers(-3, 5, size=n) / 8 for _ in range(6)]
    some += [rng.normal(size=n), np.eye(n)[0], np.full(n, 0.5), -np.eye(n)[:2].sum(axis=0)]
    for gaps in some:
        found = difference(gaps, zero).wilcoxon
        assert found == pytest.approx(stats.wilcoxon(gaps).pvalue, rel=1e-9)
    assert math.isnan(difference(zero, zero).wilcoxon)


def test_equal_differences_have_no_p_value():
    found = difference({0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.4, 1: 0.5, 2: 0.6})

    assert math.isnan(found.p)
    assert statistics.verdicts([found["difference"]], [found.p]) == ["no claim"]
    assert found.probability == 1


@pytest.mark.parametrize("tests", [1, 10])
def test_repetitions_needed_are_those_of_statsmodels(tests):
    effects = [0.4, -0.8, 2.5, 0.0, 1e6, math.nan]
    power = TTestPower()
    exact = [
        max(3, math.ceil(power.solve_power(abs(one), alpha=0.05 / tests, power=0.8)))
        for one in effects[:3]
    ]

    found = statistics.repetitions_needed(effects, tests=tests).tolist()

    assert found == pytest.approx([*exact, math.nan, 3, math.nan], nan_ok=True)


def test_correction_is_that_of_holm():
    p = np.random.default_rng(2).uniform(0, 0.1, size=9)

    found = statistics.correct([*p, float("nan")])
    assert statistics.correct([]).tolist() == []
    assert statistics.correct([0.9, 0.8]).tolist() == [1.0, 1.0]

    assert found[:-1] == pytest.approx(multipletests(p, method="holm")[1])
    assert math.isnan(found[-1])


@pytest.mark.parametrize("seed", range(3))
def test_methods_share_a_letter_if_and_only_if_they_do_not_differ(seed):
    rng, names = np.random.default_rng(seed), list("pqrstuv")
    p = rng.uniform(0, 0.12, size=(7, 7))
    p = pd.DataFrame((p + p.T) / 2, index=names, columns=names)

    found = statistics.letters(p)

    for first, second in combinations(names, 2):
        assert bool(set(found[first]) & set(found[second])) == (p.loc[first, second] >= 0.05)


def test_methods_that_were_not_tested_and_more_than_eight_have_no_letters():
    nan, names = float("nan"), list("abcdefghi")
    p = pd.DataFrame([[nan, 0.01, nan], [0.01, nan, nan], [nan] * 3], list("xyz"), list("xyz"))
    many = pd.DataFrame(np.ones((9, 9)), names, names)

    assert statistics.letters(p) == {"x": "a", "y": "b", "z": ""}
    assert statistics.letters(p.loc[["z"], ["z"]]) == {"z": ""}
    assert set(statistics.letters(many).values()) == {""}
    assert set(statistics.letters(many.iloc[:8, :8]).values()) == {"a"}


def test_places_of_one_kind_are_one_block():
    """Friedman's test takes its blocks for independent."""
    rng = np.random.default_rng(0)
    values = pd.DataFrame(rng.normal(size=(6, 4)), list("012345"), list("abcd"))
    kinds = {str(place): "even" if place % 2 == 0 else f"odd {place}" for place in range(6)}

    found = statistics.across(values, kinds)

    ranks = stats.rankdata(-values.to_numpy(), axis=1)
    table = np.vstack([ranks[::2].mean(axis=0), ranks[1::2]])  # [4 kinds, 4 methods]
    assert (found.places, found.blocks) == (6, 4)
    assert found.friedman == pytest.approx(stats.friedmanchisquare(*table.T).pvalue, rel=1e-9)
    wanted = stats.rankdata(table, axis=1).mean(axis=0)
    assert found.ranks[list("abcd")].tolist() == pytest.approx(wanted)
    # If all places are of one kind, the claim is about this kind, and each place is a block.
    alike = statistics.across(values, dict.fromkeys(kinds, "even"))
    plain = statistics.across(values)
    assert (alike.friedman, alike.blocks) == (plain.friedman, 6)
