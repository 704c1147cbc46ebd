"""Reading of texts, one file for each client, to predict the next character.

A sample is a window of `data.text.window` characters, and its class is the character after it, as
in LEAF. Windows begin every `data.text.stride` characters. They never reach over the end of a text,
and a client's windows are split by their position, so that a test window has no character of a
training window.
"""

import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from flbench.config.schema import DataConfig
from flbench.core.errors import DataError
from flbench.data.dataset import Dataset
from flbench.data.folders import Folder, client_names

NAMES: Final = {"\n": "newline", " ": "space", "\t": "tab"}


def read(folder: Folder, config: DataConfig) -> Dataset:
    """Read the texts of all clients, in the order of their file names.

    All windows belong to the train part: there is no common test set.

    Raises:
        DataError: A file is not UTF-8 text, has a character that is not in the vocabulary, or no
            text is long enough.
    """
    keys = config.text
    files = folder.ending(".txt")
    texts = [folder.text(entry) for entry in files]
    least = max(keys.window + 1, keys.shortest or 0)
    kept = [k for k, text in enumerate(texts) if len(text) >= least]
    if not kept:
        raise DataError(
            f"{folder.path}: the longest of {len(files)} texts has {max(map(len, texts))}"
            f" characters, and {least} are needed (data.text.window={keys.window},"
            f" data.text.shortest={keys.shortest}). Lower these keys, or add longer texts."
        )
    note = (
        f"data: {len(files) - len(kept):,} of {len(files):,} texts have fewer than {least:,}"
        " characters and are left out."
    )
    characters = "".join(sorted(set().union(*(texts[k] for k in kept))))
    counts = [1 + (len(texts[k]) - keys.window - 1) // keys.stride for k in kept]
    windows = [  # views, which are copied once
        sliding_window_view(
            numbers_of(texts[k], characters, folder.place(files[k])), keys.window + 1
        )[:: keys.stride]
        for k in kept
    ]
    return of_windows(
        config.title,
        np.concatenate(windows),
        characters,
        starts=np.concatenate([keys.stride * np.arange(count) for count in counts]),
        groups=np.repeat(np.arange(len(kept)), counts),
        group_names=client_names([files[k] for k in kept]),
        notes=(*folder.left_out(files, "texts are .txt"), *[note] * (len(kept) < len(files))),
    )


def of_windows(name: str, windows: NDArray[Any], characters: str, **about: Any) -> Dataset:
    """Return the data set of windows [n, L + 1], of which the last character is the label.

    Args:
        name: Name of the data set.
        windows: Positions of the characters in the vocabulary.
        characters: The vocabulary.
        **about: Further fields of the data set.
    """
    return Dataset(
        name,
        windows[:, :-1].copy(),
        windows[:, -1].astype(np.int64),
        tuple(map(character_name, characters)),
        train=len(windows),
        vocabulary=len(characters),
        tokens=tuple(characters),
        span=windows.shape[1],
        **about,
    )


def numbers_of(text: str, characters: Sequence[str], where: str) -> NDArray[Any]:
    """Return the position of each character of a text in a vocabulary, [n], in the smallest type.

    Raises:
        DataError: A character is not in the vocabulary.
    """
    position = {character: k for k, character in enumerate(characters)}
    try:
        found = [position[character] for character in text]
    except KeyError as error:
        raise DataError(
            f"{where}: the character {error.args[0]!a} is not one of the {len(position)} of the"
            " vocabulary. Replace it."
        ) from error
    return np.array(found, dtype=np.uint8 if len(position) <= 256 else np.int32)


def character_name(character: str) -> str:
    r"""Return how a character is called as a class.

    >>> [character_name(one) for one in ("a", " ", "\n", "\u200b")]
    ['a', 'space', 'newline', 'U+200B']
    """
    is_shown = character.isprintable() and not character.isspace()
    is_shown = is_shown and not unicodedata.combining(character)
    return NAMES.get(character) or (character if is_shown else f"U+{ord(character):04X}")
