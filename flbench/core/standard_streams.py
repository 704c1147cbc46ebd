"""Standard streams that are closed, or that cannot be written because a disk is full."""

import errno
import os
import sys
from contextlib import suppress
from typing import Any, Final

NAMES: Final = ("stdin", "stdout", "stderr")
"""Names of the streams in `sys`, in the order of their descriptors 0, 1 and 2."""


def complete() -> None:
    """Open closed streams on the null device, and let standard error drop what cannot be written.

    A file that is opened while a descriptor of a stream is closed gets this descriptor, and
    libraries then write their messages to the file. A message that cannot be written, for example
    because the disk of a log file is full, must not end a training.
    """
    for descriptor in range(len(NAMES)):
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        _open_null(descriptor)
    for descriptor, name in enumerate(NAMES):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if not isinstance(sys.stderr, _Dropping):
        sys.stderr = _Dropping(sys.stderr)


class _Dropping:
    """A text stream of descriptor 2 that drops all messages after one that cannot be written.

    A pipe that nobody reads any more still raises BrokenPipeError, as for other programs.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        """Write what is still in the buffer."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            raise error
        _open_null(2)
        with suppress(OSError):
            self._stream.flush()  # what is in the buffer would fail again when Python ends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _open_null(descriptor: int) -> None:
    """Let a descriptor stand for the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
    os.set_inheritable(descriptor, True)  # for child processes
