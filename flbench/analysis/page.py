"""The page of a comparison: one file that needs no server and no network."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, cast
from zlib import crc32

from flbench.analysis import blocks, figures, new_client_blocks, text
from flbench.analysis.arrangement import Arrangement
from flbench.analysis.tables import CLASS_SCORES, Analysis
from flbench.config.sources import leaves
from flbench.core.documents import read_json
from flbench.core.text import one_line
from flbench.reports import figures as encoding
from flbench.reports.tables import Block
from flbench.results import learned

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

SHOWN: Final = ("seed", "partition.seed", "output.", "tracking.", "engine.threads")
"""Keys that are not listed as a part of how the comparison was done."""
MAPS: Final = (*CLASS_SCORES, "recall-gain", "partition", "settings")
"""Pictures whose colours have a meaning: they are not inverted on a dark page."""

UNSCALED: Final = ("partition",)  # pictures whose size follows from what they show

OUTLINE: Final = re.compile(r'<path id="([^"]+)"(?: d="[^"]*")? transform="scale[^"]*"/>\s*')
"""The outline of a letter, as matplotlib writes it."""
# Comments of a picture have the texts in it, of which no rule of the page may be made.
STYLE: Final = re.compile(r'style="([^"{}<>*\\]*)"')
ID: Final = re.compile(r' id="([^"]*)"')
BROAD: Final = 500  # pixels: wider pictures scroll on a phone
OFTEN: Final = 10  # styles of a picture that occur this often are shared


@dataclass(frozen=True)
class Drawn:
    """A picture of the page.

    Attributes:
        name: Name of its files.
        title: Heading above the picture.
        about: What it shows, which is also its text for readers who do not see it.
        figure: The picture.
        is_learned: Whether it shows what a method has learned.
        is_map: Whether colours stand for values or classes, so that a dark page does not invert
            them.
        draw: Draws the picture again at another width; None for one whose size is that of what it
            shows.
    """

    name: str
    title: str
    about: str
    figure: "Figure"
    is_learned: bool = False
    is_map: bool = False
    draw: "Callable[[], Figure] | None" = None

    def narrow(self) -> "Figure":
        """Return the picture at the width of a paper's column, if it can have another width."""
        if self.draw is None:
            return self.figure
        found = figures.in_column(self.draw)
        return self.figure if found is None else found


@dataclass(frozen=True)
class Drawings:
    """All pictures of a comparison.

    Attributes:
        places: The pictures of each place, by place.
        across: The pictures over all places; empty for a single place.
    """

    places: dict[str, tuple[Drawn, ...]]
    across: tuple[Drawn, ...]


def draw(analysis: Analysis) -> Drawings:
    """Draw all pictures of a comparison, which the page and the files show."""
    return Drawings(
        {
            place: (*drawn(analysis, place), *_drawn_learned(analysis, place))
            for place in analysis.comparison.places
        },
        tuple(drawn_across(analysis)),
    )


def _drawn_learned(analysis: Analysis, place: str) -> Iterator[Drawn]:
    """Yield pictures of what the methods of a place have learned, each in its first repetition."""
    comparison = analysis.comparison
    for number, method in enumerate(comparison.methods, 1):
        for entry in comparison.at(place, method)[:1]:
            classes = entry.run.class_table("best")["class"].nunique()
            for one in learned.read(entry.run.path, classes):
                yield Drawn(
                    f"learned-{number}-{_slug(one.name)}",
                    f"What {one_line(method)} learned: {one_line(one.name)}",
                    f"{one_line(one.about)} In the first repetition, after the last round.",
                    _warned(figures.learned(analysis, place, one), comparison),
                    is_learned=True,
                    is_map=True,  # the colours of classes would be too dark if they were inverted
                )


def drawn(analysis: Analysis, place: str, only: Sequence[str] = ()) -> Iterator[Drawn]:
    """Yield the pictures of a place but for what methods learned, in the order of the page.

    Args:
        analysis: The tables.
        place: Label of the place.
        only: Names of the pictures; empty for all.
    """
    metric = analysis.comparison.metric.replace("_", " ")
    several = len(analysis.leaderboard[analysis.leaderboard["place"] == place]) > 1
    baseline = one_line(analysis.comparison.baseline)
    named = {"rare": "A star marks rare classes.", "confusable": "A plus marks confusable classes."}
    of_place = analysis.classes[analysis.classes["place"] == place]
    marks = "".join(f" {sentence}" for mark, sentence in named.items() if of_place[mark].any())
    count = of_place["class"].nunique()
    left_out = ""
    if count > figures.MOST_CLASSES:
        left_out = f" Only the rarest {figures.MOST_CLASSES} of {count:,} classes are shown."
    gains = figures.methods_with_gains(analysis, place)
    gaining = "Methods with which no client gains or loses are left out."
    if len(gains) > figures.MOST_SCATTERED:
        gaining = (
            f"Of the methods with which clients gain or lose, the first {figures.MOST_SCATTERED} of"
            " the leaderboard are shown."
        )
    candidates: list[tuple[str, str, str, Callable[[], Figure | None]]] = [
        (
            "leaders",
            f"Test {metric}",
            f"Test {metric} of each method: the large mark is the mean, the line its 95 % interval,"
            " and each dot a repetition.",
            lambda: figures.leaders(analysis, place),
        ),
        *(
            (
                name,
                f"{shown[0].upper()}{shown[1:]} by class",
                f"{shown[0].upper()}{shown[1:]} of each method and class, mean over repetitions."
                f"{marks}{left_out}",
                partial(figures.scores, analysis, place, name),
            )
            for name, shown in CLASS_SCORES.items()
        ),
        (
            "recall-gain",
            "Recall by class, against the baseline",
            f"Recall minus that of {baseline}. A dot marks a difference whose 95 % interval does"
            " not contain zero; with this many classes some intervals miss zero by chance."
            f"{left_out}",
            lambda: figures.recall_gains(analysis, place) if several else None,
        ),
        (
            "class-intervals",
            "The rarest classes",
            "Recall and F1 of the classes with the fewest training samples: the mark is the mean"
            f" over repetitions, the line its 95 % interval. At most {figures.MOST_RARE} classes"
            f" and the first {figures.MOST_BESIDE} methods of the leaderboard.{marks}",
            lambda: figures.class_intervals(analysis, place),
        ),
        (
            "clients",
            "Clients",
            "Share of the clients below each test accuracy, over all repetitions. A line further to"
            " the right is better; its lower end are the worst clients.",
            lambda: figures.client_accuracy(analysis, place),
        ),
        (
            "gains",
            "Who gains from federation",
            "Each dot is a client of a repetition: its accuracy minus that of the model that it"
            " trains alone (method local), against its number of training samples and against its"
            f" skew. {gaining}",
            lambda: figures.client_gains(analysis, place),
        ),
        (
            "new-clients",
            "Clients that join later",
            "Mean test score of clients that trained in no round, after epochs of training on"
            " their own training parts; 0 is the model that the server would send. The band is the"
            " 95 % interval over repetitions. Dotted lines: clients that trained, after as many"
            " further epochs.",
            lambda: figures.new_clients(analysis, place),
        ),
        (
            "convergence",
            "Convergence",
            "Mean over repetitions by rounds, bytes and seconds, on validation and on test parts,"
            " at the rounds that all repetitions of a method have; the band is their range. The"
            " seconds of a run are shared out evenly over its rounds.",
            lambda: figures.convergence(analysis, place),
        ),
        (
            "prices",
            "Price",
            f"Mean test {metric} against the bytes of all clients and the seconds of a run. The"
            " dotted line joins the methods that no other method beats in both.",
            lambda: figures.prices(analysis, place) if several else None,
        ),
        (
            "partition",
            "Partition",
            "Training samples by client and class, in the first repetition; empty where there are"
            " none.",
            lambda: figures.partition(analysis, place),
        ),
        (
            "holdings",
            "What clients hold",
            "Training samples, classes and skew of the clients in the first repetition. Skew is"
            " half the sum of the absolute differences between a client's class shares and those"
            " of all clients together: 0 for equal shares.",
            lambda: figures.holdings(analysis, place),
        ),
    ]
    for name, title, about, draw in candidates:
        if not only or name in only:
            yield from _drawn(analysis.comparison, name, title, about, draw)


def _drawn(
    comparison: Arrangement, name: str, title: str, about: str, draw: Callable[[], "Figure | None"]
) -> Iterator[Drawn]:
    """Yield a picture unless there is nothing to draw."""

    def warned() -> "Figure | None":
        found = draw()
        return None if found is None else _warned(found, comparison)

    if (figure := warned()) is not None:
        again = None if name in UNSCALED else cast("Callable[[], Figure]", warned)
        yield Drawn(name, title, about, figure, is_map=name in MAPS, draw=again)


def drawn_across(analysis: Analysis) -> Iterator[Drawn]:
    """Yield the pictures over all places; none for a single place."""
    comparison = analysis.comparison
    metric = comparison.metric.replace("_", " ")
    yield from _drawn(
        comparison,
        "settings",
        "Methods and settings",
        f"Mean test {metric} over repetitions. The colour is the distance from the best mean of the"
        " place: light fields are near to it.",
        lambda: figures.settings(analysis),
    )
    if analysis.across is None:
        return
    tests = (
        "; thick bars join methods that Nemenyi's test does not tell apart, and the bar below has"
        " the length of the critical difference"
    )
    yield from _drawn(
        comparison,
        "ranks",
        "Mean ranks",
        f"Mean rank of each method{tests if blocks.has_rank_claims(analysis) else ''}.",
        lambda: figures.ranks(analysis),
    )


def _warned(figure: "Figure", comparison: Arrangement) -> "Figure":
    """Return a picture with a warning above it if the runs are not comparable."""
    if comparison.apart is not None:
        # The reason stands in the report: it would take the room of a small picture.
        figure.suptitle("Not comparable: see the report.", fontsize=7, color="#9a3b00")
    return figure


def pictures(analysis: Analysis, drawings: Drawings | None = None) -> Iterator[Drawn]:
    """Yield all pictures; with several places, the place is a part of the names.

    Args:
        analysis: The tables.
        drawings: The pictures, if they are drawn already.
    """
    drawings = draw(analysis) if drawings is None else drawings
    for k, (place, some) in enumerate(drawings.places.items()):
        prefix = f"{k + 1}-{_slug(place)}-" if len(drawings.places) > 1 else ""
        for one in some:
            yield replace(one, name=f"{prefix}{one.name}")
    yield from drawings.across


def render(analysis: Analysis, drawings: Drawings | None = None) -> str:
    """Return the page.

    Args:
        analysis: The tables.
        drawings: The pictures, if they are drawn already.
    """
    drawings = draw(analysis) if drawings is None else drawings
    shared = Shared()
    return template("analysis/page.html").render(
        shared=shared,
        heading=one_line(text.heading(analysis.comparison)),
        answer=analysis.answer,
        warnings=analysis.comparison.warnings,
        are_pairs_open=analysis.comparison.reference is not None,
        **content(analysis, drawings, shared),
    )


def content(analysis: Analysis, drawings: Drawings, shared: "Shared") -> dict[str, Any]:
    """Return what the page shows of the tables, by the names in its template.

    Args:
        analysis: The tables.
        drawings: The pictures.
        shared: Takes what the pictures of the page share.
    """
    comparison = analysis.comparison
    return {
        "about": text.about(comparison),
        "places": [
            {
                "name": one_line(place),
                "id": f"place-{k + 1}",
                "leaderboard": blocks.leaderboard_block(analysis, place),
                "pairs": blocks.pairs_blocks(analysis, place),
                "scores": blocks.scores_block(analysis, place),
                "targets": blocks.targets_blocks(analysis, place),
                "spread": blocks.client_spread_block(analysis, place),
                "deciles": blocks.client_deciles_block(analysis, place),
                "clients": blocks.client_scores_block(analysis, place),
                "new_clients": new_client_blocks.of_place(analysis, place),
                "classes": {
                    score: blocks.classes_block(analysis, place, score) for score in CLASS_SCORES
                },
                "pictures": {
                    one.name: placed(one, f"p{k + 1}", shared) for one in drawings.places[place]
                },
            }
            for k, place in enumerate(comparison.places)
        ],
        "scores": CLASS_SCORES,
        "ranks": None if analysis.across is None else blocks.ranks_block(analysis),
        "across": {one.name: placed(one, "all", shared) for one in drawings.across},
        **_how(comparison),
    }


@cache  # compiling it takes longer than filling it
def template(name: str) -> "Template":
    """Return the template of a page; it may extend another one.

    Args:
        name: Path of the file below the package.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda path: files("flbench").joinpath(path).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


@dataclass
class Shared:
    """What the pictures of a page share. It is written once, because it would be half of the page.

    Attributes:
        outlines: Elements of the outlines of letters, by id.
        styles: Styles of lines and marks, by class.
    """

    outlines: dict[str, str] = field(default_factory=dict)
    styles: dict[str, str] = field(default_factory=dict)

    def leave(self, element: str) -> str:
        """Return an SVG element without what it shares with others, and without unused ids."""

        def outline(found: re.Match[str]) -> str:
            self.outlines[found[1]] = found[0]
            return ""

        def style(found: re.Match[str]) -> str:
            if often[found[1]] < OFTEN:
                return found[0]
            name = f"s{crc32(found[1].encode()):08x}"
            self.styles[name] = found[1]
            return f'class="{name}"'

        used = {*re.findall(r'#([^")]+)[")]', element)}
        element = OUTLINE.sub(outline, element)
        often = Counter(STYLE.findall(element))
        element = STYLE.sub(style, element)
        return ID.sub(lambda found: found[0] if found[1] in used else "", element)


def placed(one: Drawn, where: str, shared: Shared) -> dict[str, Any]:
    """Return a picture with what the page says about it.

    Args:
        one: The picture.
        where: Section of the page, which is a part of the picture's id.
        shared: Takes what the pictures of the page share.
    """
    element = shared.leave(encoding.svg(one.figure))
    label = f"{where}-{one.name}"
    width = round(96 * one.figure.get_size_inches()[0])  # in pixels of CSS
    described = f'<svg role="img" aria-labelledby="{label}"'
    return {
        "title": one.title,
        "about": one.about,
        "kind": f"{'map' if one.is_map else 'lines'}{' broad' if width > BROAD else ''}",
        "is_learned": one.is_learned,
        "width": width,
        "label": label,
        "svg": element.replace("<svg", described, 1),
    }


def _how(comparison: Arrangement) -> dict[str, Any]:
    """Return how the comparison was done: keys, versions, hardware, papers."""
    trees = [
        {
            key: value
            for key, value in leaves(entry.run.config.tree()).items()
            if not key.startswith(SHOWN)
        }
        for entry in comparison.entries
    ]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    methods = [entry.method for entry in comparison.entries]
    settings = {key: values_by_method(trees, methods, key) for key in keys}
    summaries = [entry.run.summary for entry in comparison.entries]
    changed = {key for summary in summaries for key in summary.get("changed", ())}
    origins: dict[str, dict[str, None]] = {}
    for entry in comparison.entries:
        file = entry.run.path / "provenance.json"
        for key, value in leaves(read_json(file) if file.is_file() else {}).items():
            if key not in ("started", "command"):
                origins.setdefault(key, {})["none" if value == [] else _shown(value)] = None
    papers = {one["algorithm"]: one_line(one["paper"]) for one in summaries if "paper" in one}
    return {
        "changed": {key: shown for key, shown in settings.items() if key in changed},
        "settings": settings,
        "origins": {key: " | ".join(values) for key, values in origins.items()},
        "papers": papers,
        "runs": _runs_block(comparison),
    }


def values_by_method(trees: Sequence[Mapping[str, Any]], methods: Sequence[str], key: str) -> str:
    """Return the values of a key in the runs that have it, as text.

    If there are several values, each is followed by the methods that have it, or by their number if
    they are more than six. Methods are left out where they say nothing: if a method has several
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
        value: ", ".join(having) if len(having) <= 6 else f"{len(having)} methods"
        for value, having in found.items()
    }
    return " | ".join(f"{value} ({having})" for value, having in groups.items())


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _slug(name: str) -> str:
    """Return a name as a part of a file's name.

    >>> _slug("digits, alpha=0.1")
    'digits-alpha-0-1'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]


def _runs_block(comparison: Arrangement) -> Block:
    """Return a table of the runs with their seeds and hashes."""
    return Block(
        "Runs",
        (
            "place",
            "method",
            "repetition",
            "seed",
            "partition",
            "configuration",
            "weights",
            "folder",
        ),
        tuple(
            (
                one_line(entry.place),
                one_line(entry.method),
                str(entry.repetition),
                str(entry.run.config.seed),
                *(
                    str(entry.run.summary.get(key, "-"))[:10]
                    for key in ("partition_hash", "config_hash", "weights_digest")
                ),
                one_line(entry.folder),
            )
            for entry in comparison.entries
        ),
        texts=(0, 1, 7),
    )
