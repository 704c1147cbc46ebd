"""Search spaces of methods: where their files are, and whether they fit a configuration.

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
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_values, has_value, leaves, read_file, value_at
from flbench.core.errors import ConfigError
from flbench.tuning.search_space import Parameter, Scalar, Space, parse, why_not_searched

FOLDER: Final = Path(__file__).parent / "spaces"
BUILT_IN: Final = "built in"
RATE: Final = "train.optimizer.lr"
FIXING: Final = ("command line", "argument of fl.tune")
"""Origins of values that are not searched. Values of a file change the default trial only."""
BETWEEN: Final = 0.381966  # a position in a range that is, in general, not a whole number


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

    Raises:
        ConfigError: There is no such method, it comes without a search space, or the space has
            errors.
    """
    defined_in = getattr(sys.modules.get(ALGORITHMS.find(method).__module__), "__file__", None)
    file = FOLDER / f"{method}.yaml"
    if file.is_file():
        return replace(_of(method, file, rounds), source=BUILT_IN)
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
    tree, origins = read_file(path)
    trust.check(path, tree)
    return parse(tree, origins, str(path), rounds=rounds)


def fit(space: Space, layers: Sequence[Layer]) -> tuple[Space, list[str]]:
    """Return the space without the parameters that are already set, and notes for the user.

    A parameter that the user sets on the command line, or as an argument, is not searched. The
    configuration must accept both ends of each range, a number between them, and each choice.

    Raises:
        ConfigError: The method refuses a value of the space (one line for each such value), or no
            parameter is left to search.
    """
    config, origins = resolve(layers)
    tree = config.tree()
    values = leaves(tree)
    given = {p: values[p] for p in space.parameters if origins.get(p) in FIXING}
    searched = space.without(given)
    notes = [
        f"{space.method}: `{path}` is {given[path]!r} ({origins[path]}), not searched."
        if path in given
        else f"{space.method}: `{path}` is not searched: its condition does not hold."
        for path in space.parameters
        if path not in searched.parameters
    ]
    if not searched.parameters:
        raise ConfigError(
            f"no parameter of `{space.method}` is left to search ({space.source}; given:"
            f" {', '.join(given) or 'none'}). Remove a key that is given, or compare the methods"
            " without a search (`flbench compare`)."
        )
    if RATE not in space.parameters and not values.get("model.lightning"):
        notes.append(
            f"{space.method}: its space ({space.source}) has no `{RATE}`, so that all trials use"
            f" {values[RATE]:g}. A comparison with methods whose learning rate is searched is not"
            " fair."
        )
    refused = [
        f"`{path}` ({space.source}) {why}."
        for path in searched.parameters
        if (why := why_not_searched(path, tree))
    ]
    refused += [
        why
        for parameter in searched.parameters.values()
        for value in parameter.choices or (parameter.low, parameter.at(BETWEEN), parameter.high)
        if (why := _refusal(parameter, value, searched, layers))
    ]
    if refused:
        raise ConfigError("\n".join(dict.fromkeys(refused)))
    return searched, notes


def _refusal(parameter: Parameter, value: Scalar, space: Space, layers: Sequence[Layer]) -> str:
    """Return why the configuration refuses a value; "" if it accepts the value."""
    path, place = parameter.path, parameter.place or space.source
    leading = {other: values[0] for other, values in parameter.when.items()}
    try:
        tree = resolve([*layers, from_values({**leading, path: value}, place)])[0].tree()
    except ConfigError as error:
        return str(error)
    taken = value_at(tree, path) if has_value(tree, path) else None
    return "" if taken == value else f"`{path}`: {value!r} ({place}) is read as {taken!r}."
