"""Where the code of the user has raised an exception."""

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flbench.core.errors import ConfigError, MethodError, PrintableError, UserError
from flbench.core.parts import is_installed
from flbench.core.system_errors import is_of_machine

HERE = str(Path(__file__).parent.parent)
REFUSED_CALL: Final = re.compile(r"\(\) (takes|missing|got an unexpected|got multiple values)")
"""What Python says of a function that does not take its arguments."""


@contextmanager
def as_errors(subject: str = "a part of your own") -> Iterator[None]:
    """Return a context manager in which an exception of the user's code is a MethodError.

    Errors of flbench, of memory and of the disk stay as they are.

    Args:
        subject: What the code is, for the message, which has the line of code and the exception's
            notes; see `placed`.
    """
    try:
        yield
    except PrintableError:
        raise
    except Exception as error:
        if is_of_machine(error) or not is_raised_by_user(error):
            raise
        place = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
        raise MethodError(
            f"{subject} raised {type(error).__name__}: {error}{user_line(error)}{place}. Correct"
            " its code."
        ) from error


@contextmanager
def calling(what: str, cure: str, kind: type[UserError] = ConfigError) -> Iterator[None]:
    """Return a context manager in which any exception is an error of the user's code.

    Args:
        what: The code that is called, for the message, which has its line too.
        cure: What the user can do.
        kind: Class of the error.

    >>> with calling("`mine:load`", "Correct the function."):
    ...     [][0]
    Traceback (most recent call last):
        ...
    flbench.core.errors.ConfigError: `mine:load` raised IndexError: list index out of range. \
Correct the function.
    """
    try:
        yield
    except Exception as error:
        raise kind(
            f"{what} raised {type(error).__name__}: {error}{user_line(error)}. {cure}"
        ) from error


@contextmanager
def placed(place: Callable[[], str]) -> Iterator[None]:
    """Return a context manager that adds a place, such as `client 3 in round 7`, to exceptions."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at {place()}")
        raise


def note_of(warning: Warning | str, file: str, line: int) -> str:
    """Return the text of a warning, with the line of code if it is one of the user's code.

    Args:
        warning: The warning.
        file: The file of the code that it names.
        line: The line in this file.
    """
    is_other = file.startswith((HERE, "<")) or is_installed(file)
    return str(warning) if is_other else f"{warning} ({file}:{line})"


def user_line(error: Exception) -> str:
    """Return the innermost line of the user's code in a traceback, such as ` (/me/nets.py:12)`.

    Returns:
        The line; "" if no code outside of flbench and installed packages takes part.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not (frame.filename.startswith((HERE, "<")) or is_installed(frame.filename)):
            return f" ({frame.filename}:{frame.lineno})"
    return ""


def is_raised_by_user(error: Exception) -> bool:
    """Return whether the user's code has raised an exception, itself or in a call of a package.

    A function that does not take the arguments which flbench gives it counts too: Python raises the
    exception where it is called. So does an exception of PyTorch while it computes gradients, whose
    cause is an operation of the forward pass.
    """
    is_refused_call = isinstance(error, TypeError) and REFUSED_CALL.search(str(error)) is not None
    last = traceback.extract_tb(error.__traceback__)[-1:]
    is_of_gradients = any(frame.name == "_engine_run_backward" for frame in last)
    return bool(user_line(error)) or is_refused_call or is_of_gradients
