"""Search spaces of methods: those that come with the methods, and the user's.

The spaces of flbench's own methods are `spaces/METHOD.yaml`. The space of a method in another
package is `METHOD.yaml` beside the module that defines the method.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from flbench.algorithms import ALGORITHMS
from flbench.config import trust
from flbench.config.sources import read_file
from flbench.core.errors import ConfigError
from flbench.tuning.reading import parse
from flbench.tuning.search_space import Space

FOLDER: Final = Path(__file__).parent / "spaces"
BUILT_IN: Final = "built in"


def load(methods: Sequence[str], path: Path | None, *, rounds: int) -> dict[str, Space]:
    """Load the search space of each method.

    Args:
        methods: Names of the methods.
        path: None for the spaces that come with the methods; a file, for the one method that the
            file names; or a folder with METHOD.yaml for some methods. All other methods use the
            spaces that come with them.
        rounds: Value of `train.rounds`: a range may be given as a share of it (`0.5 rounds`).

    Returns:
        Search spaces by method.

    Raises:
        ConfigError: A space does not exist, cannot be read, or is for none of these methods.
    """
    own: dict[str, Space] = {}
    if path is not None and path.is_dir():
        files = {name: path / f"{name}.yaml" for name in methods}
        own = {name: _of(name, file, rounds) for name, file in files.items() if file.is_file()}
    elif path is not None:
        space = _read(path, rounds)
        own = {space.method: space}
    if path is not None and not own.keys() & {*methods}:
        raise ConfigError(
            f"`space={path}` has a search space for {', '.join(own) or 'no method'}, and the study"
            f" searches {', '.join(methods)}: give METHOD.yaml of one of them, or a folder of such"
            " files."
        )
    return {name: own.get(name) or built_in(name, rounds=rounds) for name in methods}


def built_in(method: str, *, rounds: int) -> Space:
    """Load the search space that comes with a method.

    Args:
        method: Name of the method.
        rounds: Value of `train.rounds`.

    Raises:
        ConfigError: There is no such method, it comes without a search space, or the space has
            errors.
    """
    module = sys.modules.get(ALGORITHMS.find(method).__module__)
    file = FOLDER / f"{method}.yaml"
    if file.is_file():
        return replace(_of(method, file, rounds), source=BUILT_IN)
    defined_in = getattr(module, "__file__", None)
    if defined_in is not None and (beside := Path(defined_in).with_name(file.name)).is_file():
        return _of(method, beside, rounds)
    raise ConfigError(
        f"there is no search space for `{method}`. Write one, as described in"
        f" {FOLDER / 'README.md'}, and name the file by `space`, or ship it as {method}.yaml"
        f" beside {defined_in or 'the module of the method'}."
    )


def _of(method: str, file: Path, rounds: int) -> Space:
    """Load a file that must hold the space of the given method."""
    space = _read(file, rounds)
    if space.method != method:
        raise ConfigError(
            f"{file} is for the method `{space.method}`, not for `{method}`. Correct its key"
            " `method`, or rename the file."
        )
    return space


def _read(path: Path, rounds: int) -> Space:
    """Load a YAML file with a search space."""
    if not path.exists():
        raise ConfigError(f"`space={path}`: there is no such file or folder. Give a YAML file.")
    tree, origins = read_file(path)
    trust.check(path, tree)
    return parse(tree, origins, str(path), rounds=rounds)
