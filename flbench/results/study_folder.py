"""Reading a study folder: what was asked for, and the trials of its search.

What is trained after the search are the cells of the comparison in the same folder. A study can be
read while `flbench tune` is still writing it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter

from flbench.core import files
from flbench.core.documents import as_data_error, read_json
from flbench.core.errors import DataError, UserError
from flbench.core.own_names import checked
from flbench.results.left_out import LeftOut
from flbench.results.summary import MOST

State = Literal["running", "finished", "stopped", "diverged", "failed"]
Name = Annotated[str, AfterValidator(partial(checked, what="it"))]
Text = Annotated[str, Field(max_length=100_000)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Few = Annotated[int, Field(ge=0, le=100_000)]
Score = Annotated[float | None, AfterValidator(lambda value: _finite(value))]
Params = Mapping[Name, Any]

Content = TypeVar("Content")

STATES: tuple[State, ...] = ("finished", "stopped", "running", "diverged", "failed")
DIGITS = 9
"""Decimal places to which two scores are compared: sums in another order differ below them."""
PERSONAL = "personal"
"""Name of the models that score a trial, and by which methods are compared."""


def _method(name: str) -> str:
    """Check the name of a method, which is the name of a folder too."""
    checked(name, "it")
    if "/" in name or "\\" in name or name.startswith("."):
        raise ValueError("it is not the name of a method")
    return name


MethodName = Annotated[str, AfterValidator(_method)]


@dataclass(frozen=True)
class MethodEntry:
    """The entry of one method in study.json.

    Attributes:
        space: File of the method's search space, or "built in".
        defaults: Default hyper-parameters by their dotted paths.
        space_tree: Search space as a dict, with the keys of its YAML file.
        trials: Number of its trials; None for that of the header.
        steps: Optimizer steps of a whole trial with default hyper-parameters; None if they were not
            counted.
    """

    space: Text
    defaults: Params
    space_tree: Mapping[str, Any]
    trials: Count | None = None
    steps: Count | None = None


@dataclass(frozen=True)
class Header:
    """The content of study.json: what was asked for.

    Attributes:
        id: Id of the study, the name of its folder when it was made.
        created: ISO time at which the study was made.
        command: Command line that made the study.
        dataset: Name of the data set.
        scheme: Partition scheme.
        partition_hash: SHA-256 of the partition that all trials share; None if it is not known.
        seed: Seed of the trials. Repetitions take the seeds after it.
        metric: Validation metric that scores a trial; larger is better.
        search: How hyper-parameters are proposed: random, grid or optuna.
        scheduler: What stops trials early: asha or none.
        trials: Number of trials of each method, the one with default hyper-parameters included;
            with equal steps, that of the method whose trials take the fewest.
        rounds: Number of rounds of a trial that is not stopped early.
        seeds: Number of repetitions of the default and of the best parameters of each method.
        git_revision: Commit of the code; None outside a Git checkout.
        methods: Entry of each method by its name, in the order of the command line.
        vary: What differs between repetitions: `both`, the seed of the training and the
            partition, or `training`.
        validation: Number of validation samples of all clients, for metrics of rare classes of
            these classes alone; 0 if it is not known.
        setting: Keys of the setting that the study has because the user named no data.
        equal: What the searches of all methods have the same number of: trials or steps.
        imbalance: Samples of the rarest class over those of the most frequent one.
    """

    id: Name
    created: Name
    command: tuple[Text, ...]
    dataset: Text
    scheme: Name
    partition_hash: Name | None
    seed: Count
    metric: Name
    search: Name
    scheduler: Name
    trials: Count
    rounds: Count
    seeds: Few
    git_revision: Name | None
    methods: Mapping[MethodName, MethodEntry]
    vary: Name = "both"
    validation: Count = 0
    setting: Params = field(default_factory=dict)
    equal: Name = "trials"
    imbalance: float = 1.0

    def trials_of(self, method: str) -> int:
        """Return the number of trials of a method."""
        return self.methods[method].trials or self.trials


@dataclass(frozen=True)
class Trial:
    """The content of a trial.json: a training of the search.

    Attributes:
        method: Name of the method.
        index: Number of the trial; trial 0 has the default hyper-parameters.
        seed: Seed of the training.
        params: Hyper-parameters by their dotted paths.
        state: "stopped" means that the scheduler stopped the trial early.
        reason: A sentence that says why the trial failed or diverged; None otherwise.
        round: Number of rounds that are done.
        rounds: Number of rounds that were asked for.
        score: Validation metric of the study at the last evaluation; None before the first
            evaluation and where the metric is not finite.
        seconds: Seconds that were spent, by purpose (train, evaluate, total).
        started: ISO time at which the trial began.
        ended: ISO time at which the trial ended; None while it runs.
        attempts: Number of times that the trial was begun; more than 1 after a worker failed.
        node, pid: Machine of the Ray cluster, and process there, that trained the trial.
        steps: Optimizer steps until the last evaluation; None before the first.
        lost: Whether the trial has failed because its worker did, for the last time.
        loss: Validation loss, the mean of -log p of the true class, at the last evaluation; None
            before the last round, unless `evaluation.probabilities` is set.
    """

    method: MethodName
    index: Count
    seed: Count
    params: Params
    state: State
    reason: Text | None
    round: Count
    rounds: Count
    score: Score
    seconds: Mapping[Name, float] | None
    started: Name | None
    ended: Name | None
    attempts: Count = 1
    node: Name | None = None
    pid: Count | None = None
    loss: Score = None
    steps: Count | None = None
    lost: bool = False


@dataclass(frozen=True)
class StoredStudy:
    """The content of a study folder.

    Attributes:
        path: Study folder.
        header: Content of its study.json.
        trials: Trials, ordered by method (as in the header) and number.
        left_out: Sentences about the trials that cannot be read.
    """

    path: Path
    header: Header
    trials: tuple[Trial, ...]
    left_out: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order of the header."""
        return tuple(self.header.methods)

    def trials_of(self, method: str) -> list[Trial]:
        """Return the trials of a method, ordered by number."""
        return [trial for trial in self.trials if trial.method == method]

    def winner(self, method: str) -> Trial | None:
        """Return the best finished trial of a method; see `best_trial`."""
        return best_trial(self.trials_of(method))

    @property
    def is_searched(self) -> bool:
        """Whether all trials of all methods have ended."""
        ended = sum(trial.state != "running" for trial in self.trials)
        return ended >= sum(map(self.header.trials_of, self.methods))


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the highest score.

    Of trials whose scores are equal but for rounding, the one with the smallest validation loss
    wins, and then the one with the lowest number. None if no finished trial has a score.
    """

    def order(trial: Trial) -> tuple[float, float, int]:
        loss = _finite(trial.loss)
        return -round(trial.score or 0.0, DIGITS), inf if loss is None else loss, trial.index

    finished = (one for one in trials if one.state == "finished" and _finite(one.score) is not None)
    return min(finished, key=order, default=None)


def is_study(path: Path) -> bool:
    """Return whether a folder is a study folder, which has a study.json."""
    return (path / "study.json").is_file()


def read(path: Path, *, lenient: bool = False) -> StoredStudy:
    """Read a study folder.

    Args:
        path: The folder.
        lenient: Whether to leave out trials that are damaged, instead of raising an error.

    Raises:
        UserError: The path is not a study folder.
        DataError: A file of the study is damaged.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if not is_study(path):
        raise UserError(f"{path} is not a study folder: it has no study.json.")
    header = read_header(path)
    order, trials, left_out = list(header.methods), [], LeftOut()
    for file in sorted(path.glob("trials/*/*/trial.json")):
        with left_out.catching(file):
            trial = read_trial(file)
            if trial.method not in order:
                reason = f"study.json does not list its method {trial.method!r}"
                raise _misplaced(file.parent, reason)
            trials.append(trial)
    if not lenient:
        left_out.raise_first()
    trials.sort(key=lambda trial: (order.index(trial.method), trial.index))
    return StoredStudy(path, header, tuple(trials), tuple(left_out.sentences))


def read_header(study: Path) -> Header:
    """Read the study.json of a study folder."""
    return _load(study / "study.json", Header)


def read_trial(file: Path) -> Trial:
    """Read a trial.json.

    Raises:
        DataError: The file is damaged, or its content does not fit the folder it is in.
    """
    trial = _load(file, Trial)
    place, folder = f"{trial.method}/{trial.index:03d}", "/".join(file.parts[-3:-1])
    if place != folder:
        raise _misplaced(file.parent, f"it is of the trial {place!r}, its folder is {folder!r}")
    return trial


def _finite(value: float | None) -> float | None:
    """Return a number; None for one that is not finite."""
    return value if value is not None and isfinite(value) else None


def _misplaced(folder: Path, reason: str) -> DataError:
    return DataError(
        f"{folder / 'trial.json'} is damaged ({reason}). Move the folder {folder} away."
    )


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader of a dataclass. It takes longer to build one than to use it."""
    return TypeAdapter(kind)


def _load(file: Path, kind: type[Content]) -> Content:
    """Return the content of a JSON file as a dataclass. Unknown keys are ignored."""
    with as_data_error(file):
        files.check_regular(file)
        given: Any = kind  # mypy finds that a TypeVar cannot be hashed
        content: Content = _adapter(given).validate_python(read_json(file))
        return content
