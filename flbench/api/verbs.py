"""The verbs of `fl` about many runs: what each one takes, and what it does.

As `flbench.api.settings`, this module imports neither PyTorch nor pandas.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from flbench.api.settings import AnyPath, Keys, Settings, given, verb

if TYPE_CHECKING:
    from flbench.api.comparisons import PlannedComparison
    from flbench.api.reporting import Comparison
    from flbench.api.runs import Run
    from flbench.api.studies import Study


class ComparisonSettings(Settings, total=False):
    """The settings of `fl.compare` and `fl.ablate`.

    Attributes:
        algorithm: Keys of the methods. Each method gets those that it has.
        seeds: Repetitions of each method, data set and setting (default 5).
        vary: What differs between repetitions: the seed of the training, with one partition
            (`training`); the partition, with one seed of the training (`partition`), which supports
            no claim that a method is better; or both (`both`, default).
        grid: Values by dotted key, such as `{"partition.alpha": [0.1, 1]}`. Each combination of
            values is a setting; keys `algorithm.KEY` make variants of the methods that have them.
        tuned: Folder of a study; each method takes the best parameters that the study has found. A
            method that the study does not have keeps its defaults, and a note says so. Unless
            `seed` is given, the repetitions begin after the seed of the search.
        force: Whether to use the parameters of `tuned` although the study has another setting. A
            warning names the keys in which the two differ.
        jobs: Cells that are trained at the same time, each in a process of its own (default: one
            per core). With 1 they are trained in this process.
        address: A running Ray cluster, as `engine.address` takes it, on whose nodes the cells are
            trained, `jobs` of them at the same time. All nodes must see the folder `out`.
        out: Folder for the folders of comparisons (default `comparisons`).
    """

    algorithm: Keys | None
    seeds: int | None
    vary: Literal["training", "partition", "both"] | None
    grid: Mapping[str, Sequence[Any]] | None
    tuned: AnyPath | None
    force: bool
    jobs: int | None
    address: str | None
    out: AnyPath | None


class ModelSettings(TypedDict, total=False):
    """Which model of a run is meant.

    Attributes:
        deployment: Name of one of the method's models, such as `noft` of `ft` (default: `personal`,
            or `gm` for the global model).
        checkpoint: The round: `best` by validation, or the `last` one.
    """

    deployment: str | None
    checkpoint: Literal["best", "last"]


class ExportSettings(ModelSettings, total=False):
    """How a model of a run is written.

    Attributes:
        overwrite: Whether to replace the files if they exist.
    """

    overwrite: bool


@verb
def compare(
    methods: str | Sequence[str | type | Keys], **settings: Unpack[ComparisonSettings]
) -> "PlannedComparison":
    """Train methods x data sets x settings x repetitions, as `flbench compare` does.

    Each training is a cell: an ordinary run folder below `cells/`, which `fl.load` reads. All
    methods of a repetition have the same seeds, so that their results are paired.

    The sections of the configuration are given as to `fl.run`. Cells differ from runs in two
    defaults: `output.checkpoint_every` is 1 with at least 5 seconds between two checkpoints
    (`output.checkpoint_seconds`), and `tracking.mlflow` is false.
    An interrupt keeps the cells that are finished, and raises KeyboardInterrupt, whose message
    names the call of `fl.resume` that continues the comparison.

    Args:
        methods: Names of the methods, import paths `package.module:Class` or classes of your own. A
            variant of a method is a text `"LABEL: NAME KEY=VALUE ..."`, such as
            `"short: hfcd tau=0.1 train.optimizer.lr=0.01"`, or a dict of the same:
            `{"label": "short", "name": "hfcd", "tau": 0.1, "train.optimizer.lr": 0.01}`. The label
            stands for the method in tables, sentences and pictures; without one, variants are named
            by their keys.
        settings: See `ComparisonSettings`.

    Returns:
        The comparison. Its table `cells` names the cells that failed; `fl.resume` tries them again.

    Raises:
        UserError: The comparison cannot be carried out, or the study of `tuned` has another
            setting. All errors of a configuration are reported together.
        RunError: All cells of a method failed, after the others were trained and reported; or a
            server of Ray was lost.
        KeyboardInterrupt: The comparison was interrupted; `fl.resume` continues it.
    """
    from flbench.api import comparing

    return comparing.call("compare", *given("compare", methods=methods, **settings))


@verb
def ablate(
    method: str | type | Keys,
    *,
    keys: str | Sequence[str] | None = None,
    values: Keys | None = None,
    **settings: Unpack[ComparisonSettings],
) -> "PlannedComparison":
    """Compare a method with variants of itself, as `flbench ablate` does.

    Each variant is the method with another value of one key, and is compared with the method alone:
    Holm's correction is for these pairs. A variant that cannot be trained is left out with a note,
    unless `values` names it.

    Args:
        method: The method with its keys, as one of the methods of `fl.compare`.
        keys: Keys that are changed (default: each on/off or choice key).
        values: Values to try by key, such as `{"tau": [0, 0.5]}`: of further keys of the method, of
            `train.optimizer.*`, `train.schedule.*` and `train.terms`; or the only ones of an on/off
            or choice key.
        settings: See `ComparisonSettings`.

    Returns:
        The comparison. The variants have labels such as `hfcd contrast=false`.

    Raises:
        UserError, RunError, KeyboardInterrupt: See `fl.compare`.
    """
    from flbench.api import comparing

    found, dotted = given("ablate", method=method, keys=keys, values=values, **settings)
    variants = partial(comparing.ablated, keys=keys, values=values)
    return comparing.call("ablate", found | {"methods": [method]}, dotted, variants)


@verb
def tune(
    methods: str | type | Sequence[str | type],
    *,
    trials: int | None = None,
    equal: Literal["trials", "steps"] | None = None,
    space: AnyPath | None = None,
    search: Literal["random", "grid", "optuna"] | None = None,
    scheduler: Literal["asha", "none"] | None = None,
    metric: str | None = None,
    seeds: int | None = None,
    vary: Literal["training", "both"] | None = None,
    jobs: int | None = None,
    gpus_per_trial: float | None = None,
    retries: int | None = None,
    address: str | None = None,
    out: AnyPath | None = None,
    algorithm: Keys | None = None,
    **settings: Unpack[Settings],
) -> "Study":
    """Search hyper-parameters of methods with equal budgets, as `flbench tune` does.

    Trials are scored on the validation parts, after their last round. The best and the default
    parameters are then compared in the same folder, as by `fl.compare`, over other seeds and
    partitions, and only these trainings are evaluated on the test parts.

    The sections of the configuration are given as to `fl.run`. If neither data nor a scheme of the
    partition are given, the study has digits with rare classes and 30 rounds, where
    hyper-parameters and methods differ.

    An interrupt keeps the trials that have ended, and raises KeyboardInterrupt, whose message names
    the call of `fl.resume` that continues the study.

    Args:
        methods: Names of the methods, import paths `package.module:Class`, or classes of your own.
        trials: Trials of each method, the one with default parameters included (default 16); with
            equal steps, of the method whose trials take the fewest.
        equal: What the searches of all methods have in common: the number of `trials` (default), or
            the optimizer `steps`: if a trial takes twice the steps of the cheapest method's, there
            are half the trials.
        space: Search space of one method, or a folder with METHOD.yaml (default: built in).
        search: How parameters are proposed (default `random`).
        scheduler: `asha` (default) stops trials that fall behind; `none` (default with equal steps)
            trains every trial to the end, which gives the same result each time.
        metric: Validation metric to maximize (default `accuracy`). Test parts are never used for
            the search.
        seeds: Repetitions of the default and of the best parameters, each with another seed and
            evaluated on the test parts (default 5; 0: none).
        vary: What differs between repetitions: the seed and the partition (`both`, default), or
            the seed alone, with the partition of the search (`training`).
        jobs: Trials at once (default: one per core).
        gpus_per_trial: Share of a GPU per trial, for example 0.25 (default: 1 if trials train on a
            GPU).
        retries: New attempts of a trial whose worker process fails (default 2).
        address: A running Ray cluster (default: start Ray on this machine).
        out: Folder for study folders (default `studies`).
        algorithm: Keys of the methods that are not searched. Each method gets those that it has.
        settings: See `Settings`.

    Returns:
        The study.

    Raises:
        UserError: The request cannot be carried out. All errors of a configuration are reported
            together.
        RunError: No trial of a method has a score, or a server of Ray was lost.
        KeyboardInterrupt: The study was interrupted; `fl.resume` continues it.
    """
    values = dict(locals())
    values |= values.pop("settings")
    from flbench.api import tuning

    return tuning.called(*given("tune", **values))


def report(
    runs: "Run | Study | AnyPath | Sequence[Run | Study | AnyPath]",
    *,
    metric: str | Sequence[str] | None = None,
    baseline: str | None = None,
    target: str | float | Iterable[float] | None = None,
    at: Literal["rounds", "steps", "bytes", "seconds"] | None = None,
    force: bool = False,
    long: "AnyPath | None" = None,
) -> "Comparison":
    """Compare finished runs, as `flbench report` does.

    Runs are compared within a place: a data set with a setting. What a place is, which runs are
    repetitions of each other and which methods they belong to follows from their configurations.

    Args:
        runs: Runs and studies, their folders, the folder of a comparison, archives that `pack` has
            written, or folders above them. Of a study the cells are compared.
        metric: Test metric that ranks the methods; larger is better. Of several, in a list or
            between commas, the first one ranks, and they are the columns of the leaderboards, among
            which `bytes` and `seconds` can be (default `accuracy`, or the metric of the search of a
            study).
        baseline: Method with which each of the others is compared: no other pair is tested, a
            sentence says which methods are better, and the recall of classes has differences from
            it. By default all pairs are tested, and classes have FedAvg if it is there, otherwise
            the first method.
        target: Value of the metric, or several ones in a list or between commas, whose costs are
            wanted: rounds, bytes and seconds until a method reaches it (default:
            `evaluation.target_accuracy`, if the runs have it).
        at: Compare at equal `rounds`, `steps` of the optimizers, `bytes` or `seconds`: each run is
            read as if it had ended at its last evaluated round within what the cheapest run of its
            place and repetition spends (default: each run to its end).
        force: Whether to compare runs that are not comparable, with a warning that says why.
        long: CSV file to write with a row for each metric of each evaluation of each run, for other
            programs; see `Comparison.long`.

    Returns:
        The report, as tables and sentences; its method `write` makes the files.

    Raises:
        UserError: A path is not the folder of a run, no run is finished, the runs are not
            comparable, a run does not have what `at` needs, or the metric or the baseline is not
            known.
        DataError: A file in a folder is damaged.
    """
    from flbench.api import reporting

    return reporting.report(runs, metric, baseline, target, at=at, force=force, long=long)
