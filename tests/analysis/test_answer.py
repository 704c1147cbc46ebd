"""The sentences are true for the tables from which they are made."""

from types import SimpleNamespace

import pandas as pd
import pytest

from flbench.analysis import answer, statistics
from flbench.analysis.arrangement import Arrangement

NAN = float("nan")
OPPOSITE = {"better": "worse", "worse": "better"}
SAME, BETTER, NONE = "no significant difference", "better", "no claim"


def comparison(methods, places=("digits",), repetitions=5, baseline="fedavg"):
    """A comparison whose runs have 50 clients."""
    run = SimpleNamespace(summary={"clients": 50})
    entries = tuple(SimpleNamespace(place=place, method="", run=run) for place in places)
    return Arrangement(
        entries, tuple(methods), tuple(places), repetitions, "both", "accuracy", baseline, ()
    )


def board(rows, place="digits", n=5):
    """A leaderboard of method -> (mean, bytes), best first."""
    means = [mean for mean, _ in rows.values()]
    return pd.DataFrame(
        [
            {
                "place": place,
                "method": method,
                "n": n,
                "mean": mean,
                "low": mean - 0.01 if n > 2 else NAN,
                "high": mean + 0.01 if n > 2 else NAN,
                "rank": 1 + sum(other > mean for other in means),
                "bytes": float(sent),
            }
            for method, (mean, sent) in rows.items()
        ]
    )


def verdicts_of(verdicts):
    """Pairs of (first, second) -> verdict; every other pair is written the other way round."""
    rows = []
    for k, ((first, second), verdict) in enumerate(verdicts.items()):
        if k % 2:
            first, second, verdict = second, first, OPPOSITE.get(verdict, verdict)
        rows.append({"place": "digits", "first": first, "second": second, "verdict": verdict})
    return pd.DataFrame(rows, columns=["place", "first", "second", "verdict"])


def say(rows, verdicts, n=5, **options):
    """The sentences about one place."""
    table = board(rows, n=n)
    given = comparison(rows, repetitions=n, **options)
    return answer.sentences(given, table, verdicts_of(verdicts), None)


def test_one_clear_winner():
    first, second = say(
        {"hfcd": (0.9, 10), "ft": (0.8, 700), "fedavg": (0.5, 700)},
        {("hfcd", "ft"): BETTER, ("hfcd", "fedavg"): BETTER, ("ft", "fedavg"): BETTER},
    )

    assert first == (
        "On digits with 50 clients, over new partitions of these samples, hfcd has the largest test"
        " accuracy, 0.900 (95 % interval 0.890 to 0.910), and is better than both others."
    )
    assert second == "hfcd sends 10 B in a run, 1/70 of the bytes of fedavg."


def test_two_methods_on_top():
    rows = {"pfedsim": (0.91, 700), "hfcd": (0.9, 10), "ft": (0.6, 700), "fedavg": (0.5, 700)}
    verdicts = {
        ("pfedsim", "hfcd"): SAME,
        ("pfedsim", "ft"): BETTER,
        ("pfedsim", "fedavg"): BETTER,
        ("hfcd", "ft"): BETTER,
        ("hfcd", "fedavg"): BETTER,
        ("ft", "fedavg"): SAME,
    }

    first, second = say(rows, verdicts)

    assert "pfedsim and hfcd show no significant difference in test accuracy" in first
    assert first.endswith("and are better than both others.")
    assert second == (
        "Of pfedsim and hfcd, hfcd sends the fewest bytes: 10 B in a run, 1/70 of the bytes of"
        " pfedsim."
    )
    # hfcd is not better than ft: the two do not form a group that is better than the others.
    first, _ = say(rows, verdicts | {("hfcd", "ft"): SAME})
    assert "are better" not in first
    assert "pfedsim has the largest" in first
    assert "it is better than ft and fedavg, and shows no significant difference from hfcd" in first


def test_nothing_differs():
    first, _ = say(
        {"a": (0.9, 10), "b": (0.8, 10), "c": (0.7, 10)},
        {("a", "b"): SAME, ("a", "c"): SAME, ("b", "c"): SAME},
    )

    assert first.endswith("but no significant difference from any other method.")


@pytest.mark.parametrize("n", [1, 2])
def test_few_repetitions_support_no_claim(n):
    first, second = say({"a": (0.9, 10), "fedavg": (0.8, 20)}, {("a", "fedavg"): NONE}, n=n)

    assert first == (
        "On digits with 50 clients, over new partitions of these samples, a has the largest test"
        " accuracy, 0.900; fewer than 3 repetitions support no claim that it is better."
    )
    assert second == "a sends 10 B in a run, 1/2 of the bytes of fedavg."


def test_pairs_without_a_test_are_named():
    rows = {"a": (0.9, 10), "b": (0.8, 10), "c": (0.7, 10)}

    first, _ = say(rows, {("a", "b"): BETTER, ("a", "c"): NONE, ("b", "c"): NONE})
    assert first.endswith("and is better than b. No test compares it with c.")
    first, _ = say(rows, {})  # the methods share no repetition
    assert first.endswith("to 0.910). No test compares it with any other method.")
    assert "better" not in first


def test_best_mean_may_lose_over_shared_repetitions():
    first, _ = say({"a": (0.9, 10), "b": (0.8, 10)}, {("a", "b"): "worse"})

    assert first.endswith("Over the repetitions that both have, it is worse than b.")
    assert "is better" not in first


def test_equal_means_are_both_named():
    rows = {"a": (0.9, 10), "b": (0.9, 10), "c": (0.8, 10)}
    first, second = say(rows, {("a", "b"): NONE})

    assert "a, like b, has the largest test accuracy" in first
    assert "better" not in first
    assert second.startswith("a sends 10 B")


@pytest.mark.parametrize("n", [1, 5])
def test_a_metric_that_is_the_same_for_all_methods_has_no_best(n):
    first, _ = say({"a": (0.0, 10), "b": (0.0, 10), "c": (0.0, 10)}, {("a", "b"): NONE}, n=n)

    assert "same test accuracy" in first
    assert "largest" not in first


def over_places(values, n=5, count=None):
    """The sentences about several places; values: method -> place -> mean."""
    places = tuple(dict.fromkeys(place for some in values.values() for place in some))
    boards = []
    for place in places:
        rows = {m: (some[place], 10) for m, some in values.items() if place in some}
        order = sorted(rows, key=lambda name: -rows[name][0])
        boards.append(board({name: rows[name] for name in order}, place, n))
    across = statistics.across(
        {m: {p: [v] * n for p, v in some.items()} for m, some in values.items()}
    )
    given = comparison(values, places, n, baseline="b")
    return answer.sentences(given, pd.concat(boards), verdicts_of({}), across)


def test_places_are_compared_by_ranks():
    values = {
        name: {str(p): 0.9 - k / 10 + p / 1000 for p in range(8)} for k, name in enumerate("abc")
    }

    first, second = over_places(values)

    assert first == (
        "Over 8 data sets or settings, a has the best mean rank by test accuracy, 1 on the scale"
        " from 1 to 3; it is better than c by Nemenyi's test."
    )
    assert second == "Over all places, a sends 80 B with one run in each, as many bytes as b."
    assert "no claim that it is better" in over_places(values, n=2)[0]
    equal = {"a": {"p": 0.9, "q": 0.8}, "b": {"p": 0.8, "q": 0.9}, "c": {"p": 0.7, "q": 0.7}}
    first, second, *_ = over_places(equal)
    assert "a, like b, has the best mean rank by test accuracy, 1.5 on the scale" in first
    assert second == "Over all places, a and b send 20 B each with one run in each."


def test_ranks_that_do_not_differ():
    values = {
        "a": {"p": 0.9, "q": 0.1, "r": 0.9},
        "b": {"p": 0.8, "q": 0.8, "r": 0.8},
        "c": {"p": 0.7, "q": 0.7, "r": 0.95},
        "d": {"p": 0.5},
    }

    first, _, *each = over_places(values)

    assert "Friedman's test sees no significant difference" in first
    assert first.endswith(" d is not ranked, because it lacks a place.")
    assert [sentence.split(",")[0] for sentence in each] == [
        "On p with 50 clients",
        "On q with 50 clients",
        "On r with 50 clients",
    ]
