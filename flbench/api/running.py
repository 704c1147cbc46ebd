"""Running and resuming experiments from Python."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flbench.api.progress import Bar, Caller, Lines, Progress
from flbench.api.runs import Run
from flbench.callbacks import Callback, RunView
from flbench.calls import arguments, parts
from flbench.calls.process import preserved
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.trust import run_code
from flbench.core.errors import RunError
from flbench.core.parts import offered
from flbench.core.system_errors import as_flbench_errors
from flbench.core.user_code_errors import note_of
from flbench.experiment import lifecycle
from flbench.experiment.run_folder import RunFolder
from flbench.reports.terminal import open_console
from flbench.results import reading
from flbench.results.summary import training_failure

if TYPE_CHECKING:
    from flbench.tracking.mirror import Mirror


KERNELS: Final = ("ZMQInteractiveShell", "Shell")  # Jupyter and VS Code; Colab


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows HTML."""
    if "IPython" not in sys.modules:
        return False
    shell: Any = import_module("IPython")
    return type(shell.get_ipython()).__name__ in KERNELS


@contextmanager
def display(title: str) -> Iterator[Progress]:
    """Show the progress of a run by the callback that is yielded, and warnings as notes."""
    console = open_console(errors=True)
    current: Progress
    if is_notebook():
        from flbench.api.notebook import NotebookBar

        current = NotebookBar(title)
    elif console.is_terminal:
        current = Bar(title, console)
    else:
        current = Lines(title, console)
    shown: set[str] = set()

    def note(message: Warning | str, _: Any, file: str, line: int, *__: object) -> None:
        if (text := note_of(message, file, line)) not in shown:
            shown.add(text)
            current.on_note(text)

    with warnings.catch_warnings():
        warnings.showwarning = note  # type: ignore[assignment]
        with current.live():
            yield current


def called(values: Mapping[str, Any], keys: Mapping[str, Any]) -> Run:
    """Carry out a call of `fl.run`, given its arguments by name and its dotted keys."""
    given = arguments.sections(values, keys)
    plain, objects = parts.split(given)
    if values["config"] is None:
        plain = parts.with_natural_clients(plain, objects)
    with run_code(values["trust"]):
        checked, origins = resolve(arguments.layers("run", values["config"], plain))
    caller = Caller.of(values, objects)
    return finished(start(checked, origins, caller), caller)


class RunEnding(NamedTuple):
    """How a run ended.

    Attributes:
        path: The folder of the run.
        mirrors: The process that sends it to MLflow; None for none.
    """

    path: Path
    mirrors: "Mirror | None"

    def unsent(self) -> list[str]:
        """Wait a few seconds for MLflow; return a sentence if it does not have the run."""
        return [] if self.mirrors is None else self.mirrors.finish()

    def check(self) -> None:
        """Raise a RunError if no client of the run finished a training."""
        if reason := training_failure(reading.read(self.path).summary):
            raise RunError(
                f"{self.path}: {reason}. Lower the learning rate, set train.clip, or check"
                " train.batch_size and train.last_batch."
            )


def start(config: Config, origins: dict[str, str], caller: Caller) -> RunEnding:
    """Train a run.

    Raises:
        UserError: Data, configuration and callbacks do not fit together, or the folder cannot be
            written.
        RunError: The run or a callback failed.
        KeyboardInterrupt: The run was interrupted and saved.
    """
    mirrors = None
    if config.tracking.mlflow is not False:
        from flbench.tracking import mirror

        named_by = mirror.named_by(origins)
        mirror.check(config.tracking, named_by)
        mirrors = mirror.Mirror(named_by)
    title = f"{config.algorithm.name} on {config.data.title}"
    return train(partial(lifecycle.run, config, origins), title, mirrors, caller)


def train(
    trained: Callable[[Sequence[Callback], lifecycle.HowToResume], Path],
    title: str,
    mirrors: "Mirror | None",
    caller: Caller,
) -> RunEnding:
    """Call `trained` with callbacks that show the progress below a title and start the mirror."""
    with (
        as_flbench_errors(),
        preserved(),
        display(title) if caller.shown else nullcontext(Callback()) as shown,
        mirrors or nullcontext(),
        offered(caller.objects),
    ):
        told = [shown, *caller.callbacks]
        if mirrors is not None:
            told.insert(0, _StartMirror(mirrors, shown))
        how_to_resume = caller.how_to_resume or RunFolder.command_to_resume
        return RunEnding(trained(told, how_to_resume), mirrors)


class _StartMirror(Callback):
    """Starts the mirror of a run when the run begins."""

    def __init__(self, mirrors: "Mirror", shown: Callback) -> None:
        self._mirrors, self._shown = mirrors, shown

    def on_run_start(self, run: RunView) -> None:
        self._mirrors.open(run.path, run.config, self._shown.on_note)


def finished(ending: RunEnding, caller: Caller) -> Run:
    """Return the run of a call from Python; a RunError if no client finished a training."""
    caller.tell(ending.unsent())
    ending.check()
    return Run(ending.path, caller.objects)
