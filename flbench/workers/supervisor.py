"""Ends a study in a bounded time after a stop signal, or when servers of Ray have ended.

A call of Ray's library to a server that has ended fails after a minute or later, and Python handles
no signal before the call returns. Signals are often sent to Ray's servers too, because they belong
to the same process group or service. Therefore a thread receives the signals and asks whether the
servers are there, and it ends the process if the main thread is not able to.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from select import select
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from flbench.core.errors import RunError
from flbench.core.text import printable

INTERRUPTED: Final = 130  # exit code after a stop signal
FAILED: Final = 1  # exit code after the loss of a server
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
INTERVAL: Final = 0.5  # seconds between two looks at the servers
CONNECT_SECONDS: Final = 2.0
STOP_SECONDS: Final = 12.0
"""Seconds that the main thread has after a stop signal or a loss to write the report and end."""
PATIENCE: Final = 2.0
"""Seconds that the main thread has to return from a call of Ray after the loss of a server."""
TOLERANCE: Final = 10.0
"""Seconds after which a server that does not answer, or one of another machine, is lost. A server
of this machine that refuses connections has ended, and is lost at once."""
REPORT_SECONDS: Final = 6.0
"""Seconds that the report may take if the main thread cannot write it."""
IMPATIENCE: Final = 1.0
"""A second stop signal at least these seconds after the first one ends the process at once."""
URGENCY: Final = 0.2
"""Seconds to close the display if Ray's library may end the process at any moment."""
GRACE: Final = 0.3
"""Seconds after which the main thread ends such a process, if the supervisor's has not."""

Server = tuple[str, int]  # host and port


class StudyStopped(BaseException):
    """Ends Ray Tune's loop after a stop signal or the loss of a server.

    It is not an Exception, because after one Ray Tune calls its servers to clean up.
    """


class Supervisor:
    """Context manager around everything that a study does with Ray.

    Inside it, the first SIGINT or SIGTERM raises KeyboardInterrupt in the main thread, as Ctrl-C
    does. Within `waiting()` it does not, because the signal could arrive in the middle of Ray's own
    code: after SIGINT `check` raises StudyStopped at the next step of Ray Tune. SIGTERM ends the
    process at once without a report, within `waiting()` and wherever servers of this process are
    watched. If the main thread has not ended after `STOP_SECONDS`, the process is ended with exit
    code 130.

    When a server is lost, `check` raises StudyStopped too, and the process ends with exit code 1.

    Python's signal handlers can be installed by the main thread only. In another thread no signal
    is caught, but the servers are watched as well; the caller's main thread handles its signals.

    Args:
        ends_process: Whether the process may be ended, as a command may. Without it, a second stop
            signal raises KeyboardInterrupt wherever the main thread is, and a call of Ray may take
            a minute to fail after the loss of a server.

    Attributes:
        note: What the user must know when the process is ended, such as how to resume.
        report: Function that writes the report of the study. It is called once, by the main thread
            in `write_report` or by the supervisor.
        close_display: Function that ends a live table on the terminal.
    """

    def __init__(self, *, ends_process: bool = True) -> None:
        self._ends_process = ends_process
        self.note = ""
        self.report: Callable[[], object] = _nothing
        self.close_display: Callable[[], object] = _nothing
        self._servers: tuple[Server, ...] = ()
        self._is_local = True
        self._handled = False  # whether the main thread has handled a stop signal
        self._interrupted = False  # whether KeyboardInterrupt was raised
        self._stopped: float | None = None  # time of the first stop signal
        self._impatient = False
        self._silent: float | None = None  # time since when a server has not answered
        self._lost: float | None = None  # time of the loss of a server
        self._waiting = False
        self._reason: str | None = None  # why the main thread has given up
        self._reporting = threading.Lock()
        self._telling = threading.Lock()  # taken by the first thread that prints the end
        self._is_reported = False
        self._closed = False
        self._is_main = threading.current_thread() is threading.main_thread()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._wake, self._bell = socket.socketpair()
        self._wake.setblocking(False)
        self._bell.setblocking(False)
        if self._is_main:
            self._old_bell = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        self.catch_signals()
        self._thread = threading.Thread(target=self._supervise, daemon=True, name="supervisor")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lost is not None and self._ends_process:
            # Ray's library waits for its servers when Python exits.
            self._say_error(error)
            self._exit()
        self._closed = True
        if self._is_main:
            signal.set_wakeup_fd(self._old_bell)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._bell.send(b"\0")
        self._thread.join()
        self._wake.close()
        self._bell.close()
        if isinstance(error, SystemExit) and error.code in SIGNALS:
            raise KeyboardInterrupt  # Ray's own handler was called, while it connected

    def catch_signals(self) -> None:
        """Install the handlers of the signals. Ray replaces one of them when it connects."""
        if not self._is_main:
            return
        for number in SIGNALS:
            handler = signal.signal(number, self._interrupt)
            self._handlers.setdefault(number, handler)

    def watch(self, servers: Sequence[Server], *, is_local: bool) -> None:
        """Watch servers from now on.

        Args:
            servers: Host and port of servers. Those that do not answer now, for example because a
                proxy is between, are not watched.
            is_local: Whether this process started the servers, on this machine.
        """
        self._is_local = is_local
        self._servers = tuple(server for server in servers if connection_error(server) is None)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context manager around calls of Ray that wait for trials.

        Raises:
            KeyboardInterrupt: A stop signal has arrived.
            RunError: A server was lost, or the main thread has given up.
        """
        self._waiting = True
        try:
            yield
        except StudyStopped:
            pass
        except Exception:
            # Ray's errors after a loss describe its internals.
            if not self.is_over():
                raise
        finally:
            self._waiting = False
        if self._stopped is not None:
            raise KeyboardInterrupt
        if self._lost is not None:
            raise RunError(self._loss())
        if self._reason is not None:
            raise RunError(f"{self._reason} {self.note}".rstrip())

    def give_up(self, reason: str) -> NoReturn:
        """Raise StudyStopped, after which `waiting` raises a RunError.

        Args:
            reason: One or more sentences.
        """
        self._reason = reason
        raise StudyStopped

    def check(self) -> None:
        """Raise StudyStopped if a stop signal has arrived or a server was lost."""
        if self._stopped is not None or self._lost is not None:
            raise StudyStopped

    def is_over(self) -> bool:
        """Return whether a stop signal has arrived or a server is lost; see `is_lost`.

        What fails then, such as the worker of a trial, fails for this reason.
        """
        return self._stopped is not None or self.is_lost()

    def is_lost(self) -> bool:
        """Return whether a server is lost, so that Ray must not be called.

        The servers are asked, and one that does not answer is lost from now on.
        """
        if self._lost is None and not self._all_answer():
            self._lost = time.monotonic()
        return self._lost is not None

    def write_report(self) -> None:
        """Write the report, unless the supervisor writes it already."""
        with self._reporting:
            if not self._is_reported:
                self._is_reported = True
                self.report()

    def _interrupt(self, number: int, frame: object) -> None:
        """Handle a stop signal in the main thread."""
        if self._is_urgent({number}):
            # The supervisor's thread ends the process, unless it is asking the servers just now.
            # This handler may have interrupted the main thread inside a lock, so it takes none that
            # others hold, and flushes nothing.
            time.sleep(GRACE)
            self._say_interrupted()
            os._exit(INTERRUPTED)
        # The supervisor's thread may have noted the time of this same signal already.
        is_second = self._handled and not self._ends_process
        self._handled = True
        self._stopped = self._stopped or time.monotonic()
        if is_second or (not self._interrupted and not self._waiting):
            self._interrupted = True
            raise KeyboardInterrupt

    def _supervise(self) -> None:
        """Receive signals, look after the servers, and end the process if it is time."""
        while not self._closed:
            ready, _, _ = select([self._wake], [], [], INTERVAL)
            received = self._wake.recv(100) if ready else b""
            if any(number in SIGNALS for number in received):
                now = time.monotonic()
                self._stopped = self._stopped or now
                is_urgent = self._is_urgent(received)
                self._impatient = is_urgent or now - self._stopped > IMPATIENCE
                if is_urgent:
                    self._end()
            self._look()
            if (
                self._ends_process
                and not self._closed
                and (self._impatient or self._is_late(time.monotonic()))
            ):
                self._end()

    def _is_urgent(self, numbers: Collection[int]) -> bool:
        """Return whether the process must end at once after signals with these numbers.

        SIGTERM is often sent to Ray's servers too. When they end, Ray's library ends this process
        within half a second, without a message and with exit code 1, also if the main thread is no
        longer waiting for trials.
        """
        has_servers = self._is_local and bool(self._servers)
        is_in_danger = self._ends_process and not self._closed and (self._waiting or has_servers)
        return is_in_danger and signal.SIGTERM in numbers

    def _look(self) -> None:
        """Note whether all servers answer; see `TOLERANCE`."""
        if self._lost is not None or self._all_answer():
            self._silent = None
            return
        now = time.monotonic()
        self._silent = self._silent or now
        if now - self._silent >= TOLERANCE:
            self._lost = now

    def _all_answer(self) -> bool:
        """Return whether all servers accept connections."""
        for server in self._servers:
            error = connection_error(server)
            if error is not None:
                if self._is_local and isinstance(error, ConnectionRefusedError):
                    self._lost = self._lost or time.monotonic()
                return False
        return True

    def _is_late(self, now: float) -> bool:
        """Return whether the main thread has had enough time to end by itself."""
        limit = PATIENCE if self._waiting else STOP_SECONDS
        is_late = self._lost is not None and now - self._lost > limit
        return is_late or (self._stopped is not None and now - self._stopped > STOP_SECONDS)

    def _loss(self) -> str:
        return f"a server of Ray has ended, or cannot be reached. {self.note}"

    def _say_error(self, error: BaseException | None) -> None:
        """Print what the command line would print of the error that ends the study."""
        if isinstance(error, KeyboardInterrupt):
            if not error.args:  # otherwise its message was printed when it was raised
                self._say("interrupted")
        elif error is not None:
            self._say(f"error: {error if isinstance(error, RunError) else self._loss()}")

    def _end(self) -> None:
        """End the process without the main thread: message, report, exit."""
        _bounded(self.close_display, URGENCY if self._impatient else IMPATIENCE)
        if self._stopped is not None:
            self._say_interrupted()
        else:
            self._say(f"error: {self._loss()}")
        if not self._impatient:
            _bounded(self.write_report, REPORT_SECONDS)
        self._exit()

    def _say_interrupted(self) -> None:
        """Print what the command line would print after a stop signal, once."""
        if self._telling.acquire(blocking=False):
            self._say(f"note: interrupted. {self.note}" if self.note else "interrupted")

    def _say(self, text: str) -> None:
        """Print text on standard error, without a lock that the main thread may hold."""
        with suppress(OSError):
            os.write(2, f"{printable(text)}\n".encode())

    def _exit(self) -> None:
        """End the process without Ray's exit handlers, which call its servers."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(FAILED if self._stopped is None else INTERRUPTED)


def connection_error(server: Server) -> OSError | None:
    """Return the error of a connection to a server; None if the server accepts it."""
    try:
        socket.create_connection(server, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def _bounded(function: Callable[[], object], seconds: float) -> None:
    """Call a function in a thread, and wait at most some seconds for its end."""

    def call() -> None:
        with suppress(Exception):
            function()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)


def _nothing() -> None:
    """Do nothing."""
