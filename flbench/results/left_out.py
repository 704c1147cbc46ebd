"""What cannot be read is left out by name, so that one damaged folder does not hide the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flbench.core.errors import UserError, shortened
from flbench.core.text import one_line

LEFT_OUT: Final = "left out: "
"""Beginning of the sentence about something that is left out."""
MOST: Final = 20  # sentences; the others are counted


class LeftOut:
    """Collects the errors about folders and files that are left out."""

    def __init__(self) -> None:
        # The errors themselves would keep all that the functions on their way hold.
        self._errors: list[tuple[type[UserError], str]] = []

    @contextmanager
    def catching(self, path: Path, shown: str | None = None) -> Iterator[None]:
        """Return a context manager in which a UserError means that something is left out.

        Args:
            path: What is read in the context.
            shown: Its name for users, if that is not the path.
        """
        try:
            yield
        except UserError as error:
            said = str(error) if shown is None else str(error).replace(str(path), shown)
            name = str(path) if shown is None else shown
            self._errors.append((type(error), said if name in said else f"{name}: {said}"))

    @property
    def sentences(self) -> list[str]:
        """A sentence for each of the first 20, and one that counts the others."""
        found = [f"{LEFT_OUT}{one_line(shortened(said, 280))}" for _, said in self._errors[:MOST]]
        if (more := len(self._errors) - MOST) > 0:
            found.append(f"{LEFT_OUT}{more:,} more, for such reasons.")
        return found

    def raise_first(self) -> None:
        """Raise the first of the errors, if there is one."""
        for kind, said in self._errors[:1]:
            raise kind(said)
