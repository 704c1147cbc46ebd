"""Cells of a paper's tables, each with all settings that apply to it."""

from dataclasses import dataclass
from typing import Any

from flbench.reproduce.schema import Column, PaperFacts, PaperMetric, PaperRow, Settings, Table


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: a number that a paper prints, or that its claims need.

    Attributes:
        table: Number of the table.
        row: Label of the row.
        column: Label of the column.
        dataset: The paper's name of the data set; may be None if `reason` is given.
        method: The paper's name of the method; may be None if `reason` is given.
        metric: Metric of the cell; may be None if `reason` is given.
        at: Round of the paper's run after which the metric is read; None for the last round.
        published: Number that the paper prints; None if it prints none.
        settings: Settings of the paper that differ from its preset, with `algorithm.*`.
        small: Settings of the small scale, which override `settings`.
        variant: Settings of the column alone, for the title of its runs.
        reason: Why flbench cannot measure the cell; None if it can.
        lacks: What cannot be measured: a table, a row, a column or a metric; "" if `reason` is
            None.
    """

    table: str
    row: str
    column: str
    dataset: str | None
    method: str | None
    metric: PaperMetric | None
    at: int | None
    published: float | None
    settings: Settings
    small: Settings
    variant: Settings
    reason: str | None
    lacks: str


def of_table(paper: PaperFacts, number: str) -> list[TableCell]:
    """Return the cells of a table, column by column.

    A row with metrics of its own has cells in their columns alone.

    Args:
        paper: Facts of the paper.
        number: Number of the table.
    """
    table = paper.tables[number]
    return [
        _cell(paper, number, table, (row_label, row), (column_label, column), row.values[k])
        for k, (column_label, column) in enumerate(table.columns.items())
        for row_label, row in table.rows.items()
        if not row.metrics or column_label in row.metrics
    ]


def _cell(
    paper: PaperFacts,
    number: str,
    table: Table,
    named_row: tuple[str, PaperRow],
    named_column: tuple[str, Column],
    published: float | None,
) -> TableCell:
    """Return a cell; later settings override earlier ones: data set, table, column, method, row."""
    (row_label, row), (column_label, column) = named_row, named_column
    dataset = _name(column.dataset, column_label, paper.datasets) or table.dataset
    of_column = _name(column.metric, column_label, paper.metrics) or table.metric
    name = row.metrics.get(column_label, row.metric or of_column)
    method = _name(row.method, row_label, paper.methods)
    metric = None if name is None else paper.metrics[name]
    settings: Settings = {}
    small: Settings = dict(paper.small)
    if dataset is not None:
        settings |= paper.datasets[dataset].settings
        small |= paper.datasets[dataset].small
    settings |= table.settings | column.settings
    small |= table.small | column.small
    if method is not None:
        keys = paper.methods[method]
        settings |= keys.settings
        settings |= _of_method(keys.keys | keys.by_dataset.get(dataset or "", {}))
        small |= _of_method(keys.small)
    here = named(number)
    reasons: dict[str, str | None] = {
        here: table.reason,
        f"{here}, {row_label}": row.reason,
        f"{here}, {column_label}": column.reason,
        str(name): None if metric is None else metric.reason,
    }
    lacks = next((what for what, reason in reasons.items() if reason), "")
    return TableCell(
        table=number,
        row=row_label,
        column=column_label,
        dataset=dataset,
        method=method,
        metric=metric,
        at=column.at,
        published=published,
        settings=settings | row.settings,
        small=small | row.small,
        variant=dict(column.settings),
        reason=reasons.get(lacks),
        lacks=lacks,
    )


def named(number: str) -> str:
    """Return the name of a table for headings.

    >>> named("2"), named("figure-5")
    ('Table 2', 'Figure-5')
    """
    return f"Table {number}" if number.isdecimal() else number.capitalize()


def _name(given: str | None, label: str, known: dict[str, Any]) -> str | None:
    """Return the name that a row or column gives, or its label if that is a known name."""
    return given or (label if label in known else None)


def _of_method(keys: Settings) -> Settings:
    return {f"algorithm.{key}": value for key, value in keys.items()}
