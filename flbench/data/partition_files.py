"""Saved partitions: an NPZ file with the samples of every client, and a JSON description."""

import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from flbench.config.schema import PartitionConfig
from flbench.core import files
from flbench.core.documents import read_json
from flbench.core.errors import DataError
from flbench.data.dataset import PARTS, Dataset
from flbench.data.partition import ClientParts, label_hash


def encode(
    partition: ClientParts, dataset: Dataset, config: PartitionConfig
) -> tuple[bytes, bytes]:
    """Return the bytes of the NPZ file and of the JSON file of a partition.

    The first has the arrays `index`, `client` and `part` (0 train, 1 validation, 2 test) with one
    entry per sample, and `train_counts` [N, C].
    """
    index = np.concatenate([indices for part in PARTS for indices in partition.parts[part]])
    about = described(partition, dataset)
    sizes = about["samples"]
    clients = np.arange(partition.clients, dtype=np.int32)
    client = np.concatenate([np.repeat(clients, sizes[name]) for name in PARTS])
    part = np.repeat(np.arange(len(PARTS), dtype=np.uint8), [sum(sizes[name]) for name in PARTS])
    packed, labels = BytesIO(), partition.classes_of(dataset.y)
    counts = [
        np.bincount(labels[rows], minlength=len(dataset.classes))
        for rows in partition.parts["train"]
    ]
    table = np.array(counts, dtype=np.int32)
    np.savez_compressed(packed, index=index, client=client, part=part, train_counts=table)
    description: dict[str, Any] = {
        "format": 1,
        **about,
        "labels": partition.labels,
        "data": data_hash(dataset),
        **({"transformed": partition.transformed} if partition.transformed else {}),
        **({"group": dataset.blocks_of} if dataset.blocks is not None else {}),
        "config": config.model_dump(mode="json"),
        "notes": list(partition.notes),
    }
    return packed.getvalue(), (json.dumps(description, indent=1) + "\n").encode()


def described(partition: ClientParts, dataset: Dataset) -> dict[str, Any]:
    """Return what a partition is: `dataset`, `hash`, numbers of clients and samples, and names."""
    return {
        "dataset": dataset.name,
        "hash": partition.hash(),
        "clients": partition.clients,
        "client_names": list(partition.names),
        **({"shifts": list(partition.shifts)} if partition.shifts else {}),
        "classes": list(dataset.classes),
        "samples": {part: [len(rows) for rows in partition.parts[part]] for part in PARTS},
    }


def data_hash(dataset: Dataset) -> str:
    """Return the SHA-256 (hex) over samples, labels, and all else that the inputs depend on."""
    sha = hashlib.sha256(f"{dataset.x.dtype}{dataset.x.shape}{dataset.train}".encode())
    further = {"": dataset.targets} if dataset.targets is not None else {}
    for array in (dataset.x, dataset.y):
        sha.update(np.ascontiguousarray(array).data)
    for key, values in (*further.items(), *dataset.extras.items()):
        sha.update(f"{key}{values.dtype}{values.shape}".encode())
        sha.update(np.ascontiguousarray(values).data)
    if dataset.validation:
        sha.update(f"validation {dataset.validation}".encode())
    if dataset.kind == "tokens":
        sha.update(repr((dataset.vocabulary, dataset.tokens, dataset.padding)).encode())
    if dataset.blocks is not None:
        sha.update(f"blocks {dataset.blocks_of}".encode() + dataset.blocks.tobytes())
    if any(dataset.words):
        sha.update(repr(dataset.words).encode())
    return sha.hexdigest()


def check_unchanged(
    folder: Path, partition: ClientParts, dataset: Dataset, cure: str, *, has_samples: bool = True
) -> None:
    """Check that samples and partition are those that the partition.json of a folder describes.

    Of a worker process, which has no samples (`has_samples`), the partition alone is compared.

    Raises:
        DataError: They differ, or partition.json cannot be read.
    """
    written = read_json(folder / "partition.json")
    data = data_hash(dataset) if has_samples else written.get("data")
    for key, now, what in (("data", data, "data"), ("hash", partition.hash(), "partition")):
        if (began := written.get(key)) != now:
            raise DataError(
                f"the {what} of `{dataset.name}` differ from those that {folder} began with (hash"
                f" {str(now)[:12]}, not {str(began)[:12]}). {cure}"
            )


def save(partition: ClientParts, dataset: Dataset, config: PartitionConfig, path: Path) -> None:
    """Save a partition to the NPZ file `path` and a file with the suffix `.json` beside it."""
    packed, description = encode(partition, dataset, config)
    files.write(path, packed)
    files.write(path.with_suffix(".json"), description)


def load(path: Path, dataset: Dataset) -> ClientParts:
    """Read a saved partition.

    Raises:
        DataError: A file is missing or damaged, the two files do not belong together, or the
            partition was made for other labels.
    """
    from flbench.data.npz_files import read_arrays

    beside, n = path.with_suffix(".json"), len(dataset.y)
    try:
        about = json.loads(files.read_text(beside))
        labels, clients, names = about["labels"], about["clients"], about["client_names"]
        if about.get("transformed") is not None:
            raise ValueError("its scheme transforms samples: name it again in partition.scheme")
        if labels != label_hash(dataset):
            raise ValueError(
                f"it was made for other labels, those of the data set `{about['dataset']}`"
            )
        arrays = read_arrays(path)
        index, client, part = (
            arrays[key].astype(np.int64, casting="safe") for key in ("index", "client", "part")
        )
        cells = part * clients + client  # the clients of the train part, of the validation part ...
        is_known = bool(((index >= 0) & (index < n)).all()) and len(np.unique(index)) == len(index)
        if not (is_known and 1 <= clients <= n and len(names) in (0, clients)):
            raise ValueError("its rows are not those of clients of this data set")
        if dataset.blocks is not None:
            places = np.stack([dataset.blocks[index], client, part])
            if len(np.unique(places, axis=1).T) > len(np.unique(places[:2], axis=1).T):
                raise ValueError(f"it divides groups of data.group={dataset.blocks_of}")
        sizes = np.bincount(cells, minlength=len(PARTS) * clients)
        rows = np.split(index[np.lexsort((index, cells))], np.cumsum(sizes)[:-1])
        parts = {key: rows[k * clients :][:clients] for k, key in enumerate(PARTS)}
        notes = tuple(map(str, about["notes"]))
        partition = ClientParts(parts, labels, notes, tuple(map(str, names)))
        if partition.hash() != about["hash"]:
            raise ValueError("the rows do not have the hash of the description")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} and {beside.name} beside it are no saved partition of `{dataset.name}`"
            f" ({error}). Save one with `flbench data --out FILE.npz`."
        ) from error
    return partition
