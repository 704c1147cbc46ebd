"""Plan of the runs for tables of a paper: one for each method, data set and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flbench.algorithms import ALGORITHMS
from flbench.config.sources import Layer
from flbench.core.errors import ConfigError, did_you_mean
from flbench.jobs.job import Job
from flbench.reproduce import cells, library, request, supply
from flbench.reproduce.cells import TableCell
from flbench.reproduce.configurations import CellConfigs, Change, changes, fingerprint
from flbench.reproduce.request import ReproduceRequest
from flbench.reproduce.schema import PaperFacts
from flbench.reproduce.supply import DataSource


@dataclass(frozen=True)
class PlannedRun(Job):
    """A run that cells of the tables need.

    Its name is equal for runs with equal results, so that one of them is enough. Its method and
    data are those of the paper. The folder of the reference run is not set in its configuration.

    Attributes:
        table: The table, for the user.
        scaled: Changes of the small scale.
        changed: Further changes of the user's overrides.
        reference: Run that determines the confusable classes; None if no metric needs them.
        samples: Number of samples that the paper assigns to its clients; None if unknown.
    """

    table: str
    scaled: tuple[Change, ...]
    changed: tuple[Change, ...]
    reference: "PlannedRun | None" = None
    samples: int | None = None

    @property
    def title(self) -> str:
        """The run in words, for messages."""
        return f"{self.table}: {self.method} on {self.place}, seed {self.config.seed}"


@dataclass(frozen=True)
class PlannedCell:
    """A cell and the runs that measure it.

    Attributes:
        cell: Cell of a table.
        jobs: Runs by seed; empty if the cell cannot be measured.
        absent: Why the cell cannot be measured; None if it can.
        lacks: What is missing: a method, a data set or a metric; "" if `absent` is None.
        wanted: Whether the user requested its runs. Runs that were not requested are read if they
            exist.
        rounds: Number of rounds of the paper's run; 0 if unknown.
    """

    cell: TableCell
    jobs: Mapping[int, PlannedRun]
    absent: str | None
    lacks: str = ""
    wanted: bool = True
    rounds: int = 0


@dataclass(frozen=True)
class PaperPlan:
    """Cells and runs of a request.

    Attributes:
        request: Options of the user.
        paper: Facts of the paper.
        tables: Numbers of the requested tables.
        cells: Cells of these tables, without those of data sets that were not requested.
        jobs: Requested runs by name. Reference runs come first.
        seeds: Seeds of the runs.
        substitutes: Substitute of a data set, by the paper's name of the data set.
        notes: Notes for the user.
    """

    request: ReproduceRequest
    paper: PaperFacts
    tables: tuple[str, ...]
    cells: tuple[PlannedCell, ...]
    jobs: Mapping[str, PlannedRun]
    seeds: tuple[int, ...]
    substitutes: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())


def make(asked: ReproduceRequest) -> PaperPlan:
    """Plan the runs of a request. Nothing is run, and no samples are read.

    Args:
        asked: Options of the user.

    Raises:
        UserError: The paper, a table, a row or a data set does not exist, or a configuration key
            is wrong.
    """
    paper = library.load(asked.paper)
    numbers = request.tables(paper, asked.tables)
    given = request.overrides(asked)
    seeds = request.seeds(asked, paper, given)
    chosen, notes = supply.find(asked, paper, numbers, given)
    rows = request.rows(asked.algos, paper, numbers)
    planner = _Planner(paper, chosen, seeds, CellConfigs(asked, paper, given, chosen))
    planned = [
        planner.plan(cell, wanted=(cell.table, cell.row) in rows)
        for number in numbers
        for cell in cells.of_table(paper, number)
        if cell.dataset is None or cell.dataset in chosen
    ]
    planned = [planner.refer(item, planned) for item in planned]
    _check_keys(paper, planned, given)
    return PaperPlan(
        request=asked,
        paper=paper,
        tables=tuple(numbers),
        cells=tuple(planned),
        jobs=_jobs(planned),
        seeds=seeds,
        substitutes={key: s.substitute for key, s in chosen.items() if s.substitute},
        notes=tuple(notes),
    )


def _jobs(planned: Sequence[PlannedCell]) -> dict[str, PlannedRun]:
    """Return the requested runs, each once, with reference runs before those that need them."""
    jobs = [job for item in planned if item.wanted for job in item.jobs.values()]
    references = [job.reference for job in jobs if job.reference is not None]
    first = [job for job in jobs if job.reference is None]
    found: dict[str, PlannedRun] = {}
    for job in (*first, *references, *jobs):
        found.setdefault(job.name, job)
    return dict(sorted(found.items(), key=lambda item: item[1].reference is not None))


def _check_keys(paper: PaperFacts, planned: Sequence[PlannedCell], given: Layer) -> None:
    """Raise a ConfigError for a key `algorithm.*` that none of the requested methods has."""
    section = [key.partition(".")[2] for key in given if key.startswith("algorithm.")]
    methods = {str(item.cell.method) for item in planned if item.jobs and item.wanted}
    algos = {paper.methods[method].algo for method in methods}
    known = {key for algo in algos for key in ALGORITHMS.find(algo).Config.model_fields}
    for key in section if algos else ():
        if key not in known:
            raise ConfigError(
                f"`algorithm.{key}` is not a key of any of {', '.join(sorted(algos))}."
                f"{did_you_mean(key, known)}"
            )


class _Planner:
    """Finds the runs of cells.

    Args:
        paper: Facts of the paper.
        chosen: Source of each data set, by the paper's name of the data set.
        seeds: Seeds of the runs.
        cases: Configurations of cells.
    """

    def __init__(
        self,
        paper: PaperFacts,
        chosen: Mapping[str, DataSource],
        seeds: Sequence[int],
        cases: CellConfigs,
    ) -> None:
        self._paper, self._chosen, self._seeds, self._cases = paper, chosen, seeds, cases
        self._methods = set(ALGORITHMS.load())

    def plan(self, cell: TableCell, *, wanted: bool) -> PlannedCell:
        """Return a cell with its runs, or with the reason why it cannot be measured."""
        if cell.reason is not None:
            return PlannedCell(cell, {}, cell.reason, cell.lacks, wanted)
        algo = self._paper.methods[str(cell.method)].algo
        if algo not in self._methods:
            why = f"this version of flbench has no method `{algo}`"
            return PlannedCell(cell, {}, why, str(cell.method), wanted)
        if (no_data := self._chosen[str(cell.dataset)].absent) is not None:
            return PlannedCell(cell, {}, no_data, str(cell.dataset), wanted)
        case, jobs = self._cases.of(cell), {}
        scaled, changed = changes(case)
        for repetition, seed in enumerate(self._seeds):
            config = case.config.altered(seed=seed)
            jobs[seed] = PlannedRun(
                name=fingerprint(config),
                method=cell.row,
                data=self._data(cell),
                setting=", ".join(f"{key}={value}" for key, value in cell.variant.items()),
                repetition=repetition,
                config=config,
                origins={**case.origins, "seed": "--seeds"},
                table=cells.named(cell.table).lower(),
                scaled=scaled,
                changed=changed,
                samples=self._paper.datasets[str(cell.dataset)].samples,
            )
        return PlannedCell(cell, jobs, None, wanted=wanted, rounds=case.paper.train.rounds)

    def refer(self, item: PlannedCell, planned: Sequence[PlannedCell]) -> PlannedCell:
        """Return a cell whose runs refer to the run that determines the confusable classes.

        A cell of a table without a reference row does not change. The run of the reference row
        finds the classes in its own validation parts.
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
            name = f"{job.name} {reference.name}"
            same = cell.row == row
            jobs[seed] = reference if same else replace(job, reference=reference, name=name)
        return replace(item, jobs=jobs)

    def _data(self, cell: TableCell) -> str:
        """Return the name of a cell's data set, with its substitute if there is one."""
        source = self._chosen[str(cell.dataset)]
        return f"{cell.dataset} ({source.substitute})" if source.substitute else str(cell.dataset)


def _finding_its_own(job: PlannedRun) -> PlannedRun:
    """Return a run that finds the confusable classes in its own validation parts."""
    config = job.config.altered(evaluation=job.config.evaluation.altered(confusable="own"))
    return replace(job, config=config, name=fingerprint(config))
