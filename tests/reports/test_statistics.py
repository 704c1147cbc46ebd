import math

import numpy as np
import pytest
from scipy import stats

from flbench.reports.statistics import holm, paired_difference, sample, sample_std

DEFAULT = {1: 0.81, 2: 0.84, 3: 0.79, 4: 0.86}
TUNED = {1: 0.86, 2: 0.85, 3: 0.86, 4: 0.90}


def test_std_is_the_sample_deviation():
    values = [3.0, 4.5, 9.0]

    assert sample_std(values) == pytest.approx(np.std(values, ddof=1))
    assert sample_std([1.0]) is None
    assert not math.isnan(sample_std([1.0, 1.0]))


@pytest.mark.parametrize("n", [2, 3, 10])
def test_interval_equals_scipy(n):
    values = np.random.default_rng(n).normal(size=n)

    found = sample(values.tolist())

    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))


@pytest.mark.parametrize("n", [3, 5, 10])
def test_interval_and_p_are_those_of_the_one_sample_t_test(n):
    values = np.random.default_rng(n).normal(size=n).tolist()

    found = paired_difference(dict.fromkeys(range(n), 0.0), dict(enumerate(values)))

    result = stats.ttest_1samp(values, 0.0)
    interval = result.confidence_interval(0.95)
    half = (interval.high - interval.low) / 2
    assert found.sample.half == pytest.approx(half, rel=1e-12, abs=1e-12)
    assert found.p == pytest.approx(result.pvalue, rel=1e-12, abs=1e-12)


def test_half_width_of_three_seeds_is_2_48_deviations():
    """t(2, 0.975) / sqrt(3) = 4.302653 / 1.732051 = 2.484."""
    found = sample([0.0, 1.0, 2.0])

    assert found.half == pytest.approx(2.484 * found.sd, abs=1e-3)


def test_one_value_has_no_interval():
    found = sample([0.5])

    assert (found.mean, found.sd, found.half) == (0.5, None, None)


def test_no_value_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        sample([])


def test_paired_difference_equals_scipys_paired_t_test():
    found = paired_difference(DEFAULT, TUNED)

    result = stats.ttest_rel(list(TUNED.values()), list(DEFAULT.values()))
    interval = result.confidence_interval()
    assert found.p == pytest.approx(result.pvalue)
    assert found.sample.mean - found.sample.half == pytest.approx(interval.low)
    assert found.sample.mean + found.sample.half == pytest.approx(interval.high)


def test_paired_difference_takes_the_seeds_that_both_have():
    after = {seed + 1: value for seed, value in DEFAULT.items()}

    found = paired_difference(DEFAULT, after)

    assert found.seeds == (2, 3, 4)
    assert found.sample.mean == pytest.approx((0.79 - 0.86) / 3 + (0.81 - 0.79) / 3)
    assert paired_difference({1: 0.5}, {2: 0.5}) is None


def test_interval_leaves_out_zero_exactly_where_p_says_so():
    for shift in (0.0, 0.02, 0.05):
        after = {seed: value + shift for seed, value in TUNED.items()}

        found = paired_difference(DEFAULT, after)

        assert (abs(found.sample.mean) > found.sample.half) == (found.p < 0.05)


def test_verdict_follows_p_and_the_direction():
    up, down = (
        paired_difference({1: 0, 2: 0, 3: 0}, {1: 9, 2: 10, 3: 11}),
        paired_difference(TUNED, DEFAULT),
    )

    assert up.verdict(up.p) == "better"
    assert up.verdict(0.05) == "no significant difference"
    assert down.verdict(0.01) == "worse"


def test_two_seeds_support_no_claim():
    found = paired_difference({1: 0.0, 2: 0.0}, {1: 1.0, 2: 1.0001})

    assert found.p is None
    assert found.verdict(found.p) == "no claim"


def test_equal_differences_support_no_claim():
    """0.1 + 0.2 is not 0.3 in floating point: differences of rounding errors count as equal."""
    found = paired_difference({1: 0.1, 2: 0.3, 3: 0.7}, {1: 0.3, 2: 0.5, 3: 0.9})

    assert found.sample.sd < 1e-12
    assert found.p is None


def test_wilcoxon_needs_six_seeds():
    """With all six differences above 0, p = 2 / 2^6."""
    after = {seed: seed / 10 for seed in range(1, 7)}

    found = paired_difference(dict.fromkeys(after, 0.0), after)

    assert found.wilcoxon == pytest.approx(2 / 64)
    assert paired_difference(DEFAULT, TUNED).wilcoxon is None
    assert paired_difference(after, after).wilcoxon is None


def test_holm_by_hand():
    """Sorted 0.01, 0.02, 0.03, 0.6: 4 x 0.01, 3 x 0.02, 2 x 0.03, 1 x 0.6, made ascending."""
    assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert holm([0.02, 0.021]) == pytest.approx([0.04, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
