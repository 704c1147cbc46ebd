"""Search spaces by method: those that come with flbench, spaces/METHOD.yaml, and the user's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from flbench.algorithms import ALGORITHMS
from flbench.config.sources import from_file
from flbench.core.errors import ConfigError
from flbench.tuning.reading import parse
from flbench.tuning.space import Space

FOLDER: Final = Path(__file__).parent / "spaces"
BUILT_IN: Final = "built in"


def load(methods: Sequence[str], path: Path | None, *, rounds: int) -> dict[str, Space]:
    """Return the space of each method.

    Args:
        methods: names.
        path: None for the built-in spaces; a file, for the one method that it names; or a folder
            with METHOD.yaml for some of them. The others take the built-in ones.
        rounds: train.rounds, of which `0.5 rounds` is a share.

    Raises: ConfigError if a space cannot be read, is for none of these methods, or if there is
        none.
    """
    own: dict[str, Space] = {}
    if path is not None and path.is_dir():
        own = {
            name: _of(name, path / f"{name}.yaml", rounds)
            for name in methods
            if (path / f"{name}.yaml").is_file()
        }
        if not own:
            wanted = ", ".join(f"{name}.yaml" for name in methods)
            raise ConfigError(f"--space {path}: the folder has none of {wanted}.")
    elif path is not None:
        space = _read(path, rounds)
        if space.method not in methods:
            raise ConfigError(
                f"--space {path} is for `{space.method}`, which is not searched. Searched:"
                f" {', '.join(methods)}."
            )
        own = {space.method: space}
    return {name: own.get(name) or built_in(name, rounds=rounds) for name in methods}


def built_in(method: str, *, rounds: int) -> Space:
    """Return the space that comes with flbench.

    Raises: ConfigError if there is no such method, or no space for it.
    """
    ALGORITHMS.find(method)
    file = FOLDER / f"{method}.yaml"
    if not file.is_file():
        raise ConfigError(
            f"flbench has no search space for `{method}`. Write one ({FOLDER / 'README.md'} says"
            " how) and give it with --space FILE."
        )
    return replace(_of(method, file, rounds), source=BUILT_IN)


def _of(method: str, file: Path, rounds: int) -> Space:
    """Return the space in a file that is named after its method."""
    space = _read(file, rounds)
    if space.method != method:
        raise ConfigError(f"{file} is for the method `{space.method}`, not for `{method}`.")
    return space


def _read(path: Path, rounds: int) -> Space:
    if not path.exists():
        raise ConfigError(f"--space {path}: there is no such file or folder.")
    found = from_file(path)
    return parse(found.tree, found.origins, str(path), rounds=rounds)
