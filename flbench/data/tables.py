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
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

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
FEW_ROWS: Final = 10  # consecutive numbers of fewer rows are a coincidence
FEW_SOURCES: Final = 8
LARGEST: Final = float(np.finfo(np.float32).max)
RULE: Final = re.compile(r"(?P<column>.*)(?P<sign>>=|<=|==|>|<)(?P<bound>.*)", re.DOTALL)
SIGNS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
}
UNNAMED: Final = re.compile(r"(Unnamed: \d+(_level_\d+)?|nan)?")  # as pandas names such columns
SPREADSHEET: Final = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)  # how fields are separated
DECIMAL_COMMA: Final = re.compile(
    rb'(?:^|[;\t|\n])[ "]*[-+]?(?:\d+,(?:\d\d?|\d{4,})|(?:0|\d{4,}),\d+)[ "]*(?=[;\t|\r\n]|\Z)'
)
"""A number with a decimal comma. `1,050` could also have a separator of thousands."""
THOUSANDS: Final = re.compile(
    rb'(?:^|[;\t|\n])[ "]*([-+]?\d{1,3}(?:\.\d{3})+)[ "]*(?=[;\t|\r\n]|\Z)'
)
FORMATTED: Final = re.compile(
    r"[-+(]?[$€£]? ?(\d{1,3}([ '.,\u00a0\u202f]\d{3})+|\d+)([.,]\d+)? ?[%$€£]?\)?", re.ASCII
)
"""Numbers as spreadsheets show them: with separators of thousands, a decimal comma, `%` or `$`."""
ROW_ID: Final = re.compile(r"(.*[\W_])?(id|ids|idx|index|nr|no|row|rownum|uid)", re.IGNORECASE)
SOURCE: Final = re.compile(
    r"(.*[\W_])?(id|uid|pid|mrn|(patient|subject|person|participant|user|writer|speaker|device)s?"
    r"([\W_]*(id|nr|no|number|code|name))?)",
    re.IGNORECASE,
)
"""Names of columns of what several rows come from."""


@dataclass(frozen=True)
class Places:
    """What error messages call the rows of several tables.

    Attributes:
        tables: Name of each table.
        ends: Number of rows of all tables up to each of them.
    """

    tables: Sequence[str]
    ends: NDArray[np.int64]

    def of(self, row: int, column: str) -> str:
        """Return the table, the row below the names of the columns, and the column."""
        k = int(np.searchsorted(self.ends, row, side="right"))
        below = row - (int(self.ends[k - 1]) if k else 0) + 1
        return f"{self.tables[k]}, row {below} below the names, column `{shortened(column, 60)}`"


def is_table(name: str) -> bool:
    """Return whether the name of a file has the suffix of a table."""
    return name.lower().endswith(SUFFIXES)


def read(
    folder: Folder,
    name: str,
    label: str | None,
    drop: Sequence[str] = (),
    group: str | None = None,
) -> Dataset:
    """Read the tables of all clients, in the order of their file names.

    All rows belong to the train part: there is no common test set.

    Args:
        folder: The folder, .zip file or single table.
        name: Name of the data set.
        label: Column of the label, or a rule on a column; None for the last column that is left.
        drop: Columns that are left out, whatever they contain. At least one table has each of them.
        group: Column of what several rows come from, such as a patient, which is no feature; see
            `Dataset.blocks`.

    Raises:
        DataError: A table cannot be used; the message names file, row and column.
    """

    def texts(header: list[str]) -> list[str | None]:
        return [group, _target([one for one in header if one not in (*drop, group)], label)]

    entries = [entry for entry in folder.names if is_table(entry)]
    frames = {folder.place(entry): _frame(folder, entry, texts) for entry in entries}
    for place, frame in frames.items():
        _check_names(list(frame.columns), place)
        filled = np.flatnonzero(frame.notna().any(axis="columns"))
        frames[place] = frame[: filled[-1] + 1 if len(filled) else 0]  # spreadsheets add rows
        if not len(filled):
            raise DataError(f"{place} has no rows below its header. Add rows, or remove the file.")
    dataset = from_frames(frames, str(folder.path), name, label, drop, group, key="data.drop")
    notes = (*folder.left_out(entries, f"tables are {', '.join(SUFFIXES)} files"), *dataset.notes)
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
        label: See `read`.
        drop: See `read`.
        group: See `read`.
        key: What error messages call `drop`.

    Raises:
        DataError: A table cannot be used; the message names table, row and column.
    """
    table = _joined(frames, where, label, [column for column in drop if column != group], key)
    target = _target([column for column in table.columns if column != group], label)
    for used, column in (("data.label", target), ("data.group", group)):
        if column is not None and column not in table.columns:
            hint = did_you_mean(column, table.columns) or f" Columns: {', '.join(table.columns)}."
            why = f"`{key}` leaves out." if column in drop else f"{where} lacks.{hint}"
            raise DataError(f"`{used}` names the column `{shortened(column, 60)}`, which {why}")
    features = [column for column in table.columns if column not in (target, group)]
    if target is not None and target == group:
        raise DataError(f"`data.group` names the column `{group}`, which has the label.")
    if target is None or not features:
        raise DataError(
            f"{where}: the tables have no column besides the label `{target}`. Add features."
        )
    sizes = [len(frame) for frame in frames.values()]
    places = Places(list(frames), np.cumsum(sizes))
    names, y = _classes(table[target], target, label, places, where)
    x = np.empty((len(y), len(features)), dtype=np.float32)
    words = []
    for k, feature in enumerate(features):
        x[:, k], found = _numbers(table[feature], feature, places)
        words.append(found)
    free = [one for k, one in enumerate(features) if words[k] and _is_free(x[:, k], words[k])]
    if free:
        raise DataError(
            f"{where}: the column `{free[0]}` has {len(words[features.index(free[0])]):,} different"
            " words, too many for categories. Leave identifiers and free text out by"
            f' "{key}={free}" (what several rows come from, such as a patient, can be data.group),'
            f" or replace the words by at most {MAX_WORDS:,} categories or by numbers."
        )
    dataset = Dataset(
        name,
        x,
        y,
        names,
        train=len(y),
        groups=np.repeat(np.arange(len(frames)), sizes),
        group_names=tuple(frames),
        columns=tuple(features),
        words=tuple(words),
        dropped=tuple(drop),
        notes=_notes(table[features], places, key, has_group=group is not None),
    )
    if group is None:
        return dataset
    codes, texts = _texts(table[group])
    blocks = np.array([*(text or nan for text in texts), nan], dtype=object)[codes]
    return with_blocks(dataset, blocks, group, f"{where}, column `{group}`")


def features_of(
    folder: Folder, entry: str, columns: Sequence[str], words: Sequence[Sequence[str]]
) -> NDArray[np.float32]:
    """Read the features of one table, whose label is not known.

    Args:
        folder: The folder that has the table.
        entry: Name of the table. It may have further columns, in any order, which are not used.
        columns: Names of the columns to read.
        words: Words of each column; empty for columns of numbers.

    Returns:
        Features [n, columns]; NaN for missing values. A column of words has the position of the
        word, and -1 for a word that is not among them.

    Raises:
        DataError: The table lacks a column, or a value cannot be used.
    """
    where = folder.place(entry)
    of_words = {column for column, known in zip(columns, words, strict=True) if known}
    frame = _frame(folder, entry, lambda header: [one for one in header if one in of_words])
    for column in columns:
        if (count := list(frame.columns).count(column)) != 1:
            hint = did_you_mean(column, frame.columns) if not count else ""
            raise DataError(
                f"{where} has {count or 'no'} column `{column}`; the model takes"
                f" {', '.join(columns)}, each once.{hint} Fields of a column may be empty."
            )
    places = Places([where], np.array([len(frame)]))
    x = np.empty((len(frame), len(columns)), dtype=np.float32)
    for k, (column, known) in enumerate(zip(columns, words, strict=True)):
        if known:
            codes, texts = _texts(frame[column])
            position = {word: place for place, word in enumerate(known)} | {"": nan}
            x[:, k] = np.array([*(position.get(text, -1) for text in texts), nan])[codes]
            continue
        x[:, k], others = _numbers(frame[column], column, places)
        if others:
            raise DataError(
                f"{where}, column `{column}`: {shortened(others[0], 60)!r} is not a number."
            )
    return x


def _frame(
    folder: Folder, entry: str, texts: Callable[[list[str]], Sequence[str | None]]
) -> "pd.DataFrame":
    """Return a table with its columns as numbers or texts.

    Args:
        folder: The folder that has it.
        entry: Name of its file.
        texts: Function from the names of the columns to those that are texts, whatever they have.
    """
    import pandas as pd

    path, where = folder.file(entry), folder.place(entry)
    try:
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix.lower() == ".xlsx":
            rows = pd.read_excel(path, header=None)  # pandas would rename columns of equal names
            frame = rows[1:].set_axis(rows.iloc[0], axis="columns").infer_objects()
        else:
            frame = _csv(path, texts)
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not in UTF-8 ({error}). Save it as CSV in UTF-8.") from error
    except (ImportError, OSError, ValueError, LookupError, csv.Error, Warning) as error:
        # pandas' ParserError is a ValueError that names the line, and zipfile's a KeyError
        why = str(error).strip()
        raise DataError(f"{where} cannot be read as a table ({why}). Correct it.") from error
    frame.columns = pd.Index([str(column).strip() for column in frame.columns])
    if frame.empty:
        raise DataError(f"{where} has no rows below its header. Add rows, or remove the file.")
    return frame


def _csv(path: Path, texts: Callable[[list[str]], Sequence[str | None]]) -> "pd.DataFrame":
    """Return a CSV file; its fields are separated by commas, semicolons, tabs or bars."""
    import pandas as pd

    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((line for line in file if line.strip()), "")
        named = SPREADSHEET.match(first)
        separator = named[1] if named else ","
        if not named and len(next(csv.reader([first]), [])) == 1:
            separator = next((sign for sign in ";\t|" if sign in first), ",")
        lines = file if named else chain([first], file)
        rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        header = [name.strip() for name in next((row for row in rows if row), [])]
    content = path.read_bytes() if separator != "," else b""
    has_commas = DECIMAL_COMMA.search(content) is not None
    if has_commas and (found_points := THOUSANDS.search(content)):
        raise ValueError(
            f"it has decimal commas, but also {found_points[1].decode()!r}, which may have a"
            " separator of thousands"
        )
    form: dict[str, Any] = {
        "sep": separator,
        "decimal": "," if has_commas else ".",
        "encoding": "utf-8-sig",
        "skiprows": 1 if named else 0,
        "skipinitialspace": True,
        "na_values": ["?"],
        "header": 0,
        "names": range(len(header)),
        "index_col": False,
        "low_memory": False,
        "float_precision": "round_trip",  # as Python's float
    }
    of_texts = {k: str for k, name in enumerate(header) if name in texts(header)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows wider than the header
        found: pd.DataFrame = pd.read_csv(path, dtype=of_texts, **form)
        # What pandas takes for truth values, or for several types, is read again as it is written.
        again = [k for k, kind in enumerate(found.dtypes) if kind in (bool, object)]
        if again:
            found[again] = pd.read_csv(path, usecols=again, dtype=str, **form)
    if len(header) > 1 and found.iloc[:, -1].isna().any():  # pandas fills rows that are too short
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
            next(rows)  # the names of the columns, or `sep=;`
            short = [rows.line_num for row in rows if 0 < len(row) < len(header)]
        if short:
            raise ValueError(f"line {short[0]} has fewer fields than the names of the columns")
    found.columns = pd.Index(header)
    return found


def _check_names(header: list[str], where: str) -> None:
    """Raise a DataError if the names of the columns are the values of a first row.

    All of them are numbers then, or all but that of the label. Numbers that rise or fall from
    column to column, such as years or wavelengths, are names.
    """
    values = [value for name in header if (value := _number(name)) is not None]
    if len(values) < max(1, len(header) - 1):
        return
    steps = np.diff(values if len(values) < len(header) else values[:-1])
    is_sorted = bool((steps > 0).all() or (steps < 0).all())
    if is_sorted and (len(steps) > 3 or (len(steps) > 1 and bool((steps == steps[0]).all()))):
        return
    raise DataError(
        f"{where} has no names of columns in its first line, but the numbers of a row:"
        f" {shortened(', '.join(header), 80)}. Add a line of names above it; or, if these are"
        " names, add a letter to each."
    )


def _joined(
    frames: "Mapping[str, pd.DataFrame]",
    where: str,
    label: str | None,
    drop: Sequence[str],
    key: str,
) -> "pd.DataFrame":
    """Return the rows of all tables, with the columns of the first that are not left out."""
    import pandas as pd

    everywhere = dict.fromkeys(column for frame in frames.values() for column in frame.columns)
    if unknown := [column for column in drop if column not in everywhere]:
        hint = did_you_mean(unknown[0], everywhere) or f" Columns: {', '.join(everywhere)}."
        raise DataError(
            f"`{key}` names the column `{shortened(unknown[0], 60)}`, which {where} lacks.{hint}"
        )
    tables: list[pd.DataFrame] = []
    header: list[str] = []
    for table, whole in frames.items():
        frame = whole.loc[:, ~whole.columns.isin(drop)] if drop else whole
        columns = list(frame.columns)
        header = header or columns
        if not columns:
            raise DataError(f"`{key}` leaves out all columns of {table}. Leave out fewer.")
        if unnamed := [k for k, column in enumerate(columns, 1) if UNNAMED.fullmatch(column)]:
            raise DataError(
                f"{table}: column {unnamed[0]} of {len(columns)} has no name, as an index that was"
                " saved with the table (pandas: index=False), or a separator at the end of the"
                " lines. Name or remove it."
            )
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise DataError(f"{table} has two columns `{twice}`. Rename or remove one.")
        if sorted(columns) != sorted(header):
            raise DataError(
                f"{table} has the columns {columns}, but others have {header}. Use the same columns"
                f" in all tables, or leave out by {key} those that are not in all of them."
            )
        if label is None and columns[-1] != header[-1]:
            raise DataError(
                f"{table} has the last column `{columns[-1]}`, and others `{header[-1]}`, so it is"
                " not clear which one has the label. Set data.label to its column."
            )
        tables.append(frame)
    return tables[0] if len(tables) == 1 else pd.concat(tables)


def _target(columns: Sequence[str], label: str | None) -> str | None:
    """Return the column of the label, which may not be there; None without columns."""
    if label is None:
        return columns[-1] if columns else None
    found = RULE.fullmatch(label)
    return label if label in columns or found is None else found["column"].strip()


def _texts(column: "pd.Series[Any]") -> tuple[NDArray[np.int64], list[str]]:
    """Return the position [n] of each row's text, -1 for None, and the texts; "" is missing."""
    try:
        codes, found = column.factorize()
    except (TypeError, NotImplementedError):  # lists, dicts
        codes, found = column.astype(object).map(str, na_action="ignore").factorize()
    values = found.astype(str) if found.dtype.kind == "M" else np.asarray(found)  # dates
    texts = [str(value).strip() for value in values]
    return codes, ["" if text.lower() in MISSING else text for text in texts]


def _number(text: str) -> float | None:
    """Return a text as a number; None if it is not one. Python would read `1_0` as 10."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _classes(
    column: "pd.Series[Any]", target: str, label: str | None, places: Places, where: str
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the names of the classes, and the class [n] of each row."""
    codes, texts = _texts(column)
    lacking = np.array([*(not text for text in texts), True])
    if lacking[codes].any():
        raise DataError(
            f"{places.of(int(np.flatnonzero(lacking[codes])[0]), target)} has no label. Remove the"
            " row; or, if this is the name of a class, rename it."
        )
    if label is not None and label != target:
        texts = _ruled(texts, codes, label, target, places)
    names, (numbers,) = number_texts({target: texts}, where)
    if len(names) < 2 or (len(names) > CONTINUOUS and 2 * len(names) > len(codes)):
        raise DataError(
            f"{where}: the label `{target}` has {len(names)} value(s) in {len(codes)} rows, too few"
            " or too many for classes; classification needs at least two. Set data.label to another"
            " column or to a rule (`num > 0`)."
        )
    return names, numbers[codes]


def _ruled(
    texts: Sequence[str], codes: NDArray[np.int64], label: str, target: str, places: Places
) -> list[str]:
    """Return "1" or "0" for each value of a label, as a rule such as `num > 0` says."""
    rule = RULE.fullmatch(label)
    bound = rule["bound"].strip() if rule else ""
    if rule is None or not NUMBER.fullmatch(bound) or not isfinite(float(bound)):
        raise DataError(
            f"`data.label` compares the column `{target}` with `{shortened(bound, 60)}`, which is"
            " not a finite number. A rule looks like `num > 0`."
        )
    found = []
    for k, text in enumerate(texts):
        value = _number(text)
        if value is None or not isfinite(value):
            row = int(np.flatnonzero(codes == k)[0])
            raise DataError(
                f"{places.of(row, target)}: the label {shortened(text, 60)!r} is not a finite"
                f" number, so the rule `{label}` cannot be applied. Correct it."
            )
        found.append(str(int(SIGNS[rule["sign"]](value, float(bound)))))
    return found


def _numbers(
    column: "pd.Series[Any]", name: str, places: Places
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return a column as numbers [n], and its sorted words.

    A column of words has the position of the word; NaN is a missing value.
    """
    words: list[str] = []
    if column.dtype.kind in "iuf":
        x = column.to_numpy(dtype=np.float64, na_value=nan)
    else:
        codes, texts = _texts(column)
        values = [_number(text) if text else nan for text in texts]
        words = sorted({text for text, value in zip(texts, values, strict=True) if value is None})
        if words:
            _check_words(codes, texts, values, name, places)
            position = dict(zip(words, map(float, range(len(words))), strict=True))
            values = [position.get(text, nan) for text in texts]
        x = np.array([*values, nan], dtype=np.float64)[codes]
    if (wrong := np.abs(x) > LARGEST).any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{places.of(row, name)}: {x[row]:g} is not a finite number that float32 can represent."
            " Replace it."
        )
    return x, tuple(words)


def _check_words(
    codes: NDArray[np.int64],
    texts: Sequence[str],
    values: Sequence[float | None],
    name: str,
    places: Places,
) -> None:
    """Raise a DataError if words are numbers in another form, or lie beside numbers.

    Args:
        codes: Position [n] of each row's text; -1 for none.
        texts: The different texts of the column.
        values: Number of each text; None for a word.
        name: Name of the column.
        places: Names of the rows.
    """
    words = np.array([*(value is None for value in values), False])
    formatted = words & np.array([*map(bool, map(FORMATTED.fullmatch, texts)), False])
    if 2 * int(formatted[codes].sum()) > int(words[codes].sum()):
        row = int(np.flatnonzero(formatted[codes])[0])
        raise DataError(
            f"{places.of(row, name)}: {texts[codes[row]]!r} is a number as a spreadsheet shows it."
            " Write decimal points, and no separators of thousands, percent signs or currencies"
            " (format `General` in a spreadsheet); or, if these are categories, add a letter."
        )
    if any(value is not None and value == value for value in values):
        row = int(np.flatnonzero(words[codes])[0])
        raise DataError(
            f"{places.of(row, name)}: {shortened(texts[codes[row]], 60)!r} is not a number, but"
            " other rows have numbers. Write numbers alone, or words alone (categories); leave the"
            " field empty if a value is missing."
        )


def _is_free(x: NDArray[np.float32], words: Sequence[str]) -> bool:
    """Return whether the words of a column are identifiers or free text, not categories."""
    known = int(np.count_nonzero(~np.isnan(x)))
    is_sparse = len(words) > FEW_WORDS and 2 * len(words) > known
    return len(words) == len(x) > 1 or len(words) > MAX_WORDS or is_sparse


def _notes(table: "pd.DataFrame", places: Places, key: str, *, has_group: bool) -> tuple[str, ...]:
    """Return notes on columns that number the rows, or say what several rows come from."""
    notes: tuple[str, ...] = ()
    numbers = [
        column
        for column in table
        if table[column].dtype.kind in "iu" and not table[column].isna().any()
    ]
    found = [one for one in numbers if _numbers_rows(table[one].to_numpy(), places.ends, str(one))]
    if found:
        notes += (
            f"data: {', '.join(f'`{one}`' for one in found)} counts or identifies the rows, and"
            " the net gets it as a feature: where rows are sorted by class or client, the net"
            f" predicts classes from it. Leave it out by {key} unless it is a measurement.",
        )
    sources = [
        column
        for column in table
        if SOURCE.fullmatch(str(column))
        and table[column].dtype.kind != "f"
        and FEW_SOURCES <= len(set(_texts(table[column])[1])) <= len(table) / 2
    ]
    if sources and not has_group:
        notes += (
            f"data: several rows have the same `{sources[0]}`. If they come from one patient,"
            " person or device, a client is tested on those that it has trained on: keep them"
            f" together by data.group={sources[0]}; or leave the column out by {key}.",
        )
    return notes


def _numbers_rows(values: NDArray[Any], ends: NDArray[np.int64], name: str) -> bool:
    """Return whether whole numbers count the rows of all tables, or of each, in any order.

    In a column with the name of an identifier, they need not be consecutive.
    """
    tables = [table for table in np.split(values, ends[:-1]) if len(table) > 1]
    if len(values) < FEW_ROWS or not tables:
        return False
    if _are_consecutive(values) or all(map(_are_consecutive, tables)):
        return True
    return ROW_ID.fullmatch(name) is not None and len(np.unique(values)) == len(values)


def _are_consecutive(values: NDArray[Any]) -> bool:
    spread = int(values.max()) - int(values.min()) + 1
    return spread == len(values) == len(np.unique(values))
