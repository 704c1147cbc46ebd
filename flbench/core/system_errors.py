"""Errors of the operating system and of PyTorch as errors of flbench, with a cure."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flbench.core import files
from flbench.core.errors import RunError, UserError

# What PyTorch's messages contain when memory runs out, on a GPU and on the CPU.
OUT_OF_MEMORY: Final = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "Storage size calculation overflowed",
)


def is_of_machine(error: BaseException) -> bool:
    """Return whether memory ran out or the disk failed, whatever file is read or written."""
    if isinstance(error, OSError):
        return error.errno in files.DISK_ERRORS
    return isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


@contextmanager
def as_flbench_errors(resume: str | None = None) -> Iterator[None]:
    """Context manager that turns errors which a user can cause or cure into errors of flbench.

    These are files that cannot be read or written, a disk that is full, and memory that runs out.
    Other errors pass unchanged.

    Args:
        resume: What the user calls to resume what the errors of disk and memory end, if anything.

    Raises:
        UserError: A file cannot be read or written.
        RunError: The disk failed, or memory ran out.
    """
    again = f" Resume with: {resume}" if resume else ""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        file = f"{error.filename}: " if error.filename else ""
        kind = RunError if is_of_machine(error) else UserError
        end = again if kind is RunError else ""
        raise kind(f"{file}{error.strerror}.{_cure(error)}{end}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_of_machine(error):
            raise
        raise RunError(
            "out of memory. End other programs, lower train.batch_size, choose a smaller model, or"
            f" set engine.device=cpu.{again}"
        ) from error


def _cure(error: OSError) -> str:
    """Return what the user can do about an error of a file; "" if it names none."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return " Make space, or choose another path."
    return " Correct the path or its permissions, or choose another." if error.filename else ""
