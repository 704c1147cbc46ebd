"""What the data file of a paper holds: published figures, and how to measure their like here.

Rows compete with one another and columns say where: a cell of a table is measured by the runs of
its row's method on its column's data set, of which its column's figure is read.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Settings = dict[str, Any]
"""Values by dotted keys of the configuration: `{"train.rounds": 200}`."""


class Facts(BaseModel):
    """Base of all facts: frozen, unknown keys refused, no NaN and no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSet(Facts):
    """A data set of a paper; its key is the paper's name for it.

    Attributes:
        name: flbench's name.
        samples: that are dealt to the clients, validation and test parts included.
        settings: that hold for this data set alone.
        small: the like at small scale.
    """

    name: str
    samples: int | None = None
    settings: Settings = {}
    small: Settings = {}


class Method(Facts):
    """A method of a paper; its key is the paper's name for it.

    Attributes:
        algo: flbench's name.
        keys: of the method, as the paper has them; what is not here is the method's default.
        by_dataset: further keys for one data set.
        small: keys that take other values at small scale.
    """

    algo: str
    keys: Settings = {}
    by_dataset: dict[str, Settings] = {}
    small: Settings = {}


class Figure(Facts):
    """A figure of a paper; its key is the paper's name for it.

    Attributes:
        what: our definition of it, in words.
        unit: of the published numbers.
        split: of the lines of metrics.csv; None takes all.
        protocol: of these lines.
        metric: of these lines; several are added up.
        over: the last round, or the mean or variance over judged rounds, or the sum over all.
        per: a metric whose sum divides a sum.
        divide: a number that divides it too.
        reason: why flbench cannot measure it; None if it can.
    """

    what: str
    unit: Literal["percent", "percent^2", "KiB", "MB", "rounds"] = "percent"
    split: str | None = "test"
    protocol: str = "personal"
    metric: Annotated[
        tuple[str, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)
    ] = ()
    over: Literal["last", "mean", "variance", "sum"] = "last"
    per: str | None = None
    divide: float = Field(1.0, gt=0)
    reason: str | None = None

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if not self.metric and self.reason is None:
            raise ValueError("a figure needs a metric, or a reason why it has none")
        return self

    @property
    def scale(self) -> float:
        """What a figure of a run, a fraction or bytes, is multiplied with."""
        return {"percent": 100.0, "percent^2": 1e4, "KiB": 1 / 1024, "MB": 1e-6, "rounds": 1.0}[
            self.unit
        ]


class Row(Facts):
    """A row of a table.

    Attributes:
        values: published, one for each column; None where the paper prints none.
        method: the paper's name; None if the row's label is that name.
        settings: that hold for this row alone.
        small: the like at small scale.
        reason: why flbench cannot measure it; None if it can.
    """

    values: tuple[float | None, ...]
    method: str | None = None
    settings: Settings = {}
    small: Settings = {}
    reason: str | None = None


class Column(Facts):
    """A column of a table.

    Attributes:
        dataset: the paper's name; None for the table's, or if the column's label is that name.
        figure: likewise.
        at: the round of the paper's run after which the figure is read; None for its last one.
        settings: that hold for this column alone.
        small: the like at small scale.
        reason: why flbench cannot measure it; None if it can.
    """

    dataset: str | None = None
    figure: str | None = None
    at: int | None = Field(None, ge=1)
    settings: Settings = {}
    small: Settings = {}
    reason: str | None = None


class Footnote(Facts):
    """What a reader of a table must know, of all of it or of a row, a column, a cell."""

    text: str
    row: str | None = None
    column: str | None = None


def _columns(value: object) -> object:
    """Read a list of labels as columns without more to say."""
    return {str(label): {} for label in value} if isinstance(value, list) else value


def _rows(value: object) -> object:
    """Read a bare list of numbers as a row's values."""
    if not isinstance(value, dict):
        return value
    return {
        label: {"values": row} if isinstance(row, list) else row for label, row in value.items()
    }


class Table(Facts):
    """A table, or figures that the text gives.

    Attributes:
        caption: what it shows.
        dataset: of all its columns that name none.
        figure: likewise.
        confusable: the row whose runs say which classes are confusable; None if nothing asks.
        settings: that hold for this table alone.
        small: the like at small scale.
        columns: by label.
        rows: by label.
        footnotes: to it.
        reason: why flbench cannot measure it; None if it can.
    """

    caption: str
    dataset: str | None = None
    figure: str | None = None
    confusable: str | None = None
    settings: Settings = {}
    small: Settings = {}
    columns: Annotated[dict[str, Column], BeforeValidator(_columns)] = Field(min_length=1)
    rows: Annotated[dict[str, Row], BeforeValidator(_rows)] = Field(min_length=1)
    footnotes: tuple[Footnote, ...] = ()
    reason: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for label, row in self.rows.items():
            if len(row.values) != len(self.columns):
                raise ValueError(
                    f"row `{label}` has {len(row.values)} values for {len(self.columns)} columns"
                )
        for note in self.footnotes:
            _known(note.row, self.rows, "row of a footnote")
            _known(note.column, self.columns, "column of a footnote")
        _known(self.confusable, self.rows, "row `confusable`")
        return self


class Claim(Facts):
    """A sentence of a paper's text: a row lies above or below others by so much.

    Attributes:
        text: the claim, in our words.
        table: that has its figures; None where no table has.
        row: that it is about.
        columns: the claim is about the mean over these columns; `all` of the table's.
        over: rows that it is compared with, the best of them; `all` for all others; none compares
            the row with itself at `over_column`.
        over_column: the column of what it is compared with; None for the same one.
        above: by how much the row lies above them, at least, in the figure's unit.
        below: by how much it lies below them.
        relative: `above` and `below` are percent of what it is compared with.
        note: what a reader must know.
        reason: why it cannot be judged with flbench; None if it can.
    """

    text: str
    table: str | None = None
    row: str | None = None
    columns: Literal["all"] | tuple[str, ...] = ()
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
            raise ValueError("a claim says `above` or `below`, one of the two")
        if not self.over and self.over_column is None:
            raise ValueError("a claim compares with `over` or `over_column`")
        return self

    @property
    def bound(self) -> float:
        """The difference that is claimed: positive for above, negative for below."""
        return self.above if self.above is not None else -(self.below or 0.0)


class Paper(Facts):
    """The facts of a paper.

    Attributes:
        name: printed name of its method.
        title: in English.
        authors: of it.
        venue: where it appeared.
        doi: of it.
        source: a remark on the text that was read; None for the paper itself.
        seeds: runs with different seeds that the paper averages, or what we take where it does not
            say.
        small: settings of the small scale that hold for all tables.
        choices: what the paper leaves open, and what the preset takes.
        contradictions: where it contradicts itself or what is known, of the whole paper.
        datasets, methods, figures: by the paper's names.
        tables: by number; the first is the main one.
        claims: of its text.
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
    methods: dict[str, Method]
    figures: dict[str, Figure]
    tables: dict[str, Table]
    claims: tuple[Claim, ...]

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        for number, table in self.tables.items():
            where = f"table {number}"
            for label, row in table.rows.items():
                name = row.method or (label if label in self.methods else None)
                if name is None and not (row.reason or table.reason):
                    raise ValueError(f"{where}: row `{label}` names no method")
                _known(name, self.methods, f"{where}: method")
            for label, column in table.columns.items():
                for kind, known in (("dataset", self.datasets), ("figure", self.figures)):
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
        if claim.table is None:
            return
        _known(claim.table, self.tables, "table of a claim")
        table = self.tables[claim.table]
        rivals = () if isinstance(claim.over, str) else claim.over
        for row in (claim.row, *rivals):
            _known(row, table.rows, f"table {claim.table}: row of a claim")
        columns = () if isinstance(claim.columns, str) else claim.columns
        for column in (*columns, claim.over_column):
            _known(column, table.columns, f"table {claim.table}: column of a claim")


def _known(name: str | None, known: dict[str, Any], what: str) -> None:
    if name is not None and name not in known:
        raise ValueError(f"{what}: there is no `{name}`; known: {', '.join(known)}")
