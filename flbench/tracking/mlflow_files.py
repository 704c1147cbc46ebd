"""Files of a run folder as artifacts: as they are, tables that MLflow shows, the partition."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flbench.core.documents import as_data_error, read_json
from flbench.tracking import mlflow_names
from flbench.tracking.mlflow_entry import Entry, digest_of

PLAIN: Final = (
    *("config.yaml", "partition.json", "provenance.json", "summary.json", "report.html"),
    *("clients.csv", "per_class.csv", "confusion.csv", "predictions.csv"),
)
TABLES: Final = ("per_class.csv", "clients.csv")
WORDS: Final = ("moment", "name")  # their columns; a class may be called 01_1, which is a number
PICTURE: Final = "partition.png"
DATA: Final = "flbench.data"
LARGEST: Final = 500_000_000  # bytes of a checkpoint that is sent


def send(entry: Entry, path: Path, names: Iterable[str] = PLAIN) -> None:
    """Send those of a folder's files that are there and new."""
    for name in names:
        if (path / name).is_file():
            entry.file(path / name)


def send_tables(entry: Entry, path: Path) -> None:
    """Send tables once more in the form that MLflow shows as tables."""
    shown = []
    for name in TABLES:
        file = (path / name).with_suffix(".json")
        if not (path / name).is_file():
            continue
        with as_data_error(path / name), (path / name).open(newline="", encoding="utf-8") as lines:
            header, *rows = csv.reader(lines)
            data = [[_cell(*cell) for cell in zip(header, row, strict=True)] for row in rows]
        table = {"columns": header, "data": data}
        entry.text(file.name, json.dumps(table))
        shown.append({"path": file.name, "type": "table"})
    if shown:
        entry.mark({"mlflow.loggedArtifacts": json.dumps(shown)})


def send_checkpoints(entry: Entry, path: Path) -> None:
    """Send the states of the last and the chosen round; too large ones are noted instead."""
    for name in ("last", "best"):
        file = path / "checkpoints" / f"{name}.safetensors"
        if not file.is_file():
            continue
        if file.stat().st_size > LARGEST:
            size = f"{file.stat().st_size:,} bytes"
            entry.mark({f"checkpoint.{name}": f"not sent: {size} (more than {LARGEST:,})"})
        else:
            entry.file(file, "checkpoints")


def send_partition(entry: Entry, path: Path) -> None:
    """Send the picture of who holds what, where the partition's file says it."""
    file = path / "partition.npz"
    if not file.is_file():
        return
    digest = digest_of(file)
    if entry.files.get(PICTURE) == digest:
        return
    import numpy as np

    from flbench.reports import figures

    with as_data_error(file), np.load(file, allow_pickle=False) as arrays:
        if "train_counts" not in arrays:  # of an earlier version
            return
        counts = arrays["train_counts"]
    about = read_json(path / "partition.json")
    with as_data_error(path / "partition.json"):
        figure = figures.partition_table(counts, about["classes"], about["dataset"])
    entry.client.log_figure(entry.id, figure, PICTURE)
    entry.has(PICTURE, digest)


def send_data(entry: Entry, path: Path) -> None:
    """Tell MLflow the data set: its name, hash, sizes."""
    about = read_json(path / "partition.json")
    if not about:
        return
    with as_data_error(path / "partition.json"):
        name, digest = str(about["dataset"]), str(about.get("data") or about["labels"])
        profile = {
            "clients": about["clients"],
            "classes": len(about.get("classes", ())) or None,
            "samples": {part: sum(sizes) for part, sizes in about["samples"].items()},
            "partition": about["hash"],
        }
    if entry.tags.get(DATA) == digest:
        return
    from mlflow.entities import Dataset, DatasetInput, InputTag

    data = Dataset(
        name=name,
        digest=digest[:32],  # MLflow takes no more than 36
        source_type="local",
        source=json.dumps({"uri": name}),
        profile=mlflow_names.text({key: value for key, value in profile.items() if value}),
    )
    context = [InputTag("mlflow.data.context", "training")]
    entry.client.log_inputs(entry.id, [DatasetInput(data, context)])
    entry.mark({DATA: digest})


def _cell(column: str, text: str) -> str | float | None:
    """Return a cell of a table as a number, unless its column holds words."""
    if column in WORDS or not text:
        return text or None
    value = float(text)
    return int(value) if value.is_integer() else value
