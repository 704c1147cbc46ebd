"""Reading a saved partition; see `flbench.data.partition_files`."""

import json
from pathlib import Path

import numpy as np

from flbench.core import files
from flbench.core.errors import DataError
from flbench.data.dataset import PARTS, Dataset
from flbench.data.npz_files import read_arrays
from flbench.data.partition import ClientParts, label_hash


def load(path: Path, dataset: Dataset) -> ClientParts:
    """Read a saved partition.

    Args:
        path: The NPZ file; the JSON file must be beside it.
        dataset: Data set that the rows must refer to.

    Raises:
        DataError: A file is missing or damaged, the two files do not belong together, or the
            partition was made for other labels.
    """
    beside = path.with_suffix(".json")
    try:
        about = json.loads(files.read_text(beside))
        labels, expected, clients = about["labels"], about["hash"], int(about["clients"])
        notes = tuple(map(str, about.get("notes", ())))
        names = tuple(map(str, about.get("client_names") or ()))
        arrays = read_arrays(path)
        columns = [arrays[name] for name in ("index", "client", "part")]
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path} and {beside.name} beside it are no saved partition ({error}). Save one with"
            " `flbench data --save FILE.npz`."
        ) from error
    if about.get("transformed") is not None:
        raise DataError(
            f"the partition {path} is of a scheme that transforms samples, and a saved partition"
            " has their rows alone. Name the scheme again (`partition.scheme`)."
        )
    if labels != label_hash(dataset):
        raise DataError(
            f"the partition {path} was made for other labels (data set `{about.get('dataset')}`)"
            f" than those of `{dataset.name}`. Use that data set, or another partition."
        )
    limits = (len(dataset.y), clients, len(PARTS))
    if (
        not 1 <= clients <= len(dataset.y)  # every client has a sample
        or any(column.ndim != 1 or column.dtype.kind not in "iu" for column in columns)
        or len({*map(len, columns)}) != 1
        or any(((c < 0) | (c >= most)).any() for c, most in zip(columns, limits, strict=True))
        or len(np.unique(columns[0])) != len(columns[0])
        or len(names) not in (0, clients)
    ):
        raise DataError(f"{path} and {beside.name} do not fit together. Save the partition again.")
    index, client, part = (column.astype(np.int64) for column in columns)
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
