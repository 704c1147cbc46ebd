"""Exceptions, by exit code: errors that the user can correct (2) and runs that failed (1)."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from flbench.core.text import printable

MAX_MESSAGE: Final = 300  # characters


class PrintableError(Exception):
    """An error whose text has neither control characters nor the secrets of addresses.

    Texts of errors name values, files and folders of users, and Python prints them on the terminal.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class UserError(PrintableError):
    """The user's input cannot be used. The message names the value, its place and the cure.

    The command line exits with code 2.
    """


class ConfigError(UserError):
    """One or more configuration keys are wrong. The message has one line for each of them."""

    @property
    def key(self) -> str | None:
        """The key with which the message begins, after the name of a method or a file, if any.

        >>> ConfigError("`train.rounds=0` (command line): rounds are counted from 1.").key
        'train.rounds'
        """
        found = re.match(r"(?:[^`]*: )?`([\w.]+)[`=]", str(self))
        return found and found[1]


class MethodError(ConfigError):
    """The code of the user raised an exception, which is chained to this one."""


class UnknownNameError(ConfigError):
    """A method names a tensor that nothing writes.

    Attributes:
        is_placed: Whether the message says already to which method and hook the name belongs.
        is_of_server: Whether a hook has read it in the server's tree.
    """

    is_placed = False
    is_of_server = False

    def placed(self, place: str) -> "UnknownNameError":
        """Return the error with a place at its beginning, unless it has one.

        Args:
            place: The place, such as the method and a stage of it.
        """
        if self.is_placed:
            return self
        error = UnknownNameError(f"{place}: {self}")
        error.is_placed, error.is_of_server = True, self.is_of_server
        return error


class DataError(UserError):
    """A file that flbench reads is missing, damaged, malicious or of an unknown layout.

    Files are data sets, partitions, checkpoints and the other files of run and study folders.
    """


class RunError(PrintableError):
    """A run failed: the disk is full, or a client diverged under `train.on_divergence=stop`.

    The command line exits with code 1.
    """


class DivergedError(RunError):
    """A model has weights that are not finite, and the run cannot continue without it."""


class CallbackError(RunError):
    """A callback raised an exception, which is chained to this one."""


def shortened(text: str, length: int = MAX_MESSAGE) -> str:
    """Return a text of at most `length` characters: the middle of a longer one is left out.

    >>> shortened("a" * 100 + "z" * 100, length=20)
    'aaaaaaaaaa ... zzzzz'
    """
    if len(text) <= length:
        return text
    end = (length - 5) // 3
    return f"{text[: length - 5 - end]} ... {text[-end:]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the hint " Did you mean `x`?", or "" if no known name is similar.

    >>> did_you_mean("fedagv", ["fedavg", "fedprox"])
    ' Did you mean `fedavg`?'
    """
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean `{close[0]}`?" if close else ""
