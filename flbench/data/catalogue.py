"""Descriptions of data sets and partitions, as the command `flbench data` shows them."""

from typing import Any

from torch import Tensor

from flbench.config.schema import HUGGING_FACE, DataConfig
from flbench.data import known_sets, sources
from flbench.data.federation import Federation
from flbench.data.partition_files import described

Entry = dict[str, Any]
"""Description of a data set or partition, as values of JSON."""


def data_sets(config: DataConfig) -> list[Entry]:
    """Describe all known data sets and the further files in `data.root`."""
    names = list(known_sets.known())
    if config.root.is_dir():
        files = (
            path.stem for path in sorted(config.root.iterdir()) if path.suffix in (".npz", ".zip")
        )
        names += [name for name in dict.fromkeys(files) if name not in names]
    return [data_set(config.altered(name=name)) for name in names]


def data_set(config: DataConfig) -> Entry:
    """Describe one data set.

    Returns:
        `name`, `title`, `classes` (number of classes) and `shape` of a sample (None for files that
        have not been read), `from` (its origin), `looked_up` (the paths that are searched, and the
        library that loads it otherwise), and `found` (where it is stored, or None).

    Raises:
        DataError: The name is unknown and there is no such file.
    """
    known = known_sets.known().get(config.name)
    if known is None and not is_available(config):
        sources.load(config)  # raises the error that names the expected files
    places = [str(path) for path in sources.candidates(config)]
    if known is not None and known.load is not None:
        places.append(f"torchvision in {config.root}")
    if config.name == "digits":
        places = ["scikit-learn"]
    return {
        "name": config.name,
        "title": "a file" if known is None else known.title,
        "classes": None if known is None else known.classes,
        "shape": None if known is None else list(known.shape),
        "from": "data.root" if known is None else known.where,
        "looked_up": places,
        "found": location(config),
    }


def location(config: DataConfig) -> str | None:
    """Return where a data set is stored, without loading or downloading it.

    Returns:
        A path, or `scikit-learn` for `digits`; None if the data set is not stored yet.
    """
    if config.name == "digits":
        return "scikit-learn"
    places = list(sources.candidates(config))
    known = known_sets.known().get(config.name)
    if known is not None and known.downloaded:
        places.append(config.root / known.downloaded)
    return next((str(path) for path in places if path.exists()), None)


def is_available(config: DataConfig) -> bool:
    """Return whether a data set can be loaded without a download."""
    is_given = config.path is not None or config.source is not None
    return is_given or config.name.startswith(HUGGING_FACE) or location(config) is not None


def partition(federation: Federation) -> Entry:
    """Describe a partition.

    Returns:
        `dataset`, the name of the data set; `hash` of the partition (SHA-256, hex); `clients`,
        their number N; `client_names` of natural clients (empty for others); `shifts`, how the
        samples of each client are shifted, if they are; `classes`, the names of the C classes;
        `samples`, the number of samples of each client [N] by part; `common_test`, the size of the
        common test set; `train_counts` [N][C], the training samples by client and class;
        `normalization`, with `offset` and `scale` of each channel or column, by which inputs are
        (x - offset) * scale, or with `data.normalize=client` a list of them for each client;
        `notes`, sentences for the user.
    """
    return {
        **described(federation.partition, federation.dataset),
        "common_test": len(federation.common),
        "train_counts": federation.counts.tolist(),
        "normalization": {
            "offset": _by_channel(federation, federation.offset),
            "scale": _by_channel(federation, federation.scale),
        },
        "notes": list(federation.notes),
    }


def _by_channel(federation: Federation, values: Tensor) -> list[Any]:
    """Return the offset or the factor of the normalization by channel or column.

    If each client has its own, they are a list for each client.
    """
    by_client = federation.owner is not None
    found: list[Any] = (values[:-1].flatten(1) if by_client else values.flatten()).tolist()
    return found
