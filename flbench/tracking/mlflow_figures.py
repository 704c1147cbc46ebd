"""metrics.csv to MLflow: from the place up to which it was sent."""

import csv
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from flbench.core.errors import DataError
from flbench.results.metrics_file import Row
from flbench.tracking import mlflow_names
from flbench.tracking.mlflow_entry import MOST_FIGURES, Entry, Point

SENT: Final = "mlflow.flbench.sent"
PART: Final = 1 << 20


FIRST: Final = ("validation", "test", "common", "train", "server", "setup")
JUDGED: Final = (b",validation,", b",test,")


def send(entry: Entry, path: Path, *, over: bool) -> None:
    """Send the figures that were written since the last time, up to 1000 of them in a call.

    MLflow lists figures, and chooses one for a picture, in the order in which it met them: nothing
    is sent before the first evaluation unless the run is over, and evaluations stand first.

    The store remembers how many bytes it has, and their hash, beside the figures: a file that was
    rewound is sent again from its beginning. A figure's time is made of its round (a second each,
    from the run's start), so that one that is sent again changes nothing.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        known, offset, lines = _begin(file, entry.tags.get(SENT, "0 -"))
        for block in _blocks(file):
            evaluated = any(sign in line for line in block for sign in JUDGED)
            if not (offset or over or evaluated or len(block) == MOST_FIGURES):
                return
            rows = [_row(line, number, path) for number, line in enumerate(block, lines) if number]
            for line in block:
                known.update(line)
                offset += len(line)
            lines += len(block)
            points = [_point(row, number) for number, row in sorted(rows, key=_rank)]
            entry.draw(points, {SENT: f"{offset} {known.hexdigest()}"})


def _begin(file: BinaryIO, said: str) -> tuple[Any, int, int]:
    """Place the file behind what was sent; return the hash, bytes and lines up to there."""
    size, digest = said.split()
    known, offset, lines = sha256(), 0, 0
    while offset < int(size) and (part := file.read(min(PART, int(size) - offset))):
        known.update(part)
        offset += len(part)
        lines += part.count(b"\n")
    if offset == int(size) and known.hexdigest() == digest:
        return known, offset, lines
    file.seek(0)
    return sha256(), 0, 0


def _blocks(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield whole lines; the last one may still be being written."""
    block: list[bytes] = []
    for line in file:
        if not line.endswith(b"\n"):
            break
        block.append(line)
        if len(block) == MOST_FIGURES:
            yield block
            block = []
    if block:
        yield block


def _row(line: bytes, number: int, path: Path) -> tuple[int, Row]:
    try:
        [cells] = csv.reader([line.decode()])
        return number, Row(int(cells[0]), cells[1], cells[2], cells[3], float(cells[4]))
    except (ValueError, IndexError) as error:
        raise DataError(f"{path} is damaged in line {number + 1} ({error}).") from error


def _rank(item: tuple[int, Row]) -> tuple[int, bool]:
    row = item[1]
    split = FIRST.index(row.split) if row.split in FIRST else len(FIRST)
    return split, row.protocol != "personal"


def _point(row: Row, number: int) -> Point:
    # Rounds of a set-up all have the number 0: their lines keep them apart.
    time = 1000 * row.round or number % 1000
    return Point(mlflow_names.figure(row), row.value, row.round, time)
