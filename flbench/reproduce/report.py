"""Published against measured: tables, claims and what is missing, put into words once."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from flbench.reports.tables import Block
from flbench.reproduce import measure, verdicts, words
from flbench.reproduce.cells import named
from flbench.reproduce.configurations import Change
from flbench.reproduce.measure import Line
from flbench.reproduce.plan import Plan
from flbench.reproduce.runs import Done
from flbench.reproduce.verdicts import Verdict

HEADER: Final = ("", "published", "measured", "difference", "seeds")
CLAIM_HEADER: Final = ("claim", "claimed", "the paper's cells", "measured", "here")


@dataclass(frozen=True)
class Absent:
    """What could not be had here.

    Attributes:
        what: a method, data set, figure or run.
        why: the reason, and the cure if there is one.
        cells: how many cells of the tables go without.
    """

    what: str
    why: str
    cells: int


@dataclass(frozen=True)
class Report:
    """What a request found.

    Attributes:
        plan: that was carried out.
        lines: its cells, measured.
        verdicts: the paper's claims, judged.
        absent: what could not be had.
    """

    plan: Plan
    lines: tuple[Line, ...]
    verdicts: tuple[Verdict, ...]
    absent: tuple[Absent, ...]

    @property
    def stem(self) -> str:
        """Name of the report's files, without an ending.

        It tells tables, scale, substitutes and changed settings apart.
        """
        plan, request = self.plan, self.plan.request
        parts = [request.paper.casefold()]
        everything = len(plan.tables) == len(plan.paper.tables) > 1
        parts.append("all" if everything else "table-" + "-".join(plan.tables))
        parts.append(request.scale)
        parts += [Path(name).stem for name in plan.substitutes.values()]
        if changed := self.changed:
            parts.append(f"changed-{sha256(json.dumps(changed).encode()).hexdigest()[:6]}")
        text = "-".join(parts)
        return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)

    @property
    def heading(self) -> str:
        """What all tables are about."""
        return f"{self.plan.paper.name}{self.mark}"

    @property
    def mark(self) -> str:
        """What every heading says of scale, substitute and changed settings."""
        said = ["small scale"] if self.plan.request.scale == "small" else []
        said += [f"{here} instead of {name}" for name, here in self.plan.substitutes.items()]
        said += ["settings changed"] if self.changed else []
        return f" [{'; '.join(said)}]" if said else ""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The tables with a measured figure, a block for each of their columns."""
        found = []
        for number in self.plan.tables:
            for column in self.plan.paper.tables[number].columns:
                mine = [line for line in self.lines if _place(line)[::2] == (number, column)]
                if any(line.values for line in mine):
                    found.append(self._block(number, column, mine))
        return tuple(found)

    @property
    def claims(self) -> Block:
        """The claims of the paper's text, judged."""
        rows = [
            (
                v.claim.text + (f" ({v.claim.note})" if v.claim.note else ""),
                words.claimed(v),
                words.signed(v.printed, v.unit),
                words.measured(v.measured, v.spread, v.unit, gap=True),
                f"{v.word}: {v.why}" if v.why else v.word,
            )
            for v in self.verdicts
        ]
        title = f"{self.plan.paper.name}, claims of the text{self.mark}"
        return Block(title, CLAIM_HEADER, tuple(rows), texts=range(len(CLAIM_HEADER)))

    @property
    def footnotes(self) -> list[str]:
        """Footnotes of the tables, numbered by table."""
        return [
            words.footnote(number, k, note)
            for number in self.plan.tables
            for k, note in enumerate(self.plan.paper.tables[number].footnotes)
        ]

    @property
    def scaled(self) -> list[Change]:
        """What the small scale changes, over all runs."""
        jobs = [job for item in self.plan.cells for job in item.jobs.values()]
        return list(dict.fromkeys(_hashable(change) for job in jobs for change in job.scaled))

    @property
    def changed(self) -> list[Change]:
        """What the user's overrides change, over all runs."""
        jobs = [job for item in self.plan.cells for job in item.jobs.values()]
        return list(dict.fromkeys(_hashable(change) for job in jobs for change in job.changed))

    @property
    def remarks(self) -> list[str]:
        """What stands above all tables: scale, substitutes, changed settings, seeds, samples."""
        plan, said = self.plan, []
        if plan.request.scale == "small":
            said.append(
                f"Small scale: {words.changed(self.scaled)}. Figures at this scale cannot be"
                " compared with the published ones; they show that the machinery works, and"
                " directions at best."
            )
        for name, here in plan.substitutes.items():
            said.append(f"{here} stands for {name}: a substitute, whose figures are its own.")
        if self.changed:
            said.append(f"Settings changed: {words.changed(self.changed)}.")
        few = {1: "One seed: there is no spread.", 2: "Two seeds: their spread says little."}
        said += [few[len(plan.seeds)]] if len(plan.seeds) in few else []
        for name, (held, expected) in _short_of_samples(plan, self.lines).items():
            said.append(
                f"{name}: the clients hold {held:,} samples, not {expected:,}: the data that are"
                " here are not the whole set."
            )
        return said

    def _block(self, number: str, column: str, lines: Sequence[Line]) -> Block:
        notes = self.plan.paper.tables[number].footnotes
        figure = next(line.planned.cell.figure for line in lines if line.values)
        unit = "" if figure is None else figure.unit
        common = words.decimals(self.plan.paper, number)
        rows = tuple(
            (
                line.planned.cell.row + words.marks(number, line.planned.cell.row, column, notes),
                "-" if line.published is None else words.printed(line.published, common),
                words.measured(line.mean, line.spread, unit),
                words.signed(line.difference, unit, bare=True),
                str(len(line.values) or "-"),
            )
            for line in lines
        )
        about = "" if figure is None else f"Measured: {figure.what}{_when(lines)}."
        title = f"{named(number)}, {column}, {words.UNITS.get(unit, unit)}{self.mark}"
        return Block(title, HEADER, rows, about)


def make(plan: Plan, done: Done) -> Report:
    """Return what is found so far."""
    lines = measure.lines(plan, done)
    grid = {_place(line): line for line in lines}
    judged = [verdicts.judge(claim, plan.paper, grid, plan.tables) for claim in plan.paper.claims]
    return Report(
        plan=plan,
        lines=tuple(lines),
        verdicts=tuple(judged),
        absent=tuple(_absent(lines)),
    )


def nothing(report: Report) -> str:
    """Return what to say where nothing could be measured."""
    plan = report.plan
    what = ", ".join(named(number) for number in plan.tables)
    lines = [f"nothing of {plan.paper.name}, {what}, could be measured here."]
    lines += [f"{item.what}: {item.why}." for item in report.absent]
    if any(line.lacks == line.planned.cell.dataset for line in report.lines):
        first = next(
            cell.planned.cell.dataset for cell in report.lines if cell.planned.cell.dataset
        )
        lines.append(f"Another data set can stand for it: --dataset {first}=digits.")
    return "\n".join(lines)


def _absent(lines: Iterable[Line]) -> list[Absent]:
    """Return what could not be had, with the number of cells that it costs."""
    count: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if line.why is not None and (line.published is not None or line.planned.absent is None):
            count[line.lacks, line.why] += 1
    return [Absent(what, why, cells) for (what, why), cells in count.items()]


def _short_of_samples(plan: Plan, lines: Iterable[Line]) -> dict[str, tuple[int, int]]:
    """Return samples here and in the paper of data sets that are smaller than they should be."""
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
    key, *values = change
    before, after = (tuple(value) if isinstance(value, list) else value for value in values)
    return key, before, after


def _place(line: Line) -> tuple[str, str, str]:
    cell = line.planned.cell
    return cell.table, cell.row, cell.column


def _when(lines: Sequence[Line]) -> str:
    """Return after which round a figure was read, as the end of a sentence."""
    line = next(line for line in lines if line.values)
    cell, job = line.planned.cell, next(iter(line.planned.jobs.values()))
    if cell.figure is None or cell.figure.over != "last":
        return ""
    if cell.at is None:
        return ", after the last round"
    here = measure.round_of(cell.at, line.planned.rounds, job.config.train.rounds)
    stands = "" if here == cell.at else f", which stands for the paper's round {cell.at}"
    return f", after round {here}{stands}"
