"""Methods and search spaces for a Tuner of the user's own: `fl.tuning.trainable` and `.space`."""

from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from flbench.calls import arguments, parts
from flbench.calls.process import preserved
from flbench.config.resolve import resolve
from flbench.config.sources import Layer
from flbench.config.trust import run_code
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.core.registry import ALGORITHMS
from flbench.core.system_errors import as_flbench_errors
from flbench.data import partition_files
from flbench.experiment.engines import with_device
from flbench.tuning.request import require_ray_tune

if TYPE_CHECKING:
    from flbench.tuning.search_space import Parameter


def trainable(
    method: str | type,
    *,
    config: str | PathLike[str] | None = None,
    seed: int | None = None,
    algorithm: Mapping[str, Any] | None = None,
    data: Any = None,
    partition: Any = None,
    model: Any = None,
    train: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | str | None = None,
    evaluation: Mapping[str, Any] | None = None,
    gpus_per_trial: float | None = None,
    trust: bool = False,
    **keys: Any,
) -> Callable[[dict[str, Any]], None]:
    """Return a method as a trainable for `ray.tune.Tuner`, with any scheduler and searcher.

    The config of a trial has values by dotted keys of the sections `algorithm`, `train` and
    `model`, such as `{"algorithm.tau": 0.5, "train.optimizer.lr": 0.1}`, and `seed`. All trials
    share the data and their partition, which are loaded here and put into Ray's object store once.

    Each evaluation is a report (`training_iteration`), with the columns

    - `val_METRIC`: validation metrics of the personal models, such as `val_accuracy`,
      `val_macro_f1` and `val_rare_recall`;
    - `round`: rounds done; `loss`: the mean training loss of the last one;
    - `up_bytes`, `down_bytes`, `peer_bytes`, `setup_bytes`: sums over all rounds;
    - `train_seconds`, `evaluate_seconds`, `seconds`: time spent, without Ray Tune's own.

    Test samples are not read.

    Each report has a checkpoint, so that trials that a scheduler pauses or copies, trials whose
    worker fails, and those of `Tuner.restore` continue exactly where they were: with the same
    weights, bit for bit. Population based training needs `CheckpointConfig(num_to_keep=4)` or more.

    Keys are checked when Ray Tune creates a trial, before it starts: `Tuner.fit` raises the
    ConfigError. A trial whose values the method refuses, or whose models diverge, fails alone.

    Trials have the defaults of `fl.tune`: one thread each, and about 15 evaluations.

    Args:
        method: Name of the method, its import path `package.module:Class`, or its class.
        config: YAML file with the values that differ from the defaults.
        seed: Seed of the partition and of the trials.
        algorithm: Keys of the method that are not searched.
        data: Section `data`, or data of your own, as for `fl.run`.
        partition: Section `partition`, an object such as `fl.Dirichlet(alpha=0.1)`, or a scheme of
            your own, as for `fl.run`.
        model: Section `model`, or a net of your own, as for `fl.run`.
        train: Section `train`. Entries of `terms` may be functions, or have one as their `name`.
        engine: Section `engine`.
        evaluation: Section `evaluation`.
        gpus_per_trial: Share of a GPU per trial (default: 1 if trials train on a GPU).
        trust: Whether code that `config` names may run; see `fl.run`.
        keys: Keys by their dotted names.

    Returns:
        A function trainable with its resources. `ray.tune.with_resources` gives it others; keys are
        then checked when the trial starts.

    Raises:
        UserError: The configuration is wrong, the data cannot be used, or a net cannot be sent to
            the processes of the trials.
    """
    given = arguments.sections(locals(), keys)
    require_ray_tune()
    from ray import tune

    from flbench.tuning import prepare, trial
    from flbench.tuning.ray_tune import bundles
    from flbench.tuning.request import TuneRequest, resources_of, with_defaults
    from flbench.workers.shipping import pack

    given, objects = parts.split(given)
    if not isinstance(algorithm, Mapping | None):
        raise ConfigError(
            f"`algorithm` must be a dict of keys, got {algorithm!r}: fl.tuning.trainable takes the"
            " method as its first argument."
        )
    section = ALGORITHMS.section(method)
    method = section["name"]
    given["algorithm"] = {**(algorithm or {}), **section}
    with run_code(trust):
        layers = with_defaults(arguments.layers("tuning.trainable", config, given))
    asked, origins = resolve(layers)
    with as_flbench_errors(), preserved(), offered(objects):
        federation = prepare.load(asked, "accuracy")
        if gpus_per_trial and asked.engine.device != "cpu":  # of the cluster that the Tuner uses
            used = asked.engine.altered(device="cuda")
        else:
            used = with_device(asked.engine)
        resources = resources_of(TuneRequest((method,), gpus=gpus_per_trial), used)
        complete, _ = prepare.complete(asked, federation, resources)
    # A checkpoint for each report, and no others.
    output = complete.output.altered(
        checkpoint_every=complete.evaluation_period, checkpoint_seconds=0.0
    )
    layer = Layer(complete.altered(output=output).tree(), origins)
    samples = federation.x.numpy()
    base = trial.Base(
        layer,
        partition_files.encode(federation.partition, federation.dataset, complete.partition),
        pack(objects, [method]),
    )
    function = tune.with_parameters(
        trial.of_tuner, base=base, samples=samples, rest=federation.without_samples()
    )
    function.__name__ = method
    request = partial(trial.resources_for, base=layer, bundles=bundles(resources))
    found: Callable[[dict[str, Any]], None] = tune.with_resources(function, request)
    return found


def space(
    method: str | type,
    path: str | PathLike[str] | None = None,
    *,
    rounds: int | None = None,
    searcher: Literal["optuna"] | None = None,
) -> Any:
    """Return the search space of a method for `ray.tune.Tuner`.

    The result is a dict of Ray Tune's search space objects by dotted keys, such as
    `{"algorithm.tau": tune.loguniform(0.05, 1.0)}`, for `param_space` or for a search algorithm.

    Ray Tune's spaces have no conditions. A parameter that has a meaning only for some values of
    another one (`when` in the YAML file) is left out of the dict, and keeps its default. With
    Optuna, `searcher="optuna"` returns a function that draws these parameters too, for
    `OptunaSearch(space=...)`.

    Args:
        method: Name of the method, its import path `package.module:Class`, or its class.
        path: YAML file with the space (default: the one that comes with the method).
        rounds: Value of `train.rounds`, for ranges that are shares of it (default: that of the
            configuration).
        searcher: `optuna` for a function for `OptunaSearch`.

    Returns:
        A dict of Ray Tune's objects by dotted key; with `searcher="optuna"`, a function of a trial
        of Optuna that returns the parameters by dotted key.

    Raises:
        ConfigError: There is no such method, it has no search space, or the file has errors.
    """
    require_ray_tune()
    from flbench.tuning import library

    if searcher not in (None, "optuna"):
        raise ConfigError(f"`searcher` must be optuna or None, got {searcher!r}.")
    section = ALGORITHMS.section(method)
    method = section["name"]
    config, _ = resolve(arguments.layers("tuning.space", None, {"algorithm": section}))
    file = None if path is None else arguments.path_of(path, "path")
    rounds = config.train.rounds if rounds is None else rounds
    found = library.load([method], file, rounds=rounds)[method]
    if searcher == "optuna":
        return found.suggest
    return {path: _domain(one) for path, one in found.parameters.items() if not one.when}


def _domain(parameter: "Parameter") -> Any:
    """Return Ray Tune's object for a parameter."""
    from ray import tune

    if parameter.choices:
        return tune.choice(list(parameter.choices))
    if parameter.whole:  # Ray Tune's upper end is exclusive
        return tune.randint(parameter.low, parameter.high + 1)
    return (tune.loguniform if parameter.log else tune.uniform)(parameter.low, parameter.high)
