"""Sends the metrics of a run to Lightning's loggers."""

import re
import warnings
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from flbench.callbacks.base import Callback, Logger
from flbench.callbacks.run_view import RunView
from flbench.config.sources import leaves
from flbench.core.errors import ConfigError

METHODS: Final = ("log_hyperparams", "log_metrics", "save", "finalize")
LEFT_OUT: Final = ("tracking.", "output.")
"""Sections of the configuration that do not describe the experiment."""
_NOT_IN_NAME: Final = re.compile(r"[^\w./ -]", re.ASCII)


_SENT: "WeakKeyDictionary[Logger, tuple[Path, int]]" = WeakKeyDictionary()
"""The run folder that each logger of this process has logged last, and the number of its rows."""


class LoggerCallback(Callback):
    """Sends all rows of metrics.csv to a logger of Lightning, with rounds as steps.

    Metrics have the names `split/protocol/metric`, such as `validation/personal/accuracy` and
    `train/loss`; characters that not all loggers accept become `-`, so `personal@local` is
    `personal-local`. The configuration is logged once as hyper-parameters under its dotted keys,
    without the sections `tracking` and `output`.

    A resumed run continues the log if the logger has the same name and version as before (for
    MLFlowLogger and WandbLogger: the same run id). Otherwise, and for CSVLogger, which empties its
    file, all earlier rounds are logged again, so that the log is complete.

    Args:
        logger: The logger: CSVLogger, TensorBoardLogger, WandbLogger, MLFlowLogger, or another
            subclass of Lightning's `Logger`.

    Raises:
        ConfigError: The object lacks the methods of a logger.
    """

    def __init__(self, logger: Logger) -> None:
        absent = [name for name in METHODS if not callable(getattr(logger, name, None))]
        if absent or isinstance(logger, type):
            raise ConfigError(
                f"`logger`: {logger!r} is not a logger that can be written to. Give an object of a"
                ' class of lightning.pytorch.loggers, such as CSVLogger("logs"), or a list of them.'
            )
        self.logger = logger
        self._sent = 0  # rows of metrics.csv that the logger has
        self._before: dict[str, Any] = {}

    def on_run_start(self, run: RunView) -> None:
        path, sent = _SENT.get(self.logger, (None, 0))
        if path == run.path:
            # The same object logged this run until it was interrupted. Rows after the checkpoint
            # are computed again with the same values, and the logger has them already.
            self._sent = sent
            return
        # A CSVLogger empties the file of an earlier object. Its class need not be imported here.
        is_csv = any(kind.__name__ == "CSVLogger" for kind in type(self.logger).__mro__)
        if self._before and self._before["log"] == self._log() and not is_csv:
            self._sent = self._before["rows"]
            return
        self._sent = 0
        with warnings.catch_warnings():
            if is_csv:  # of the file that is emptied; all its rows are written again
                warnings.filterwarnings("ignore", message="Experiment logs directory")
            self.logger.log_hyperparams(_parameters(run))
            self._send(run)
        self.logger.save()

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._send(run)

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._send(run)

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        self.logger.save()

    def on_run_end(self, run: RunView) -> None:
        self._send(run)  # rows of the best round that were added at the end
        self.logger.save()
        self.logger.finalize("success")

    def on_exception(self, run: RunView, error: BaseException) -> None:
        self.logger.save()
        self.logger.finalize("failed")

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._sent, "log": self._log()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before = state

    def _log(self) -> list[str]:
        """Return what identifies the log that the logger writes: class, name and version."""
        return [type(self.logger).__name__, str(self.logger.name), str(self.logger.version)]

    def _send(self, run: RunView) -> None:
        """Log the rows that the logger does not have yet."""
        rows = run.rows[self._sent :]
        for number, mine in groupby(rows, key=lambda row: row.round):
            self.logger.log_metrics(
                {_NOT_IN_NAME.sub("-", row.full_name): row.value for row in mine}, step=number
            )
        self._sent = max(self._sent, len(run.rows))
        _SENT[self.logger] = (run.path, self._sent)


def _parameters(run: RunView) -> dict[str, Any]:
    """Return the values of a run's configuration, and those of the user's module, by dotted keys.

    A LightningModule makes its own optimizer, so that `train.optimizer` is not part of them.
    """
    left_out = (*LEFT_OUT, "train.optimizer.") if run.module else LEFT_OUT
    flat = leaves(run.config.tree()) | leaves({"module": dict(run.module)})
    return {key: value for key, value in flat.items() if not key.startswith(left_out)}
