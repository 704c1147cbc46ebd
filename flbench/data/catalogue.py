"""The data sets that have a name, where each is looked up, and a partition in numbers."""

from typing import Any

from flbench.config.schema import DataConfig
from flbench.data import sources
from flbench.data.federation import Federation

Entry = dict[str, Any]


def data_sets(config: DataConfig) -> list[Entry]:
    """Return the known data sets, and the files of `data.root` besides."""
    names = list(sources.known())
    if config.root.is_dir():
        files = (
            path.stem for path in sorted(config.root.iterdir()) if path.suffix in (".npz", ".zip")
        )
        names += [name for name in dict.fromkeys(files) if name not in names]
    return [data_set(config.model_copy(update={"name": name})) for name in names]


def data_set(config: DataConfig) -> Entry:
    """Return one data set: what it is, where it is looked up, and where it was found."""
    known = sources.known().get(config.name)
    if known is None and not is_available(config):
        sources.load(config)  # raises the error that says which file to put where
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
    """Return where a data set lies, without loading or downloading it."""
    if config.name == "digits":
        return "scikit-learn"
    places = list(sources.candidates(config))
    known = sources.known().get(config.name)
    if known is not None and known.downloaded:
        places.append(config.root / known.downloaded)
    return next((str(path) for path in places if path.exists()), None)


def is_available(config: DataConfig) -> bool:
    """Return whether a data set can be loaded without a download."""
    return config.path is not None or location(config) is not None


def partition(federation: Federation) -> Entry:
    """Return a partition in numbers."""
    return {
        "dataset": federation.dataset.name,
        "hash": federation.partition.hash(),
        "clients": federation.clients,
        "classes": list(federation.dataset.classes),
        "samples": {
            part: [len(rows) for rows in federation.partition.parts[part]]
            for part in ("train", "validation", "test")
        },
        "common_test": len(federation.common),
        "train_counts": federation.counts.tolist(),
        "notes": list(federation.notes),
    }
