"""Running and resuming experiments from Python."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flbench.api import caller as show_progress
from flbench.api.caller import Caller, program
from flbench.api.runs import Run
from flbench.callbacks import Callback
from flbench.callbacks.base import Logger
from flbench.calls import arguments, parts
from flbench.calls.process import preserved
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.trust import run_code
from flbench.core.errors import PrintableError, RunError, combined
from flbench.core.parts import offered
from flbench.core.system_errors import as_flbench_errors
from flbench.experiment import lifecycle
from flbench.experiment.run_folder import RunFolder
from flbench.results import reading
from flbench.results.summary import training_failure

if TYPE_CHECKING:
    from flbench.tracking.mirror import Mirrors

Item = TypeVar("Item")


def called(values: Mapping[str, Any], keys: Mapping[str, Any]) -> Run:
    """Carry out a call of `fl.run`, given its arguments by name and its dotted keys."""
    given = arguments.sections(values, keys)
    plain, objects = parts.split(given)
    if values["config"] is None:
        plain = parts.with_natural_clients(plain, objects)
    with run_code(values["trust"]):
        checked, origins = resolve(arguments.layers("run", values["config"], plain))
    caller = program(shown=values["progress"], again=parts.again(given, objects))
    told = listed(values["callbacks"]), listed(values["logger"])
    ending = start([(checked, origins)], caller, *told, objects=objects)
    return finished(ending, caller, objects)


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


def start(
    runs: Sequence[tuple[Config, dict[str, str]]],
    caller: Caller,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    *,
    objects: Mapping[str, Any] | None = None,
) -> RunsEnding:
    """Train one run after the other. If there are several, one that fails does not stop the others.

    Args:
        runs: Configuration of each run, with the origin of each value by its dotted path.
        caller: Who gets progress and notes.
        callbacks: Callbacks of the user.
        loggers: Loggers of Lightning.
        objects: Objects of the user without an import path, by the name of their section.

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
        title = f"{method} on {config.data.title}"
        try:
            train_one(train, title, ending, caller, callbacks, loggers, objects or {}, known)
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
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    objects: Mapping[str, Any],
    known: set[str] | None = None,
) -> None:
    """Train one run with progress and a mirror, and add its folder to the ending.

    Args:
        train: Function of the callbacks, the loggers and the function that says how to resume.
        title: Line above the progress.
        ending: Folders and mirrors of all runs.
        caller: See `start`.
        callbacks: See `start`.
        loggers: See `start`.
        objects: See `start`.
        known: Notes of earlier runs; see `flbench.api.caller.display`.
    """
    with (
        as_flbench_errors(),
        preserved(),
        _display(title, known, caller.shown) as display,
        ending.mirrors or nullcontext(),
        offered(objects),
    ):
        told = [display, *callbacks]
        if ending.mirrors is not None:
            from flbench.tracking.callback import StartMirror

            told.insert(0, StartMirror(ending.mirrors, display.on_note))
        how_to_resume = caller.how_to_resume or RunFolder.command_to_resume
        ending.paths.append(train(told, loggers, how_to_resume))


def failure(path: Path) -> RunError | None:
    """Return an error if a finished run has trained nothing; None if it has."""
    reason = training_failure(reading.read(path).summary)
    cure = (
        "Lower the learning rate, set train.clip, or check train.batch_size and train.last_batch."
    )
    return None if reason is None else RunError(f"{reason}. {cure}")


def finished(ending: RunsEnding, caller: Caller, objects: Mapping[str, Any]) -> Run:
    """Return the run of a call from Python; a RunError if no client finished a training."""
    caller.tell(ending.unsent())
    ending.check()
    return Run(ending.paths[0], objects)


def _display(title: str, known: set[str] | None, shown: bool) -> AbstractContextManager[Callback]:
    """Return the context manager that shows the progress of a run."""
    if not shown:
        return nullcontext(Callback())
    if not show_progress.is_notebook():
        return show_progress.display(title, known)
    from flbench.api import notebook

    return notebook.display(title)


def listed(items: Item | Sequence[Item]) -> list[Item]:
    """Return one item, or a list or tuple of them, as a list."""
    return list(items) if isinstance(items, list | tuple) else [items]  # type: ignore[list-item]
