"""What is to be run for tables of a paper: one configuration for each method, data set and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flbench.algorithms import ALGORITHMS
from flbench.config.schema import Config
from flbench.config.sources import Layer
from flbench.core.errors import ConfigError, did_you_mean
from flbench.reproduce import cells, library, request, supply
from flbench.reproduce.cells import Cell
from flbench.reproduce.configurations import Cases, Change, changes, fingerprint
from flbench.reproduce.request import Request
from flbench.reproduce.schema import Paper
from flbench.reproduce.supply import Source


@dataclass(frozen=True)
class Job:
    """A run that is needed.

    Attributes:
        key: of what makes its figures; equal keys, one run.
        title: for people.
        config: resolved, but for the reference.
        origins: of its keys.
        scaled: what the small scale changes.
        changed: what the user's overrides change besides.
        reference: the run that says which classes are confusable; None if nothing asks.
        samples: that the paper deals to its clients; None if unknown.
    """

    key: str
    title: str
    config: Config
    origins: Mapping[str, str]
    scaled: tuple[Change, ...]
    changed: tuple[Change, ...]
    reference: "Job | None" = None
    samples: int | None = None


@dataclass(frozen=True)
class Planned:
    """A cell and the runs that measure it.

    Attributes:
        cell: of the table.
        jobs: by seed; empty where it cannot be measured.
        absent: why it cannot; None if it can.
        lacks: what is missing then: a method, a data set, a figure.
        wanted: whether its runs were asked for; others are read where they exist.
        rounds: of the paper's run; 0 if unknown.
    """

    cell: Cell
    jobs: Mapping[int, Job]
    absent: str | None
    lacks: str = ""
    wanted: bool = True
    rounds: int = 0


@dataclass(frozen=True)
class Plan:
    """All that a request needs.

    Attributes:
        request: of the user.
        paper: its facts.
        tables: their numbers.
        cells: of the tables, those of other data sets left out.
        jobs: to run, by key, references first.
        seeds: of the runs.
        substitutes: by the paper's name of a data set, what stands for it.
        notes: what the user must know.
    """

    request: Request
    paper: Paper
    tables: tuple[str, ...]
    cells: tuple[Planned, ...]
    jobs: Mapping[str, Job]
    seeds: tuple[int, ...]
    substitutes: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())


def make(asked: Request) -> Plan:
    """Return what a request needs; nothing is run and no samples are read.

    Raises: UserError for names that are not there and for keys that are wrong.
    """
    paper = library.load(asked.paper)
    numbers = request.tables(paper, asked.tables)
    given = request.overrides(asked)
    seeds = request.seeds(asked, paper, given)
    chosen, notes = supply.find(asked, paper, numbers, given)
    rows = request.rows(asked.algos, paper, numbers)
    planner = _Planner(paper, chosen, seeds, Cases(asked, paper, given, chosen))
    planned = [
        planner.plan(cell, wanted=(cell.table, cell.row) in rows)
        for number in numbers
        for cell in cells.of_table(paper, number)
        if cell.dataset is None or cell.dataset in chosen
    ]
    planned = [planner.refer(item, planned) for item in planned]
    _check_keys(paper, planned, given)
    return Plan(
        request=asked,
        paper=paper,
        tables=tuple(numbers),
        cells=tuple(planned),
        jobs=_jobs(planned),
        seeds=seeds,
        substitutes={key: s.substitute for key, s in chosen.items() if s.substitute},
        notes=tuple(notes),
    )


def _jobs(planned: Sequence[Planned]) -> dict[str, Job]:
    """Return the runs that are asked for, each once, those that others refer to first."""
    jobs = [job for item in planned if item.wanted for job in item.jobs.values()]
    references = [job.reference for job in jobs if job.reference is not None]
    first = [job for job in jobs if job.reference is None]
    found: dict[str, Job] = {}
    for job in (*first, *references, *jobs):
        found.setdefault(job.key, job)
    return dict(sorted(found.items(), key=lambda item: item[1].reference is not None))


def _check_keys(paper: Paper, planned: Sequence[Planned], given: Layer) -> None:
    """Raise a ConfigError for a method's key in the overrides that none of the methods has."""
    section = given.tree.get("algorithm")
    methods = {str(item.cell.method) for item in planned if item.jobs and item.wanted}
    algos = {paper.methods[method].algo for method in methods}
    known = {key for algo in algos for key in ALGORITHMS.find(algo).Config.model_fields}
    for key in section if isinstance(section, dict) and algos else ():
        if key not in known:
            raise ConfigError(
                f"`algorithm.{key}` is a key of none of {', '.join(sorted(algos))}."
                f"{did_you_mean(key, known)}"
            )


class _Planner:
    """Finds the runs of cells."""

    def __init__(
        self, paper: Paper, chosen: Mapping[str, Source], seeds: Sequence[int], cases: Cases
    ) -> None:
        self._paper, self._chosen, self._seeds, self._cases = paper, chosen, seeds, cases
        self._methods = set(ALGORITHMS.load())

    def plan(self, cell: Cell, *, wanted: bool) -> Planned:
        """Return a cell with its runs, or with the reason why there are none."""
        if cell.reason is not None:
            return Planned(cell, {}, cell.reason, cell.lacks, wanted)
        algo = self._paper.methods[str(cell.method)].algo
        if algo not in self._methods:
            why = f"this version of flbench has no method `{algo}`"
            return Planned(cell, {}, why, str(cell.method), wanted)
        if (no_data := self._chosen[str(cell.dataset)].absent) is not None:
            return Planned(cell, {}, no_data, str(cell.dataset), wanted)
        case, jobs = self._cases.of(cell), {}
        scaled, changed = changes(case)
        for seed in self._seeds:
            config = case.config.model_copy(update={"seed": seed})
            jobs[seed] = Job(
                key=fingerprint(config),
                title=self._title(cell, seed),
                config=config,
                origins={**case.origins, "seed": "--seeds"},
                scaled=scaled,
                changed=changed,
                samples=self._paper.datasets[str(cell.dataset)].samples,
            )
        return Planned(cell, jobs, None, wanted=wanted, rounds=case.paper.train.rounds)

    def refer(self, item: Planned, planned: Sequence[Planned]) -> Planned:
        """Return a cell whose runs know which run says what is confusable, where that is asked.

        The run of the reference row finds the classes in its own validation part.
        """
        cell = item.cell
        row = self._paper.tables[cell.table].confusable
        if row is None or not item.jobs:
            return item
        place = (cell.table, row, cell.column)
        of_row = next(p for p in planned if (p.cell.table, p.cell.row, p.cell.column) == place)
        jobs = {}
        for seed, job in item.jobs.items():
            if seed not in of_row.jobs:
                jobs[seed] = job
                continue
            reference = _finding_its_own(of_row.jobs[seed])
            key = f"{job.key} {reference.key}"
            same = cell.row == row
            jobs[seed] = reference if same else replace(job, reference=reference, key=key)
        return replace(item, jobs=jobs)

    def _title(self, cell: Cell, seed: int) -> str:
        source = self._chosen[str(cell.dataset)]
        data = f"{cell.dataset} ({source.substitute})" if source.substitute else str(cell.dataset)
        variant = "".join(f", {key}={value}" for key, value in cell.variant.items())
        return f"{cells.named(cell.table).lower()}: {cell.row} on {data}{variant}, seed {seed}"


def _finding_its_own(job: Job) -> Job:
    """Return a run that finds the confusable classes in its own validation part."""
    evaluation = job.config.evaluation.model_copy(update={"confusable": "own"})
    config = job.config.model_copy(update={"evaluation": evaluation})
    return replace(job, config=config, key=fingerprint(config))
