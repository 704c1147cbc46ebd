"""What can go wrong, by who can mend it: the user (exit code 2) or the machine (exit code 1)."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """The user's input cannot be used; the message says what, where and the cure. Exit code 2."""


class ConfigError(UserError):
    """One or more configuration keys are wrong; the message has one line for each."""


class DataError(UserError):
    """A data file is missing, damaged, hostile or of a layout that flbench does not know."""


class RunError(Exception):
    """A run failed: a full disk, a diverged client under `on_divergence: stop`. Exit code 1."""


class DivergedError(RunError):
    """Weights are no finite numbers, and the run cannot go on without them."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean `x`?" for the known name closest to `name`, or "" if none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean `{close[0]}`?" if close else ""
