"""The mirror: a process of its own that sends a folder to MLflow while the folder is written.

The process that trains never talks to MLflow. It starts the mirror, and at its end tells it how the
run ended and waits a few seconds. So a server that cannot be reached neither stops nor slows a run.
The mirror process itself is `python -m flbench.tracking.follow`.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from flbench.config.schema import Config, TrackingConfig
from flbench.core import files, startup
from flbench.core.errors import ConfigError
from flbench.core.wording import in_shell

if TYPE_CHECKING:
    from flbench.tracking.store import Address, NamedBy

Outcome = Literal["finished", "failed", "killed", "unknown"]
"""How the process that wrote a folder ended. `flbench sync` does not know it."""
NOT_SENT: Final = "not sent: "  # begins a message about something that is missing
LOG: Final = "mlflow.log"
"""File in the mirrored folder with the messages of the mirror process."""
EXIT_SECONDS: Final = 10.0
"""Seconds that a command waits for its mirrors before it exits."""


def named_by(origins: Mapping[str, str]) -> "NamedBy":
    """Return who names `tracking.uri` of a configuration that is not one of a folder."""
    # The origin of a value of a file ends with the line.
    is_line = re.search(r":\d+$", origins.get("tracking.uri", ""))
    return "user" if is_line is None else "file"


def check(config: TrackingConfig, named_by: "NamedBy" = "user") -> None:
    """Check that a run that asks for MLflow by `tracking.mlflow=true` can be mirrored.

    Raises:
        ConfigError: MLflow is not installed, the password of the address is not known, or the
            address is not the user's own; see `store.address`.
    """
    if config.mlflow is True:
        _address(config, named_by)


def _address(config: TrackingConfig, named_by: "NamedBy") -> "Address | None":
    """Return the address of the store; None if the mirror is off or MLflow is not installed."""
    if config.mlflow is False:
        return None
    from flbench.tracking import store

    if store.installed():
        return store.address(config.uri, named_by)
    if config.mlflow is True:
        raise ConfigError(f"`tracking.mlflow=true`: {store.NOT_INSTALLED}, or leave the key out.")
    return None


class Mirror:
    """The process that sends the folder of a run, a study or a comparison to MLflow.

    It starts when the folder is there. As a context manager, the mirror tells it how the command
    ended.

    Args:
        named_by: Who names the address of the store.

    Attributes:
        uri: Address of the store, without its secrets; None if nothing is sent.
        process: The mirror process; None if nothing is sent.
    """

    def __init__(self, named_by: "NamedBy" = "user") -> None:
        self._named_by, self._folder = named_by, Path()
        self.uri: str | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path, config: TrackingConfig) -> Self:
        """Start the mirror process, unless it is switched off or MLflow is not installed.

        Raises:
            ConfigError: See `check`; or the address is not the user's own, with any
                `tracking.mlflow`.
        """
        address = _address(config, self._named_by)
        if address is None:
            return self
        # The path is resolved because the name of the folder finds the run in MLflow.
        command = [sys.executable, "-m", "flbench.tracking.follow", str(folder.resolve())]
        command += ["--named-by", address.named_by]
        if config.experiment is not None:
            command += ["--experiment", config.experiment]
        with open(folder / LOG, "ab", opener=files.not_a_link) as log:
            self.process = subprocess.Popen(
                command,
                # A command line is visible to all users of the machine, an environment is not.
                env=startup.environment(MLFLOW_TRACKING_URI=address.uri),
                stdin=subprocess.PIPE,  # the pipe closes when this process ends, even if killed
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal does not reach the mirror
            )
        self._folder, self.uri = folder, address.shown
        return self

    def open(self, folder: Path, config: Config, warn: Callable[[str], object]) -> None:
        """Start the mirror of a command.

        With `tracking.mlflow=auto`, a run whose mirror cannot start runs without one.

        Raises:
            ConfigError: `tracking.mlflow=true`, and MLflow is not installed, the password of its
                address is not known, or the address is not the user's own.
        """
        try:
            self.start(folder, config.tracking)
        except (ConfigError, OSError) as error:  # for example no memory for another process
            if isinstance(error, ConfigError) and config.tracking.mlflow is True:
                raise
            cure = f"flbench sync {in_shell(folder)} --uri ADDRESS"
            warn(f"nothing is sent to MLflow: {error} To send it later: {cure}")

    def announce_end(self, outcome: Outcome) -> None:
        """Tell the mirror how the run ended. It sends the rest and exits."""
        pipe = None if self.process is None else self.process.stdin
        if pipe is not None and not pipe.closed:
            with suppress(BrokenPipeError):  # the mirror has exited already
                pipe.write(outcome.encode())
                pipe.close()

    def finish(self, timeout: float | None = None, outcome: Outcome = "finished") -> list[str]:
        """Wait until everything is sent, but at most some seconds.

        Args:
            timeout: Seconds to wait; None for `EXIT_SECONDS`.
            outcome: How the run ended; ignored if `announce_end` was called before.

        Returns:
            A sentence for the user if something was not sent.
        """
        if self.process is None:
            return []
        self.announce_end(outcome)
        cure = f"flbench sync {in_shell(self._folder)} sends what is missing."
        after = "The mirror has ended."
        try:
            if self.process.wait(timeout or EXIT_SECONDS) == 0:
                return []
        except subprocess.TimeoutExpired as error:
            after = f"After {error.timeout:g} s, a process goes on sending in the background."
        text = (self._folder / LOG).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.startswith(NOT_SENT)]
        if lines:
            return [f"{lines[-1].removeprefix(NOT_SENT).rstrip('.')}. Then {cure}"]
        return [
            f"MLflow at {self.uri} does not have everything. {after} Its messages are in"
            f" {self._folder / LOG}. If something is missing at its end, {cure}"
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        ended: Outcome = "killed" if is_stopped else "failed"
        self.announce_end("finished" if kind is None else ended)
