"""How messages name a setting: an option on the command line, an argument in Python."""

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

_NOTHING: Final = object()
_of_command_line: ContextVar[bool] = ContextVar("command_line", default=False)


@contextmanager
def for_command_line() -> Iterator[None]:
    """Return a context manager in which messages are for a user of the command line.

    Outside of it they are for a user of the Python interface.
    """
    token = _of_command_line.set(True)
    try:
        yield
    finally:
        _of_command_line.reset(token)


def is_for_command_line() -> bool:
    """Return whether messages are for a user of the command line."""
    return _of_command_line.get()


def setting(name: str, value: Any = _NOTHING) -> str:
    """Return a setting as the user writes it.

    Args:
        name: Name of the argument of the Python function, such as `gpus_per_trial`. The option has
            hyphens instead of underscores.
        value: Its value; without one, the setting is named alone.

    >>> setting("gpus_per_trial"), setting("metric", "auc")
    ('`gpus_per_trial`', "`metric='auc'`")
    >>> with for_command_line():
    ...     setting("gpus_per_trial"), setting("metric", "auc")
    ('--gpus-per-trial', '--metric auc')
    """
    if isinstance(value, float):
        value = f"{value:g}" if is_for_command_line() else value
    if is_for_command_line():
        option = f"--{name.replace('_', '-')}"
        return option if value is _NOTHING else f"{option} {value}"
    return f"`{name}`" if value is _NOTHING else f"`{name}={value!r}`"


def names_setting(name: str, values: Sequence[str]) -> str:
    """Return a setting that is a list of names, in a form that the user can copy.

    The list is valid in YAML and in Python, whatever the names contain. For the command line the
    setting is quoted for a shell.

    Args:
        name: The key of the configuration, or the argument of a Python function.
        values: The names.

    >>> print(names_setting("drop", ["id", "n,m", "it's"]))
    drop=['id', 'n,m', "it's"]
    >>> with for_command_line():
    ...     print(names_setting("data.drop", ["id", "n,m"]))
    "data.drop=['id', 'n,m']"
    """
    text = f"{name}=[{', '.join(map(_in_quotes, values))}]"
    if not is_for_command_line():
        return text
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


def command_or_call(command: str, call: str) -> str:
    """Return how the user does something: by a command, or by a call of Python.

    Args:
        command: The command of the command line.
        call: The call of the Python interface.

    >>> command_or_call("flbench show", "fl.runs()")
    'fl.runs()'
    """
    return command if is_for_command_line() else call


def in_shell(path: Path) -> str:
    """Return a path as a word of a shell, to be copied into a command.

    >>> print(in_shell(Path("runs/a")), in_shell(Path("my runs")))
    runs/a 'my runs'
    """
    return shlex.quote(str(path))


def how_to_resume(path: Path, command: str = "run", again: Sequence[str] = ()) -> str:
    """Return what the user calls to continue a run, a study or a comparison.

    Args:
        path: Its folder.
        command: Command of the command line that continues it: `run`, `tune` or `compare`.
        again: Arguments of `fl.resume`, as Python code, for objects that the user must give again.

    >>> how_to_resume(Path("runs/a"))
    "fl.resume('runs/a')"
    >>> print(how_to_resume(Path("runs/a"), again=["model=..."]))
    fl.resume('runs/a', model=...)
    >>> with for_command_line():
    ...     how_to_resume(Path("runs/a"))
    'flbench run --resume runs/a'
    """
    call = f"fl.resume({', '.join([repr(str(path)), *again])})"
    return command_or_call(f"flbench {command} --resume {in_shell(path)}", call)
