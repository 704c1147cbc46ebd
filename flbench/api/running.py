"""Running and resuming experiments from Python."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flbench.api import progress
from flbench.api.caller import Caller, program
from flbench.api.runs import Run
from flbench.callbacks import Callback
from flbench.callbacks.base import Logger
from flbench.calls import arguments, parts
from flbench.calls.arguments import Section
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
show_progress = progress  # `progress` is also an argument of the functions below


def run(
    algorithm: Section | None = None,
    *,
    config: str | PathLike[str] | None = None,
    seed: int | None = None,
    data: Any = None,
    partition: Any = None,
    model: Any = None,
    train: Mapping[str, Any] | None = None,
    engine: Section | None = None,
    evaluation: Mapping[str, Any] | None = None,
    tracking: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    logger: Logger | Sequence[Logger] = (),
    progress: bool = True,
    trust: bool = False,
    **keys: Any,
) -> Run:
    """Train and evaluate a method, as `flbench run` does.

    The arguments are the sections of the configuration. A section is a dict of its keys, or its
    name where it has one (`data="digits"`, `model="lenet5"`, `partition="iid"`, `engine="ray"`).
    Keys that are not given have the values of `config`, or their defaults. The same values give the
    same weights, bit for bit, as on the command line.

    There is one other default than on the command line: `tracking.mlflow` is false, so that a
    script or notebook starts no other process. `tracking={"mlflow": "auto"}` is the default of the
    command line.

    Ctrl-C, or an interrupt of a notebook's kernel, saves the run and raises KeyboardInterrupt,
    whose message names the call of `fl.resume` that continues it. After the call PyTorch's threads,
    random generators, signal handlers and warnings are as before it. Functions given by an import
    path `package.module:name` are searched in the current folder too. If they are there, it stays
    at the end of `sys.path`, so that imports within them work later.

    Args:
        algorithm: The method: its name, or a dict with `name` and keys of the method, such as
            `{"name": "hfcd", "tau": 0.5}`. By default `hfcd`. A method of your own is named by its
            import path `package.module:Class`, or given as the class itself.
        config: YAML file with the values that differ from the defaults.
        seed: Seed of all randomness.
        data: Section `data`, a `pathlib.Path` of a file or folder, or data of your own: arrays
            `(x, y)`, a DataFrame, a torch Dataset, data loaders, or a function that returns one of
            them; see `fl.Data`.
        partition: Section `partition`, or an object such as `fl.Dirichlet(alpha=0.1, clients=20)`,
            or a scheme of your own: a function (see `fl.Scheme`), or the positions of each
            client's samples.
        model: Section `model`, or a net of your own: an `nn.Module`, whose weights all clients
            start from, or a function or class `f(shape, classes)` that returns one.
        train: Section `train`. Entries of `terms` may be functions, or have one as their `name`.
        engine: Section `engine`.
        evaluation: Section `evaluation`. Values of `metrics` may be functions of a confusion
            matrix, or metrics of torchmetrics.
        tracking: Section `tracking`.
        output: Section `output`; run folders are written below `output["dir"]`.
        callbacks: One or several callbacks, such as `fl.EarlyStopping(patience=5)`.
        logger: One or several loggers of Lightning, such as `CSVLogger("logs")`, that get all
            metrics with rounds as steps.
        progress: Whether to show the progress: a bar in a notebook and on a terminal, lines on
            standard error elsewhere.
        trust: Whether code that `config` names may run. Otherwise it is an error that lists this
            code, unless you have allowed it before.
        keys: Keys by their dotted names, such as `**{"train.optimizer.lr": 0.1}`. They override
            the sections. `study.best(METHOD).params` has this form.

    Returns:
        The finished run.

    Raises:
        ConfigError: Keys or values are wrong. The message has one line for each of them.
        UserError: Data, configuration and callbacks do not fit together, or the folder cannot be
            written.
        RunError: The run or a callback failed; `fl.resume` continues it.
        KeyboardInterrupt: The run was interrupted and saved.

    >>> import tempfile
    >>> from flbench.api.partitions import Dirichlet
    >>> few = Dirichlet(alpha=0.5, clients=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = run("fedavg", partition=few, train={"rounds": 1}, output={"dir": folder},
    ...                 progress=False)
    >>> found.config.algorithm.name, found.finished
    ('fedavg', True)
    """
    given = arguments.sections(locals(), keys)
    arguments.check_names(run, keys)
    plain, objects = parts.split(given)
    if config is None:
        plain = parts.with_natural_clients(plain, objects)
    with run_code(trust):
        checked, origins = resolve(arguments.layers("run", config, plain))
    caller = program(shown=progress, again=parts.again(given, objects))
    ending = start([(checked, origins)], caller, listed(callbacks), listed(logger), objects=objects)
    return finished(ending, caller, objects)


@dataclass(frozen=True)
class RunsEnding:
    """How runs ended.

    Attributes:
        paths: The folders of the runs that have ended, in their order.
        mirrors: The processes that send them to MLflow; None if none of them is sent.
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
        caller: Who gets progress and notes.
        callbacks: Callbacks of the user.
        loggers: Loggers of Lightning.
        objects: Objects of the user without an import path, by the name of their section.
        known: Notes that were printed for an earlier run of the comparison; see
            `flbench.api.progress.display`.
    """
    with (
        as_flbench_errors(),
        preserved(),
        _display(title, known, shown=caller.shown) as display,
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
    """Return an error if a finished run has trained nothing; None if it has.

    Args:
        path: The run folder.
    """
    run = reading.read(path)
    reason = training_failure(run.summary)
    if reason is None:
        return None
    return RunError(
        f"{reason}. Lower the learning rate, set train.clip, or check train.batch_size and"
        " train.last_batch."
    )


def finished(ending: RunsEnding, caller: Caller, objects: Mapping[str, Any]) -> Run:
    """Return the run of a call from Python.

    Raises:
        RunError: No client finished a training.
    """
    caller.tell(ending.unsent())
    ending.check()
    return Run(ending.paths[0], objects)


def _display(
    title: str, known: set[str] | None, *, shown: bool
) -> AbstractContextManager[Callback]:
    """Return the context manager that shows the progress of a run."""
    if not shown:
        return nullcontext(Callback())
    if show_progress.is_notebook():
        from flbench.api import notebook

        return notebook.display(title)
    return show_progress.display(title, known)


def listed(items: Item | Sequence[Item]) -> list[Item]:
    """Return one item, or a list or tuple of them, as a list."""
    return list(items) if isinstance(items, list | tuple) else [items]  # type: ignore[list-item]
