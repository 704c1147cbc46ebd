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
    """Return the content of the two files of a partition.

    Args:
        partition: The partition.
        dataset: Data set that its rows refer to.
        config: Section `partition`, for the description.

    Returns:
        The bytes of the NPZ file: arrays `index`, `client` and `part` (0 train, 1 validation, 2
        test) with one entry per sample, and `train_counts` [N, C]. The bytes of the JSON file:
        `format`, the `hash` of the partition, the hash of the `labels`, the name of the `dataset`
        and the hash of its `data`, the names of the `classes`, the number of `clients`, the
        `samples` of each client by part, the `client_names` of natural clients, the column `group`
        whose rows stay together, the section `partition` as `config`, and `notes`.
    """
    index = np.concatenate([indices for part in PARTS for indices in partition.parts[part]])
    sizes = {name: [len(indices) for indices in partition.parts[name]] for name in PARTS}
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
        "hash": partition.hash(),
        "labels": partition.labels,
        "dataset": dataset.name,
        "data": data_hash(dataset),
        "classes": list(dataset.classes),
        "clients": partition.clients,
        "samples": sizes,
        "client_names": list(partition.names),
        **({"shifts": list(partition.shifts)} if partition.shifts else {}),
        **({"transformed": partition.transformed} if partition.transformed else {}),
        **({"group": dataset.blocks_of} if dataset.blocks is not None else {}),
        "config": config.model_dump(mode="json"),
        "notes": list(partition.notes),
    }
    return packed.getvalue(), (json.dumps(description, indent=1) + "\n").encode()


def data_hash(dataset: Dataset) -> str:
    """Return the SHA-256 (hex) over a data set: samples, labels, words, vocabulary, and
    size of its train part.

    Args:
        dataset: The data set. Its targets count, if it has any.
    """
    sha = hashlib.sha256(f"{dataset.x.dtype}{dataset.x.shape}{dataset.train}".encode())
    for array in (dataset.x, dataset.y):
        sha.update(np.ascontiguousarray(array).data)
    if dataset.targets is not None:
        sha.update(f"{dataset.targets.dtype}{dataset.targets.shape}".encode())
        sha.update(np.ascontiguousarray(dataset.targets).data)
    for key, values in dataset.extras.items():
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

    Args:
        folder: Folder of a run or a study.
        partition: The partition.
        dataset: The data set. The hash of the partition covers only its labels.
        cure: What the user can do; the last sentence of the error.
        has_samples: Whether the data set has its samples; false for that of a worker process, whose
            samples are compared before they are sent to it.

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
    """Save a partition to an NPZ file and a JSON file beside it.

    Args:
        partition: The partition.
        dataset: Data set that its rows refer to.
        config: Section `partition`, for the description.
        path: The NPZ file; the JSON file has the same name with the suffix `.json`.

    Raises:
        OSError: A file cannot be written. Its old content is unchanged.
    """
    packed, description = encode(partition, dataset, config)
    files.write(path, packed)
    files.write(path.with_suffix(".json"), description)


def load(path: Path, dataset: Dataset) -> ClientParts:
    """Read a saved partition.

    Args:
        path: The NPZ file; the JSON file must be beside it.
        dataset: Data set that the rows must refer to.

    Raises:
        DataError: A file is missing or damaged, the two files do not belong together, or the
            partition was made for other labels.
    """
    from flbench.data.npz_files import read_arrays

    beside = path.with_suffix(".json")
    try:
        description = json.loads(files.read_text(beside))
        clients, labels, expected = (
            int(description["clients"]),
            description["labels"],
            description["hash"],
        )
        notes = tuple(map(str, description.get("notes", ())))
        # Descriptions of version 0.1 have no names.
        names = tuple(map(str, description.get("client_names") or ()))
        is_transformed = description.get("transformed") is not None
    except FileNotFoundError as error:
        raise DataError(
            f"the partition {path} needs {beside.name} beside it, which is missing. Copy it there,"
            " or save the partition again."
        ) from error
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{beside} does not describe a partition ({error}). Save the partition again."
        ) from error
    if is_transformed:
        raise DataError(
            f"the partition {path} is of a scheme that transforms samples, and a saved partition"
            " has their rows alone. Name the scheme again (`partition.scheme`)."
        )
    if not path.exists():
        raise DataError(
            f"the partition {path} (`partition.path`) does not exist. Save one with"
            " `flbench data --save FILE.npz`."
        )
    if labels != label_hash(dataset):
        raise DataError(
            f"the partition {path} was made for other labels (data set"
            f" `{description.get('dataset')}`) than those of `{dataset.name}`. Use that data set,"
            " or another partition."
        )
    # Every client has a sample. An absurd number would ask for arrays larger than the memory.
    if not 1 <= clients <= len(dataset.y):
        raise DataError(
            f"{beside} describes {clients:,} clients, but `{dataset.name}` has {len(dataset.y):,}"
            " samples, and each client needs one. Save the partition again."
        )
    arrays = read_arrays(path)
    columns = [arrays[name] for name in ("index", "client", "part") if name in arrays]
    are_integers = all(array.dtype.kind in "iu" and array.ndim == 1 for array in columns)
    if len(columns) != 3 or not are_integers or len({len(array) for array in columns}) != 1:
        raise DataError(
            f"{path} is not a saved partition: it must contain the arrays `index`, `client` and"
            " `part`, lists of integers of equal lengths. Save the partition again."
        )
    index, client, part = (array.astype(np.int64) for array in columns)
    if len(index) and (
        index.min() < 0 or index.max() >= len(dataset.y) or len(np.unique(index)) != len(index)
    ):
        raise DataError(
            f"{path} lists a sample twice, or samples that `{dataset.name}` does not have. Save the"
            " partition again."
        )
    if len(index) and (
        min(client.min(), part.min()) < 0 or client.max() >= clients or part.max() >= len(PARTS)
    ):
        raise DataError(
            f"{path} has clients or parts that {beside.name} does not describe. Save the partition"
            " again."
        )
    parts = {}
    for k, name in enumerate(PARTS):
        # Sort the part's samples by client and row, then cut them where the client changes.
        mine, owner = index[part == k], client[part == k]
        mine = mine[np.lexsort((mine, owner))]
        parts[name] = np.split(mine, np.cumsum(np.bincount(owner, minlength=clients))[:-1])
    if len(names) not in (0, clients):
        raise DataError(
            f"{beside} has {len(names)} `client_names` for {clients} clients. Save the partition"
            " again."
        )
    partition = ClientParts(parts, labels, notes, names)
    if partition.hash() != expected:
        raise DataError(
            f"{path} and {beside.name} do not belong together: their hashes differ. Save it again."
        )
    return partition
