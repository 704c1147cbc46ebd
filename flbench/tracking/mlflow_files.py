"""Sending the files of a run folder to MLflow: files, tables, checkpoints, partition, data set."""

import csv
import json
from collections.abc import Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Final

from flbench.core.documents import as_data_error, read_json
from flbench.core.errors import DataError
from flbench.core.files import LARGEST, check_regular
from flbench.core.text import read_cell
from flbench.results.checkpoint_files import files_of
from flbench.tracking import mlflow_names
from flbench.tracking.mlflow_run import MlflowRun, digest_of

RUN_FILES: Final = (
    "config.yaml",
    "partition.json",
    "provenance.json",
    "summary.json",
    "report.html",
    "clients.csv",
    "new_clients.csv",
    "per_class.csv",
    "confusion.csv",
    "learned.json",
    "predictions.csv",
)
TABLES: Final = ("per_class.csv", "clients.csv")
TEXT_COLUMNS: Final = (  # a class may be called 01_1, which float() accepts
    *("moment", "name", "shift", "place", "method", "first", "second", "verdict", "groups"),
    *("better_than", "split", "warning", "test", "metric", "measure"),
)
PARTITION_PICTURE: Final = "partition.png"
DATA_TAG: Final = "flbench.data"
"""Tag with the SHA-256 of the samples."""
INPUTS_TAG: Final = "mlflow.flbench.inputs"
"""Tag with the digests of the data sets that a run has as inputs."""
DIGEST: Final = 32  # characters of a hash; MLflow allows 36
MAX_CHECKPOINT_BYTES: Final = 500_000_000
KEPT_PICTURES: Final = 100
_pictures: dict[tuple[str, str], bytes | None] = {}  # of partitions, by the digests of their files


def send(run: MlflowRun, folder: Path, names: Iterable[str] = RUN_FILES) -> None:
    """Send files of a folder; a file that does not exist is left out."""
    run.upload_files([folder / name for name in names if (folder / name).is_file()])


def send_tables(run: MlflowRun, folder: Path) -> None:
    """Send the CSV tables in the JSON format that MLflow's pages show as tables.

    Raises:
        DataError: A table is damaged.
    """
    send_shown(run, [folder / name for name in TABLES])


def send_shown(run: MlflowRun, tables: Iterable[Path]) -> None:
    """Send CSV files in the JSON format that MLflow's pages show as tables.

    Args:
        run: Run in MLflow.
        tables: The files; one that does not exist is left out.

    Raises:
        DataError: A table is damaged.
    """
    shown = []
    for table in tables:
        if not table.is_file():
            continue
        with as_data_error(table), table.open(newline="", encoding="utf-8") as lines:
            check_regular(table, LARGEST)
            header, *rows = csv.reader(lines)
            data = [[_cell(*cell) for cell in zip(header, row, strict=True)] for row in rows]
        name = table.with_suffix(".json").name
        run.upload_text(name, json.dumps({"columns": header, "data": data}))
        shown.append({"path": name, "type": "table"})
    if shown:
        run.set_tags({"mlflow.loggedArtifacts": json.dumps(shown)})


def _cell(column: str, text: str) -> str | float | None:
    """Return a cell as a number if it is one; None for an empty cell."""
    if column in TEXT_COLUMNS or not text:
        return read_cell(text) or None
    value = float(text)
    return int(value) if value.is_integer() else mlflow_names.rounded(value)


def send_checkpoints(run: MlflowRun, folder: Path) -> None:
    """Send the checkpoints of the last and the best round, each with all of its files.

    A checkpoint above 500 MB is not sent, nor is that of the best round if it is the last one; the
    tag `checkpoint.NAME` says so.
    """
    last, best = (folder / "checkpoints" / f"{name}.safetensors" for name in ("last", "best"))
    for name, file in (("last", last), ("best", best)):
        if not file.is_file():
            continue
        if file == best and last.is_file() and digest_of(last) == digest_of(best):
            run.set_tags({"checkpoint.best": f"it is checkpoints/{last.name}"})
            continue
        parts = [file]
        with suppress(DataError):  # what cannot be read is sent as it is
            parts = [part for part in files_of(file) if part.is_file()]
        size = sum(part.stat().st_size for part in parts)
        if size > MAX_CHECKPOINT_BYTES:
            reason = f"not sent: {size:,} bytes (more than {MAX_CHECKPOINT_BYTES:,})"
            run.set_tags({f"checkpoint.{name}": reason})
        else:
            run.upload_files(parts, "checkpoints")


def send_partition(run: MlflowRun, folder: Path) -> None:
    """Send a picture of the partition: samples per client and class.

    Raises:
        DataError: A file of the partition is damaged.
    """
    file = folder / "partition.npz"
    if not file.is_file():
        return
    digest = digest_of(file)
    if run.uploaded_files.get(PARTITION_PICTURE) == digest:
        return
    # The methods of a repetition share a partition, and the picture takes longer than all tables.
    about = folder / "partition.json"
    key = digest, digest_of(about) if about.is_file() else ""
    if key not in _pictures:
        while len(_pictures) >= KEPT_PICTURES:
            del _pictures[next(iter(_pictures))]
        _pictures[key] = _picture(folder)
    picture = _pictures[key]
    if picture is None:
        return
    run.upload_bytes(PARTITION_PICTURE, picture, digest)


def _picture(folder: Path) -> bytes | None:
    """Return a picture of a partition as PNG; None if its file has no counts."""
    from flbench.reports import data_figures
    from flbench.results.partition_arrays import read_counts

    counts = read_counts(folder / "partition.npz")
    if counts is None:  # written by an earlier version
        return None
    about = read_json(folder / "partition.json")
    with as_data_error(folder / "partition.json"):
        names = about.get("client_names", ())  # descriptions of version 0.1 have none
        figure = data_figures.partition_table(counts, about["classes"], about["dataset"], names)
    content = BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def send_data_set(run: MlflowRun, folder: Path) -> None:
    """Record the data set as an input of the run: name, hash and number of classes.

    Raises:
        DataError: partition.json is damaged.
    """
    digest = next(iter(send_data_sets(run, [folder])), None)
    if digest is not None and run.tags.get(DATA_TAG) != digest:
        run.set_tags({DATA_TAG: digest})


def send_data_sets(run: MlflowRun, folders: Iterable[Path]) -> list[str]:
    """Record the data sets of several run folders as inputs of one run.

    MLflow has one entry for all runs of an experiment with the same data set. Therefore the entry
    says nothing about partitions, in which the runs may differ.

    Returns:
        The hash of the samples of each data set.

    Raises:
        DataError: A partition.json is damaged.
    """
    found: dict[str, tuple[str, int]] = {}  # name and number of classes, by hash
    for folder in folders:
        about = read_json(folder / "partition.json")
        if not about:
            continue
        with as_data_error(folder / "partition.json"):
            digest = str(about.get("data") or about["labels"])
            found[digest] = str(about["dataset"]), len(about.get("classes", ()))
    known = ",".join(sorted(digest[:DIGEST] for digest in found))
    if not found or run.tags.get(INPUTS_TAG) == known:
        return list(found)
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Dataset(
                name=name,
                digest=digest[:DIGEST],
                source_type="local",
                source=json.dumps({"uri": name}),
                profile=mlflow_names.text({"classes": classes} if classes else {}),
            ),
            [InputTag("mlflow.data.context", "training")],
        )
        for digest, (name, classes) in found.items()
    ]
    run.client.log_inputs(run.id, inputs)  # it does not repeat those that are there
    run.set_tags({INPUTS_TAG: known})
    return list(found)
