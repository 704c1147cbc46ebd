"""The tables of a run folder as DataFrames with fixed columns and types."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from flbench.core import files
from flbench.core.documents import as_data_error
from flbench.core.own_names import as_written
from flbench.core.text import read_cell
from flbench.metrics.names import are_balanced
from flbench.results.metrics_file import HEADER
from flbench.results.summary import ROUNDING, SHARES

if TYPE_CHECKING:
    import pandas as pd

Moment = Literal["best", "last"]
"""The best round of a run by validation, or its last round."""

MOST: Final = 10**12
"""Largest number of a class, a client or of samples in a table."""

PER_CLASS: Final = {
    "moment": "str",
    "class": "int64",
    "name": "str",
    "train_support": "int64",
    "test_support": "int64",
    "precision": "float64",
    "recall": "float64",
    "f1": "float64",
    "rare": "bool",
    "confusable": "bool",
}
"""Columns of `Run.per_class` with their types."""

CLIENTS: Final = {
    "moment": "str",
    "client": "int64",
    "name": "str",
    "shift": "str",
    "train_size": "int64",
    "test_size": "int64",
    "classes": "int64",
    "trainings": "int64",
    "steps": "int64",
    "validation_size": "int64",
}
"""Columns of `Run.clients` with their types; the others are metrics, float64."""

METRICS: Final = dict(zip(HEADER, ("int64", "str", "str", "str", "float64"), strict=True))
"""Columns of `Run.metrics` with their types."""

CONFUSION: Final = {"split": "str", "true": "int64", "predicted": "int64", "count": "int64"}
"""Columns of `Run.confusion` with their types."""

SOMETIMES: Final = ("name", "shift", "steps", "validation_size")
"""Columns of `CLIENTS` that a file may lack: clients need not have names or shifts, and archives of
earlier versions have neither steps nor validation parts."""


def read(path: Path, columns: Mapping[str, str], optional: Sequence[str] = ()) -> "pd.DataFrame":
    """Read a CSV file of a run folder.

    Args:
        path: The file. If it does not exist, which is so while a run is unfinished, the DataFrame
            has no rows.
        columns: Columns with their types. Further columns of the file are numbers, float64, and an
            empty cell of them is NaN.
        optional: Those of the columns that the file may lack; the DataFrame lacks them then too.
    """
    import pandas as pd

    if not path.is_file():
        empty = pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})
        return empty.drop(columns=list(optional))
    with as_data_error(path):
        text = files.read_text(path)
        header = next(csv.reader([text.partition("\n")[0]]), [])
        if missing := [name for name in columns if name not in (*header, *optional)]:
            raise ValueError(f"it has no column {missing[0]}")
        kinds = {name: columns.get(name, "float64") for name in header}
        try:
            frame = pd.read_csv(
                StringIO(text),
                dtype={name: "int64" if kind == "bool" else kind for name, kind in kinds.items()},
                # Without the default markers of missing values: a class may have the name `NA`.
                keep_default_na=False,
                na_values={name: [""] for name, kind in kinds.items() if kind == "float64"},
            )
        except ValueError as error:
            raise ValueError(f"a cell is not of the type of its column: {error}") from error
        for name, kind in kinds.items():
            if kind == "str":
                names = {text: as_written(read_cell(text), "a name") for text in frame[name]}
                if any(text != written for text, written in names.items()):
                    frame[name] = frame[name].map(names).astype("str")
            elif kind == "bool":
                frame[name] = frame[name].astype("bool")
        return frame


def classes(path: Path) -> "pd.DataFrame":
    """Return the rows of a per_class.csv for the best and for the last round.

    A class without test samples has neither recall nor F1; in archives of the board both are 0.

    Raises:
        DataError: The file is damaged: a class is there twice, or a number is out of range.
    """
    table = read(path, PER_CLASS)
    with as_data_error(path):
        _check(table, "class", ("train_support", "test_support"), ("precision", "recall", "f1"))
    table.loc[table["test_support"] == 0, ["recall", "f1"]] = np.nan
    if len(table) and are_balanced(table["train_support"].tolist()):
        table["rare"] = False  # archives of the board have marks of balanced classes
    return both_moments(table)


def clients(path: Path, scores: Sequence[str]) -> "pd.DataFrame":
    """Return the rows of a clients.csv for the best and for the last round.

    Args:
        path: The file.
        scores: Metrics that it has for each client; see `reading.client_scores`.

    Returns:
        The rows, with names if the clients have any.

    Raises:
        DataError: The file is damaged: a client is there twice, or a number is out of range.
    """
    if not path.is_file():
        return read(path, CLIENTS, SOMETIMES if "accuracy" in scores else (*SOMETIMES, "classes"))
    columns = CLIENTS | dict.fromkeys(scores, "float64")
    table = read(path, columns, optional=(*SOMETIMES, "classes", "trainings"))
    with as_data_error(path):
        known = [name for name in scores if name in SHARES or name == "balanced_accuracy"]
        shares = [name for key in known for name in (key, f"validation_{key}") if name in table]
        sizes = ["train_size", "test_size", "validation_size", "classes"]
        _check(table, "client", [name for name in sizes if name in table], shares)
    return both_moments(table)


def new_clients(path: Path, *, has_classes: bool) -> "pd.DataFrame":
    """Return the rows of a new_clients.csv, which has those of clients.csv by `epochs`."""
    columns = {"moment": "str", "epochs": "int64", **CLIENTS}
    if not has_classes:
        del columns["classes"]
    return both_moments(read(path, columns, optional=SOMETIMES))


def _check(table: "pd.DataFrame", key: str, counts: Sequence[str], shares: Sequence[str]) -> None:
    """Raise a ValueError if a table has a number out of range, or an entry twice."""
    for name in (key, *counts):
        values = table[name].to_numpy()
        if len(values) and not 0 <= values.min() <= values.max() <= MOST:
            raise ValueError(f"a value of `{name}` is not in [0, {MOST:,}]")
    for name in shares:
        values = table[name].to_numpy()
        # All scores can be undefined.
        if not (np.isnan(values) | (values >= -ROUNDING) & (values <= 1 + ROUNDING)).all():
            raise ValueError(f"a value of `{name}` is not in [0, 1]")
    entries = [*zip(table["moment"], table[key], strict=True)]
    if len({*entries}) < len(entries):
        raise ValueError(f"a {key} is there twice")


def both_moments(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table with rows for the best and for the last round, whether or not they differ.

    The files of a run whose best round is its last one have rows for `last` alone.

    >>> import pandas as pd
    >>> both_moments(pd.DataFrame({"moment": ["last"], "accuracy": [0.5]}))["moment"].tolist()
    ['best', 'last']
    """
    import pandas as pd

    if len(table) == 0 or (table["moment"] == "best").any():
        return table
    return pd.concat([table.assign(moment="best"), table], ignore_index=True)
