"""Sending metrics.csv to MLflow, from the line up to which it was sent before."""

import csv
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from flbench.core.errors import DataError
from flbench.results.metrics_file import CURE, Row
from flbench.tracking import mlflow_names
from flbench.tracking.mlflow_run import MAX_METRICS_PER_CALL, MetricPoint, MlflowRun

SENT_TAG: Final = "mlflow.flbench.sent"
"""Tag with the number of bytes of metrics.csv that were sent, and their SHA-256."""
CHUNK_BYTES: Final = 1 << 20
SPLIT_ORDER: Final = ("validation", "test", "common", "train", "server", "setup")
EVALUATION_MARKS: Final = (b",validation,", b",test,")


def send(run: MlflowRun, path: Path, *, is_over: bool) -> None:
    """Send the lines of metrics.csv that MLflow does not have, up to 1000 of them in a call.

    MLflow lists metrics, and chooses one for a chart, in the order in which it got them. Therefore
    nothing is sent before the first evaluation unless the run is over, and the metrics of an
    evaluation are sent before others.

    A tag of the run says how many bytes were sent, and their hash. If the beginning of the file has
    changed, because the run was resumed from an earlier round, the whole file is sent again. The
    time of a metric follows from its round (one second per round after the start of the run), so a
    value that is sent twice is stored once.

    Args:
        run: Run in MLflow.
        path: The file; nothing is sent if it does not exist.
        is_over: Whether the file is complete.

    Raises:
        DataError: A line is damaged.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        digest, offset, lines = _skip_sent(file, run.tags.get(SENT_TAG, "0 -"))
        for block in _blocks(file):
            has_evaluation = any(mark in line for line in block for mark in EVALUATION_MARKS)
            is_full = len(block) == MAX_METRICS_PER_CALL
            if not (offset or is_over or has_evaluation or is_full):
                return
            # Line 0 of the file is the header.
            rows = [_row(line, number, path) for number, line in enumerate(block, lines) if number]
            for line in block:
                digest.update(line)
                offset += len(line)
            lines += len(block)
            points = [_point(row, number) for number, row in sorted(rows, key=_sort_key)]
            run.log_points(points, {SENT_TAG: f"{offset} {digest.hexdigest()}"})


def _skip_sent(file: BinaryIO, sent: str) -> tuple[Any, int, int]:
    """Move a file to the first byte that was not sent.

    Args:
        file: The file, at its beginning.
        sent: Value of the tag: number of bytes, and their SHA-256.

    Returns:
        The SHA-256 object of the bytes before the position, their number, and the number of their
        lines. If the file does not begin with the bytes that were sent, the position is 0.
    """
    size, expected = sent.split()
    digest, offset, lines = sha256(), 0, 0
    while offset < int(size) and (chunk := file.read(min(CHUNK_BYTES, int(size) - offset))):
        digest.update(chunk)
        offset += len(chunk)
        lines += chunk.count(b"\n")
    if offset == int(size) and digest.hexdigest() == expected:
        return digest, offset, lines
    file.seek(0)
    return sha256(), 0, 0


def _blocks(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the complete lines of a file in blocks; a line without its end is still written."""
    block: list[bytes] = []
    for line in file:
        if not line.endswith(b"\n"):
            break
        block.append(line)
        if len(block) == MAX_METRICS_PER_CALL:
            yield block
            block = []
    if block:
        yield block


def _row(line: bytes, number: int, path: Path) -> tuple[int, Row]:
    """Return the number of a line (the first is 0) and its content.

    Raises:
        DataError: The line is damaged.
    """
    try:
        [cells] = csv.reader([line.decode()])
        return number, Row(int(cells[0]), cells[1], cells[2], cells[3], float(cells[4]))
    except (ValueError, IndexError) as error:
        raise DataError(f"{path} is damaged in line {number + 1} ({error}). {CURE}") from error


def _sort_key(item: tuple[int, Row]) -> tuple[int, bool]:
    """Return a key that puts evaluations first, and the evaluated model before others."""
    row = item[1]
    split = SPLIT_ORDER.index(row.split) if row.split in SPLIT_ORDER else len(SPLIT_ORDER)
    return split, row.protocol != "personal"


def _point(row: Row, number: int) -> MetricPoint:
    """Return a line as a point of a curve.

    All lines of the set-up have round 0. Their times differ by their line numbers, because MLflow
    stores equal points once.
    """
    time = 1000 * row.round or number % 1000
    return MetricPoint(mlflow_names.metric_name(row), row.value, row.round, time)
