"""The file metrics.csv of a run: one metric per row.

Rows are only appended, and numbers are written in full precision. A run that was interrupted and
resumed therefore writes the same bytes as one without interruption.

>>> rows = [Row(10, "validation", "personal", "accuracy", 0.5), Row(10, "train", "", "diverged", 0)]
>>> print(header_line() + to_text(rows), end="")
round,split,protocol,metric,value
10,validation,personal,accuracy,0.5
10,train,,diverged,0
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple

from flbench.core import files, own_names
from flbench.core.documents import as_data_error

HEADER: Final = ("round", "split", "protocol", "metric", "value")
EXACT: Final = 2.0**53  # integers below it are exact in float64
MOST_ROWS: Final = 3_000_000
"""Largest number of rows of a file; a file of the largest size with the usual names has fewer."""
MOST_ROUNDS: Final = 10**12
MOST_BYTES: Final = 10**36
"""Largest number of bytes that a run has sent."""
COUNTS: Final = frozenset(
    {
        *("up_bytes", "down_bytes", "peer_bytes", "setup_bytes", "steps", "passes"),
        *("trainings", "without_step", "diverged"),
    }
)
"""Metrics of the splits `train` and `setup` that are added up over rounds."""
TRAINING: Final = ("train", "setup")
CURE: Final = "Restore it from a copy, or start the run again."


class Row(NamedTuple):
    """One metric.

    Attributes:
        round: Number of rounds completed.
        split: `train` or `setup` for costs and training, `server` for diagnostics of the server,
            otherwise the samples of an evaluation: `validation`, `test` or `common`.
        protocol: Which model was evaluated, such as `personal` or `gm`. A suffix marks the cohort
            alone: `@before` local training, `@local` right after it, `@aggregated` at the end of
            the round. `new@5` are clients that join after the training, with 5 epochs of their own,
            and `seen@5` those that trained, with 5 more. Empty for splits without an evaluation.
        metric: Name of the metric.
        value: Its value.
    """

    round: int
    split: str
    protocol: str
    metric: str
    value: float

    @property
    def full_name(self) -> str:
        """Name of the metric with its split and protocol, as callbacks and loggers use it.

        >>> Row(10, "validation", "personal", "accuracy", 0.5).full_name
        'validation/personal/accuracy'
        >>> Row(10, "train", "", "loss", 0.5).full_name
        'train/loss'
        """
        middle = f"{self.protocol}/" if self.protocol else ""
        return f"{self.split}/{middle}{self.metric}"


def header_line() -> str:
    """Return the first line of the file, with its line break."""
    return ",".join(HEADER) + "\n"


def to_text(rows: Iterable[Row]) -> str:
    """Return rows as lines of metrics.csv, without the header line.

    Integral values below 2^53, which are exact, are written without a decimal point, others as
    Python writes a float64, such as `1.7e+24`: programs read a long integer as a text. NaN and
    infinities are written as `nan`, `inf` and `-inf`.
    """
    return "".join(
        f"{row.round},{row.split},{row.protocol},{row.metric},{_number(row.value)}\n"
        for row in rows
    )


def read(path: Path) -> list[Row]:
    """Read the file.

    A last line without a line break, which a crash can leave, is ignored.

    Raises:
        DataError: The file cannot be read, is damaged, is not a metrics.csv, or has more than
            `MOST_ROWS` rows.
    """
    with as_data_error(path, CURE):
        text = files.read_text(path)
        complete = text[: text.rfind("\n") + 1]
        if (count := complete.count("\n")) > MOST_ROWS:
            raise ValueError(f"it has {count:,} rows; the limit is {MOST_ROWS:,}")
        lines = csv.reader(StringIO(complete, newline="\n"))
        if tuple(next(lines, ())) != HEADER:
            raise ValueError("it does not begin with the columns of a metrics.csv")
        # The names of all rows are few, so that equal ones are one object in memory.
        rows = [
            Row(int(number), sys.intern(split), sys.intern(model), sys.intern(name), float(value))
            for number, split, model, name, value in lines
        ]
        _check(rows)
    return rows


def _check(rows: Sequence[Row]) -> None:
    """Raise a ValueError if a round, a name or a count of a file cannot be one."""
    numbers = {row.round for row in rows}
    if numbers and not 0 <= min(numbers) <= max(numbers) < MOST_ROUNDS:
        raise ValueError(f"a round is not in [0, {MOST_ROUNDS:,})")
    for name in {name for row in {row[1:4] for row in rows} for name in row if name}:
        own_names.checked(name, "a name")
    for row in rows:
        if row.metric in COUNTS and row.split in TRAINING and not 0 <= row.value < MOST_BYTES:
            raise ValueError(f"`{row.metric}` of round {row.round} is {row.value}")


def _number(value: float) -> str:
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < EXACT else repr(number)
