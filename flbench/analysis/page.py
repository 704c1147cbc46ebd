"""The report of a comparison as a page: its chapters, with the tables and pictures of each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from flbench.analysis import figures, shown
from flbench.analysis.arrangement import Arrangement
from flbench.analysis.sampling import VARIED
from flbench.analysis.tables import Analysis
from flbench.config.sources import leaves
from flbench.core.text import one_line
from flbench.reports.shown import Chapter, Drawn, Page, Part, Shown
from flbench.results.differences import provenance

HOW: Final = "How it was done"
HIDDEN: Final = ("seed", "partition.seed", "output.", "tracking.", "engine.threads")
"""Keys that are not listed as a part of how the comparison was done."""
MOST_NAMES: Final = 6  # methods that have a value of a key; more are counted


def page_of(analysis: Analysis) -> Page:
    """Return the page of a comparison."""
    comparison = analysis.comparison
    return Page(
        one_line(heading(comparison)),
        [*chapters(analysis), how(analysis)],
        analysis.answer,
        comparison.warnings,
        about=about(comparison),
    )


def heading(comparison: Arrangement) -> str:
    """Return the title of the report."""
    where, count = "; ".join(comparison.places) + comparison.at_work, len(comparison.methods)
    if count == 1:
        return f"{comparison.methods[0]} on {where}"
    if comparison.reference is not None:
        others = "1 method" if count == 2 else f"{count - 1} methods"
        return f"{others} compared with {comparison.reference} on {where}"
    return f"{count} methods on {where}"


def about(comparison: Arrangement) -> str:
    """Return what differs between repetitions, and what all figures are."""
    count = comparison.repetitions
    kinds = {place: comparison.sampling_at(place).vary for place in comparison.places}
    varied = VARIED[comparison.vary]
    if len(set(kinds.values())) > 1:
        varied = "; ".join(f"{one_line(place)}: {VARIED[kind]}" for place, kind in kinds.items())
    return (
        f"{count} {'repetition' if count == 1 else 'repetitions'}: {varied}. All figures"
        f" are test metrics of {comparison.measured}. Intervals have a"
        " confidence level of 95 % and are taken over repetitions, never over the clients of one"
        " run. Bytes are those of all clients and rounds, set-up included; seconds are those of"
        " training and evaluation."
    )


def chapters(analysis: Analysis) -> list[Chapter]:
    """Return the chapters of a comparison: all places together, and each place."""
    places = analysis.comparison.places
    together: list[Part] = [
        *shown.ranks(analysis),
        *figures.drawn(analysis, places[0], figures.ACROSS),
    ]
    found = [Chapter("All places", together)] if together else []
    for k, place in enumerate(places, 1):
        prefix = f"{k}-{figures.slug(place)}-" if len(places) > 1 else ""
        found.append(Chapter(one_line(place), list(_place(analysis, place, prefix))))
    return found


def _place(analysis: Analysis, place: str, prefix: str) -> Iterator[Part]:
    """Yield the parts of the chapter of a place.

    Rare classes come before everything else but the leaderboard.
    """

    def drawn(*names: str) -> Iterator[Drawn]:
        return figures.drawn(analysis, place, names, prefix)

    tables: dict[str, list[Shown]] = {
        name: list(table(analysis, place)) for name, table in shown.TABLES.items()
    }
    yield from tables["leaderboard"]
    yield from drawn("leaders")
    if tables["rare"]:
        yield from tables["rare"]
        yield from drawn("class-intervals", "f1", "recall")
    yield Chapter("Scores with their deviations", tables["scores"])
    if tables["pairs"]:
        is_open = analysis.comparison.reference is not None
        yield Chapter("Differences between methods", tables["pairs"], is_open=is_open)
    yield from drawn(*(() if tables["rare"] else ("f1", "recall")), "recall-gain")
    yield Chapter("Classes as tables", [*tables["classes"], *drawn("precision")])
    yield from drawn("clients")
    yield Chapter("Clients as tables", tables["clients"])
    yield from tables["new_clients"]
    yield from drawn("convergence")
    yield from tables["targets"]
    yield from drawn("prices", "partition")
    yield from figures.learned(analysis, place, prefix)


def how(analysis: Analysis) -> Chapter:
    """Return how the comparison was done: keys, versions, hardware, papers, runs."""
    entries = analysis.comparison.entries
    trees = [leaves(entry.run.config.tree()) for entry in entries]
    keys = [key for key in dict.fromkeys(chain(*trees)) if not key.startswith(HIDDEN)]
    methods = [entry.method for entry in entries]
    settings = {key: values_by_method(trees, methods, key) for key in keys}
    summaries = [entry.run.summary for entry in entries]
    changed = {key for summary in summaries for key in summary.get("changed", ())}
    origins: dict[str, dict[str, None]] = {}
    for entry in entries:
        for key, value in leaves(dict(provenance(entry.run))).items():
            if key not in ("started", "command"):
                origins.setdefault(key, {})["none" if value == [] else _shown(value)] = None
    facts = {
        "Keys that differ from the defaults": {k: v for k, v in settings.items() if k in changed},
        "Versions and hardware": {key: " | ".join(values) for key, values in origins.items()},
        "Papers": {one["algorithm"]: one_line(one["paper"]) for one in summaries if "paper" in one},
        "All keys": settings,
    }
    parts = [
        Chapter(title, [values], is_open=title != "All keys")
        for title, values in facts.items()
        if values
    ]
    return Chapter(HOW, [*parts, Chapter("All runs", [shown.runs(analysis)])])


def values_by_method(trees: Sequence[Mapping[str, Any]], methods: Sequence[str], key: str) -> str:
    """Return the values of a key in the runs that have it, as text.

    If there are several values, each is followed by the methods that have it, or by their number if
    they are many. Methods are left out where they say nothing: if a method has several
    values, such as those of a key that differs between data sets, and if the values are the names
    of the methods.

    Args:
        trees: Values by key, for each run.
        methods: The method of each run.
        key: The key.

    >>> trees = [{"train.rounds": 5}, {"train.rounds": 5}, {"train.rounds": 10}]
    >>> values_by_method(trees, ["fedavg", "ditto", "hfcd"], "train.rounds")
    '5 (fedavg, ditto) | 10 (hfcd)'
    >>> values_by_method(trees, ["hfcd", "hfcd", "hfcd"], "train.rounds")
    '5 | 10'
    """
    found: dict[str, dict[str, None]] = {}
    for tree, method in zip(trees, methods, strict=True):
        if key in tree:
            found.setdefault(_shown(tree[key]), {})[method] = None
    names = [method for having in found.values() for method in having]
    if len(found) == 1 or len(set(names)) < len(names) or list(found) == names:
        return " | ".join(found)
    groups = {
        value: ", ".join(having) if len(having) <= MOST_NAMES else f"{len(having)} methods"
        for value, having in found.items()
    }
    return " | ".join(f"{value} ({having})" for value, having in groups.items())


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
