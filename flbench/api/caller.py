"""How a run or a study speaks to whoever started it: the command line, or a program."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flbench.core.wording import how_to_resume
from flbench.reports.terminal import print_notes, told


@dataclass(frozen=True)
class Caller:
    """Who started a run or a study. The defaults are those of the command line.

    Attributes:
        shown: Whether to show progress and notes.
        how_to_resume: Function from a folder to what the user calls to resume it; None for the
            command.
    """

    shown: bool = True
    how_to_resume: Callable[[Path], str] | None = None

    def tell(self, sentences: Sequence[str]) -> None:
        """Print sentences on standard error, as `note: ...`; nothing if notes are not shown."""
        if self.shown:
            print_notes(sentences)

    def during(self, doing: str) -> AbstractContextManager[None]:
        """Return a context manager that says from time to time what is done in it.

        Args:
            doing: What is done, as the beginning of a sentence.
        """
        return told(doing, self.tell)


def program(*, shown: bool, again: Sequence[str] = ()) -> Caller:
    """Return the caller of a function of the Python interface.

    Args:
        shown: Whether to show progress and notes.
        again: Arguments of `fl.resume` for objects that the user must give again; see
            `flbench.calls.parts.again`.
    """
    resume = partial(how_to_resume, again=again)
    return Caller(shown=shown, how_to_resume=resume)
