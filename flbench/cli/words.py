"""The words of a command that are not options: names, and overrides `key=value`."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from flbench.cli.suggestions import key_like
from flbench.core.errors import UserError
from flbench.core.registry import ALGORITHMS, MODELS


def separate(items: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the names among the words of a command from the overrides.

    Names may be separated by commas; a variant of a method is a word of its own.

    Raises:
        UserError: A name is given twice.

    >>> separate(["hfcd,fedavg", "train.rounds=5", "short: hfcd tau=0.1"])
    (['hfcd', 'fedavg', 'short: hfcd tau=0.1'], ['train.rounds=5'])
    """
    overrides = [item for item in items if "=" in item and not is_variant(item)]
    return _names(item for item in items if item not in overrides), overrides


def is_variant(word: str) -> bool:
    """Return whether a word is a variant of a method: `LABEL: NAME KEY=VALUE ...`.

    The label may be left out.

    >>> [is_variant(word) for word in ("short: hfcd tau=0.1", "hfcd tau=1", "seed = 1", "hfcd, ft")]
    [True, True, False, False]
    """
    before, sign, _ = word.strip().partition("=")
    return ": " in before or (bool(sign) and " " in before.strip())


def _names(texts: Iterable[str]) -> list[str]:
    """Return names that are separated by commas, and variants, each one once."""
    split = ([text] if is_variant(text) else text.split(",") for text in texts)
    names = [name.strip() for some in split for name in some if name.strip()]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"`{name}` is named twice. Name it once.")
    return names


def one_name(items: Sequence[str], kind: str) -> tuple[str | None, list[str]]:
    """Separate at most one name from the overrides among the words of a command.

    Args:
        items: The words.
        kind: What the name is of, for the error message.

    Raises:
        UserError: There is more than one name.
    """
    names, overrides = separate(items)
    if len(names) > 1:
        raise UserError(f"give one {kind}, got {', '.join(names)}.")
    return (names[0] if names else None), overrides


def methods(
    items: Sequence[str], algo: Sequence[str], *, variants: bool = False
) -> tuple[tuple[str, ...], list[str]]:
    """Separate the methods from the overrides among the words of a command.

    Args:
        items: Words of the command.
        algo: Values of `--algo`, which stand for words.
        variants: Whether the words can be variants of methods; see `is_variant`.

    Returns:
        The names of the methods, and the overrides. Classes of the user are registered.

    Raises:
        UserError: A word is neither a method nor an override, a method is named twice, or the
            words and `--algo` both name methods.
    """
    names, overrides = separate(items)
    if names and algo:
        raise UserError(
            f"`{' '.join(names)}` and --algo {','.join(algo)} both name methods. Name all of them"
            " in one place."
        )
    named = names or _names(algo)
    kept = {one for one in named if variants and is_variant(one)}
    return tuple(one if one in kept else _method(one) for one in named), overrides


def _method(name: str) -> str:
    """Return the name of the method that a word names; a class of the user is registered.

    Args:
        name: A name, or the import path of a class, `package.module:Class` or `FILE.py:Class`.

    Raises:
        UserError: It is not a method. The message says what to type instead.
    """
    if name in ALGORITHMS.names() or name in ALGORITHMS.load():
        return name
    from flbench.config.schema import Config

    key, colon, value = name.partition(":")
    if colon and key not in Config.model_fields and key_like(key) != key:
        return str(ALGORITHMS.section(name)["name"])
    if key in Config.model_fields or key_like(key) == key:
        raise UserError(f"`{name}` has no value. Write {key}={value or 'VALUE'} (key=value).")
    raise UserError(f"`{name}` is neither a method nor key=value.{_instead(name)}")


def _instead(word: str) -> str:
    """Return what to type instead of a word that is not a method, to follow its sentence."""
    from flbench.data.known_sets import known

    if close := get_close_matches(word.lower(), ALGORITHMS.names(), n=1, cutoff=0.7):
        return f" Did you mean `{close[0]}`?"
    for option, names in (("--dataset", known()), ("--model", MODELS.names())):
        if word in names:
            return f" Did you mean {option} {word}?"
    path = Path(word)
    if path.suffix == ".py":
        return f" Name the class of the method too: {word}:Class."
    if path.suffix in (".yaml", ".yml"):
        return f" A configuration file is given by --config {word}."
    if path.suffix in (".npz", ".zip", ".csv") or path.is_dir():
        return f" Data are given by data.path={word}, and a folder to resume by --resume {word}."
    return " `flbench algos` lists the methods."
