"""Schema of a paper's YAML file: published numbers, and how to measure the same quantities here.

Rows of a table are methods, columns are data sets and metrics: a cell is measured by the runs of
its row's method on its column's data set, from which its column's metric is read.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

Settings = dict[str, Any]
"""Values by dotted keys of the configuration: `{"train.rounds": 200}`."""


class Facts(BaseModel):
    """Base of all facts: immutable, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSet(Facts):
    """A data set of a paper. Its key in the file is the paper's name for it.

    Attributes:
        name: Name of the data set in flbench.
        samples: Number of samples of all clients, with validation and test parts; None if unknown.
        settings: Settings for this data set only.
        small: Settings for this data set at small scale.
    """

    name: str
    samples: int | None = None
    settings: Settings = {}
    small: Settings = {}


class PaperMethod(Facts):
    """A method of a paper. Its key in the file is the paper's name for it.

    Attributes:
        algo: Name of the method in flbench.
        keys: Keys `algorithm.*` with the paper's values. Other keys have the method's defaults.
        by_dataset: Further keys for single data sets.
        settings: Settings of other sections for this method only, by dotted keys.
        small: Keys with other values at small scale.
    """

    algo: str
    keys: Settings = {}
    settings: Settings = {}
    by_dataset: dict[str, Settings] = {}
    small: Settings = {}


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

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if not self.metric and self.reason is None and self.over != "target":
            raise ValueError("a metric needs the key `metric`, or a `reason` why it has none")
        if self.rounds is not None and self.over != "mean":
            raise ValueError("`rounds` needs `over: mean`")
        return self

    @property
    def scale(self) -> float:
        """Factor from a run's value (a fraction, or bytes) to the unit."""
        return {"percent": 100.0, "percent^2": 1e4, "KiB": 1 / 1024, "MB": 1e-6, "rounds": 1.0}[
            self.unit
        ]


class PaperRow(Facts):
    """A row of a table.

    Attributes:
        values: Published numbers, one for each column; None where the paper prints none. A row
            without the key has none at all.
        method: The paper's name of the method; None if the row's label is that name.
        metrics: Metrics of this row by the label of the column, instead of the columns' metrics. A
            row with such metrics has no cells in the other columns.
        metric: The paper's name of the metric, in all columns; None for that of the column.
        settings: Settings for this row only.
        small: Settings for this row at small scale.
        reason: Why flbench cannot measure the row; None if it can.
    """

    values: tuple[float | None, ...]
    method: str | None = None
    metrics: dict[str, str] = {}
    metric: str | None = None
    settings: Settings = {}
    small: Settings = {}
    reason: str | None = None


class Column(Facts):
    """A column of a table.

    Attributes:
        dataset: The paper's name of the data set; None for the table's data set, or if the
            column's label is that name.
        metric: The paper's name of the metric; None for the table's metric, or if the column's
            label is that name.
        at: Round of the paper's run after which the metric is read; None for the last round.
        settings: Settings for this column only.
        small: Settings for this column at small scale.
        reason: Why flbench cannot measure the column; None if it can.
    """

    dataset: str | None = None
    metric: str | None = None
    at: int | None = Field(None, ge=1)
    settings: Settings = {}
    small: Settings = {}
    reason: str | None = None


class Footnote(Facts):
    """A footnote to a table, or to a row, a column or a cell of it.

    Attributes:
        text: Text of the footnote, without a full stop.
        row: Label of the row; None for all rows.
        column: Label of the column; None for all columns.
    """

    text: str
    row: str | None = None
    column: str | None = None


def _columns(value: object) -> object:
    """Parse a list of labels as columns without further keys."""
    return {str(label): {} for label in value} if isinstance(value, list) else value


def _rows(value: object) -> object:
    """Parse a list of numbers as the values of a row."""
    if not isinstance(value, dict):
        return value
    return {
        label: {"values": row} if isinstance(row, list) else row for label, row in value.items()
    }


class Table(Facts):
    """A table of a paper, or numbers from its text.

    Attributes:
        caption: Caption of the table.
        dataset: Data set of all columns that name none.
        metric: Metric of all columns that name none.
        confusable: Row whose runs determine the confusable classes; None if no metric needs them.
        settings: Settings for this table only.
        small: Settings for this table at small scale.
        columns: Columns by label.
        rows: Rows by label.
        footnotes: Footnotes to the table.
        reason: Why flbench cannot measure the table; None if it can.
    """

    caption: str
    dataset: str | None = None
    metric: str | None = None
    confusable: str | None = None
    settings: Settings = {}
    small: Settings = {}
    columns: Annotated[dict[str, Column], BeforeValidator(_columns)] = Field(min_length=1)
    rows: Annotated[dict[str, PaperRow], BeforeValidator(_rows)] = Field(min_length=1)
    footnotes: tuple[Footnote, ...] = ()
    reason: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_empty_values(cls, tree: Any) -> Any:
        """Give a row without `values` an empty value for each column."""
        rows = tree.get("rows") if isinstance(tree, dict) else None
        if not isinstance(rows, dict):
            return tree
        empty = [None] * len(tree.get("columns") or ())
        filled = {
            label: {"values": empty} | row if isinstance(row, dict) else row
            for label, row in rows.items()
        }
        return tree | {"rows": filled}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for label, row in self.rows.items():
            if len(row.values) != len(self.columns):
                raise ValueError(
                    f"row `{label}` has {len(row.values)} values for {len(self.columns)} columns"
                )
            for column in row.metrics:
                _known(column, self.columns, f"column of a metric of row `{label}`")
        for note in self.footnotes:
            _known(note.row, self.rows, "row of a footnote")
            _known(note.column, self.columns, "column of a footnote")
        _known(self.confusable, self.rows, "row `confusable`")
        return self


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

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.reason is not None:
            return self
        if self.table is None or self.row is None or not self.columns:
            raise ValueError("a claim needs a table, a row and columns, or a reason")
        if (self.above is None) == (self.below is None):
            raise ValueError("a claim needs either `above` or `below`")
        if not self.over and self.over_column is None:
            raise ValueError("a claim compares with `over` or `over_column`")
        return self

    @property
    def bound(self) -> float:
        """The claimed difference: positive for `above`, negative for `below`."""
        return self.above if self.above is not None else -(self.below or 0.0)


class PaperFacts(Facts):
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
        small: Settings of the small scale for all tables.
        choices: What the paper does not specify, and the choices of the preset.
        contradictions: Contradictions within the paper, or with known facts.
        datasets: Data sets by the paper's names.
        methods: Methods by the paper's names.
        metrics: Metrics by the paper's names.
        tables: Tables by number; the first one is the main table.
        claims: Claims of the paper's text.
    """

    name: str
    title: str
    authors: str
    venue: str
    doi: str
    source: str | None = None
    seeds: int = Field(ge=1)
    small: Settings
    choices: tuple[str, ...]
    contradictions: tuple[str, ...]
    datasets: dict[str, DataSet]
    methods: dict[str, PaperMethod]
    metrics: dict[str, PaperMetric]
    tables: dict[str, Table]
    claims: tuple[Claim, ...]

    @field_validator("tables")
    @classmethod
    def _with_rows_beside(cls, tables: dict[str, Table], info: ValidationInfo) -> dict[str, Table]:
        """Add the rows of the metrics that are printed beside others."""
        metrics: dict[str, PaperMetric] = info.data.get("metrics", {})
        return {number: _with_rows_beside(table, metrics) for number, table in tables.items()}

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for metric in self.metrics.values():
            for other in metric.beside:
                _known(other, self.metrics, "metric beside another")
        for number, table in self.tables.items():
            where = f"table {number}"
            for label, row in table.rows.items():
                name = row.method or (label if label in self.methods else None)
                if name is None and not (row.reason or table.reason):
                    raise ValueError(f"{where}: row `{label}` names no method")
                _known(name, self.methods, f"{where}: method")
                for name in row.metrics.values():
                    _known(name, self.metrics, f"{where}, row `{label}`: metric")
                _known(row.metric, self.metrics, f"{where}: metric")
            for label, column in table.columns.items():
                for kind, known in (("dataset", self.datasets), ("metric", self.metrics)):
                    name = getattr(column, kind) or (label if label in known else None)
                    name = name or getattr(table, kind)
                    if name is None and not (column.reason or table.reason):
                        raise ValueError(f"{where}: column `{label}` names no {kind}")
                    _known(name, known, f"{where}: {kind}")
        for method in self.methods.values():
            for name in method.by_dataset:
                _known(name, self.datasets, "data set of a method")
        for claim in self.claims:
            self._check(claim)
        return self

    def _check(self, claim: Claim) -> None:
        """Raise a ValueError if a claim names an unknown table, row or column."""
        if claim.table is None:
            return
        _known(claim.table, self.tables, "table of a claim")
        table = self.tables[claim.table]
        rivals = () if isinstance(claim.over, str) else claim.over
        for row in (claim.row, claim.measured_row, *rivals):
            _known(row, table.rows, f"table {claim.table}: row of a claim")
        columns = () if isinstance(claim.columns, str) else claim.columns
        for column in (*columns, claim.over_column):
            _known(column, table.columns, f"table {claim.table}: column of a claim")


def _with_rows_beside(table: Table, metrics: dict[str, PaperMetric]) -> Table:
    """Return a table with a row `ROW, METRIC` for each metric beside that of a row."""
    rows: dict[str, PaperRow] = {}
    for label, row in table.rows.items():
        rows[label] = row
        metric = metrics.get(row.metric or table.metric or "")
        for name in () if metric is None else metric.beside:
            values = (None,) * len(table.columns)
            change = {"method": row.method or label, "metric": name, "values": values}
            rows[f"{label}, {name}"] = row.model_copy(update=change)
    return table.model_copy(update={"rows": rows})


def _known(name: str | None, known: dict[str, Any], what: str) -> None:
    """Raise a ValueError if a name is given and unknown."""
    if name is not None and name not in known:
        raise ValueError(f"{what}: there is no `{name}`; known: {', '.join(known)}")
