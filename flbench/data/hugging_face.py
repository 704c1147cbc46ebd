"""Data sets of Hugging Face's package `datasets`, by name or from a folder."""

import re
from pathlib import Path
from typing import Any, Final

from flbench.core.errors import DataError

HUB: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""Names of data sets of the Hugging Face Hub. Other names can be those of readers of the package
`datasets`, one of which unpickles the files of the current folder."""


def load(name: str) -> Any:
    """Return a `Dataset` or `DatasetDict`.

    Args:
        name: A folder that `save_to_disk` wrote, a folder of data files, or the name OWNER/NAME of
            a data set that the package finds in its cache or downloads.

    Raises:
        DataError: The name is neither, the package is not installed, or it cannot load the data
            set.
    """
    folder = Path(name)
    is_folder = name != "" and folder.is_dir()
    if not is_folder and not HUB.fullmatch(name):
        raise DataError(
            f"`data.name=hf:{name}`: there is no folder {name}, and data sets of the Hugging Face"
            " Hub are named OWNER/NAME, such as data.name=hf:ylecun/mnist."
        )
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"`data.name=hf:{name}` needs the package `datasets`, which is not installed: pip"
            " install 'flbench[hf]'"
        ) from error
    saved = ("dataset_dict.json", "state.json")
    try:
        if any((folder / file).is_file() for file in saved):
            return datasets.load_from_disk(name)
        return datasets.load_dataset(str(folder.resolve()) if is_folder else name)
    except Exception as error:  # of many kinds: files, network, names
        raise DataError(
            f"`data.name=hf:{name}` cannot be loaded by `datasets`: {type(error).__name__}: {error}"
            " Without a network, give a folder that save_to_disk wrote."
        ) from error
