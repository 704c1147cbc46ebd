"""The base class of callbacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.callbacks.run_view import RunView

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger as Logger

    from flbench.metrics.own import OwnMetric
else:
    Logger = Any  # to import Lightning takes a second


class Callback:
    """Base class of callbacks: a subclass overrides the hooks that it needs.

    The hooks have the manner of Lightning's. Their argument `run` is a read-only view of the run:
    nothing that a callback does with it changes what the run computes, and `run.stop(reason)` is
    the only way to influence the run.

    If a hook raises an exception, the hook of the other callbacks is still called; then the run is
    saved and ends with a `CallbackError` that names the callback and the round. The user's
    exception is chained to it. `flbench.core.errors.UserError` and `RunError` pass unchanged.

    A callback that must remember something overrides `state_dict` and `load_state_dict`. What it
    remembers is a part of each checkpoint, so a resumed run continues exactly.

    >>> class StopAtTarget(Callback):
    ...     def on_evaluation_end(self, run, metrics):
    ...         if metrics["validation/personal/accuracy"] > 0.9:
    ...             run.stop("the validation accuracy is above 0.9")
    """

    def prepare(self, metrics: tuple["OwnMetric", ...]) -> None:
        """A run is about to begin; this is called before its folder is made.

        Args:
            metrics: Metrics of the user that judge the run.

        Raises:
            ConfigError: The callback cannot work in the run.
        """

    def on_run_start(self, run: RunView) -> None:
        """The run begins or resumes.

        An object can serve several runs, one after the other: what it remembers of the run before
        is reset here if `run.round` is 0.

        Args:
            run: The run. `run.round` is above 0 if it resumes; `load_state_dict` was called before.
        """

    def on_round_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """A round is completed; models that are evaluated after it are not evaluated yet.

        Args:
            run: The run. A round of a set-up stage leaves `run.round` as it is.
            metrics: Metrics of the round by name, such as `train/loss` and `train/up_bytes`. The
                names are the columns split, protocol and metric of metrics.csv.
        """

    def on_evaluation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Models were evaluated after a round.

        Args:
            run: The run.
            metrics: Metrics of the evaluation by name, such as `validation/personal/accuracy`.
        """

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        """A checkpoint was written.

        Args:
            run: The run.
            path: The file: `last.safetensors`, or `best.safetensors` for the best round so far. The
                clients' rows are in further files beside it, which it names.
        """

    def on_run_end(self, run: RunView) -> None:
        """The run is finished and all its files are written.

        Args:
            run: The run. `run.summary` is the content of summary.json.
        """

    def on_exception(self, run: RunView, error: BaseException) -> None:
        """The run ends before its end: it was interrupted, or failed.

        Args:
            run: The run.
            error: The exception; a KeyboardInterrupt after Ctrl-C.
        """

    def on_note(self, text: str) -> None:
        """There is a note for the user.

        Notes can come before the run folder exists, so this hook has no argument `run`.

        Args:
            text: One sentence.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what the callback remembers, as JSON values; {} for nothing.

        This is called before the first round and for each checkpoint. The checkpoint `last`, from
        which runs resume, is written after the hooks of its round.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what the callback remembered at the checkpoint of a resumed run.

        Args:
            state: Result of `state_dict`.
        """
