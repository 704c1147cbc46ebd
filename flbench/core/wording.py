"""How messages name lists of names and commands."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path


def listed(names: Iterable[str], most: int, between: str = ", ") -> str:
    """Return the first of some names as a text, for a message.

    >>> listed("abc", 3), listed("abcde", 3)
    ('a, b, c', 'a, b, c and 2 more')
    """
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return between.join(found[:most]) + more


def count(number: int, what: str) -> str:
    """Return a number and a noun.

    >>> count(1, "trial"), count(1200, "trial")
    ('1 trial', '1,200 trials')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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
