"""The callback that starts the mirror of a run.

Reading and sending folders imports neither callbacks nor PyTorch.
"""

from collections.abc import Callable

from flbench.callbacks import Callback, RunView
from flbench.tracking.mirror import Mirrors


class StartMirror(Callback):
    """Starts the mirror of a run when the run begins.

    Args:
        mirrors: The mirrors of the command.
        warn: Prints why the run is not mirrored.
    """

    def __init__(self, mirrors: Mirrors, warn: Callable[[str], object]) -> None:
        self._mirrors, self._warn = mirrors, warn

    def on_run_start(self, run: RunView) -> None:
        self._mirrors.open(run.path, run.config, self._warn)
