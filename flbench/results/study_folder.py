"""Reading a study folder: what was asked for, its trials and its final trainings.

A study can be read while `flbench tune` is still writing it. A trial whose trial.json is not there
yet is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from flbench.core import files
from flbench.core.documents import as_data_error, read_json
from flbench.core.errors import DataError, UserError, shortened
from flbench.core.own_names import checked
from flbench.core.text import one_line
from flbench.results import reading
from flbench.results.left_out import LeftOut
from flbench.results.summary import MOST

State = Literal["running", "finished", "stopped", "diverged", "failed"]
Variant = Literal["default", "tuned"]
Name = Annotated[str, AfterValidator(partial(checked, what="it"))]
Text = Annotated[str, Field(max_length=100_000)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Few = Annotated[int, Field(ge=0, le=100_000)]
Params = Mapping[Name, Any]

Content = TypeVar("Content")

STATES: tuple[State, ...] = ("finished", "stopped", "running", "diverged", "failed")
VARIANTS: tuple[Variant, ...] = ("default", "tuned")

DIGITS = 9
"""Decimal places to which two scores are compared: sums in another order differ below them."""

PERSONAL = "personal"
"""Name of the deployment that scores a trial unless the user names another one."""


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
    """

    space: Text
    defaults: Params
    space_tree: Mapping[str, Any]


@dataclass(frozen=True)
class Header:
    """The content of study.json: what was asked for.

    Attributes:
        id: Id of the study, the name of its folder when it was made.
        created: ISO time at which the study was made.
        command: Command line that made the study.
        dataset: Name of the data set.
        scheme: Partition scheme.
        partition_hash: SHA-256 of the partition that all trials of the search share; None if it is
            not known.
        seed: Seed of the trials. Final trainings take the seeds after it.
        metric: Validation metric that scores a trial; larger is better.
        deployment: Name of the deployment whose metrics are compared, on validation and test parts.
        search: How hyper-parameters are proposed: random, grid or optuna.
        scheduler: What stops trials early: asha, pbt or none.
        trials: Number of trials of each method, the one with default hyper-parameters included.
        rounds: Number of rounds of a trial that is not stopped early.
        seeds: Number of final trainings of each method and variant.
        git_revision: Commit of the code; None outside a Git checkout.
        methods: Entry of each method by its name, in the order of the command line.
        vary: What differs between final trainings: `both`, the seed of the training and the
            partition, or `training`.
        validation: Number of validation samples of all clients, for metrics of rare classes of
            these classes alone; 0 if it is not known.
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
    # A study of an earlier version has no entry for these.
    deployment: Name = PERSONAL
    vary: Name = "training"
    validation: Count = 0


@dataclass(frozen=True)
class Trial:
    """The content of a trial.json: a trial of the search, or a final training.

    Attributes:
        method: Name of the method.
        kind: "search" for a trial of the search, "final" for a final training.
        index: Number of the trial; trial 0 has the default hyper-parameters. A final training has
            the number of the trial whose hyper-parameters it uses.
        variant: "default" or "tuned" for a final training, None for a trial of the search.
        seed: Seed of the training.
        params: Hyper-parameters by their dotted paths; with population based training the latest.
        state: "stopped" means that the scheduler stopped the trial early.
        reason: A sentence that says why the trial failed or diverged; None otherwise.
        round: Number of rounds that are done.
        rounds: Number of rounds that were asked for.
        score: Validation metric of the study at the last evaluation; None before the first
            evaluation and where the metric is not finite.
        loss: Validation loss, the mean of -log p of the true class, at the last evaluation; None
            before the last round, unless `evaluation.probabilities` is set.
        seconds: Seconds that were spent, by purpose (train, evaluate, total).
        started: ISO time at which the trial began.
        ended: ISO time at which the trial ended; None while it runs.
        attempts: Number of times that the trial was begun; more than 1 after a worker failed.
        node: Machine of the Ray cluster that trained the trial.
        of: Number of the trial whose hyper-parameters a final training uses; None for a trial of
            the search.
    """

    method: MethodName
    kind: Literal["search", "final"]
    index: Count
    variant: Variant | None
    seed: Count
    params: Params
    state: State
    reason: Text | None
    round: Count
    rounds: Count
    score: float | None
    seconds: Mapping[Name, float] | None
    started: Name | None
    ended: Name | None
    attempts: Count = 1
    node: Name | None = None
    of: Count | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Final:
    """A final training: a run over all rounds that is evaluated on the test parts.

    Attributes:
        path: Run folder.
        trial: Content of its trial.json.
        run: The run; None while it is unfinished.
    """

    path: Path
    trial: Trial
    run: reading.StoredRun | None

    def metric(self, split: str, name: str, deployment: str = PERSONAL) -> float | None:
        """Return a metric at the best round by validation.

        Args:
            split: "validation" or "test".
            name: Name of the metric, for example "accuracy".
            deployment: Name of the deployment.

        Returns:
            The value; None if the training is unfinished, or its summary lacks the metric.
        """
        metrics = {} if self.run is None else self.run.summary["best"][split]
        if deployment != PERSONAL:  # the metrics of another deployment are in a dict of its name
            metrics = metrics.get(deployment, {})
        value = metrics.get(name)
        return value if isinstance(value, int | float) and isfinite(value) else None


@dataclass(frozen=True)
class StoredStudy:
    """The content of a study folder.

    Attributes:
        path: Study folder.
        header: Content of its study.json.
        trials: Trials of the search, ordered by method (as in the header) and number.
        finals: Final trainings, ordered by method, variant and seed.
        left_out: Sentences about the trials and final trainings that cannot be read.
    """

    path: Path
    header: Header
    trials: tuple[Trial, ...]
    finals: tuple[Final, ...]
    left_out: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order of the header."""
        return tuple(self.header.methods)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the final trainings."""
        first = self.header.seed + 1
        return tuple(range(first, first + self.header.seeds))

    def trials_of(self, method: str) -> list[Trial]:
        """Return the trials of a method, ordered by number."""
        return [trial for trial in self.trials if trial.method == method]

    def winner(self, method: str) -> Trial | None:
        """Return the best finished trial of a method; see `best_trial`."""
        return best_trial(self.trials_of(method))

    def finals_of(self, method: str, variant: Variant) -> dict[int, Final]:
        """Return the finished final trainings of a method by seed.

        If the default hyper-parameters won the search, there are no separate tuned trainings: the
        default trainings are returned for "tuned" too. While trials of the search are missing or
        running, another one may win, and nothing is returned for "tuned".
        """
        found = {
            final.trial.seed: final
            for final in self.finals
            if (final.trial.method, final.trial.variant) == (method, variant) and final.run
        }
        if variant == "tuned" and not found and self.default_has_won(method):
            return self.finals_of(method, "default")
        return found

    def default_has_won(self, method: str) -> bool:
        """Return whether the search of a method has ended and its default trial is the best."""
        ended = [trial for trial in self.trials_of(method) if trial.state != "running"]
        winner = self.winner(method)
        return len(ended) >= self.header.trials and winner is not None and winner.index == 0

    def finished_finals(self) -> Iterator[tuple[str, int, reading.StoredRun]]:
        """Yield the label that each finished final training has in a comparison, its seed and run.

        `METHOD` has the default parameters, and `METHOD tuned` the tuned ones.
        """
        for final in self.finals:
            if final.run is not None:
                method, variant = final.trial.method, final.trial.variant
                label = method if variant == "default" else f"{method} {variant}"
                yield label, final.trial.seed, final.run

    def values(
        self, method: str, variant: Variant, name: str, *, split: str = "test"
    ) -> dict[int, float]:
        """Return a metric of a method's final trainings at their best rounds, by seed.

        It is that of the study's deployment.
        """
        found = {
            seed: final.metric(split, name, self.header.deployment)
            for seed, final in self.finals_of(method, variant).items()
        }
        return {seed: value for seed, value in found.items() if value is not None}


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
        lenient: Whether to leave out trials and final trainings that are damaged, instead of
            raising an error.

    Raises:
        UserError: The path is not a study folder.
        DataError: A file of the study is damaged.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if not is_study(path):
        raise UserError(f"{path} is not a study folder: it has no study.json.")
    header = read_header(path)
    order = list(header.methods)
    left_out = LeftOut()
    trials = [trial for _, trial in _trials(path, "trials", order, left_out)]
    finals = []
    for folder, trial in _trials(path, "finals", order, left_out):
        with left_out.catching(folder):
            finals.append(_final(folder, trial))
    if not lenient:
        left_out.raise_first()
    return StoredStudy(
        path,
        header,
        tuple(sorted(trials, key=lambda trial: (order.index(trial.method), trial.index))),
        tuple(sorted(finals, key=lambda final: _position(final.trial, order))),
        tuple(left_out.sentences),
    )


def read_header(study: Path) -> Header:
    """Read the study.json of a study folder.

    Raises:
        DataError: The file is damaged or missing.
    """
    return _load(study / "study.json", Header)


def read_trial(file: Path) -> Trial:
    """Read a trial.json.

    Args:
        file: Path in a study folder, `trials/METHOD/NAME/trial.json` or
            `finals/METHOD/NAME/trial.json`.

    Raises:
        DataError: The file is damaged, or its content does not fit the folder it is in.
    """
    trial = _load(file, Trial)
    folder, method, kind = file.parent, file.parent.parent.name, file.parents[2].name
    if trial.method != method:
        raise _misplaced(folder, f"its method is {trial.method!r}, its folder is for {method!r}")
    is_final = trial.kind == "final"
    if is_final != (kind == "finals") or (is_final and trial.variant is None):
        raise _misplaced(
            folder, f"kind {trial.kind!r} with variant {trial.variant!r} cannot be in {kind}/"
        )
    return replace(trial, score=_finite(trial.score), loss=_finite(trial.loss))


def _finite(value: float | None) -> float | None:
    """Return a number; None for one that is not finite."""
    return value if value is not None and isfinite(value) else None


def _misplaced(folder: Path, reason: str) -> DataError:
    return DataError(
        f"{folder / 'trial.json'} is damaged ({reason}). Move the folder {folder} away."
    )


def _position(trial: Trial, order: Sequence[str]) -> tuple[int, int, int]:
    """Return the sort key of a final training: method, variant, seed."""
    variant = VARIANTS.index(trial.variant) if trial.variant is not None else -1
    return order.index(trial.method), variant, trial.seed


def _trials(
    path: Path, kind: str, methods: Sequence[str], left_out: LeftOut
) -> list[tuple[Path, Trial]]:
    """Return all trials below `trials/` or `finals/` with their folders."""
    found = []
    for file in sorted((path / kind).glob("*/*/trial.json")):
        with left_out.catching(file):
            trial = read_trial(file)
            if trial.method not in methods:
                raise _misplaced(
                    file.parent, f"study.json does not list its method {trial.method!r}"
                )
            found.append((file.parent, trial))
    return found


def _final(folder: Path, trial: Trial) -> Final:
    """Return a final training.

    It is finished when it has a summary.json and its trial.json does not say that it was given up
    after that.
    """
    finished = (folder / "summary.json").is_file() and trial.state == "finished"
    return Final(folder, trial, reading.read(folder) if finished else None)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader of a dataclass. It takes longer to build one than to use it."""
    return TypeAdapter(kind)


def _load(file: Path, kind: type[Content]) -> Content:
    """Return the content of a JSON file as a dataclass. Unknown keys are ignored.

    Raises:
        DataError: The file cannot be read or lacks a key, or a value has the wrong type.
    """
    with as_data_error(file):
        try:
            files.check_regular(file)
            given: Any = kind  # mypy finds that a TypeVar cannot be hashed
            content: Content = _adapter(given).validate_python(read_json(file))
            return content
        except ValidationError as error:
            first = error.errors()[0]
            key = one_line(shortened(".".join(map(str, first["loc"])), 100))
            if first["type"] == "missing":
                raise KeyError(key) from error
            raise ValueError(f"`{key}`: {first['msg']}" if key else first["msg"]) from error
