"""Papers: published numbers, how the same quantities are measured here, and designs that do it.

The facts of a paper are `NAME.yaml`, its published numbers `NAME.csv`, and its setting
`presets/NAME.yaml`. Rows of a table are methods, columns are data sets and metrics. The columns of
one data set and one setting make a place: a comparison of the table's methods.
"""

import csv
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from flbench.algorithms import ALGORITHMS
from flbench.comparison.design import SECTION, Design, LabelledLayer
from flbench.config.resolve import as_data
from flbench.config.sources import Layer, from_file, from_values, has_value, merge, value_at
from flbench.core.documents import read_yaml
from flbench.core.errors import ConfigError, UserError, did_you_mean

FOLDER: Final = Path(__file__).parent
UNITS: Final = {"percent": 100.0, "percent^2": 1e4, "KiB": 1 / 1024, "MB": 1e-6, "rounds": 1.0}
"""Factors from the value of a run (a fraction, or bytes) to the unit of a published number."""

FREE: Final = ("engine.", "tracking.", "output.", "data.root", "evaluation.confusable")
"""Keys that change no result, but for `engine.precision`: a comparison is not told from another by
them."""

Settings = dict[str, Any]
"""Values by dotted keys of the configuration: `{"train.rounds": 200}`."""
Number = tuple[str, str, str]
"""Table, row and column of a number."""


class Facts(BaseModel):
    """Base of all facts: immutable, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PaperData(Facts):
    """A data set of a paper. Its key in the file is the paper's name for it.

    Attributes:
        name: Name of the data set in flbench.
        settings: Settings for this data set only.
    """

    name: str
    settings: Settings = {}


class PaperMethod(Facts):
    """A method of a paper. Its key in the file is the paper's name for it.

    Attributes:
        algo: Name of the method in flbench.
        keys: Keys `algorithm.*` with the paper's values. Other keys have the method's defaults.
        by_dataset: Further keys for single data sets.
        settings: Settings of other sections for this method only, by dotted keys.
    """

    algo: str
    keys: Settings = {}
    settings: Settings = {}
    by_dataset: dict[str, Settings] = {}


class PaperMetric(Facts):
    """A metric of a paper. Its key in the file is the paper's name for it.

    Attributes:
        what: Definition of the metric, as text.
        unit: Unit of the published numbers.
        split: Split of the lines of metrics.csv that are read; None for all splits.
        protocol: Protocol of these lines.
        metric: Names of the metrics of these lines; with `over: sum`, several are added up.
        over: Value of the `last` round, `mean`, `variance` or `max` over evaluated rounds, `sum`
            over all lines, or `target`: the round in which the run reaches
            `evaluation.target_accuracy`.
        rounds: Number of rounds at the end of the run that a mean is over; None for all rounds.
        beside: Metrics that are printed beside this one, in rows `ROW, METRIC` without a published
            number, where a row or its table names this metric.
        per: Metric whose sum divides the sum; None for none.
        divide: Number that divides the value.
        reason: Why flbench cannot measure the metric; None if it can.
    """

    what: str
    unit: Literal["percent", "percent^2", "KiB", "MB", "rounds"] = "percent"
    split: str | None = "test"
    protocol: str = "personal"
    metric: Annotated[
        tuple[str, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)
    ] = ()
    over: Literal["last", "mean", "variance", "max", "sum", "target"] = "last"
    rounds: int | None = Field(None, ge=1)
    beside: tuple[str, ...] = ()
    per: str | None = None
    divide: float = Field(1.0, gt=0)
    reason: str | None = None


class PaperRow(Facts):
    """A row of a table.

    Attributes:
        method: The paper's name of the method; None if the row's label is that name.
        metrics: Metrics of this row by the label of the column, instead of the columns' metrics. A
            row with such metrics has no numbers in the other columns.
        metric: The paper's name of the metric, in all columns; None for that of the column.
        settings: Settings for this row only.
        reason: Why flbench cannot measure the row; None if it can.
    """

    method: str | None = None
    metrics: dict[str, str] = {}
    metric: str | None = None
    settings: Settings = {}
    reason: str | None = None


class Column(Facts):
    """A column of a table.

    Attributes:
        dataset: The paper's name of the data set; None for the table's data set, or if the
            column's label is that name.
        metric: The paper's name of the metric; None for the table's metric, or if the column's
            label is that name.
        at: Round after which the metric is read; None for the last round.
        settings: Settings for this column only.
    """

    dataset: str | None = None
    metric: str | None = None
    at: int | None = Field(None, ge=1)
    settings: Settings = {}


def _labels(value: object) -> object:
    """Parse a list of labels as columns or rows without further keys."""
    return {str(label): {} for label in value} if isinstance(value, list) else value


class Table(Facts):
    """A table of a paper, or numbers from its text.

    Attributes:
        caption: Caption of the table.
        dataset: Data set of all columns that name none.
        metric: Metric of all columns that name none.
        confusable: Row whose runs determine the confusable classes; None if no metric needs them.
        settings: Settings for this table only.
        columns: Columns by label.
        rows: Rows by label.
        reason: Why flbench cannot measure the table; None if it can.
    """

    caption: str
    dataset: str | None = None
    metric: str | None = None
    confusable: str | None = None
    settings: Settings = {}
    columns: Annotated[dict[str, Column], BeforeValidator(_labels)] = Field(min_length=1)
    rows: Annotated[dict[str, PaperRow], BeforeValidator(_labels)] = Field(min_length=1)
    reason: str | None = None


class Claim(Facts):
    """A claim of a paper's text: a row lies above or below other rows by some amount.

    Attributes:
        text: The claim, in other words than the paper's.
        table: Table with the numbers of the claim; None if there is none.
        row: Row that the claim is about.
        measured_row: Row whose measured numbers decide the claim. None for `row`; another one where
            `row` is measured by another statistic than the rows that it is compared with.
        columns: Columns whose mean the claim is about; `all` for all columns of the table.
        each: The claim is about each of the columns instead of their mean.
        over: Rows that the row is compared with: the best of them counts. `all` for all other
            rows; empty to compare the row with itself at `over_column`.
        over_column: Column of the numbers that the row is compared with; None for the same column.
        above: Smallest amount by which the row lies above the others, in the metric's unit.
        below: Smallest amount by which the row lies below the others, in the metric's unit.
        relative: Whether `above` and `below` are percentages of the number compared with.
        note: Note for the reader.
        reason: Why flbench cannot decide the claim; None if it can.
    """

    text: str
    table: str | None = None
    row: str | None = None
    measured_row: str | None = None
    columns: Literal["all"] | tuple[str, ...] = ()
    each: bool = False
    over: Literal["all"] | tuple[str, ...] = ()
    over_column: str | None = None
    above: float | None = Field(None, ge=0)
    below: float | None = Field(None, ge=0)
    relative: bool = False
    note: str | None = None
    reason: str | None = None

    @property
    def bound(self) -> float:
        """The claimed difference: positive for `above`, negative for `below`."""
        return self.above if self.above is not None else -(self.below or 0.0)


class Paper(Facts):
    """The facts of a paper.

    Attributes:
        name: Name of the paper's method.
        title: Title in English.
        authors: Authors.
        venue: Journal or conference, with the year.
        doi: Digital object identifier.
        source: Note on the text that was read, if it is not the paper itself.
        seeds: Number of runs that the paper averages. If the paper does not state it, a choice of
            this file.
        choices: What the paper does not specify, and the choices of the preset.
        contradictions: Contradictions within the paper, or with known facts.
        datasets: Data sets by the paper's names.
        methods: Methods by the paper's names.
        metrics: Metrics by the paper's names.
        tables: Tables by number; the first one is the main table.
        claims: Claims of the text.
        published: Published numbers, as they are printed, by table, row and column.
    """

    name: str
    title: str
    authors: str
    venue: str
    doi: str
    source: str | None = None
    seeds: int = Field(ge=1)
    choices: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    datasets: dict[str, PaperData]
    methods: dict[str, PaperMethod]
    metrics: dict[str, PaperMetric]
    tables: dict[str, Table]
    claims: tuple[Claim, ...] = ()
    published: dict[Number, Decimal] = {}

    @field_validator("tables")
    @classmethod
    def _with_rows_beside(cls, tables: dict[str, Table], info: ValidationInfo) -> dict[str, Table]:
        """Add the rows of the metrics that are printed beside others."""
        metrics, found = info.data.get("metrics", {}), {}
        for number, table in tables.items():
            rows: dict[str, PaperRow] = {}
            for label, row in table.rows.items():
                rows[label], metric = row, metrics.get(row.metric or table.metric or "")
                for name in metric.beside if metric else ():
                    change = {"method": row.method or label, "metric": name}
                    rows[f"{label}, {name}"] = row.model_copy(update=change)
            found[number] = table.model_copy(update={"rows": rows})
        return found

    def columns_of(self, claim: Claim) -> list[str]:
        """Return the labels of the columns that a claim is about."""
        every = self.tables[str(claim.table)].columns
        return list(every if claim.columns == "all" else claim.columns)


def names() -> list[str]:
    """Return the names of all papers."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load(name: str) -> Paper:
    """Return the facts of a paper.

    Args:
        name: Name of the paper; case does not matter.

    Raises:
        UserError: There is no paper of this name.
    """
    key = name.casefold()
    if key not in names():
        raise UserError(
            f"there is no paper `{name}`.{did_you_mean(key, names())} Known: {', '.join(names())}."
        )
    with (FOLDER / f"{key}.csv").open(encoding="utf-8", newline="") as file:
        _, *lines = csv.reader(file)
    published = {(table, row, column): Decimal(n) for table, row, column, n in lines}
    facts = read_yaml(FOLDER / f"{key}.yaml", required=True)
    return Paper.model_validate({**facts, "published": published})


@dataclass(frozen=True)
class Cell:
    """A number of a table, and how it is measured.

    Attributes:
        table, row, column: Where it stands.
        metric: Metric; None if `reason` is given.
        at: Round after which it is read; None for the last one.
        dataset: The paper's name of the data set; None if `reason` is given.
        method: The paper's name of the method; None if `reason` is given.
        setting: Settings of data set, table and column.
        own: Settings of method and row, with `algorithm.name`.
        reason: Why it cannot be measured; None if it can.
    """

    table: str
    row: str
    column: str
    metric: PaperMetric | None = None
    at: int | None = None
    dataset: str | None = None
    method: str | None = None
    setting: Settings = field(default_factory=dict)
    own: Settings = field(default_factory=dict)
    reason: str | None = None

    @property
    def number(self) -> Number:
        """Table, row and column."""
        return self.table, self.row, self.column


def cells(paper: Paper, number: str) -> Iterator[Cell]:
    """Yield the cells of a table, column by column.

    Later settings override earlier ones: data set, table, column, method, row.
    """
    table = paper.tables[number]
    for column_label, column in table.columns.items():
        dataset = column.dataset or _known(column_label, paper.datasets) or table.dataset
        of_column = column.metric or _known(column_label, paper.metrics) or table.metric
        setting = {} if dataset is None else paper.datasets[dataset].settings
        setting = setting | table.settings | column.settings
        for row_label, row in table.rows.items():
            if row.metrics and column_label not in row.metrics:
                continue
            name = row.metrics.get(column_label, row.metric or of_column)
            method = row.method or _known(row_label, paper.methods)
            metric = None if name is None else paper.metrics[name]
            reason = table.reason or row.reason or (metric.reason if metric else None)
            own: Settings = {}
            if method is not None:
                keys = paper.methods[method]
                of_data = keys.keys | keys.by_dataset.get(dataset or "", {})
                own = keys.settings | {f"algorithm.{key}": v for key, v in of_data.items()}
                own = {"algorithm.name": keys.algo, **own, **row.settings}
            where = number, row_label, column_label
            yield Cell(*where, metric, column.at, dataset, method, setting, own, reason)


def _known(label: str, known: Collection[str]) -> str | None:
    return label if label in known else None


@dataclass
class Place:
    """Cells of tables that share a data set and a setting, which one comparison measures.

    Attributes:
        dataset: The paper's name of the data set.
        base: What all methods of the comparison share.
        methods: The methods of all tables by their labels, with what each one sets.
        rows: Labels of the methods by table, row and column of their cells.
        reference: Label of the method whose runs determine the confusable classes; None for none.
        changed: Keys that the user has changed: the paper's value and the one here.
    """

    dataset: str
    base: Layer
    methods: dict[str, Layer] = field(default_factory=dict)
    rows: dict[Number, str] = field(default_factory=dict)
    reference: str | None = None
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def label(self, cell: Cell, layer: Layer) -> str:
        """Return the label of the method of a cell, which is new if no row has the same setting."""
        for label, other in self.methods.items():
            if other.tree == layer.tree:
                return label
        label = cell.row if cell.row not in self.methods else f"{cell.row} ({cell.table})"
        self.methods[label] = layer
        return label

    def design(self, labels: Collection[str], seeds: int, comparison: Path | None = None) -> Design:
        """Return the design of the comparison of some of the methods.

        Args:
            labels: Labels of the methods.
            seeds: Number of repetitions.
            comparison: Folder of the comparison, with the finished runs of the reference.
        """
        classes, methods = "own", []
        if self.reference is not None and comparison is not None:
            [cell] = self.design([self.reference], 1).cells()
            name = cell.name.removesuffix(str(cell.config.seed)) + "{seed}"
            classes = str(comparison.absolute() / "cells" / name)
        for label in (one for one in self.methods if one in labels):
            layer = self.methods[label]
            if self.reference is not None:
                known = {"evaluation.confusable": "own" if label == self.reference else classes}
                layer = merge([layer, from_values(known, "flbench reproduce")])
            methods.append(LabelledLayer.of(label, layer, own=True))
        return Design(base=self.base, methods=tuple(methods), seeds=seeds)


def places(
    name: str, tables: Collection[str], given: Layer, dataset: str | None = None
) -> list[Place]:
    """Return the places of tables.

    Args:
        name: Name of the paper.
        tables: Numbers of the tables.
        given: What the user sets, which overrides the paper's values.
        dataset: A data set of the tables, to leave out the others; or another one, which is used in
            place of the first. None for all data sets of the tables.

    Raises:
        ConfigError: A key of the user is of no method of the tables, or is wrong.
    """
    paper = load(name)
    every = [cell for number in paper.tables for cell in cells(paper, number) if not cell.reason]
    measurable = [cell for number in tables for cell in every if cell.table == number]
    sets = dict.fromkeys(str(cell.dataset) for cell in measurable)
    only, data = None, {}
    if dataset is None and "data.path" in given:  # a file is one data set: it stands for the first
        only = next(iter(sets), None)
    elif dataset is not None:
        names_of = {one: {_plain(one), _plain(paper.datasets[one].name)} for one in sets}
        only = next((one for one in sets if _plain(dataset) in names_of[one]), None)
        if only is None:
            only, data = next(iter(sets), None), {"data.name": dataset}
    keys = {one: _keys(one) for one in {str(cell.own["algorithm.name"]) for cell in every}}
    known = {key for cell in measurable for key in keys[cell.own["algorithm.name"]]}
    for key in (one for one in given if one.startswith(SECTION) and one not in known):
        raise ConfigError(
            f"`{key}` ({given[key].origin}) is a key of none of the methods of these tables."
            f"{did_you_mean(key, known)} `--algo` chooses methods."
        )
    preset = from_file(FOLDER / "presets" / f"{name.casefold()}.yaml")
    shared = [layer.where(lambda key: not key.startswith(SECTION)) for layer in (preset, given)]
    changeable = [
        k for k in (*given, *data) if not (is_free(k) or k.startswith(("seed", "evaluation.every")))
    ]
    found: dict[str, Place] = {}
    for cell in every:  # labels of methods are the same whichever tables are asked for
        if only not in (None, cell.dataset):
            continue
        values = {"data.name": paper.datasets[str(cell.dataset)].name, **cell.setting}
        plain = merge([shared[0], from_values(values, paper.name)])
        base = merge([plain, from_values(data, "flbench reproduce"), shared[1]])
        key = json.dumps(base.tree, sort_keys=True, default=str)
        place = found.setdefault(key, Place(str(cell.dataset), base))
        of_paper = from_values(cell.own, paper.name)
        mine = {*cell.own, *keys[cell.own["algorithm.name"]]}
        layer = merge([of_paper, given.where(mine.__contains__)])
        label = place.label(cell, layer)
        if cell.table not in tables:
            continue
        if label not in place.rows.values():
            trees = [as_data(one).tree() for one in ([plain, of_paper], [base, layer])]
            for key in changeable:
                of, here = (value_at(t, key) if has_value(t, key) else None for t in trees)
                if of != here:
                    place.changed.setdefault(key, (of, here))
        place.rows[cell.number] = label
        if paper.tables[cell.table].confusable == cell.row:
            place.reference = label
    return [place for place in found.values() if place.rows]


def is_free(key: str) -> bool:
    """Return whether a key changes no result."""
    return key.startswith(FREE) and key != "engine.precision"


def _keys(algo: str) -> set[str]:
    """Return the dotted keys of a method, without its name."""
    return {f"{SECTION}{field}" for field in ALGORITHMS.find(algo).Config.model_fields} - {
        f"{SECTION}name"
    }


def _plain(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())
