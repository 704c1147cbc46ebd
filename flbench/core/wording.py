"""How messages name settings, lists of names and commands."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from flbench.core.errors import ConfigError

_NOTHING: Final = object()


def setting(name: str, value: Any = _NOTHING) -> str:
    """Return a setting as messages name it, by the name of its argument in Python.

    >>> setting("gpus_per_trial"), setting("metric", "auc")
    ('`gpus_per_trial`', '`metric=auc`')
    """
    return f"`{name}`" if value is _NOTHING else f"`{name}={value}`"


def names_setting(name: str, values: Sequence[str]) -> str:
    """Return a setting that is a list of names, whatever they contain, quoted for a shell.

    >>> print(names_setting("data.drop", ["id", "n,m"]))
    "data.drop=['id', 'n,m']"
    """
    text = f"{name}=[{', '.join(map(_in_quotes, values))}]"
    # Shells read these characters within double quotes, too.
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


def _in_quotes(text: str) -> str:
    """Return a text in quotes that YAML and Python read as the same text."""
    if text.isprintable() and not set(text) & {"'", "\\"}:
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)  # its escape sequences are those of both


def lower_rate(*, own_optimizer: bool) -> str:
    """Return how the user lowers the learning rate, as the beginning of a sentence.

    Args:
        own_optimizer: Whether a LightningModule of the user makes the optimizer.

    >>> lower_rate(own_optimizer=False)
    'Lower train.optimizer.lr'
    """
    if own_optimizer:
        return "Lower the learning rate in the module's configure_optimizers"
    return "Lower train.optimizer.lr"


def listed(names: Iterable[str], most: int, between: str = ", ") -> str:
    """Return the first of some names as a text, for a message.

    Args:
        names: The names.
        most: How many of them are shown.
        between: What stands between two names.

    >>> listed("abc", 3), listed("abcde", 3)
    ('a, b, c', 'a, b, c and 2 more')
    """
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return between.join(found[:most]) + more


def in_shell(path: Path) -> str:
    """Return a path as a word of a shell, to be copied into a command.

    >>> print(in_shell(Path("runs/a")), in_shell(Path("my runs")))
    runs/a 'my runs'
    """
    return shlex.quote(str(path))


def how_to_resume(path: Path, command: str = "run", again: Sequence[str] | None = None) -> str:
    """Return what the user calls to continue a run, a study or a comparison.

    Args:
        path: Its folder.
        command: Command of the command line that continues it: `run`, `tune` or `compare`.
        again: Arguments of `fl.resume`, as Python code, for objects that the user must give again;
            None if a command continues it.

    >>> how_to_resume(Path("runs/a"))
    'flbench run --resume runs/a'
    >>> print(how_to_resume(Path("runs/a"), again=["model=..."]))
    fl.resume('runs/a', model=...)
    """
    if again is None:
        return f"flbench {command} --resume {in_shell(path)}"
    return f"fl.resume({', '.join([repr(str(path)), *again])})"


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise a ConfigError if the value of a setting is not a whole number of at least `least`.

    >>> check_whole("trials", 0, 1)
    Traceback (most recent call last):
        ...
    flbench.core.errors.ConfigError: `trials` must be a whole number of at least 1, got 0.
    """
    if type(value) is not int or value < least:
        raise ConfigError(
            f"{setting(name)} must be a whole number of at least {least}, got {value!r}."
        )
