"""Running and resuming experiments from Python."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.api import arguments, notebook, progress
from flbench.api.arguments import Section
from flbench.api.process import preserved
from flbench.api.runs import Run
from flbench.config.resolve import resolve
from flbench.config.sources import from_values
from flbench.core.errors import RunError
from flbench.experiment import lifecycle
from flbench.experiment.loop import SilentReporter
from flbench.results import reading
from flbench.results.summary import training_failure
from flbench.tracking import mirror

if TYPE_CHECKING:
    from flbench.experiment.loop import Reporter

show_progress = progress  # `progress` is also an argument of the functions below


def run(
    algorithm: Section | None = None,
    *,
    config: str | PathLike[str] | None = None,
    seed: int | None = None,
    data: Section | None = None,
    partition: Section | None = None,
    model: Section | None = None,
    train: Mapping[str, Any] | None = None,
    engine: Section | None = None,
    evaluation: Mapping[str, Any] | None = None,
    tracking: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
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
    random generators, signal handlers and warnings are as before it.

    Args:
        algorithm: The method: its name, or a dict with `name` and keys of the method, such as
            `{"name": "hfcd", "tau": 0.5}`. By default `hfcd`.
        config: YAML file with the values that differ from the defaults. Arguments override it.
        seed: Seed of all randomness.
        data: Section `data`.
        partition: Section `partition`, or an object such as `fl.Dirichlet(alpha=0.1, clients=20)`.
        model: Section `model`.
        train: Section `train`.
        engine: Section `engine`.
        evaluation: Section `evaluation`.
        tracking: Section `tracking`.
        output: Section `output`; run folders are written below `output["dir"]`.
        progress: Whether to show the progress: a bar in a notebook and on a terminal, lines on
            standard error elsewhere.
        keys: Keys by their dotted names, such as `**{"train.optimizer.lr": 0.1}`. They override
            the sections. `study.best(METHOD).params` has this form.

    Returns:
        The finished run.

    Raises:
        ConfigError: Keys or values are wrong. The message has one line for each of them.
        UserError: Data and configuration do not fit together, or the folder cannot be written.
        RunError: The run failed; `fl.resume` continues it.
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
    checked, origins = resolve(arguments.layers("run", config, given))
    mirror.check(checked.tracking)
    title = f"{checked.algorithm.name} on {checked.data.title}"
    started: list[Path] = []
    with (
        preserved(),
        _saying_how_to_resume(started),
        _display(title, shown=progress) as reporter,
        mirror.Mirrors() as mirrors,
    ):

        def begin(path: Path, complete: Any) -> None:
            started.append(path)
            mirrors.open(path, complete, reporter.warn)

        path = lifecycle.run(checked, origins, reporter, begin, how_to_resume)
        for sentence in mirrors.finish():
            reporter.warn(sentence)
    return _finished(path)


def resume(
    path: str | PathLike[str],
    *,
    progress: bool = True,
    **keys: Any,
) -> Run:
    """Continue an interrupted run from its last checkpoint, as `flbench run --resume` does.

    The resumed run ends with the same weights as one without an interruption.

    Args:
        path: The run folder.
        progress: Whether to show the progress.
        keys: Sections and dotted keys that may change on resume, such as
            `engine={"device": "cpu"}`.

    Returns:
        The finished run. A run that was finished before is returned as it is.

    Raises:
        UserError: The folder is not a run folder, another process writes to it, a key must not
            change, or the data are others than before.
        RunError: The run failed.
        KeyboardInterrupt: The run was interrupted again and saved.
    """
    folder = arguments.path_of(path, "path")
    origin = "argument of fl.resume"
    given = {name: arguments.plain(value, name, origin) for name, value in keys.items()}
    with (
        preserved(),
        _saying_how_to_resume([folder]),
        _display(f"resuming {folder}", shown=progress) as reporter,
        mirror.Mirrors() as mirrors,
    ):
        start_mirror = partial(mirrors.open, warn=reporter.warn)
        changed = from_values(given, origin)
        lifecycle.resume(folder, changed, reporter, start_mirror, how_to_resume)
        for sentence in mirrors.finish():
            reporter.warn(sentence)
    return _finished(folder)


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


def _finished(path: Path) -> Run:
    """Return a finished run.

    Raises:
        RunError: No client finished a training.
    """
    if reason := failure(path):
        raise RunError(reason)
    return Run(path)


def _display(title: str, *, shown: bool) -> "AbstractContextManager[Reporter]":
    """Return the context manager that shows the progress of a run."""
    if not shown:
        return nullcontext(SilentReporter())
    if notebook.is_notebook():
        return notebook.display(title)
    return show_progress.reporter(title)


@contextmanager
def _saying_how_to_resume(started: list[Path]) -> Iterator[None]:
    """Give a KeyboardInterrupt a message with the call that continues the run, if there is one."""
    try:
        yield
    except KeyboardInterrupt as error:
        if started:
            call = how_to_resume(started[-1])
            error.args = (f"interrupted and saved. Resume with: {call}",)
        raise
