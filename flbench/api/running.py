"""Running and resuming experiments from Python."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flbench.api.caller import Bar, Caller, Lines, Progress
from flbench.api.runs import Run
from flbench.callbacks import Callback, RunView
from flbench.callbacks.base import Logger
from flbench.calls import arguments, parts
from flbench.calls.process import preserved
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.trust import run_code
from flbench.core.errors import PrintableError, RunError, combined
from flbench.core.parts import offered
from flbench.core.system_errors import as_flbench_errors
from flbench.core.user_code_errors import note_of
from flbench.experiment import lifecycle
from flbench.experiment.run_folder import RunFolder
from flbench.reports.terminal import open_console
from flbench.results import reading
from flbench.results.summary import training_failure

if TYPE_CHECKING:
    from flbench.tracking.mirror import Mirrors


KERNELS: Final = ("ZMQInteractiveShell", "Shell")  # Jupyter and VS Code; Colab


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows HTML."""
    if "IPython" not in sys.modules:
        return False
    shell: Any = import_module("IPython")
    return type(shell.get_ipython()).__name__ in KERNELS


@contextmanager
def display(title: str, known: set[str] | None = None) -> Iterator[Progress]:
    """Show the progress of a run. Python warnings inside the context are shown as notes.

    Args:
        title: Line that is shown first; the middle of a long one is left out.
        known: Notes from before the first round of earlier runs of a comparison, for example on its
            partition. They are not shown again; new ones are added.

    Yields:
        The callback that shows the progress.
    """
    console, known = open_console(errors=True), set() if known is None else known
    current: Progress
    if is_notebook():
        from flbench.api.notebook import NotebookBar

        current = NotebookBar(title, known)
    elif console.is_terminal:
        current = Bar(title, known, console)
    else:
        current = Lines(title, known, console)
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
    caller = Caller.of(values, given, objects)
    return finished(start([(checked, origins)], caller), caller)


@dataclass(frozen=True)
class RunsEnding:
    """How runs ended.

    Attributes:
        paths: The folders of the runs that have ended, in their order.
        mirrors: The processes that send them to MLflow; None for none.
        refused: The errors of the other runs, by their methods.
    """

    paths: list[Path]
    mirrors: "Mirrors | None" = None
    refused: dict[str, PrintableError] = field(default_factory=dict)

    def unsent(self) -> list[str]:
        """Wait a few seconds for MLflow; return a sentence for each run that it does not have."""
        return [] if self.mirrors is None else self.mirrors.finish()

    def check(self) -> None:
        """Check that each run has trained something.

        Raises:
            UserError: One was refused, for a reason that the user can correct.
            RunError: One failed, or no client finished a training.
        """
        errors = {**self.refused}
        errors |= {str(path): error for path in self.paths if (error := failure(path))}
        if errors:
            raise combined(errors)


def start(runs: Sequence[tuple[Config, dict[str, str]]], caller: Caller) -> RunsEnding:
    """Train one run after the other. If there are several, one that fails does not stop the others.

    Raises:
        UserError: Data, configuration and callbacks of a single run do not fit together, or its
            folder cannot be written.
        RunError: A single run or a callback failed.
        KeyboardInterrupt: A run was interrupted and saved.
    """
    ending = RunsEnding([])
    if any(config.tracking.mlflow is not False for config, _ in runs):
        from flbench.tracking import mirror

        named_by = mirror.named_by(runs[0][1])
        for config, _ in runs:  # all of them, before the first run starts
            mirror.check(config.tracking, named_by)
        ending = RunsEnding([], mirror.Mirrors(named_by))
    known: set[str] = set()
    for position, (config, origins) in enumerate(runs):
        method = config.algorithm.name
        train = partial(lifecycle.run, config, origins)
        try:
            train_one(train, f"{method} on {config.data.title}", ending, caller, known)
        except PrintableError as error:
            if len(runs) == 1:
                raise
            ending.refused[method] = error
        except KeyboardInterrupt:
            waiting = [config.algorithm.name for config, _ in runs[position + 1 :]]
            if waiting:
                caller.tell([f"not started: {', '.join(waiting)}."])
            caller.tell([f"{name}: {error}" for name, error in ending.refused.items()])
            raise
    return ending


def train_one(
    train: Callable[[Sequence[Callback], Sequence[Logger], lifecycle.HowToResume], Path],
    title: str,
    ending: RunsEnding,
    caller: Caller,
    known: set[str] | None = None,
) -> None:
    """Train one run with progress and a mirror, and add its folder to the ending.

    Args:
        train: Function of the callbacks, the loggers and the function that says how to resume.
        title: Line above the progress.
        ending: Folders and mirrors of all runs.
        caller: Who gets progress and notes.
        known: Notes of earlier runs; see `display`.
    """
    with (
        as_flbench_errors(),
        preserved(),
        display(title, known) if caller.shown else nullcontext(Callback()) as shown,
        ending.mirrors or nullcontext(),
        offered(caller.objects),
    ):
        told = [shown, *caller.callbacks]
        if ending.mirrors is not None:
            told.insert(0, _StartMirror(ending.mirrors, shown))
        how_to_resume = caller.how_to_resume or RunFolder.command_to_resume
        ending.paths.append(train(told, caller.loggers, how_to_resume))


class _StartMirror(Callback):
    """Starts the mirror of a run when the run begins."""

    def __init__(self, mirrors: "Mirrors", shown: Callback) -> None:
        self._mirrors, self._shown = mirrors, shown

    def on_run_start(self, run: RunView) -> None:
        self._mirrors.open(run.path, run.config, self._shown.on_note)


def failure(path: Path) -> RunError | None:
    """Return an error if a finished run has trained nothing; None if it has."""
    reason = training_failure(reading.read(path).summary)
    cure = (
        "Lower the learning rate, set train.clip, or check train.batch_size and train.last_batch."
    )
    return None if reason is None else RunError(f"{reason}. {cure}")


def finished(ending: RunsEnding, caller: Caller) -> Run:
    """Return the run of a call from Python; a RunError if no client finished a training."""
    caller.tell(ending.unsent())
    ending.check()
    return Run(ending.paths[0], caller.objects)
