"""`flbench export` and `flbench predict`: the models of a run, as files and at work."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flbench.cli import console, tables
from flbench.core import files
from flbench.core.documents import read_json
from flbench.core.text import csv_text
from flbench.data import unlabelled
from flbench.deploy import formats, loading
from flbench.deploy.models import TrainedModel
from flbench.results import reading


def export(
    path: Path,
    *,
    client: str | None,
    out: Path,
    as_json: bool,
    asked: Mapping[str, Any],
) -> None:
    """Write a model of a run to a file, and print where it is and how to load it."""
    name = formats.choose(out)
    loaded = _load(path, client, asked)
    file, card_file = formats.write(loaded, out, overwrite=asked["overwrite"])
    if as_json:
        console.json({"file": str(file), "card": str(card_file), **read_json(card_file)})
        return
    console.line(f"{file}: {formats.FORMATS[name].about}; card: {card_file}")
    for line in read_json(card_file)["load"]:
        console.line(f"  {line}")


def predict(
    path: Path,
    inputs: Sequence[Path],
    *,
    client: str | None,
    out: Path | None,
    as_json: bool,
    asked: Mapping[str, Any],
) -> None:
    """Predict the classes of samples in files with a model of a run, and print them."""
    reading.read(path).check_classes()
    loaded = _load(path, client, asked)
    rows: list[dict[str, Any]] = []
    for given in inputs:
        for samples in unlabelled.read(given, loaded.layout, _note):
            for sentence in loaded.unknown_words(samples.x):
                _note(f"{samples.file}: {sentence}")
            rows += _predictions(loaded, samples)
    if out is not None:
        header = tuple(rows[0]) if rows else ("file", "row", "class")
        files.write(out, csv_text(header, [tuple(row.values()) for row in rows]).encode())
    if as_json:
        console.json(rows)
        return
    tables.print_predictions(rows, loaded.card)
    if out is not None:
        console.line(f"predictions: {out}")


def _predictions(model: TrainedModel, samples: unlabelled.Unlabelled) -> list[dict[str, Any]]:
    """Return one row for each sample: file, row in the file, class, and probability or score."""
    scores = model.predict(samples.x)
    column = "score"
    if model.net.scores == "logits":
        column, scores = "probability", torch.softmax(scores.double(), dim=1)
    best, predicted = scores.max(dim=1)
    places = [None] if samples.rows is None else list(samples.rows)
    return [
        {"file": samples.file, "row": row, "class": model.classes[k], column: value}
        for row, k, value in zip(places, predicted.tolist(), best.tolist(), strict=True)
    ]


def _load(path: Path, client: str | None, asked: Mapping[str, Any]) -> TrainedModel:
    """Return the model that the options name, and print notes about it."""
    loaded = loading.load(path, client, asked["deployment"], asked["checkpoint"], _note)
    if not reading.is_finished(path):
        _note(f"{path} is not finished; the model is that of round {loaded.card['round']}.")
    return loaded


def _note(sentence: str) -> None:
    console.notes([sentence])
