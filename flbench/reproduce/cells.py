"""The cells of a paper's tables, each with all settings that hold for it."""

from dataclasses import dataclass
from typing import Any

from flbench.reproduce.schema import Column, Figure, Paper, Row, Settings, Table


@dataclass(frozen=True)
class Cell:
    """A figure that a paper prints, or that its claims need.

    Attributes:
        table: number of its table.
        row: its label.
        column: its label.
        dataset: the paper's name; None where nothing can be measured.
        method: the paper's name; None where nothing can be measured.
        figure: how it is read; None where nothing can be measured.
        at: the round of the paper's run after which it is read; None for the last one.
        published: what the paper prints; None for nothing.
        settings: of the paper beside its preset, `algorithm.*` included.
        small: settings of the small scale, over the paper's.
        variant: the settings of the column alone, which tell its runs from those of others.
        reason: why flbench cannot measure it; None if it can.
        lacks: what cannot be measured then: the table, a row, a column, a figure.
    """

    table: str
    row: str
    column: str
    dataset: str | None
    method: str | None
    figure: Figure | None
    at: int | None
    published: float | None
    settings: Settings
    small: Settings
    variant: Settings
    reason: str | None
    lacks: str


def of_table(paper: Paper, number: str) -> list[Cell]:
    """Return the cells of a table, column by column."""
    table = paper.tables[number]
    return [
        _cell(paper, number, table, (row_label, row), (column_label, column), row.values[k])
        for k, (column_label, column) in enumerate(table.columns.items())
        for row_label, row in table.rows.items()
    ]


def _cell(
    paper: Paper,
    number: str,
    table: Table,
    named_row: tuple[str, Row],
    named_column: tuple[str, Column],
    published: float | None,
) -> Cell:
    (row_label, row), (column_label, column) = named_row, named_column
    dataset = _name(column.dataset, column_label, paper.datasets) or table.dataset
    name = _name(column.figure, column_label, paper.figures) or table.figure
    method = _name(row.method, row_label, paper.methods)
    figure = None if name is None else paper.figures[name]
    settings: Settings = {}
    small: Settings = dict(paper.small)
    if dataset is not None:
        settings |= paper.datasets[dataset].settings
        small |= paper.datasets[dataset].small
    settings |= table.settings | column.settings
    small |= table.small | column.small
    if method is not None:
        keys = paper.methods[method]
        settings |= _of_method(keys.keys | keys.by_dataset.get(dataset or "", {}))
        small |= _of_method(keys.small)
    here = named(number)
    reasons: dict[str, str | None] = {
        here: table.reason,
        f"{here}, {row_label}": row.reason,
        f"{here}, {column_label}": column.reason,
        str(name): None if figure is None else figure.reason,
    }
    lacks = next((what for what, reason in reasons.items() if reason), "")
    return Cell(
        table=number,
        row=row_label,
        column=column_label,
        dataset=dataset,
        method=method,
        figure=figure,
        at=column.at,
        published=published,
        settings=settings | row.settings,
        small=small | row.small,
        variant=dict(column.settings),
        reason=reasons.get(lacks),
        lacks=lacks,
    )


def named(number: str) -> str:
    """Return a table's name in headings."""
    return f"Table {number}" if number.isdecimal() else number.capitalize()


def _name(given: str | None, label: str, known: dict[str, Any]) -> str | None:
    """Return what a row or column names: what it says, or its label where that is a name."""
    return given or (label if label in known else None)


def _of_method(keys: Settings) -> Settings:
    return {f"algorithm.{key}": value for key, value in keys.items()}
