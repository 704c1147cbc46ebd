"""Data sets of Hugging Face's package `datasets`, by name or from a folder."""

from pathlib import Path
from typing import Any

from flbench.core.errors import DataError


def load(name: str) -> Any:
    """Return a `Dataset` or `DatasetDict`.

    Args:
        name: A folder that `save_to_disk` wrote, a folder of data files, or the name of a data set
            that the package finds in its cache or downloads.

    Raises:
        DataError: The package is not installed, or it cannot load the data set.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"`data.name=hf:{name}` needs the package `datasets`, which is not installed: pip"
            " install 'flbench[hf]'"
        ) from error
    saved = ("dataset_dict.json", "state.json")
    try:
        if any((Path(name) / file).is_file() for file in saved):
            return datasets.load_from_disk(name)
        return datasets.load_dataset(name)
    except Exception as error:  # of many kinds: files, network, names
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise DataError(
            f"`data.name=hf:{name}` cannot be loaded by `datasets`: {type(error).__name__}:"
            f" {first.rstrip('.')}. Check the name; without a network, give a folder that"
            " save_to_disk wrote."
        ) from error
