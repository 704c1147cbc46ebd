"""Options of a study, and checks of them that need no data."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.schema import CHECKPOINT_SECONDS, EngineConfig, EvaluationConfig
from flbench.config.sources import Layer, from_values, merge
from flbench.core.control_groups import available_cores
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.own_names import SUFFIXES, check_whole
from flbench.jobs.repetitions import Vary
from flbench.jobs.resources import Resources
from flbench.metrics import names as metric_names

Search = Literal["random", "grid", "optuna"]
Scheduler = Literal["asha", "none"]
Equal = Literal["trials", "steps"]
METRICS: Final = (
    *("accuracy", "accuracy_mean", "balanced_accuracy", "macro_f1"),
    *(*metric_names.RARE, "confusable_f1", "worst10_accuracy"),
    *metric_names.RANKING_WITH_MEANS,
)
KEPT: Final = (
    *("trials", "equal", "search", "scheduler", "metric"),
    *("seeds", "vary", "gpus", "retries", "address"),
)
"""Options that study.json has, beside `batch`."""
VARIED: Final = ("both", "training")
"""What may differ between repetitions; those with one seed of the training support no claim."""
FACTOR: Final = 3  # successive halving continues one trial in three
LONG_TAIL: Final = {"data.imbalance": 0.1, "partition.alpha": 0.5, "train.rounds": 30}
"""What a study trains on if nothing else is asked for: digits on which hyper-parameters and methods
differ, with rare classes; docs/guides/tune.md has the measurements."""
OTHER_DATA: Final = {"data.name", "data.path", "data.source", "partition.scheme"}
"""Keys by which a user chooses other data."""
ORIGIN: Final = "flbench tune"
TRIAL_EVALUATIONS: Final = 15  # evaluations of a trial, unless the user sets `evaluation.every`


@dataclass(frozen=True)
class TuneRequest:
    """Options of a study. `flbench.api.tuning.tune` describes those that it takes.

    Attributes:
        methods: Names of the methods, in the order of the tables.
        gpus: The argument `gpus_per_trial`.
        batch: Number of trials that Optuna proposes at once; None for the number of concurrent
            trials. A resumed study keeps its number, so that the same trials are proposed.
    """

    methods: tuple[str, ...]
    space: Path | None = None
    trials: int = 16
    equal: Equal = "trials"
    search: Search = "random"
    scheduler: Scheduler = "asha"
    metric: str = "accuracy"
    seeds: int = 5
    vary: Vary = "both"
    concurrent: int | None = None
    gpus: float | None = None
    retries: int = 2
    address: str | None = None
    out: Path = Path("studies")
    batch: int | None = None


def require_ray_tune() -> None:
    """Raise a ConfigError if Ray Tune or Optuna is not installed."""
    try:
        import optuna  # noqa: F401
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"a search of hyper-parameters needs the package `{error.name}`, which is not"
            " installed: pip install 'flbench[tune]'"
        ) from error


def check(request: TuneRequest) -> None:
    """Check the options that do not depend on data.

    Raises:
        ConfigError: An option has an unknown value, or contradicts another option.
    """
    for method in request.methods:
        ALGORITHMS.find(method)
    for option, value, known in (
        ("search", request.search, get_args(Search)),
        ("scheduler", request.scheduler, get_args(Scheduler)),
        ("equal", request.equal, get_args(Equal)),
        ("vary", request.vary, VARIED),
    ):
        if value not in known:
            raise ConfigError(f"`{option}` must be one of {', '.join(known)}, got {value}.")
    if request.equal == "steps" and request.scheduler != "none":
        raise ConfigError(
            f"`equal=steps` contradicts scheduler={request.scheduler}, which stops trials by their"
            " scores, so that methods take different numbers of steps. Leave one of the two out."
        )
    for option, least in (("trials", 1), ("seeds", 0), ("retries", 0)):
        check_whole(option, getattr(request, option), least)
    if request.concurrent is not None:
        check_whole("jobs", request.concurrent, 1)
    gpus: Any = request.gpus
    if gpus is not None and not (isinstance(gpus, int | float) and 0 <= gpus < math.inf):
        raise ConfigError(f"`gpus_per_trial` must be a number of at least 0, got {gpus!r}.")
    if request.address is not None and request.concurrent is None:
        raise ConfigError(
            "`address` needs `jobs`, the number of trials that run at"
            " the same time: it cannot be derived from the cores of this machine."
        )


def check_metric(metric: str, evaluation: EvaluationConfig) -> None:
    """Raise a ConfigError if there is no such metric."""
    own = [f"{name}{suffix}" for name in evaluation.metrics or {} for suffix in ("", *SUFFIXES)]
    known = (*METRICS, *own)
    if metric not in known:
        cure = "" if own else " Metrics of your own are given by evaluation.metrics."
        raise ConfigError(
            f"`metric` must be one of {', '.join(known)}, got {metric}."
            f"{did_you_mean(metric, known)}{cure}"
        )


def grace_of(method: str, rounds: int, every: int) -> int:
    """Return the rounds before successive halving may stop a trial, up to an evaluation.

    They are a third of all rounds, or more where `Algorithm.settles` says that the method needs it.

    >>> grace_of("fedavg", 30, 2), grace_of("hfcd", 30, 2)
    (10, 16)
    """
    share: float = max(1 / FACTOR, ALGORITHMS.find(method).settles)
    return every * math.ceil(share * rounds / every - 1e-9)


def with_defaults(layers: list[Layer]) -> list[Layer]:
    """Return the layers, with the defaults of a study below them.

    A study differs from a run in these defaults: a checkpoint every few seconds, so that a killed
    trial loses little; about 15 evaluations, which the scheduler uses; and, if the user names
    neither data nor a scheme, LONG_TAIL.
    """
    own = {} if OTHER_DATA & merge(layers).keys() else LONG_TAIL
    layers = [from_values(own, ORIGIN), *layers]
    rounds = resolve(layers)[0].train.rounds
    values = {
        "output.checkpoint_every": 1,
        "output.checkpoint_seconds": CHECKPOINT_SECONDS,
        "evaluation.every": max(1, rounds // TRIAL_EVALUATIONS),
    }
    return [from_values(values, ORIGIN), *layers]


def resources_of(request: TuneRequest, engine: EngineConfig) -> Resources:
    """Return the resources of a study, with the engine settings that all trials share.

    Raises:
        ConfigError: The engine and the options contradict each other.
    """
    if engine.name == "ray":
        raise ConfigError(
            "`engine.name=ray`: each trial of a search is trained by one process of Ray, on any"
            " node. Leave the key out, or name another engine."
        )
    on_gpu = engine.device.startswith("cuda")
    if on_gpu:  # a trial sees the GPU that Ray assigns to it as device 0
        engine = engine.altered(device="cuda")
    asked = request.gpus
    if asked is not None and bool(asked) != on_gpu:
        raise ConfigError(
            f"`gpus_per_trial={asked}`: trials train with engine.device={engine.device}. Leave the"
            " option out, or set another device."
        )
    gpus = float(on_gpu) if asked is None else asked
    resources = Resources(1, engine, gpus, request.retries, request.address)
    at_once = request.concurrent or max(1, available_cores() // resources.cpus)
    return replace(resources, concurrent=at_once)
