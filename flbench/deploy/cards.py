"""What a model is, for a person who has only its file: the card of a model."""

import csv
import math
from io import StringIO
from pathlib import Path
from typing import Any

from flbench import __version__
from flbench.core import files
from flbench.core.archives import without_folders
from flbench.core.documents import as_data_error, read_json
from flbench.core.types import State
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
    config, federation = experiment.config, experiment.federation
    summary, written = read_json(path / "summary.json"), read_json(path / "partition.json")
    names = federation.partition.names
    origin = "the training parts of all clients"
    if federation.owner is not None:
        origin = "the client's training part"
    return {
        "flbench": __version__,
        "method": config.algorithm.name,
        "client": client,
        **({} if client is None or not names else {"client_name": names[client]}),
        "model": name,
        "checkpoint": moment,
        "round": state.round,
        "dataset": federation.dataset.name,
        "classes": list(model.classes),
        "input": _input(experiment, client, model),
        "normalization": {"from": origin, **model.normalization},
        "output": {"scores": model.net.scores if model.classes else "outputs"},
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
    partition = experiment.federation.partition
    if client is not None and (partition.shifts or partition.transformed):
        how = f"shifted ({partition.shifts[client]})" if partition.shifts else "transformed"
        entries["shift"] = (
            f"the samples of client {partition.called(client)} are {how}: its model takes samples"
            " that have been changed in this way, and predicts classes as the client has them."
        )
    return entries


def _metrics(
    path: Path, summary: dict[str, Any], round: int, client: int | None
) -> dict[str, float]:
    """Return the finite numbers of the client's row of clients.csv; empty without one."""
    file = path / "clients.csv"
    if client is None or not file.is_file():
        return {}
    with as_data_error(path / "summary.json"):
        moment = "last" if summary.get("last", {}).get("round") == round else "best"
    found = {}
    with as_data_error(file):
        for row in csv.DictReader(StringIO(files.read_text(file)), strict=True):
            if (row["moment"], row["client"]) == (moment, str(client)):
                text = {"moment", "client", "name", "shift"}
                found = {key: float(cell) for key, cell in row.items() if cell and key not in text}
    return {key: value for key, value in found.items() if math.isfinite(value)}
