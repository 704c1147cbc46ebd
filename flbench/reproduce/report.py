"""Report of published and measured numbers: tables, claims, and what could not be measured."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from flbench import __version__
from flbench.config.sources import Layer
from flbench.core import files
from flbench.core.errors import UserError, did_you_mean
from flbench.core.text import in_markdown, printable
from flbench.reports.render import grid
from flbench.reproduce import claims, measure
from flbench.reproduce.claims import Verdict
from flbench.reproduce.measure import Measured
from flbench.reproduce.paper import Paper, Place, cells, load, places

UNITS: Final = {"percent": "%", "percent^2": "%^2"}
"""Symbols of units; other units are written as their names."""
HEADER: Final = ("", "published", "measured", "difference", "seeds")
CLAIM_HEADER: Final = ("claim", "claimed", "the paper's cells", "measured", "here")


@dataclass(frozen=True)
class PaperRequest:
    """What the user asks for.

    Attributes:
        paper: Name of the paper.
        tables: Numbers of the tables; empty for the main table, `all` for all.
        dataset: A data set of the tables, or another one in place of the first; None for all.
        algos: Labels of rows, or names of methods in the paper or in flbench; empty for all.
        given: Keys of the user.
    """

    paper: str
    tables: Sequence[str] = ()
    dataset: str | None = None
    algos: Sequence[str] = ()
    given: Layer = field(default_factory=Layer)

    @property
    def numbers(self) -> list[str]:
        """Numbers of the tables.

        Raises:
            UserError: The paper has no such table.
        """
        known = load(self.paper).tables
        if "all" in self.tables or not self.tables:
            return list(known)[: None if self.tables else 1]
        for number in self.tables:
            if number not in known:
                raise UserError(
                    f"{self.paper} has no table `{number}`.{did_you_mean(number, known)} Known:"
                    f" {', '.join(known)}, all."
                )
        return list(dict.fromkeys(self.tables))

    @cached_property
    def places(self) -> list[Place]:
        """The places of the tables; see `paper.places`."""
        return places(self.paper, self.numbers, self.given, self.dataset)

    def labels(self, place: Place) -> list[str]:
        """Return the labels of the methods of a place that are asked for.

        Raises:
            UserError: No row of the tables has one of these labels or methods.
        """
        paper, asked = load(self.paper), [one.casefold() for one in self.algos]
        named: dict[str, set[str]] = {}
        for number in self.numbers:
            for cell in (one for one in cells(paper, number) if one.method is not None):
                algo = paper.methods[str(cell.method)].algo
                for name in (cell.row, str(cell.method), algo):
                    named.setdefault(name.casefold(), set()).add(cell.row)
        for one in asked:
            if one not in named:
                raise UserError(
                    f"`algos`: the tables have no row `{one}`.{did_you_mean(one, named)} Rows and"
                    f" methods: {', '.join(named)}."
                )
        rows = {row for one in asked for row in named[one]}
        found = [label for (_, row, _), label in place.rows.items() if not asked or row in rows]
        return list(dict.fromkeys([*([place.reference] if place.reference else []), *found]))


@dataclass(frozen=True)
class PaperReport:
    """Results of a request.

    Attributes:
        request: The request.
        paper: Facts of the paper.
        lines: Cells of the tables with their measured values.
        verdicts: Verdicts about the paper's claims.
        changed: Keys that the user has changed: the paper's value and the one here.
    """

    request: PaperRequest
    paper: Paper
    lines: tuple[Measured, ...]
    verdicts: tuple[Verdict, ...]
    changed: Mapping[str, tuple[Any, Any]]

    @property
    def stem(self) -> str:
        """Name of the report's files, without a suffix: other settings have other names."""
        asked = self.request
        words = [
            asked.paper.casefold(),
            *asked.numbers,
            *([asked.dataset] if asked.dataset else []),
        ]
        if self.changed:
            words.append(sha256(json.dumps(self.changed, default=str).encode()).hexdigest()[:6])
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in "-".join(words))

    @property
    def notes(self) -> list[str]:
        """Notes above the tables: what was changed, how numbers were averaged."""
        notes = []
        if self.changed:
            words = [
                f"{k} {_word(here)} (paper: {_word(of)})" for k, (of, here) in self.changed.items()
            ]
            notes.append(f"Settings changed: {', '.join(words)}.")
        if any(line.std is not None for line in self.lines):
            notes.append("Numbers after ± are standard deviations over seeds.")
        if any(line.at_least for line in self.lines):
            notes.append(
                "Rounds to a target accuracy are means over the seeds that reach it; the column"
                " `seeds` says how many do."
            )
        return notes

    @property
    def is_measured(self) -> bool:
        """Whether a cell has a value."""
        return any(line.runs for line in self.lines)

    def tables(self) -> list[str]:
        """Return the tables in Markdown, each with its heading: one for each measured column."""
        found = []
        for number in self.request.numbers:
            of_table = [line for line in self.lines if line.cell.table == number]
            columns = dict.fromkeys(line.cell.column for line in of_table if line.runs)
            if columns:
                found.append(f"## {named(number)}\n\n{self.paper.tables[number].caption}.")
            for column in columns:
                mine = [line for line in of_table if line.cell.column == column]
                measured = [line for line in mine if line.runs]
                unit = measured[0].cell.metric.unit if measured[0].cell.metric else ""
                about = " ".join(_about(measured))
                rows = [_row(line, self.paper) for line in mine]
                title = f"### {named(number)}, {column}, {UNITS.get(unit, unit)}"
                found.append(f"{title}\n\n{about}\n\n{grid(HEADER, rows)}")
        return found

    def claim_rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the table of the claims, one for each verdict."""
        return [_claim_row(verdict) for verdict in self.verdicts]

    def absent(self) -> list[tuple[str, str]]:
        """Return why cells with a published number are not measured, with their number."""
        reasons = Counter(
            line.why for line in self.lines if line.why and line.published is not None
        )
        return [(why, str(count)) for why, count in reasons.items()]

    def markdown(self, *, whole: bool = True) -> str:
        """Return the report as Markdown; the whole of it has what is known about the paper, too."""
        paper = self.paper
        source = f" ({paper.source})" if paper.source else ""
        parts = [
            f"# {paper.name}: published and measured numbers",
            f"{paper.authors}: *{paper.title}*. {paper.venue}, doi"
            f" [{paper.doi}](https://doi.org/{paper.doi}){source}.",
            *(f"**{in_markdown(note)}**" for note in self.notes),
            *self.tables(),
            "## Claims of the text\n\n" + grid(CLAIM_HEADER, self.claim_rows()),
        ]
        if absent := self.absent():
            parts.append(
                f"## What could not be measured here\n\n{grid(('why', 'cells without'), absent)}"
            )
        for title, items in (
            ("Contradictions in the paper", paper.contradictions),
            ("What the paper does not specify, and the choices here", paper.choices),
        ):
            if items and whole:
                parts.append(f"## {title}\n\n" + "\n".join(f"- {item}" for item in items))
        return printable("\n\n".join([*parts, f"flbench {__version__}."])) + "\n"

    def tree(self) -> dict[str, Any]:
        """Return the report as JSON: `paper`, `notes`, `changed`, `cells`, `claims`, `absent`."""
        about = ("name", "title", "authors", "venue", "doi", "source")
        return {
            "flbench": __version__,
            "paper": {key: getattr(self.paper, key) for key in about},
            "tables": {key: self.paper.tables[key].caption for key in self.request.numbers},
            "notes": self.notes,
            "changed": {key: list(values) for key, values in self.changed.items()},
            "cells": [self._cell(line) for line in self.lines],
            "claims": [_claim(verdict) for verdict in self.verdicts],
            "absent": [{"why": why, "cells": int(count)} for why, count in self.absent()],
        }

    def _cell(self, line: Measured) -> dict[str, Any]:
        """Return the entries of a cell for JSON."""
        cell, metric = line.cell, line.cell.metric
        return {
            "paper": self.paper.name,
            "doi": self.paper.doi,
            "table": cell.table,
            "row": cell.row,
            "column": cell.column,
            "dataset": cell.dataset,
            "algorithm": None if cell.method is None else self.paper.methods[cell.method].algo,
            "metric": None if metric is None else metric.what,
            "unit": None if metric is None else metric.unit,
            "published": None if line.published is None else float(line.published),
            "measured": line.mean,
            "std": line.std,
            "seeds": " ".join(map(str, line.values)),
            "difference": line.difference,
            "why": line.why or None,
            "values": {str(seed): value for seed, value in line.values.items()},
            "at_least": {str(seed): value for seed, value in line.at_least.items()},
            "runs": {str(seed): str(path) for seed, path in line.runs.items()},
        }

    def write(self, folder: Path) -> list[Path]:
        """Write the report as Markdown and JSON, and return the paths of the files."""
        folder.mkdir(parents=True, exist_ok=True)
        json_text = json.dumps(self.tree(), indent=1, default=str) + "\n"
        texts = {".md": self.markdown(), ".json": json_text}
        for ending, text in texts.items():
            files.write(folder / f"{self.stem}{ending}", text.encode())
        return [folder / f"{self.stem}{ending}" for ending in texts]


def make(request: PaperRequest, folder: Path, *, exact: bool = True) -> PaperReport:
    """Make the report of all runs that have finished so far."""
    paper, found = load(request.paper), request.places
    sets = {place.dataset for place in found}
    asked = [
        cell
        for number in request.numbers
        for cell in cells(paper, number)
        if cell.dataset is None or cell.dataset in sets or cell.reason
    ]
    lines = measure.measured(asked, paper.published, found, folder, exact=exact)
    table = {line.cell.number: line for line in lines}
    verdicts = tuple(claims.decide(claim, paper, table) for claim in paper.claims)
    changed = {key: pair for place in found[::-1] for key, pair in place.changed.items()}
    return PaperReport(request, paper, tuple(lines), verdicts, changed)


def named(number: str) -> str:
    """Return the name of a table for headings.

    >>> named("2"), named("figure-5")
    ('Table 2', 'Figure-5')
    """
    return f"Table {number}" if number.isdecimal() else number.capitalize()


def with_sign(value: float, places: int = 2) -> str:
    """Format a difference with its sign; what rounds to zero has none.

    >>> with_sign(1.5), with_sign(-0.04, 1)
    ('+1.50', '0.0')
    """
    text = f"{value:+.{places}f}"
    return text if float(text) else text[1:]


def _row(line: Measured, paper: Paper) -> tuple[str, ...]:
    """Return the row of a cell in the table of its column."""
    std = "" if line.std is None else f" ± {line.std:.2f}"
    value = "-" if line.mean is None else f"{line.mean:.2f}{std}"
    seeds = str(len(line.values) or "-")
    if line.at_least:
        value = value if line.values else f"> {min(line.at_least.values()) - 1:g}"
        seeds = f"{len(line.values)} of {len(line.values) + len(line.at_least)}"
    gap = "-" if line.difference is None else with_sign(line.difference)
    published = "-" if line.published is None else str(line.published)
    return line.cell.row, published, value, gap, seeds


def _about(lines: Sequence[Measured]) -> list[str]:
    """Return what the numbers of a column are: each metric, with its rows if there are several."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        if line.cell.metric is not None:
            when = ""
            if line.cell.metric.over == "last":
                when = f", after round {line.cell.at}" if line.cell.at else ", after the last round"
            if line.by_test:
                when = ", by the test accuracy, since there is no validation part"
            rows.setdefault(f"{line.cell.metric.what}{when}", []).append(line.cell.row)
    if len(rows) == 1:
        return [f"Measured: {next(iter(rows))}."]
    return [f"Measured for {', '.join(labels)}: {what}." for what, labels in rows.items()]


def _claim_row(verdict: Verdict) -> tuple[str, ...]:
    """Return the row of a claim in the table of the claims."""
    claim, unit = verdict.claim, verdict.unit
    notes = [claim.note] if claim.note else []
    notes += [f"measured: {claim.measured_row}"] if claim.measured_row else []
    claimed = "-"
    if claim.reason is None:
        way = "above" if claim.above is not None else "below"
        claimed = (
            f"at {'least' if way == 'above' else 'most'} {claim.bound:+g} {unit}"
            if claim.bound
            else way
        )
    std = "" if verdict.std is None else f" ± {verdict.std:.2f}"
    return (
        claim.text + (f" ({'; '.join(notes)})" if notes else ""),
        claimed,
        "-" if verdict.printed is None else f"{with_sign(verdict.printed)} {unit}",
        "-" if verdict.measured is None else f"{with_sign(verdict.measured)}{std} {unit}",
        f"{verdict.outcome}: {verdict.why}" if verdict.why else verdict.outcome,
    )


def _claim(verdict: Verdict) -> dict[str, Any]:
    """Return the entries of a claim for JSON."""
    claim = verdict.claim
    return {
        "claim": claim.text,
        "table": claim.table,
        "claimed": None if claim.reason is not None else claim.bound,
        "unit": verdict.unit or None,
        "published": verdict.printed,
        "measured": verdict.measured,
        "std": verdict.std,
        "values": {str(seed): value for seed, value in verdict.by_seed.items()},
        "measured_row": claim.measured_row or claim.row,
        "verdict": verdict.outcome,
        "why": verdict.why or None,
        "note": claim.note,
    }


def _word(value: object) -> str:
    return "all" if value is None else str(value)
