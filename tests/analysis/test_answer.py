"""The sentences are true for the tables from which they are made."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from flbench.analysis import answer, statistics
from flbench.analysis.sampling import Sampling

NAN = float("nan")
NAMES = ("b", "c", "d", "pfedsim", "hfcd", "ft", "fedavg")
OPPOSITE = {"better": "worse", "worse": "better"}
SAME, BETTER, NONE = "no significant difference", "better", "no claim"


def comparison(methods, places=("digits",), baseline="fedavg"):
    """A comparison whose runs have 50 clients."""
    run = SimpleNamespace(summary={"clients": 50})
    return SimpleNamespace(
        methods=tuple(methods),
        places=tuple(places),
        metric="accuracy",
        baseline=baseline,
        reference=None,
        at=lambda place: [SimpleNamespace(run=run)],
        sampling_at=lambda place: Sampling("both"),
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
        one = {"place": "digits", "first": first, "second": second, "verdict": verdict}
        rows.append(one | {"n": 5, "difference": 0.1})
    names = ["place", "first", "second", "verdict", "n", "difference"]
    return pd.DataFrame(rows, columns=names)


def say(rows, verdicts, n=5, **options):
    """The sentences about one place."""
    table = board(rows, n=n)
    return answer.sentences(comparison(rows, **options), table, verdicts_of(verdicts), None)


def parts(paragraph):
    """The names of methods in each sentence of a paragraph."""
    sentences = re.split(r"\. |\.$", paragraph)
    return [[word for word in re.findall(r"\w+", one) if word in NAMES] for one in sentences if one]


def test_the_best_is_named_with_what_the_tests_tell():
    rows = {"pfedsim": (0.91, 700), "hfcd": (0.9, 10), "ft": (0.6, 700), "fedavg": (0.5, 700)}
    verdicts = {("pfedsim", "hfcd"): SAME, ("pfedsim", "ft"): BETTER, ("pfedsim", "fedavg"): BETTER}

    first, second = say(rows, verdicts)

    best, better, same = parts(first)
    assert best == ["pfedsim"]
    assert {"0.910", "0.900", "0.920", "50"} <= {*re.findall(r"[0-9.]+[0-9]", first)}
    assert better == ["pfedsim", "ft", "fedavg"]
    assert same == ["pfedsim", "hfcd"]
    assert parts(second) == [["pfedsim", "hfcd", "ft", "fedavg"]]
    assert {"700 B", "10 B"} <= {*re.findall(r"[0-9]+ B", second)}


ALL = [["b"], ["b", "c", "d"]]


@pytest.mark.parametrize(
    ("means", "verdicts", "n", "named"),
    [
        ([0.9, 0.8], {"bc": NONE}, 1, [["b"], []]),  # no claim is supported
        (
            [0.9, 0.8, 0.7],
            {"bc": BETTER, "bd": NONE, "cd": NONE},
            5,
            [["b"], ["b", "c"], ["b", "d"]],
        ),
        ([0.9, 0.8, 0.7], {}, 5, ALL),  # the methods share no repetition
        ([0.9, 0.8], {"bc": "worse"}, 5, [["b"], ["b", "c"]]),  # over the repetitions of both
        ([0.9, 0.9, 0.8], {"bc": NONE}, 1, [["b", "c"], []]),
        ([0.9, 0.9, 0.8], {"bc": NONE}, 5, [["b", "c"], ["b", "c", "d"]]),
        ([0.0, 0.0, 0.0], {"bc": NONE}, 5, [["b", "c", "d"]]),
    ],
)
def test_each_method_is_named_with_what_the_tests_tell_of_it(means, verdicts, n, named):
    rows = {name: (mean, 10) for name, mean in zip("bcd", means, strict=False)}

    first, _ = say(rows, {tuple(pair): verdict for pair, verdict in verdicts.items()}, n=n)

    assert parts(first) == named
    assert ("better than" in first) == (BETTER in verdicts.values())


def over_places(values, n=5):
    """The sentences about several places; values: method -> place -> mean."""
    places = tuple(dict.fromkeys(place for some in values.values() for place in some))
    boards = []
    for place in places:
        rows = {m: (some[place], 10) for m, some in values.items() if place in some}
        order = sorted(rows, key=lambda name: -rows[name][0])
        boards.append(board({name: rows[name] for name in order}, place, n))
    across = statistics.across(pd.DataFrame(values))
    given = comparison(values, places, baseline="b")
    return answer.sentences(given, pd.concat(boards), verdicts_of({}), across)


def test_places_are_compared_by_ranks():
    values = {
        name: {str(p): 0.9 - k / 10 + p / 1000 for p in range(8)} for k, name in enumerate("bcd")
    }

    first, second = over_places(values)

    assert parts(first) == [["b"], ["b", "d"]]  # the second has rank 2, too near to both
    assert "80 B" in second
    assert parts(over_places(values, n=2)[0]) == [["b"], []]
    equal = {"b": {"p": 0.9, "q": 0.8}, "c": {"p": 0.8, "q": 0.9}, "d": {"p": 0.7, "q": 0.7}}
    assert parts(over_places(equal)[0])[0] == ["b", "c"]
    # Ranks that do not differ, and a method that lacks places.
    ends = {"b": (0.9, 0.1, 0.9), "c": (0.8, 0.8, 0.8), "d": (0.7, 0.7, 0.95)}
    mixed = {name: dict(zip("pqr", own, strict=True)) for name, own in ends.items()}
    first, *each, _ = over_places(mixed | {"hfcd": {"p": 0.5}})
    assert parts(first)[1:] == [[], ["hfcd"]]
    assert [sentence.split(" with ")[0] for sentence in each] == ["On p", "On q", "On r"]
