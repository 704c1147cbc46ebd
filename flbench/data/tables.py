"""Tables of pandas: CSV, Parquet and Excel files, one for each client, and DataFrames.

All tables have the same columns, in any order. A column has numbers or words. Words are
categories, which are one-hot encoded later, when the training parts are known. An empty field,
`?`, or what pandas reads as missing, such as `NA` or `NaN`, in capitals or not, is a missing value;
it is imputed later, from the client's training part. The label is the last column, the column
`data.label=COLUMN`, or the result of a rule such as `data.label="num > 0"`.
"""

import csv
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError, did_you_mean, shortened
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder, client_names
from flbench.data.labels import NUMBER, number_texts, with_blocks

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES: Final = (".csv", ".tsv", ".parquet", ".xlsx")
MISSING: Final = frozenset(
    {"", "?", "na", "nan", "null", "none", "n/a", "#n/a", "#na", "#n/a n/a", "<na>", "-nan", "+nan"}
    | {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "nat"}
)
"""Texts of missing values in lower case: `?`, and those of pandas."""
MAX_WORDS: Final = 1_000  # of one column
FEW_WORDS: Final = 10  # a column with more words must have, on average, two values for each
CONTINUOUS: Final = 20  # a label with more values must have, on average, two rows for each
FEW: Final = 8  # fewer values are categories, and fewer consecutive numbers a coincidence
LARGEST: Final = float(np.finfo(np.float32).max)
RULE: Final = re.compile(r"(?P<column>.*)(?P<sign>>=|<=|==|>|<)(?P<bound>.*)", re.DOTALL)
SIGNS: Final[dict[str, Callable[..., Any]]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
}
UNNAMED: Final = re.compile(r"(Unnamed: \d+(_level_\d+)?|nan)?")  # as pandas names such columns
SPREADSHEET: Final = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)  # how fields are separated
DECIMAL_COMMA: Final = r"\s*[-+]?(\d*,(\d\d?|\d{4,}|\d+[eE][-+]?\d+)|(0|\d{4,})?,\d+)\s*"
"""A number with a decimal comma. `1,050` could also have a separator of thousands."""
THOUSANDS: Final = r"\s*[-+]?\d{1,3}(\.\d{3})+\s*"
FORMATTED: Final = re.compile(
    r"[-+(]?[$€£]? ?(\d{1,3}([ '.,\u00a0\u202f]\d{3})+|\d+)([.,]\d+)? ?[%$€£]?\)?", re.ASCII
)
"""Numbers as spreadsheets show them: with separators of thousands, a decimal comma, `%` or `$`."""
IDENTIFIER: Final = re.compile(
    r"(.*[\W_])?(ids?|idx|index|nr|no|row|rownum|uid|pid|mrn"
    r"|(patient|subject|person|participant|user|writer|speaker|device)s?"
    r"([\W_]*(id|nr|no|number|code|name))?)",
    re.IGNORECASE,
)
"""Names of columns that identify a row, or what several rows come from."""


def read(folder: Folder, config: DataConfig) -> Dataset:
    """Read the tables of all clients, in the order of their file names; one file has no clients.

    All rows belong to the train part: there is no common test set.

    Raises:
        DataError: A table cannot be used; the message names file, row and column.
    """
    entries = folder.ending(SUFFIXES)
    frames = {folder.place(entry): _frame(folder, entry) for entry in entries}
    for place, frame in frames.items():
        filled = np.flatnonzero(frame.notna().any(axis="columns"))
        frames[place] = frame[: filled[-1] + 1]  # spreadsheets add rows
    where, keys = str(folder.path), (config.label, config.drop, config.group)
    dataset = from_frames(frames, where, config.title, *keys, key="data.drop")
    notes = (*folder.left_out(entries, f"tables are {', '.join(SUFFIXES)} files"), *dataset.notes)
    if folder.names == [folder.path.name] and folder.path.is_file():
        return replace(dataset, groups=None, group_names=(), notes=notes)
    return replace(dataset, group_names=client_names(entries), notes=notes)


def from_frames(
    frames: "Mapping[str, pd.DataFrame]",
    where: str,
    name: str,
    label: str | None = None,
    drop: Sequence[str] = (),
    group: str | None = None,
    *,
    key: str = "drop",
) -> Dataset:
    """Return the data set of tables, one for each client.

    Args:
        frames: A table for each client, by what error messages call it.
        where: What error messages call all of them.
        name: Name of the data set.
        label: Column of the label, or a rule on a column; None for the last column that is left.
        drop: Columns that are left out, whatever they contain. At least one table has each of them.
        group: Column of what several rows come from, such as a patient, which is no feature; see
            `Dataset.blocks`.
        key: What error messages call `drop`.

    Raises:
        DataError: A table cannot be used; the message names table, row and column.
    """
    everywhere = dict.fromkeys(column for frame in frames.values() for column in frame.columns)
    table = _joined(frames, label, [column for column in drop if column != group], key)
    target = _target([column for column in table.columns if column != group], label)
    named = [("data.label", target), ("data.group", group), *((key, column) for column in drop)]
    for used, column in named:
        known = everywhere if used == key else dict.fromkeys(table.columns)
        if column is not None and column not in known:
            hint = did_you_mean(column, known) or f" Columns: {', '.join(known)}."
            why = f"`{key}` leaves out." if column in everywhere else f"{where} lacks.{hint}"
            raise DataError(f"`{used}` names the column `{shortened(column, 60)}`, which {why}")
    features = [column for column in table.columns if column not in (target, group)]
    if target is None or target == group or not features:
        raise DataError(
            f"{where}: the tables need a label, here `{target}`, and features beside it and"
            f" data.group={group}, and their columns are {', '.join(table.columns)}."
        )
    names, y = _classes(table[target], label, where)
    x, words, identifiers = np.empty((len(y), len(features)), np.float32), [], list[str]()
    for k, feature in enumerate(features):
        numbers, found = _numbers(table[feature])
        if _identifies(feature, numbers, found, [*map(len, frames.values())]):
            identifiers.append(f"`{feature}`")
        x[:, k] = numbers
        words.append(found)
    free = [one for k, one in enumerate(features) if _is_free(x[:, k], words[k])]
    if free:
        raise DataError(
            f"{where}: the column `{free[0]}` has {len(words[features.index(free[0])]):,} different"
            " words, too many for categories. Leave identifiers and free text out by"
            f' "{key}={free}" (what several rows come from, such as a patient, can be data.group),'
            f" or replace the words by at most {MAX_WORDS:,} categories or by numbers."
        )
    note = (
        f"data: {', '.join(identifiers)} counts or identifies rows, and the net gets it as a"
        f" feature. Leave it out by {key}; or, if several rows come from one patient, person or"
        " device, keep them in one part of a client by data.group."
    )
    dataset = Dataset(
        name,
        x,
        y,
        names,
        train=len(y),
        groups=np.repeat(np.arange(len(frames)), [*map(len, frames.values())]),
        group_names=tuple(frames),
        columns=tuple(features),
        words=tuple(words),
        dropped=tuple(drop),
        notes=(note,) * bool(identifiers),
    )
    if group is None:
        return dataset
    blocks = _texts(table[group]).to_numpy(dtype=object)
    return with_blocks(dataset, blocks, group, f"{where}, column `{group}`")


def features_of(
    folder: Folder, entry: str, columns: Sequence[str], words: Sequence[Sequence[str]]
) -> NDArray[np.float32]:
    """Read the features of one table, whose label is not known; see `features_in`.

    Raises:
        DataError: The table cannot be read, it lacks a column, or a value cannot be used.
    """
    return features_in(_frame(folder, entry), columns, words, folder.place(entry))


def features_in(
    frame: "pd.DataFrame", columns: Sequence[str], words: Sequence[Sequence[str]], where: str
) -> NDArray[np.float32]:
    """Return the features of a table, whose label is not known.

    Args:
        frame: The table. It may have further columns, in any order, which are not used.
        columns: Names of the columns to take.
        words: Words of each column; empty for columns of numbers.
        where: What the table is, as the beginning of an error message.

    Returns:
        Features [n, columns]; NaN for missing values. A column of words has the position of the
        word, and -1 for a word that is not among them.

    Raises:
        DataError: The table lacks a column, or a value cannot be used.
    """
    import pandas as pd

    frame = stripped(frame)
    for column in columns:
        if (count := list(frame.columns).count(column)) != 1:
            hint = did_you_mean(column, frame.columns) if not count else ""
            raise DataError(
                f"{where}: {count or 'no'} columns have the name `{column}`; the model takes"
                f" {', '.join(columns)}, each once.{hint} Fields of a column may be empty."
            )
    table = pd.concat({where: frame[[*columns]].reset_index(drop=True)})
    x = np.empty((len(frame), len(columns)), dtype=np.float32)
    for k, (column, known) in enumerate(zip(columns, words, strict=True)):
        if known:
            texts = _texts(table[column])
            position = {word: place for place, word in enumerate(known)}
            x[:, k] = texts.map(position).fillna(-1).where(texts.notna())
            continue
        x[:, k], others = _numbers(table[column])
        if others:
            raise DataError(
                f"{where}, column `{column}`: {shortened(others[0], 60)!r} is not a number."
            )
    return x


def _frame(folder: Folder, entry: str) -> "pd.DataFrame":
    """Return a table; fields of CSV files are texts."""
    import pandas as pd

    path, where = folder.file(entry), folder.place(entry)
    try:
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix.lower() == ".xlsx":
            rows = pd.read_excel(path, header=None)  # pandas would rename columns of equal names
            frame = rows[1:].set_axis(rows.iloc[0], axis="columns").infer_objects()
        else:
            frame = _csv(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not in UTF-8 ({error}). Save it as CSV in UTF-8.") from error
    except (ImportError, OSError, ValueError, LookupError, csv.Error, Warning) as error:
        # pandas' ParserError is a ValueError that names the line, and zipfile's a KeyError
        why = str(error).strip()
        raise DataError(f"{where} cannot be read as a table ({why}). Correct it.") from error
    frame = stripped(frame)
    _check_names(list(frame.columns), where)
    if not frame.notna().any(axis=None):
        raise DataError(f"{where} has no rows below its header. Add rows, or remove the file.")
    return frame


def stripped(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table whose names of columns are texts without blanks around them."""
    return frame.set_axis([str(column).strip() for column in frame.columns], axis="columns")


def _csv(path: Path) -> "pd.DataFrame":
    """Return a CSV file; its fields are separated by commas, semicolons, tabs or bars."""
    import pandas as pd

    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((line for line in file if line.strip()), "")
    separator = ","
    if named := SPREADSHEET.match(first):
        separator = named[1]
    elif len(next(csv.reader([first]), [])) == 1:
        separator = next((sign for sign in ";\t|" if sign in first), ",")
    form: dict[str, Any] = {
        "sep": separator,
        "dtype": str,
        "encoding": "utf-8-sig",
        "skiprows": 1 if named else 0,
        "skipinitialspace": True,
        "na_values": ["?"],
        "index_col": False,
    }
    # A column may have the name `NA`.
    names = pd.read_csv(path, header=None, nrows=1, na_filter=False, **form).iloc[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows wider than the names
        frame: pd.DataFrame = pd.read_csv(path, header=0, names=range(len(names)), **form)
    if len(names) > 1 and frame.iloc[:, -1].isna().any():  # pandas fills rows that are too short
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
            next(rows)  # the names of the columns, or `sep=;`
            short = [rows.line_num for row in rows if 0 < len(row) < len(names)]
        if short:
            raise ValueError(f"line {short[0]} has fewer fields than the names of the columns")
    fields = frame.stack().str if separator != "," else None
    if fields is not None and fields.fullmatch(DECIMAL_COMMA).any():
        if (found := fields.fullmatch(THOUSANDS)).any():
            raise ValueError(
                f"it has decimal commas, but also {frame.stack()[found].iloc[0]!r}, which may have"
                " a separator of thousands"
            )
        frame = frame.replace(r"^(\s*[-+]?\d*),(\d+([eE][-+]?\d+)?\s*)$", r"\1.\2", regex=True)
    frame.columns = pd.Index(names)
    return frame


def _check_names(header: list[str], where: str) -> None:
    """Raise a DataError if the names of the columns are the values of a first row.

    All of them are numbers then, or all but that of the label. Numbers that rise or fall from
    column to column, such as years or wavelengths, are names.
    """
    import pandas as pd

    values = _parsed(pd.Series(header, dtype=str)).dropna().to_numpy()
    steps = np.diff(values if len(values) < len(header) else values[:-1])
    is_sorted = len(steps) > 1 and bool((steps > 0).all() or (steps < 0).all())
    is_regular = len(steps) > 3 or bool((steps == steps[:1]).all())
    if (is_sorted and is_regular) or len(values) < max(1, len(header) - 1):
        return
    raise DataError(
        f"{where} has no names of columns in its first line, but the numbers of a row:"
        f" {shortened(', '.join(header), 80)}. Add a line of names above it; or, if these are"
        " names, add a letter to each."
    )


def _joined(
    frames: "Mapping[str, pd.DataFrame]", label: str | None, drop: Sequence[str], key: str
) -> "pd.DataFrame":
    """Return the rows of all tables, with the columns of the first that are not left out."""
    import pandas as pd

    tables: dict[str, pd.DataFrame] = {}
    header: list[str] = []
    for table, frame in frames.items():
        kept = tables[table] = frame.loc[:, ~frame.columns.isin(drop)].reset_index(drop=True)
        columns = list(kept.columns)
        header = header or columns
        if any(map(UNNAMED.fullmatch, columns)) or sorted(columns) != sorted({*header}):
            raise DataError(
                f"{table} has the columns {columns}, and the first table {header}. Give all tables"
                " the same columns, each once and with a name (to_csv(FILE, index=False) saves no"
                f" index), or leave out by {key} those that not all have."
            )
        if label is None and columns and columns[-1] != header[-1]:
            raise DataError(
                f"{table} has the last column `{columns[-1]}`, and others `{header[-1]}`, so it is"
                " not clear which one has the label. Set data.label to its column."
            )
    return pd.concat(tables)


def _refuse(column: "pd.Series[Any]", wrong: "pd.Series[Any] | NDArray[Any]", what: str) -> None:
    """Raise a DataError about the first wrong value of a column, with its table and row."""
    if wrong.any():
        place = int(np.argmax(wrong))
        table, row = column.index[place]
        raise DataError(
            f"{table}, row {row + 1} below the names, column `{shortened(str(column.name), 60)}`:"
            f" {shortened(str(column.iloc[place]), 60)!r} {what}"
        )


def _target(columns: Sequence[str], label: str | None) -> str | None:
    """Return the column of the label, which may not be there; None without columns."""
    if label is None:
        return columns[-1] if columns else None
    found = RULE.fullmatch(label)
    return label if label in columns or found is None else found["column"].strip()


def _texts(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column as texts without blanks around them; NaN is a missing value."""
    values = column.map(str, na_action="ignore") if column.dtype == object else column
    texts = values.astype(str).str.strip()
    return texts.mask(texts.str.lower().isin(MISSING))


def _parsed(texts: "pd.Series[Any]") -> "pd.Series[float]":
    """Return texts as numbers; NaN for missing values and for texts that are no numbers."""
    import pandas as pd

    return pd.to_numeric(texts, errors="coerce").astype(float)


def _classes(
    column: "pd.Series[Any]", label: str | None, where: str
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the names of the classes, and the class [n] of each row."""
    texts = _texts(column)
    _refuse(
        column,
        texts.isna(),
        "is a missing label. Remove the row; or, if this is the name of a class, rename it.",
    )
    if label is not None and label != column.name:
        texts = _ruled(texts, label)
    codes, found = texts.factorize()
    names, (numbers,) = number_texts({str(column.name): [*map(str, found)]}, where)
    if len(names) < 2 or (len(names) > CONTINUOUS and 2 * len(names) > len(codes)):
        raise DataError(
            f"{where}: the label `{column.name}` has {len(names)} value(s) in {len(codes)} rows,"
            " too few or too many for classes; classification needs at least two. Set data.label to"
            " another column or to a rule (`num > 0`)."
        )
    return names, numbers[codes]


def _ruled(texts: "pd.Series[Any]", label: str) -> "pd.Series[Any]":
    """Return 1 or 0 for each label, as a rule such as `num > 0` says."""
    rule = RULE.fullmatch(label)
    bound = rule["bound"].strip() if rule else ""
    if rule is None or not NUMBER.fullmatch(bound) or not isfinite(float(bound)):
        raise DataError(
            f"`data.label` compares the column `{texts.name}` with `{shortened(bound, 60)}`, which"
            " is not a finite number. A rule looks like `num > 0`."
        )
    values = _parsed(texts)
    cure = f"is not a finite number, so the rule `{label}` cannot be applied. Correct it."
    _refuse(texts, ~np.isfinite(values), cure)
    is_one: pd.Series[Any] = SIGNS[rule["sign"]](values, float(bound))
    return is_one.astype(int)


def _numbers(column: "pd.Series[Any]") -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return a column as numbers [n], and its sorted words.

    A column of words has the position of the word; NaN is a missing value. Words are refused beside
    numbers, and if most of them are numbers in another form.
    """
    words: list[str] = []
    if column.dtype.kind in "iuf":
        x = column.astype(float)
    else:
        texts = _texts(column)
        x = _parsed(texts)
        is_word = texts.notna() & x.isna()
        if is_word.any():
            formatted = is_word & texts.str.fullmatch(FORMATTED).fillna(value=False)
            are_numbers = 2 * formatted.sum() > is_word.sum()
            _refuse(
                column,
                formatted if are_numbers else is_word & bool(x.notna().any()),
                "is not a number, and other fields are, or look like numbers of a spreadsheet."
                " Write decimal points, and no separators of thousands, percent signs or"
                " currencies; leave a field empty if its value is missing; or, if these are"
                " categories, write words alone.",
            )
            words = sorted({*texts[is_word]})
            x = texts.map({word: float(place) for place, word in enumerate(words)})
    large = x.abs() > LARGEST
    _refuse(column, large, "is not a finite number that float32 can represent. Replace it.")
    return np.asarray(x, dtype=np.float64), tuple(words)


def _is_free(x: NDArray[np.floating], words: Sequence[str]) -> bool:
    """Return whether the words of a column are identifiers or free text, not categories."""
    known = int(np.count_nonzero(~np.isnan(x)))
    is_sparse = len(words) > FEW_WORDS and 2 * len(words) > known
    return len(words) == len(x) > 1 or len(words) > MAX_WORDS or is_sparse


def _identifies(
    name: str, x: NDArray[np.float64], words: Sequence[str], sizes: Sequence[int]
) -> bool:
    """Return whether a column has the name of an identifier, or counts rows in any order.

    Whole numbers that count have no gap, in all rows together or in each table (`sizes`).
    """
    if IDENTIFIER.fullmatch(name):
        return len(np.unique(x[~np.isnan(x)])) >= FEW

    def count(part: NDArray[np.float64]) -> bool:
        ordered = np.sort(part)
        return len(part) < 2 or bool((np.diff(ordered) == 1).all() and ordered[0] % 1 == 0)

    of_tables = np.split(x, np.cumsum(sizes)[:-1])
    return not words and len(x) >= FEW and (count(x) or all(map(count, of_tables)))
