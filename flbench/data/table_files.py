"""Reading of tables: a folder or .zip file with one CSV file per client.

All files have the same columns, in any order. Columns other than the label have numbers or words.
Words become categories, which are one-hot encoded later, when the training parts are known. An
empty field, `?`, or what pandas reads as missing, such as `NA`, `N/A` or `NaN`, is a missing value;
it is imputed later, from the client's training part. The label is the last column, the column
`data.label=COLUMN`, or the result of a rule such as `data.label="num > 0"`. The columns of
`data.drop` are left out before anything else is read.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError, did_you_mean, shortened
from flbench.core.wording import listed
from flbench.data import plain_tables, row_numbers
from flbench.data.dataset import Dataset
from flbench.data.labels import NUMBER, number_texts, with_blocks

MISSING: Final = frozenset(
    {"", "?", "na", "nan", "null", "none", "n/a", "#n/a", "#na", "#n/a n/a", "<na>", "-nan"}
    | {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"}
)
"""Missing values in lower case: `?`, and those of pandas."""
MAX_WORDS: Final = 1_000  # of one column
FEW_WORDS: Final = 10  # a column with more words must have, on average, two values for each
CONTINUOUS: Final = 20  # a label with more values must have, on average, two rows for each
LARGEST: Final = float(np.finfo(np.float32).max)
RULE: Final = re.compile(r"(?P<column>.*)(?P<sign>>=|<=|==|>|<)(?P<bound>.*)", re.DOTALL)
UNNAMED: Final = re.compile(r"(Unnamed: \d+(_level_\d+)?)?")  # as pandas names such columns
SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
SPREADSHEET: Final = re.compile(r"sep=.\r?\n", re.IGNORECASE)  # says how fields are separated
FORMATTED: Final = re.compile(
    r"[-+(]?[$€£]? ?(\d{1,3}([ '.,\u00a0\u202f]\d{3})+|\d+)([.,]\d+)? ?[%$€£]?\)?", re.ASCII
)
"""Numbers as spreadsheets show them: with separators of thousands, a decimal comma, `%` or `$`."""
NO_LABEL: Final = MISSING | {"+nan"}


@dataclass(frozen=True)
class Rule:
    """A rule for the label, such as `num > 0`.

    Attributes:
        text: The rule as the user wrote it.
        sign: `>`, `<`, `>=`, `<=` or `==`.
        bound: Number on the right of the sign.
    """

    text: str
    sign: str
    bound: float


@dataclass(frozen=True)
class Features:
    """The columns of one client's table, without the label.

    Attributes:
        x: Numbers [n, columns] float64; NaN for missing values and for words.
        words: Words by column and row, for the columns that have words.
        where: Name of the table, as the beginning of an error message.
        lines: Line of the file in which each row begins, counted from 1.
    """

    x: NDArray[np.float64]
    words: dict[int, dict[int, str]]
    where: str
    lines: Sequence[int]


class Tables(Protocol):
    """CSV files by name: a folder, a .zip file, or tables in memory."""

    @property
    def path(self) -> Path:
        """The folder or .zip file, for error messages."""

    @property
    def names(self) -> Sequence[str]:
        """Names of all files, sorted."""

    def place(self, name: str) -> str:
        """Return what error messages call a file."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def left_out(self, used: Iterable[str], kinds: str) -> tuple[str, ...]:
        """Return notes about files that are not read; see `Archive.left_out`."""


def read(
    archive: Tables,
    name: str,
    label: str | None,
    drop: Sequence[str] = (),
    key: str = "data.drop",
    group: str | None = None,
) -> Dataset:
    """Read the tables of all clients, in the order of their file names.

    All rows belong to the train part: there is no common test set.

    Args:
        archive: The folder or .zip file.
        name: Name of the data set.
        label: Column of the label, or a rule on a column; None for the last column that is left.
        drop: Columns that are left out, whatever they contain. At least one table has each of them.
        key: What error messages call `drop`.
        group: Column of what several rows come from, such as a patient, which is no feature; see
            `Dataset.blocks`.

    Raises:
        DataError: A table cannot be used; the message names file, line and column.
    """
    files = [entry for entry in archive.names if entry.lower().endswith(".csv")]
    header: list[str] = []
    features: list[Features] = []
    labels, groups = [], []
    blocks: list[str] = []
    everywhere: dict[str, None] = {}  # columns of all tables, in their order
    for client, entry in enumerate(files):
        where = archive.place(entry)
        content = archive.read(entry)
        if (
            not drop
            and group is None
            and (plain := _plain(content, header, label, where)) is not None
        ):
            header, column, found, texts = plain
            features.append(found)
            labels += texts
            groups += [client] * len(texts)
            continue
        rows, lines = _rows(content, where)
        everywhere |= dict.fromkeys(rows[0])
        _check_fields(rows, lines, where, drop)
        if key == "data.drop":  # a file; a DataFrame has names of its own
            _check_header(rows[0], where)
        _check_widths(rows, lines, where)
        if group is not None:
            blocks += _blocks(rows, lines, group, label, where)
        rows = _without(rows, drop if group is None else (*drop, group))
        header = header or rows[0]
        if rows[0] != header and sorted(rows[0]) == sorted(header):
            _check_last(rows[0], header, label, where, files[0])
            order = [rows[0].index(column) for column in header]
            rows = [[row[k] for k in order] for row in rows]
        if rows[0] != header:
            raise DataError(
                f"{where} has the columns {rows[0]}, but {files[0]} has {header}. Use the same"
                f" columns in all files, or leave out by {key} those that are not in all of them."
            )
        column, rule = _label_column(header, label, where, drop, key)
        found, texts = _client(rows[1:], lines[1:], header, column, where)
        features.append(found)
        labels += [
            _apply(rule, text, where, line) for line, text in zip(lines[1:], texts, strict=True)
        ]
        groups += [client] * len(texts)
    if unknown := [name for name in drop if name not in everywhere]:
        hint = did_you_mean(unknown[0], everywhere) or f" Columns: {', '.join(everywhere)}."
        raise DataError(
            f"`{key}` names the column `{shortened(unknown[0], 60)}`, which {archive.path} does not"
            f" have.{hint}"
        )
    if len(header) < 2:
        raise DataError(
            f"{archive.path}: the tables have no column besides the label `{header[0]}`. Add"
            " columns of features."
        )
    names, (y,) = number_texts({header[column]: labels}, str(archive.path))
    if len(names) > CONTINUOUS and 2 * len(names) > len(labels):
        raise DataError(
            f"{archive.path}: the label has {len(names)} values in {len(labels)} rows, too many for"
            " classes. Set data.label to another column or to a rule (`num > 0`)."
        )
    if len(names) < 2:
        raise DataError(
            f"{archive.path}: the label has {len(names)} value(s) ({list(names)}); classification"
            " needs at least two. Set data.label to another column or to a rule (`num > 0`)."
        )
    columns = header[:column] + header[column + 1 :]
    label_is = f"the label is `{shortened(header[column], 60)}`" + (
        ", the last of the other columns" if label is None else ""
    )
    left_out = (f"`{shortened(one, 60)}`" for one in drop)
    words = _number_words(features, columns, archive.path, key)
    sizes = [len(table.x) for table in features]
    x = features.pop().x if len(features) == 1 else np.concatenate([table.x for table in features])
    are_numbers = [k for k, found in enumerate(words) if not found]
    dataset = Dataset(
        name,
        x.astype(np.float32),
        y,
        names,
        train=len(labels),
        groups=np.array(groups, dtype=np.int64),
        group_names=client_names(files),
        columns=tuple(columns),
        words=words,
        dropped=tuple(drop),
        notes=(
            *([f"data: {key} leaves out {listed(left_out, 10)}; {label_is}."] if drop else []),
            *archive.left_out(files, "tables are .csv files"),
            *row_numbers.notes(
                x if len(are_numbers) == x.shape[1] else x[:, are_numbers],
                [columns[k] for k in are_numbers],
                sizes,
                f"Leave {{each}} out by {key} unless it is a measurement.",
            ),
            *(row_numbers.note_of_repeated(x, columns, key) if group is None else ()),
        ),
    )
    if group is None:
        return dataset
    return with_blocks(dataset, np.array(blocks), group, f"{archive.path}, column `{group}`")


def read_features(
    archive: Tables, entry: str, columns: Sequence[str], words: Sequence[Sequence[str]]
) -> NDArray[np.float32]:
    """Read the features of one table, whose label is not known.

    Args:
        archive: The folder or .zip file.
        entry: Name of the table. It may have further columns, in any order, which are not read.
        columns: Names of the columns to read.
        words: Words of each column; empty for columns of numbers.

    Returns:
        Features [n, columns]; NaN for missing values. A column of words has the position of the
        word, and -1 for a word that is not among them.

    Raises:
        DataError: The table lacks a column, or a value cannot be used.
    """
    where = archive.place(entry)
    rows, lines = _rows(archive.read(entry), where)
    header = rows[0]
    if missing := [name for name in columns if name not in header]:
        _check_separator(header, where)
        hint = did_you_mean(missing[0], header) or f" Its columns: {', '.join(header)}."
        raise DataError(
            f"{where} has no column `{missing[0]}`; the model takes"
            f" {', '.join(columns)}.{hint} Add the column; its fields may be empty."
        )
    if twice := [name for name in columns if header.count(name) > 1]:
        raise DataError(
            f"{where} has two columns `{twice[0]}`, which the model takes. Remove or rename one."
        )
    _check_widths(rows, lines, where)
    x = np.full((len(rows) - 1, len(columns)), np.nan, dtype=np.float32)
    for k, (name, known) in enumerate(zip(columns, words, strict=True)):
        place, number = header.index(name), {word: position for position, word in enumerate(known)}
        for position, (row, line) in enumerate(zip(rows[1:], lines[1:], strict=True)):
            text = row[place]
            if text.lower() in MISSING:
                continue
            value = number.get(text, -1) if known else _number(text)
            if value is None or abs(value) > LARGEST:
                raise DataError(
                    f"{where}, line {line}, column `{name}`: {shortened(text, 60)!r} is not a"
                    " finite number that float32 can represent. Replace it."
                )
            x[position, k] = value
    return x


def client_names(files: list[str]) -> tuple[str, ...]:
    """Return the names of the clients: their files' paths without what is common to all of them.

    Args:
        files: Names of the files.

    >>> client_names(["heart/cleveland.csv", "heart/hungarian.csv"])
    ('cleveland', 'hungarian')
    >>> client_names(["north/data.csv", "south/data.csv"])
    ('north', 'south')
    """
    paths = [PurePosixPath(file).with_suffix("").parts for file in files]
    if len(set(paths)) < len(paths):  # `a.csv` and `a.CSV`
        return tuple(files)
    while len({path[0] for path in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [path[1:] for path in paths]
    while len({path[-1] for path in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [path[:-1] for path in paths]
    return tuple("/".join(path) for path in paths)


def _plain(
    content: bytes, header: list[str], label: str | None, where: str
) -> tuple[list[str], int, Features, list[str]] | None:
    """Return header, position of the label, features and labels [n] of a large plain table.

    It is None for all other tables, and if an error has to be named.

    Args:
        content: Content of the file.
        header: Header of the tables before; empty for the first one.
        label: `data.label`.
        where: Name of the table.
    """

    def place(found: list[str]) -> int:
        return _label_column(found, label, where, (), "")[0]

    try:
        table = plain_tables.read(content, MISSING, lambda text: _number(text) is not None, place)
        if table is None or any(map(UNNAMED.fullmatch, table.header)):
            return None
        _check_header(table.header, where)
        if header and table.header != header:
            return None
        column, rule = _label_column(table.header, label, where, (), "")
        names, codes = table.texts.pop(column)
        if any(name.lower() in NO_LABEL for name in names):
            return None
        classes = [_apply(rule, name, where, 0) for name in names]
    except DataError:
        return None
    x = table.numbers
    if any((np.abs(x[:, k]) > LARGEST).any() for k in range(x.shape[1])):
        return None
    words = {
        k - (k > column): {int(row): found[places[row]] for row in np.flatnonzero(places >= 0)}
        for k, (found, places) in table.texts.items()
    }
    lines = range(2, len(x) + 2)
    return table.header, column, Features(x, words, where, lines), [classes[k] for k in codes]


def _rows(content: bytes, where: str) -> tuple[list[list[str]], list[int]]:
    """Return the rows of a CSV file, the header first, and the line in which each begins.

    Empty lines are left out, as is a first line such as `sep=,`, which is for spreadsheets. A
    quoted field can extend over several lines.
    """
    rows: list[list[str]] = []
    lines: list[int] = []
    line = 1
    try:
        text = content.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text), strict=True)
        if SPREADSHEET.match(text):
            next(reader)
            line = 2
        for row in reader:
            if row:
                rows.append([cell.strip() for cell in row])
                lines.append(line)
            line = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not a CSV table in UTF-8 ({error}). Save it as CSV in UTF-8."
        ) from error
    except csv.Error as error:
        raise DataError(
            f"{where}, line {line} is not a row of a CSV table ({error}). Correct it."
        ) from error
    if len(rows) < 2:
        raise DataError(f"{where} has no rows below its header. Add rows, or remove the file.")
    return rows, lines


def _check_separator(header: list[str], where: str) -> None:
    """Raise a DataError if the fields of a header are separated by other signs than commas."""
    found = [sign for sign in SEPARATORS if sign in header[0]]
    if len(header) == 1 and found:
        raise DataError(
            f"{where} has a single column, `{shortened(header[0], 60)}`: its fields are separated"
            f" by {SEPARATORS[found[0]]}. Save it with commas and decimal points; with pandas:"
            f" pd.read_csv(FILE, sep={found[0]!r}, decimal=',').to_csv(FILE, index=False)."
        )


def _check_widths(rows: list[list[str]], lines: list[int], where: str) -> None:
    """Raise a DataError if a row of a table has more or fewer fields than its header."""
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(rows[0]):
            raise DataError(
                f"{where}, line {line} has {len(row)} fields, but the header has {len(rows[0])}."
                " Correct the line."
            )


def _without(rows: list[list[str]], drop: Sequence[str]) -> list[list[str]]:
    """Return the rows of a table, the header first, without some of its columns."""
    if not drop:
        return rows
    kept = [k for k, name in enumerate(rows[0]) if name not in drop]
    return [[row[k] for k in kept] for row in rows]


def _blocks(
    rows: list[list[str]], lines: list[int], group: str, label: str | None, where: str
) -> list[str]:
    """Return the group of each row of a table, whose header comes first."""
    header = rows[0]
    if group not in header:
        hint = did_you_mean(group, header) or f" Columns: {', '.join(header)}."
        raise DataError(
            f"`data.group` names the column `{shortened(group, 60)}`, which {where} does not have."
            f"{hint}"
        )
    rule = None if label is None else RULE.fullmatch(label)
    if group in (label, rule and rule["column"].strip()):
        raise DataError(
            f"`data.group` names the column `{group}`, which has the label. Name two columns."
        )
    place = header.index(group)
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if row[place].lower() in MISSING:
            raise DataError(
                f"{where}, line {line} has no group in column `{group}`, got {row[place]!r}. Fill"
                " it in, or remove the row."
            )
    return [row[place] for row in rows[1:]]


def _check_fields(rows: list[list[str]], lines: list[int], where: str, drop: Sequence[str]) -> None:
    """Raise a DataError if a table has columns without a name, or two columns of one name.

    Args:
        rows: Rows of the table, the header first.
        lines: Line in which each row begins.
        where: Name of the table, as the beginning of an error message.
        drop: Columns that are left out, whose names are not checked.
    """
    header = rows[0]
    _check_separator(header, where)
    width = len(header)
    if all(len(row) == width + 1 for row in rows[1:]):
        if not any(row[-1] for row in rows[1:]):
            raise DataError(
                f"{where}: each line below the header ends with a comma, which makes a field more"
                f" than the {width} of the header. Remove the comma at the end of the lines."
            )
        raise DataError(
            f"{where}: each line has {width + 1} fields, but the header has {width}. If the lines"
            " begin with names of rows, save the table without them (R: row.names=FALSE); if"
            " numbers have decimal commas, save them with decimal points. Or complete the header."
        )
    unnamed = [k for k, name in enumerate(header) if UNNAMED.fullmatch(name) and name not in drop]
    if unnamed and not any(row[unnamed[-1]] for row in rows[1:] if len(row) > unnamed[-1]):
        how = "ends with" if unnamed[-1] == width - 1 else "has"
        raise DataError(
            f"{where}: column {unnamed[-1] + 1} of {width} has neither a name nor a value: each"
            f" line {how} a comma too many. Remove it from all lines, the header included."
        )
    if unnamed:
        raise DataError(
            f"{where}: column {unnamed[0] + 1} of {width} has no name ({header[unnamed[0]]!r}, line"
            f" {lines[0]}), as the index that pandas saves with a table. Remove it, with pandas by"
            " to_csv(FILE, index=False) or read_csv(FILE, index_col=0); or name it if it is a"
            " feature."
        )
    kept = [name for name in header if name not in drop]
    if twice := next((name for k, name in enumerate(kept) if name in kept[:k]), None):
        first, second = [k + 1 for k, name in enumerate(header) if name == twice][:2]
        raise DataError(
            f"{where}: the columns {first} and {second} have the same name, `{twice}`. Rename or"
            " remove one of them."
        )


def _check_last(
    columns: list[str], header: list[str], label: str | None, where: str, first: str
) -> None:
    """Raise a DataError if the label is the last column, and that is not the same in two tables."""
    if label is None and columns[-1] != header[-1]:
        raise DataError(
            f"{where} has the last column `{columns[-1]}`, and {first} `{header[-1]}`, so it is not"
            " clear which one has the label. Set data.label to its column."
        )


def _check_header(header: list[str], where: str) -> None:
    """Raise a DataError if the names of the columns are the values of a first row.

    All of them are numbers then, or all but that of the label. Numbers that rise or fall from
    column to column, such as years or wavelengths, are names.
    """
    values = [value for name in header if (value := _number(name)) is not None]
    if len(values) < max(1, len(header) - 1):
        return
    steps = np.diff(values if len(values) < len(header) else values[:-1])
    is_sorted = bool((steps > 0).all() or (steps < 0).all())
    is_even = len(steps) > 1 and bool((steps == steps[0]).all())
    counts = values[0] in (0, 1) and bool((steps == 1).all())
    if is_sorted and (len(steps) > 3 or is_even or counts):
        return
    raise DataError(
        f"{where}, line 1 has no names of columns, but the numbers of a row:"
        f" {shortened(', '.join(header), 80)}. Add a line with names above it, such as"
        f" {','.join(f'x{k + 1}' for k in range(min(2, len(header) - 1)))},...,label; or, if these"
        " are names, add a letter to each."
    )


def _label_column(
    header: list[str], label: str | None, where: str, drop: Sequence[str], key: str
) -> tuple[int, Rule | None]:
    """Return the position of the label's column and, if `label` is a rule, the rule.

    Args:
        header: Columns that are left.
        label: Column of the label, or a rule.
        where: Name of the table, for error messages.
        drop: Columns that are left out.
        key: What error messages call `drop`.
    """
    if not header:
        raise DataError(f"`{key}` leaves out all columns of {where}. Leave out fewer.")
    if label is None:
        return len(header) - 1, None
    if label in header:
        return header.index(label), None
    found = RULE.fullmatch(label)
    column = label if found is None else found["column"].strip()
    if column in drop:
        raise DataError(
            f"`{key}` leaves out the column `{shortened(column, 60)}`, which has the label. Take it"
            f" out of {key}, or choose another label."
        )
    if column not in header:
        hint = did_you_mean(column, header) or f" Columns: {', '.join(header)}."
        raise DataError(
            f"`data.label` refers to the column `{shortened(column, 60)}`, which {where} does not"
            f" have.{hint}"
        )
    if found is None:
        return header.index(column), None
    bound = found["bound"].strip()
    if not NUMBER.fullmatch(bound) or not isfinite(float(bound)):
        raise DataError(
            f"`data.label` compares the column `{column}` with `{shortened(bound, 60)}`, which is"
            " not a finite number. A rule looks like `num > 0`."
        )
    return header.index(column), Rule(label, found["sign"], float(bound))


def _client(
    rows: list[list[str]], lines: list[int], header: list[str], column: int, where: str
) -> tuple[Features, list[str]]:
    """Return the features and the texts of the labels [n] of one table."""
    words: dict[int, dict[int, str]] = {}
    x = np.empty((len(rows), len(header) - 1))
    y = []
    for position, (line, row) in enumerate(zip(lines, rows, strict=True)):
        if row[column].lower() in NO_LABEL:
            raise DataError(
                f"{where}, line {line} has no label in column `{header[column]}`, got"
                f" {row[column]!r}. Remove the row; or, if this is the name of a class, rename it."
            )
        y.append(row[column])
        for k, text in enumerate(row[:column] + row[column + 1 :]):
            value = np.nan if text.lower() in MISSING else _number(text)
            if value is None:
                words.setdefault(k, {})[position] = text
                value = np.nan
            elif abs(value) > LARGEST:
                name = (header[:column] + header[column + 1 :])[k]
                raise DataError(
                    f"{where}, line {line}, column `{name}`: {text!r} is not a finite number"
                    " that float32 can represent. Replace it."
                )
            x[position, k] = value
    return Features(x, words, where, lines), y


def _number_words(
    features: list[Features], columns: list[str], path: Path, key: str
) -> tuple[tuple[str, ...], ...]:
    """Replace the words of all tables by their positions among the column's sorted words, in place.

    Args:
        features: Columns of all tables.
        columns: Names of the columns.
        path: The folder or .zip file, for error messages.
        key: What error messages call the columns that are left out.

    Returns:
        The words of each column; empty for columns of numbers.

    Raises:
        DataError: A column has both numbers and words, numbers as spreadsheets show them, or so
            many words that they are no categories.
    """
    rows = sum(len(table.x) for table in features)
    found: list[tuple[str, ...]] = []
    for k, column in enumerate(columns):
        texts = [text for table in features for text in table.words.get(k, {}).values()]
        words = tuple(sorted(set(texts)))
        found.append(words)
        if not words:
            continue
        _check_no_formatted(features, k, column, texts)
        _check_words_alone(features, k, column)
        if _are_too_many(words, texts, rows):
            # All such columns in one message, so that the user leaves them out at once.
            every = [column, *_free_texts(features, columns[k + 1 :], k + 1, rows)]
            raise DataError(
                f"{path}: the column `{column}` has {len(words):,} different words in"
                f" {len(texts):,} values, such as {shortened(words[0], 60)!r}, too many for"
                " categories. Leave identifiers and free text out by"
                f' "{key}={every}" (what several rows come from, such as a patient, can'
                f" be data.group), or replace the words by at most {MAX_WORDS:,}"
                " categories or by numbers."
            )
        number = {word: position for position, word in enumerate(words)}
        for table in features:
            for row, text in table.words.get(k, {}).items():
                table.x[row, k] = number[text]
    return tuple(found)


def _are_too_many(words: Sequence[str], texts: Sequence[str], rows: int) -> bool:
    """Return whether words are too many for categories: identifiers, free text, or a long list.

    Identifiers and free text have as many words as rows, or nearly as many.

    Args:
        words: Different words of a column.
        texts: All its words.
        rows: Number of rows of all tables.
    """
    is_identifier = len(words) == rows > 1
    is_identifier |= len(words) > FEW_WORDS and 2 * len(words) > len(texts)
    return is_identifier or len(words) > MAX_WORDS


def _free_texts(
    features: list[Features], columns: Sequence[str], first: int, rows: int
) -> list[str]:
    """Return those of the columns from number `first` on that have too many words."""
    found = []
    for k, column in enumerate(columns, first):
        texts = [text for table in features for text in table.words.get(k, {}).values()]
        if _are_too_many(list(set(texts)), texts, rows):
            found.append(column)
    return found


def _check_no_formatted(
    features: list[Features], k: int, column: str, texts: Sequence[str]
) -> None:
    """Raise a DataError if most texts of column k are numbers as spreadsheets show them."""
    numbers = {text for text in set(texts) if FORMATTED.fullmatch(text)}
    if 2 * sum(text in numbers for text in texts) <= len(texts):
        return
    where, line, text = next(
        (table.where, table.lines[row], text)
        for table in features
        for row, text in table.words.get(k, {}).items()
        if text in numbers
    )
    raise DataError(
        f"{where}, line {line}, column `{column}`: {text!r} is a number as a spreadsheet shows it."
        " Write decimal points, and no separators of thousands, percent signs or currencies (format"
        " `General` in a spreadsheet); or, if these are categories, add a letter to each."
    )


def _check_words_alone(features: list[Features], k: int, column: str) -> None:
    """Raise a DataError if column k, which has words, has numbers too."""
    numbers = (
        (table.where, table.lines[row])
        for table in features
        for row in map(int, np.flatnonzero(~np.isnan(table.x[:, k])))
    )
    words = (
        (table.where, table.lines[row], text)
        for table in features
        for row, text in table.words.get(k, {}).items()
    )
    number, (where, line, text) = next(numbers, None), next(words)
    if number is not None:
        raise DataError(
            f"{where}, line {line}, column `{column}`: {shortened(text, 60)!r} is not a number,"
            f" but {number[0]}, line {number[1]} has one. Write numbers alone, or words alone"
            " (categories); leave the field empty if a value is missing."
        )


def _apply(rule: Rule | None, text: str, where: str, line: int) -> str:
    """Return the class of a label: its text, or "1" or "0" by the rule."""
    value = _number(text)
    if rule is None:
        return text
    if value is None or not isfinite(value):
        what = "not a number" if value is None else "not finite"
        raise DataError(
            f"{where}, line {line}: the label {text!r} is {what}, so the rule"
            f" `{rule.text}` cannot be applied. Correct the label, or set data.label to its column"
            " alone."
        )
    fulfilled = {
        ">": value > rule.bound,
        "<": value < rule.bound,
        ">=": value >= rule.bound,
        "<=": value <= rule.bound,
        "==": value == rule.bound,
    }
    return "1" if fulfilled[rule.sign] else "0"


def _number(text: str) -> float | None:
    """Return a text as a number; None if it is not one. Python would read `1_0` as 10."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
