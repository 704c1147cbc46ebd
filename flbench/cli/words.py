"""The words of a command that are no options, and the configuration that they stand for."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from flbench.cli.completion import key_like
from flbench.cli.options import ALIASES
from flbench.config import trust
from flbench.config.sources import Layer, from_file, from_overrides, from_values, merge
from flbench.core.errors import ConfigError, UserError
from flbench.core.registry import ALGORITHMS, MODELS

WORDS: Final = "command line"
"""Origin of values that words set: methods and overrides."""


def layers(
    overrides: Sequence[str],
    short_forms: Mapping[str, str],
    config: Path | None = None,
    out: str | None = None,
    method: str | None = None,
) -> list[Layer]:
    """Return the layers of the configuration: the file, and what the command line sets.

    Args:
        overrides: Overrides `key=value`.
        short_forms: Texts of the given short forms, by the name of the option.
        config: Configuration file; None for none.
        out: Option `--out` of `flbench run`; None if it is not given.
        method: Name of the method; None if no word names one.

    Raises:
        UserError: The file cannot be read, or two options set a key to different values.
    """
    files = [] if config is None else [from_file(config)]
    for layer in files:
        trust.check(Path(str(config)), layer.tree)
    texts = [(f"--{name}", ALIASES[name].key, text) for name, text in short_forms.items()]
    texts += [] if out is None else [("--out", "output.dir", out)]
    given = from_overrides(overrides, WORDS)
    named = {} if method is None else {"algorithm": ALGORITHMS.section(method)}
    own = [from_values(named, WORDS)]
    own += [from_overrides([f"{key}={text}"], option) for option, key, text in texts]
    for key, one in (pair for layer in own for pair in layer.items()):
        if key in given and given[key].value != one.value:
            raise ConfigError(
                f"`{key}` is given twice: as {one.value} ({one.origin}) and as {key}="
                f"{given[key].value}. Leave one of the two out."
            )
    # One layer holds all that the command line sets: merging it over the file drops the keys of a
    # method or net that the command line replaces, and none that the command line sets.
    return [*files, merge([own[0], given, *own[1:]])]


def separate(items: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the names among the words of a command from the overrides.

    Names may be separated by commas; a variant of a method is a word of its own.

    Raises:
        UserError: A name is given twice.

    >>> separate(["hfcd,fedavg", "train.rounds=5", "short: hfcd tau=0.1"])
    (['hfcd', 'fedavg', 'short: hfcd tau=0.1'], ['train.rounds=5'])
    """
    overrides = [item for item in items if "=" in item and not is_variant(item)]
    texts = (item for item in items if item not in overrides)
    split = ([text] if is_variant(text) else text.split(",") for text in texts)
    names = [name.strip() for some in split for name in some if name.strip()]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"`{name}` is named twice. Name it once.")
    return names, overrides


def is_variant(word: str) -> bool:
    """Return whether a word is a variant of a method: `LABEL: NAME KEY=VALUE ...`.

    The label may be left out.

    >>> [is_variant(word) for word in ("short: hfcd tau=0.1", "hfcd tau=1", "seed = 1", "hfcd, ft")]
    [True, True, False, False]
    """
    before, sign, _ = word.strip().partition("=")
    return ": " in before or (bool(sign) and " " in before.strip())


def one_name(items: Sequence[str], kind: str) -> tuple[str | None, list[str]]:
    """Separate at most one name, of a data set or a paper, from the overrides among words.

    Raises:
        UserError: There is more than one name.
    """
    names, overrides = separate(items)
    if len(names) > 1:
        raise UserError(f"give one {kind}, got {', '.join(names)}.")
    return (names[0] if names else None), overrides


def methods(items: Sequence[str], *, variants: bool = False) -> tuple[tuple[str, ...], list[str]]:
    """Separate the methods from the overrides among the words of a command.

    Returns:
        The names of the methods, and the overrides. Classes of the user are registered.

    Raises:
        UserError: A word is neither a method nor an override, or a method is named twice.
    """
    names, overrides = separate(items)
    kept = {one for one in names if variants and is_variant(one)}
    return tuple(one if one in kept else _method(one) for one in names), overrides


def _method(name: str) -> str:
    """Return the name of the method that a word names; a class of the user is registered.

    Args:
        name: A name, or the import path of a class, `package.module:Class` or `FILE.py:Class`.
    """
    if name in ALGORITHMS.names() or name in ALGORITHMS.load():
        return name
    if ":" in name:
        file = Path(name.rpartition(":")[0])
        if file.suffix == ".py" and not file.is_file():
            raise UserError(f"{file} does not exist.")
        return str(ALGORITHMS.section(name)["name"])
    from flbench.data.known_sets import known

    cure = "`flbench algos` lists the methods."
    if key_like(name) == name:
        cure = f"Write {name}=VALUE."
    elif close := get_close_matches(name.lower(), ALGORITHMS.names(), n=1, cutoff=0.7):
        cure = f"Did you mean `{close[0]}`?"
    for option, known_names in (("--dataset", known()), ("--model", MODELS.names())):
        cure = f"Did you mean {option} {name}?" if name in known_names else cure
    if Path(name).suffix == ".py":
        cure = f"Name the class of the method too: {name}:Class."
    raise UserError(f"`{name}` is neither a method nor key=value. {cure}")
