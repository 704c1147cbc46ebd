"""Report of published and measured numbers: tables, claims, and what could not be measured."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Final

from flbench.reports.tables import Block
from flbench.reproduce import measure, verdicts, words
from flbench.reproduce.cells import named
from flbench.reproduce.configurations import Change
from flbench.reproduce.measure import MeasuredCell
from flbench.reproduce.plan import PaperPlan
from flbench.reproduce.runs import RunResults
from flbench.reproduce.verdicts import Verdict

HEADER: Final = ("", "published", "measured", "difference", "seeds")
CLAIM_HEADER: Final = ("claim", "claimed", "the paper's cells", "measured", "here")


@dataclass(frozen=True)
class Unavailable:
    """A method, data set, metric or run that is missing here.

    Attributes:
        what: Name of what is missing.
        why: The reason, and the cure if there is one.
        cells: Number of cells that cannot be measured because of it.
    """

    what: str
    why: str
    cells: int


@dataclass(frozen=True)
class PaperReport:
    """Results of a request.

    Attributes:
        plan: Plan of the request.
        lines: Cells of the plan with their measured values.
        verdicts: Verdicts about the paper's claims.
        absent: What could not be measured, and why.
    """

    plan: PaperPlan
    lines: tuple[MeasuredCell, ...]
    verdicts: tuple[Verdict, ...]
    absent: tuple[Unavailable, ...]

    @property
    def stem(self) -> str:
        """Name of the report's files, without a suffix.

        Reports on other tables or on another data set, with another scale, other substitutes or
        other changed settings have other names. Reports with other methods (`--algo`) or other
        seeds have the same name.
        """
        plan, request = self.plan, self.plan.request
        parts = [request.paper.casefold()]
        everything = len(plan.tables) == len(plan.paper.tables) > 1
        parts.append("all" if everything else "table-" + "-".join(plan.tables))
        parts.append(request.scale)
        if request.dataset:  # the paper's name, however the user writes it
            parts += dict.fromkeys(item.cell.dataset for item in plan.cells if item.cell.dataset)
        parts += [Path(name).stem for name in plan.substitutes.values()]
        if changed := self.changed:
            parts.append(f"changed-{sha256(json.dumps(changed).encode()).hexdigest()[:6]}")
        text = "-".join(parts)
        return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)

    @property
    def heading(self) -> str:
        """Name of the paper, for headings."""
        return f"{self.plan.paper.name}{self.mark}"

    @property
    def mark(self) -> str:
        """Text for every heading that names the small scale, substitutes and changed settings."""
        marks = ["small scale"] if self.plan.request.scale == "small" else []
        marks += [f"{here} instead of {name}" for name, here in self.plan.substitutes.items()]
        marks += ["settings changed"] if self.changed else []
        return f" [{'; '.join(marks)}]" if marks else ""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Tables with measured numbers, one for each column of a paper's table."""
        found = []
        for number in self.plan.tables:
            for column in self.plan.paper.tables[number].columns:
                mine = [line for line in self.lines if _place(line)[::2] == (number, column)]
                if any(line.values or line.at_least for line in mine):
                    found.append(self._block(number, column, mine))
        return tuple(found)

    @property
    def claims(self) -> Block:
        """Table of the verdicts about the claims of the paper's text."""
        rows = [
            (
                v.claim.text + words.notes(v.claim),
                words.claimed(v),
                words.signed(v.printed, v.unit),
                words.measured(v.measured, v.std, v.unit, gap=True),
                f"{v.outcome}: {v.why}" if v.why else v.outcome,
            )
            for v in self.verdicts
        ]
        title = f"{self.plan.paper.name}, claims of the text{self.mark}"
        return Block(title, CLAIM_HEADER, tuple(rows), texts=range(len(CLAIM_HEADER)))

    @property
    def footnotes(self) -> list[str]:
        """Footnotes of all tables, numbered by table."""
        return self._footnotes({_place(line) for line in self.lines})

    @property
    def shown_footnotes(self) -> list[str]:
        """Footnotes to the tables, rows and columns of the blocks, numbered by table."""
        columns = {_place(line)[::2] for line in self.lines if line.values or line.at_least}
        return self._footnotes(
            {_place(line) for line in self.lines if _place(line)[::2] in columns}
        )

    def _footnotes(self, places: Collection[tuple[str, str, str]]) -> list[str]:
        """Return the footnotes to cells, given as table, row and column."""
        return [
            words.footnote(number, k, note)
            for number in self.plan.tables
            for k, note in enumerate(self.plan.paper.tables[number].footnotes)
            if any(
                table == number and note.row in (None, row) and note.column in (None, column)
                for table, row, column in places
            )
        ]

    @property
    def scaled(self) -> list[Change]:
        """Changes of the small scale in any of the runs."""
        jobs = [job for item in self.plan.cells for job in item.jobs.values()]
        return list(dict.fromkeys(_hashable(change) for job in jobs for change in job.scaled))

    @property
    def changed(self) -> list[Change]:
        """Changes of the user's overrides in any of the runs."""
        jobs = [job for item in self.plan.cells for job in item.jobs.values()]
        return list(dict.fromkeys(_hashable(change) for job in jobs for change in job.changed))

    @property
    def notes(self) -> list[str]:
        """Notes above the tables: scale, substitutes, changed settings, seeds, missing samples."""
        plan, notes = self.plan, []
        if plan.request.scale == "small":
            notes.append(
                f"Small scale{words.after_colon(self.scaled)}. Numbers at this scale cannot be"
                " compared with the published ones. They show that the experiment runs, and at best"
                " in which direction methods differ."
            )
        for name, here in plan.substitutes.items():
            notes.append(
                f"{here} is used instead of {name}: its numbers cannot be compared with the"
                " published ones."
            )
        if self.changed:
            # The user may have set keys of the small scale back to the paper's values.
            other = [change for change in self.changed if change[1] != change[2]]
            notes.append(f"Settings changed{words.after_colon(other)}.")
        few = {
            1: "One seed: there is no standard deviation.",
            2: "Two seeds: the standard deviation is very uncertain.",
        }
        notes += [few[len(plan.seeds)]] if len(plan.seeds) in few else []
        if any(line.std is not None for line in self.lines):
            notes.append("Numbers after ± are standard deviations over seeds.")
        if any(line.at_least for line in self.lines):
            notes.append(
                "Rounds to a target accuracy are means over the seeds that reach it; the column"
                " `seeds` says how many do."
            )
        for name, (held, expected) in _short_of_samples(plan, self.lines).items():
            notes.append(
                f"{name}: the clients have {held:,} samples, not {expected:,}: the data set is"
                " incomplete."
            )
        return notes

    def _block(self, number: str, column: str, lines: Sequence[MeasuredCell]) -> Block:
        notes = self.plan.paper.tables[number].footnotes
        there = [line for line in lines if line.values or line.at_least]
        paper_metric = there[0].planned.cell.metric
        unit = "" if paper_metric is None else paper_metric.unit
        common = words.decimals(self.plan.paper, number)
        rows = tuple(
            (
                line.planned.cell.row + words.marks(number, line.planned.cell.row, column, notes),
                "-" if line.published is None else words.printed(line.published, common),
                words.measured(line.mean, line.std, unit) if line.values else words.bound(line),
                words.signed(line.difference, unit, bare=True),
                words.seeds(line),
            )
            for line in lines
        )
        about = _about(there)
        title = f"{named(number)}, {column}, {words.UNITS.get(unit, unit)}{self.mark}"
        return Block(title, HEADER, rows, about)


def make(plan: PaperPlan, done: RunResults) -> PaperReport:
    """Make the report of all runs that have finished so far."""
    lines = measure.lines(plan, done)
    grid = {_place(line): line for line in lines}
    decided = [verdicts.decide(claim, plan.paper, grid, plan.tables) for claim in plan.paper.claims]
    return PaperReport(
        plan=plan,
        lines=tuple(lines),
        verdicts=tuple(decided),
        absent=tuple(_absent(lines)),
    )


def nothing(report: PaperReport) -> str:
    """Return the error message for a report without any measured cell.

    It has a line for each missing method, data set or run, with the reason.
    """
    plan = report.plan
    what = ", ".join(named(number) for number in plan.tables)
    lines = [f"no cell of {plan.paper.name}, {what}, could be measured here."]
    lines += [f"{item.what}: {item.why}." for item in report.absent]
    if any(line.lacks == line.planned.cell.dataset for line in report.lines):
        first = next(
            cell.planned.cell.dataset for cell in report.lines if cell.planned.cell.dataset
        )
        lines.append(f"Another data set can be used instead: --dataset {first}=digits.")
    return "\n".join(lines)


def _absent(lines: Iterable[MeasuredCell]) -> list[Unavailable]:
    """Return what could not be measured, with the number of cells that depend on it."""
    count: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if line.why is not None and (line.published is not None or line.planned.absent is None):
            count[line.lacks, line.why] += 1
    return [Unavailable(what, why, cells) for (what, why), cells in count.items()]


def _short_of_samples(plan: PaperPlan, lines: Iterable[MeasuredCell]) -> dict[str, tuple[int, int]]:
    """Return the numbers of samples, here and in the paper, of data sets that are incomplete."""
    found: dict[str, tuple[int, int]] = {}
    for line in lines:
        name = line.planned.cell.dataset
        if name is None or name in found or name in plan.substitutes:
            continue
        for seed, folder in line.folders.items():
            job = line.planned.jobs[seed]
            asked = [job.samples, job.config.partition.samples]
            per_client = job.config.partition.samples_per_client
            if per_client is not None:
                asked.append(per_client * (job.config.partition.clients or 0))
            expected = min((n for n in asked if n is not None), default=None)
            here = measure.dealt(folder)
            if expected is not None and here is not None and here < expected:
                found[name] = (here, expected)
                break
    return found


def _hashable(change: Change) -> Change:
    """Return a change with tuples instead of lists."""
    key, *values = change
    before, after = (tuple(value) if isinstance(value, list) else value for value in values)
    return key, before, after


def _place(line: MeasuredCell) -> tuple[str, str, str]:
    cell = line.planned.cell
    return cell.table, cell.row, cell.column


def _about(lines: Sequence[MeasuredCell]) -> str:
    """Return what the numbers of a block are: each metric, with its rows if there are several."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        if line.planned.cell.metric is not None:
            rows.setdefault(_what(line), []).append(line.planned.cell.row)
    if len(rows) <= 1:
        return "".join(f"Measured: {what}." for what in rows)
    return " ".join(
        f"Measured for {_names(labels, among=[*chain(*rows.values())])}: {what}."
        for what, labels in rows.items()
    )


def _names(rows: Sequence[str], among: Sequence[str]) -> str:
    """Return the names of rows as a list, or their common ending.

    The ending, such as that of `FedAvg, last round` and `Ditto, last round`, is enough if no other
    row has it.

    Args:
        rows: Names of the rows.
        among: Names of all rows, these included.
    """
    ending = ", " + rows[0].partition(", ")[2]
    alike = [row for row in among if row.endswith(ending)]
    if len(rows) > 1 and ending != ", " and alike == list(rows):
        return f"the rows `...{ending}`"
    return ", ".join(rows)


def _what(line: MeasuredCell) -> str:
    """Return what the number of a cell is, and when and on which samples it was measured."""
    paper_metric = line.planned.cell.metric
    text = "" if paper_metric is None else f"{paper_metric.what}{_when(line)}"
    if "test" in line.splits:
        text += ", by the test accuracy, since there is no validation part"
    return text


def _when(line: MeasuredCell) -> str:
    """Return after which round a metric was read, as the end of a sentence."""
    cell, job = line.planned.cell, next(iter(line.planned.jobs.values()))
    if cell.metric is None or cell.metric.over != "last":
        return ""
    if cell.at is None:
        return ", after the last round"
    here = measure.round_of(cell.at, line.planned.rounds, job.config.train.rounds)
    scaled = "" if here == cell.at else f", which corresponds to the paper's round {cell.at}"
    return f", after round {here}{scaled}"
