"""What a model is, for a person who has only its file: the card of a model."""

import csv
import math
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from flbench import __version__
from flbench.core import files, shapes
from flbench.core.archives import without_folders
from flbench.core.documents import as_data_error, read_json
from flbench.core.types import State
from flbench.data.partition import ClientParts
from flbench.deploy.models import TrainedModel
from flbench.experiment.assembly import Experiment


def card(
    experiment: Experiment,
    state: State,
    path: Path,
    client: int | None,
    name: str,
    moment: str,
    model: TrainedModel,
) -> dict[str, Any]:
    """Return the card of a model; its values are JSON values.

    Args:
        experiment: The experiment of the run.
        state: State that the model is read from.
        path: The run folder.
        client: Id of the client; None for the global model.
        name: Name of the deployment.
        moment: `best` or `last`.
        model: The model, without a card.

    Returns:
        `method`, `client`, `client_name` (of natural clients), `model` (the deployment),
        `checkpoint`, `round`, `dataset`, `classes`, `input`, `normalization`, `output`, `metrics`
        (the client's row of clients.csv), `data_hash`, `partition_hash`, and `config` and
        `summary`, the files of the run without folders of paths.
    """
    config, partition = experiment.config, experiment.federation.partition
    summary, written = read_json(path / "summary.json"), read_json(path / "partition.json")
    names = (
        {} if client is None or not partition.names else {"client_name": partition.names[client]}
    )
    return {
        "flbench": __version__,
        "method": config.algorithm.name,
        "client": client,
        **names,
        "model": name,
        "checkpoint": moment,
        "round": state.round,
        "dataset": experiment.federation.dataset.name,
        "classes": list(model.classes),
        "input": _input(experiment, client, model),
        "normalization": _normalization(experiment, client, model),
        "output": _output(experiment, model),
        "metrics": _metrics(path, summary, state.round, client) if name == "personal" else {},
        "data_hash": written.get("data"),
        "partition_hash": written.get("hash"),
        "config": without_folders(config.model_dump(mode="json")),
        "summary": without_folders(summary),
    }


def _input(experiment: Experiment, client: int | None, model: TrainedModel) -> dict[str, Any]:
    """Return the entry `input` of a card: shape, type, range, columns and words, tokens, shift."""
    layout, dataset = model.layout, experiment.federation.dataset
    kind = "int64" if layout.kind == "tokens" else "uint8" if layout.is_pixels else "float32"
    entries: dict[str, Any] = {"shape": ["B", *model.inputs.raw_shape], "dtype": kind}
    if layout.range is not None:
        entries["range"] = list(layout.range)
    if layout.kind == "tokens":
        entries |= {"vocabulary": layout.vocabulary, "padding": layout.padding}
        entries |= {"tokens": list(dataset.tokens)}
    if layout.columns:
        words = zip(layout.columns, layout.words, strict=True)
        entries["columns"] = list(layout.columns)
        entries["words"] = {column: list(some) for column, some in words if some}
        entries["dropped"] = list(dataset.dropped)
    if client is not None and (shift := _shift_of(experiment.federation.partition, client)):
        entries["shift"] = shift
    return entries


def _shift_of(partition: ClientParts, client: int) -> str:
    """Return a sentence about the shift of a client's samples, which models do not apply."""
    if partition.shifts:
        what = f"are shifted ({partition.shifts[client]})"
    elif partition.transformed:
        what = "are transformed by the partition scheme"
    else:
        return ""
    return (
        f"the samples of client {partition.called(client)} {what}: its model takes samples that"
        " have been changed in this way, and predicts classes as the client has them."
    )


def _normalization(experiment: Experiment, client: int | None, model: TrainedModel) -> Any:
    """Return the entry `normalization` of a card."""
    normal = model.normalization
    origin = "the training parts of all clients"
    if experiment.federation.owner is not None:
        origin = "the samples that were given" if client is None else "the client's training part"
    return {
        "from": origin,
        "mean": normal.mean.tolist(),
        # JSON has no infinity.
        "std": [value if math.isfinite(value) else None for value in normal.std.tolist()],
        "columns": list(normal.columns),
        "fill": list(normal.fill),
    }


def _output(experiment: Experiment, model: TrainedModel) -> dict[str, Any]:
    """Return the entry `output` of a card."""
    if model.classes:
        return {"shape": ["B", len(model.classes)], "scores": model.net.scores}
    first = next(model.net.parameters())
    with torch.no_grad():
        found = model.net(shapes.zeros(experiment.federation.shape, 1, first.dtype))
    return {"shape": ["B", *found.shape[1:]], "scores": "outputs"}


def _metrics(
    path: Path, summary: dict[str, Any], round: int, client: int | None
) -> dict[str, float]:
    """Return the numbers of the client's row of clients.csv; empty without one."""
    file = path / "clients.csv"
    if client is None or not file.is_file():
        return {}
    with as_data_error(path / "summary.json"):
        moment = "last" if summary.get("last", {}).get("round") == round else "best"
    with as_data_error(file):
        for row in csv.DictReader(StringIO(files.read_text(file)), strict=True):
            if row["moment"] == moment and int(row["client"]) == client:
                return _numbers(row)
    return {}


def _numbers(row: dict[str, str]) -> dict[str, float]:
    """Return the cells of a row that are finite numbers, by column."""
    found = {}
    for name, cell in row.items():
        try:
            value = float(cell)
        except ValueError:
            continue
        if math.isfinite(value) and name != "client":
            found[name] = value
    return found
