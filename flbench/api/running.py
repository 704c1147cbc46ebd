"""Running and resuming experiments from Python."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from flbench.api import arguments, notebook, parts, progress
from flbench.api.arguments import Section
from flbench.api.process import preserved
from flbench.api.runs import Run
from flbench.callbacks import Callback, RunView
from flbench.callbacks.logger import Logger
from flbench.config.resolve import resolve
from flbench.config.sources import from_values
from flbench.core.errors import RunError
from flbench.core.expected import as_flbench_errors
from flbench.core.given import offered
from flbench.experiment import lifecycle
from flbench.results import reading
from flbench.results.summary import training_failure
from flbench.tracking import mirror

Item = TypeVar("Item")
show_progress = progress  # `progress` is also an argument of the functions below


def run(
    algorithm: Section | None = None,
    *,
    config: str | PathLike[str] | None = None,
    seed: int | None = None,
    data: Any = None,
    partition: Section | None = None,
    model: Any = None,
    train: Mapping[str, Any] | None = None,
    engine: Section | None = None,
    evaluation: Mapping[str, Any] | None = None,
    tracking: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    logger: Logger | Sequence[Logger] = (),
    progress: bool = True,
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
    path `package.module:name` are searched in the current folder too, which therefore stays at the
    end of `sys.path`, so that imports within them work later.

    Args:
        algorithm: The method: its name, or a dict with `name` and keys of the method, such as
            `{"name": "hfcd", "tau": 0.5}`. By default `hfcd`.
        config: YAML file with the values that differ from the defaults. Arguments override it.
        seed: Seed of all randomness.
        data: Section `data`, or data of your own: arrays `(x, y)`, a DataFrame, a torch Dataset or
            a function that returns one of them; see `fl.Data`.
        partition: Section `partition`, or an object such as `fl.Dirichlet(alpha=0.1, clients=20)`.
        model: Section `model`, or a net of your own: an `nn.Module`, whose weights all clients
            start from, or a function or class `f(shape, classes)` that returns one.
        train: Section `train`. Entries of `terms` may be functions, or have one as their `name`.
        engine: Section `engine`.
        evaluation: Section `evaluation`.
        tracking: Section `tracking`.
        output: Section `output`; run folders are written below `output["dir"]`.
        callbacks: One or several callbacks, such as `fl.EarlyStopping(patience=5)`.
        logger: One or several loggers of Lightning, such as `CSVLogger("logs")`, that get all
            metrics with rounds as steps.
        progress: Whether to show the progress: a bar in a notebook and on a terminal, lines on
            standard error elsewhere.
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
    given = {
        "seed": seed,
        "algorithm": algorithm,
        "data": data,
        "partition": partition,
        "model": model,
        "train": train,
        "engine": engine,
        "evaluation": evaluation,
        "tracking": tracking,
        "output": output,
        **keys,
    }
    arguments.check_names(run, keys)
    given, objects = parts.split(given)
    checked, origins = resolve(arguments.layers("run", config, given))
    mirror.check(checked.tracking)
    title = f"{checked.algorithm.name} on {checked.data.title}"
    with (
        as_flbench_errors(),
        preserved(),
        _display(title, shown=progress) as display,
        mirror.Mirrors() as mirrors,
        offered(objects),
    ):
        own = [mirror.StartMirror(mirrors, display.on_note), _SayHowToResume(), display]
        path = lifecycle.run(
            checked, origins, [*own, *_listed(callbacks)], _listed(logger), how_to_resume
        )
        for sentence in mirrors.finish():
            display.on_note(sentence)
    return _finished(path, objects)


def resume(
    path: str | PathLike[str],
    *,
    callbacks: Callback | Sequence[Callback] = (),
    logger: Logger | Sequence[Logger] = (),
    progress: bool = True,
    **keys: Any,
) -> Run:
    """Continue an interrupted run from its last checkpoint, as `flbench run --resume` does.

    The resumed run ends with the same weights as one without an interruption.

    Args:
        path: The run folder.
        callbacks: The callbacks that the run began with, in the same order. Each continues with
            what it remembered at the checkpoint.
        logger: The loggers. A logger with the same name and version as before (or run id)
            continues its log.
        progress: Whether to show the progress.
        keys: Sections and dotted keys that may change on resume, such as
            `engine={"device": "cpu"}`; and `data`, `model` or the functions of
            `train={"terms": ...}`, if the run began with objects without an import path.

    Returns:
        The finished run. A run that was finished before is returned as it is.

    Raises:
        UserError: The folder is not a run folder, another process writes to it, a key must not
            change, or the data are others than before.
        RunError: The run or a callback failed.
        KeyboardInterrupt: The run was interrupted again and saved.
    """
    folder = arguments.path_of(path, "path")
    origin = "argument of fl.resume"
    keys, objects = parts.of_resume(folder, keys)
    given = {name: arguments.plain(value, name, origin) for name, value in keys.items()}
    with (
        as_flbench_errors(),
        preserved(),
        _display(f"resuming {folder}", shown=progress) as display,
        mirror.Mirrors() as mirrors,
        offered(objects),
    ):
        own = [mirror.StartMirror(mirrors, display.on_note), _SayHowToResume(), display]
        changed = from_values(given, origin)
        lifecycle.resume(
            folder, changed, [*own, *_listed(callbacks)], _listed(logger), how_to_resume
        )
        for sentence in mirrors.finish():
            display.on_note(sentence)
    return _finished(folder, objects)


def how_to_resume(path: Path) -> str:
    """Return the call that continues a run or study."""
    return f"fl.resume({str(path)!r})"


def failure(path: Path) -> str | None:
    """Return why a finished run has trained nothing, with the cure; None if it has.

    Args:
        path: The run folder.
    """
    reason = training_failure(reading.read(path).summary)
    if reason is None:
        return None
    return (
        f"{path}: {reason}. Lower train.optimizer.lr, set train.clip, or check train.batch_size and"
        " train.last_batch."
    )


def _finished(path: Path, objects: Mapping[str, Any]) -> Run:
    """Return a finished run.

    Raises:
        RunError: No client finished a training.
    """
    if reason := failure(path):
        raise RunError(reason)
    return Run(path, objects)


def _display(title: str, *, shown: bool) -> AbstractContextManager[Callback]:
    """Return the context manager that shows the progress of a run."""
    if not shown:
        return nullcontext(Callback())
    if notebook.is_notebook():
        return notebook.display(title)
    return show_progress.display(title)


def _listed(items: Item | Sequence[Item]) -> list[Item]:
    """Return one item, or a list or tuple of them, as a list."""
    return list(items) if isinstance(items, list | tuple) else [items]  # type: ignore[list-item]


class _SayHowToResume(Callback):
    """Gives a KeyboardInterrupt a message with the call that continues the run."""

    def on_exception(self, run: RunView, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            error.args = (f"interrupted and saved. Resume with: {how_to_resume(run.path)}",)
