"""Messages between processes of this machine, with large arrays in shared memory.

A message is a pickled object. Objects without an import path, such as functions of a notebook, are
pickled with their code. Arrays are not a part of the pickled bytes. A small message goes through
the socket as it is; a large one is written to a file in memory without a name, and the socket
carries the file's descriptor. Such a file ends with the last process that has it open, and needs
no space in `/dev/shm`.
"""

import errno
import mmap
import os
import pickle
import select
import socket
import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from typing import Any, Final, Protocol, Self, TypeVar

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import RunError

INLINE: Final = 2**15
"""Bytes of the largest message that goes through the socket. The buffers of a socket have more, so
that a process which sends one never waits for the other one to read."""
ALIGNMENT: Final = 64
"""Bytes to which arrays are aligned, as PyTorch aligns its own tensors."""
_PREFIX: Final = struct.Struct("<?I")  # whether the parts are in a file; number of parts
_FILES: Final = 16  # descriptors of one message, at most
_TOO_MANY_FILES: Final = (
    "this process has as many files open as it may (`ulimit -n`), and can exchange no arrays with"
    " worker processes. Raise the limit, close files, or set engine.workers=1."
)


class _HasDescriptor(Protocol):
    """What `readable` waits for."""

    def fileno(self) -> int:
        """Return the descriptor."""


_Waited = TypeVar("_Waited", bound=_HasDescriptor)


@dataclass(frozen=True)
class SharedArray:
    """An array in memory that processes share; a message with it does not copy it.

    Attributes:
        file: Descriptor of the file in memory, which `close` gives back.
        shape: Shape of the array.
        dtype: Type of the array, as NumPy writes it.
    """

    file: int
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: NDArray[Any]) -> Self:
        """Copy an array to shared memory."""
        content = [np.ascontiguousarray(array).data.cast("B")] if array.size else []
        return cls(_file(content), array.shape, array.dtype.str)

    def array(self) -> NDArray[Any]:
        """Return the array. Other processes do not see what is written to it."""
        return _mapped(self.file, self.shape, self.dtype)

    def close(self) -> None:
        """Give the descriptor back. Arrays that other processes have stay."""
        os.close(self.file)


class Connection:
    """One end of a stream of messages.

    Args:
        stream: A connected Unix socket.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `readable`."""
        return self._socket.fileno()

    def send(self, thing: Any) -> None:
        """Send an object.

        Raises:
            OSError: The other process has ended, or there is no memory for the message.
            RunError: This process has too many files open.
        """
        self.send_parts(*packed(thing))

    def send_parts(self, parts: Sequence[Any], shared: Sequence[int]) -> None:
        """Send what `packed` has returned; see `send`."""
        sizes = [memoryview(part).nbytes for part in parts]
        is_large = sum(sizes) > INLINE
        head = _PREFIX.pack(is_large, len(parts))
        files = [_file(parts)] if is_large else []
        try:
            socket.send_fds(self._socket, [head], [*files, *shared])
        finally:
            for file in files:
                os.close(file)
        self._socket.sendall(struct.pack(f"<{len(sizes)}Q", *sizes))
        if not is_large:
            self._socket.sendall(b"".join(parts))

    def receive(self) -> Any:
        """Return the next object; wait for it.

        Raises:
            EOFError: The other process has ended.
            RunError: This process has too many files open.
        """
        try:
            head, files, flags, _ = socket.recv_fds(self._socket, _PREFIX.size, _FILES)
            if not head:
                raise EOFError
            if flags & socket.MSG_CTRUNC:  # not all descriptors have arrived
                for file in files:
                    os.close(file)
                raise RunError(_TOO_MANY_FILES)
            head += self._exactly(_PREFIX.size - len(head))
            is_large, count = _PREFIX.unpack(head)
            sizes = struct.unpack(f"<{count}Q", self._exactly(8 * count))
            if is_large:
                content = _mapped(files.pop(0), (_end(sizes),), "|u1", close=True).data
                parts = [content[begin : begin + size] for begin, size in _places(sizes)]
            else:
                whole = memoryview(self._exactly(sum(sizes)))
                ends = list(accumulate(sizes))
                parts = [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        except ConnectionError as error:
            raise EOFError from error
        return _Unpickler(BytesIO(parts[0]), files, buffers=parts[1:]).load()

    def close(self) -> None:
        """Close the socket, which the other process notices."""
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        """Return the next bytes of the stream."""
        found = bytearray(size)
        rest = memoryview(found)
        while len(rest):
            read = self._socket.recv_into(rest)
            if not read:
                raise EOFError
            rest = rest[read:]
        return found


def readable(things: Iterable[_Waited], seconds: float | None = None) -> list[_Waited]:
    """Return those things that can be read or are closed; wait until there is one.

    Descriptors may have any number: `select.select` refuses those above 1,023.

    Args:
        things: Sockets, connections and processes.
        seconds: Longest time to wait; None for no limit.
    """
    found = {thing.fileno(): thing for thing in things}
    poll = select.poll()
    for number in found:
        poll.register(number, select.POLLIN)  # the end of the other side is reported in any case
    ready = poll.poll(None if seconds is None else 1000 * seconds)
    return [found[number] for number, _ in ready]


def packed(thing: Any) -> tuple[list[Any], list[int]]:
    """Return an object as bytes and buffers, and the descriptors of its shared arrays."""
    buffers: list[pickle.PickleBuffer] = []
    content = BytesIO()
    pickler = _Pickler(content, protocol=5, buffer_callback=buffers.append)
    pickler.dump(thing)
    return [content.getbuffer(), *(buffer.raw() for buffer in buffers)], pickler.shared


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles shared arrays as numbers."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.shared: list[int] = []

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, SharedArray):
            return None
        self.shared.append(thing.file)
        return len(self.shared) - 1, thing.shape, thing.dtype


class _Unpickler(pickle.Unpickler):
    """Reads shared arrays from the descriptors of their message.

    Args:
        content: The pickled bytes.
        files: The descriptors.
        buffers: The arrays.
    """

    def __init__(self, content: BytesIO, files: list[int], buffers: Sequence[Any]) -> None:
        super().__init__(content, buffers=buffers)
        self._files = files

    def persistent_load(self, number: Any) -> NDArray[Any]:
        place, shape, dtype = number
        return _mapped(self._files[place], shape, dtype, close=True)


def _places(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the begin and the size of each part in a file."""
    begins, end = [], 0
    for size in sizes:
        begins.append((end, size))
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return begins


def _end(sizes: Sequence[int]) -> int:
    """Return the size of a file with parts of these sizes."""
    begin, size = _places(sizes)[-1]
    return begin + size


def _file(parts: Sequence[Any]) -> int:
    """Return the descriptor of a file in memory with these parts.

    Where the system has no such files it is a file without a name in the temporary folder.

    Raises:
        RunError: This process has too many files open.
    """
    try:
        file = os.memfd_create("flbench", os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            raise RunError(_TOO_MANY_FILES) from error
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        views = [memoryview(part).cast("B") for part in parts]
        for (begin, _), view in zip(_places([view.nbytes for view in views]), views, strict=True):
            rest = view
            while len(rest):  # a system call writes 2 GiB at most
                written = os.pwrite(file, rest, begin)
                begin, rest = begin + written, rest[written:]
    except BaseException:
        os.close(file)
        raise
    return file


def _mapped(file: int, shape: tuple[int, ...], dtype: str, *, close: bool = False) -> NDArray[Any]:
    """Return an array in a file; what is written to it stays in this process.

    Args:
        file: Descriptor of the file.
        shape: Shape of the array.
        dtype: Type of the array.
        close: Whether to close the descriptor.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    try:
        if not size:
            return np.empty(shape, dtype)
        flags, protection = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
        content = mmap.mmap(file, size, flags=flags, prot=protection)
    finally:
        if close:
            os.close(file)
    return np.frombuffer(content, dtype).reshape(shape)
