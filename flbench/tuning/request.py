"""What the user asks of a study, checked as far as that goes without data."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, get_args

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.schema import EngineConfig
from flbench.config.sources import Layer
from flbench.core.errors import ConfigError, did_you_mean
from flbench.tuning.cluster import Resources

Search = Literal["random", "grid", "optuna"]
Scheduler = Literal["asha", "pbt", "none"]
METRICS: Final = (
    *("accuracy", "accuracy_mean", "balanced_accuracy", "macro_f1"),
    *("rare_recall", "rare_f1", "confusable_f1", "worst10_accuracy"),
)
EVALUATIONS: Final = 15  # of a trial, where the user does not say how often


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        methods: names, in the order of the tables.
        space: file or folder of search spaces; None for those that come with flbench.
        trials: of each method, the default parameters among them.
        search: how parameters are proposed.
        scheduler: which trials go on.
        metric: of validation, that is to be large.
        seeds: of which the default and the tuned parameters are trained again; 0 leaves it out.
        concurrent: trials at once; None for as many as there are cores.
        gpus: share of a GPU for each trial; None for a whole one where trials train on a GPU.
        retries: of a trial whose worker fails.
        address: of a Ray cluster.
        out: folder of studies.
        batch: trials that Optuna proposes at once; None for as many as run at once. A resumed study
            keeps it, or other trials would be proposed.
    """

    methods: tuple[str, ...]
    space: Path | None = None
    trials: int = 16
    search: Search = "random"
    scheduler: Scheduler = "asha"
    metric: str = "accuracy"
    seeds: int = 3
    concurrent: int | None = None
    gpus: float | None = None
    retries: int = 2
    address: str | None = None
    out: Path = Path("studies")
    batch: int | None = None


def check(request: Request) -> None:
    """Raise a ConfigError for what cannot be, whatever the data."""
    for method in request.methods:
        ALGORITHMS.find(method)
    if request.metric not in METRICS:
        raise ConfigError(
            f"--metric must be one of {', '.join(METRICS)}, got {request.metric}."
            f"{did_you_mean(request.metric, METRICS)}"
        )
    for option, value, known in (
        ("--search", request.search, get_args(Search)),
        ("--scheduler", request.scheduler, get_args(Scheduler)),
    ):
        if value not in known:
            raise ConfigError(f"{option} must be one of {', '.join(known)}, got {value}.")
    if request.scheduler == "pbt" and request.search != "random":
        raise ConfigError(
            "--scheduler pbt changes parameters while it trains, from a random start: it goes with"
            " --search random alone."
        )
    if request.address is not None and request.concurrent is None:
        raise ConfigError(
            "--address needs --concurrent N, the trials at once: how many cores this machine has"
            " says nothing of the cluster."
        )


def with_defaults(layers: list[Layer]) -> list[Layer]:
    """Return the layers over what a study does differently from a run, where nobody says it.

    One thread for each trial, since trials run at once; a checkpoint after each round, for a killed
    trial loses what came after; and some evaluations for those that decide who goes on.
    """
    rounds = resolve(layers)[0].train.rounds
    tree = {
        "engine": {"threads": 1},
        "output": {"checkpoint_every": 1},
        "evaluation": {"every": max(1, rounds // EVALUATIONS)},
    }
    paths = ("engine.threads", "output.checkpoint_every", "evaluation.every")
    return [Layer(tree, dict.fromkeys(paths, "flbench tune")), *layers]


def resources_of(request: Request, engine: EngineConfig) -> Resources:
    """Return what trials may use, and the engine as all of them have it.

    Raises: ConfigError where the engine and the options contradict each other.
    """
    if engine.name == "auto":
        raise ConfigError(
            "`engine.name=auto`: each trial would measure engines again, beside other trials, and"
            " might choose another one. Name one, such as engine.name=sequential."
        )
    cores = len(os.sched_getaffinity(0))
    if engine.name == "ray" and engine.workers == "auto":
        engine = engine.model_copy(update={"workers": max(1, cores // (request.concurrent or 1))})
    on_gpu = engine.device.startswith("cuda")
    if on_gpu:  # a trial sees the GPU that Ray gives it, as the first
        engine = engine.model_copy(update={"device": "cuda"})
    if request.gpus is not None:
        _check_gpus(request.gpus, engine, on_gpu=on_gpu)
    gpus = float(on_gpu) if request.gpus is None else request.gpus
    resources = Resources(1, engine, gpus, request.retries, request.address)
    at_once = request.concurrent or max(1, cores // resources.cpus)
    return replace(resources, concurrent=at_once)


def _check_gpus(gpus: float, engine: EngineConfig, *, on_gpu: bool) -> None:
    asked = f"--gpus-per-trial {gpus:g}"
    if engine.name == "ray":
        raise ConfigError(f"{asked}: with engine.name=ray each worker takes a whole GPU.")
    if on_gpu and not gpus:
        raise ConfigError(
            f"{asked}: trials train on a GPU. Set engine.device=cpu, or give a share."
        )
    if gpus and not on_gpu:
        raise ConfigError(
            f"{asked}: trials train on the CPU (engine.device={engine.device}). Leave it out, or"
            " set engine.device=cuda where there is a GPU."
        )
