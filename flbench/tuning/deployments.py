"""The deployment that scores the trials of a method (`flbench tune --deployment NAME`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flbench.core.errors import ConfigError, did_you_mean
from flbench.results.metrics_file import Row
from flbench.results.study_folder import PERSONAL
from flbench.results.summary import RunningSummary

if TYPE_CHECKING:  # PyTorch, which reading a study does not need
    from torch import nn

    from flbench.algorithms.base import Algorithm
    from flbench.experiment.assembly import Experiment

GLOBAL = "gm"  # evaluated on the common test set, and not on the clients' validation parts


def scorable(experiment: "Experiment") -> tuple[str, ...]:
    """Return the names of the deployments that can score a trial, `personal` first.

    They are those of the method's last stage that clients are evaluated with on their own samples.
    """
    return tuple(name for name in names(experiment.algorithm, experiment.net) if name != GLOBAL)


def names(algorithm: "Algorithm", net: "nn.Module") -> tuple[str, ...]:
    """Return the names of the deployments of a method's last stage, `personal` first.

    Nothing is trained.

    Args:
        algorithm: The method.
        net: The net with its seeded weights.
    """
    import torch

    from flbench.algorithms.base import state_of
    from flbench.models.base import net_leaves

    start = {name: leaf.detach() for name, leaf in net_leaves(net).items()}
    # Views instead of copies of the clients' leaves: nothing is written.
    state = state_of(algorithm, start, own=lambda tree: tree)
    stages = algorithm.stages()
    last = replace(
        state,
        stage=len(stages) - 1,
        stage_round=stages[-1].rounds,
        round=algorithm.setting.rounds,
        is_initial=False,
    )
    return tuple(algorithm.deploy(last, torch.tensor([0])))


def check(name: str, experiment: "Experiment") -> None:
    """Raise a ConfigError if a method has no deployment of this name that can score a trial.

    Args:
        name: Value of the option `--deployment`.
        experiment: Experiment with the method.
    """
    known = (PERSONAL,) if name == PERSONAL else scorable(experiment)
    if name not in known:
        raise ConfigError(
            f"`deployment={name}`: algorithm.name={experiment.config.algorithm.name} has no"
            " deployment of this name that clients are evaluated with on their validation parts. It"
            f" has: {', '.join(known)}.{did_you_mean(name, known)}"
        )


def metrics_at(
    rows: Sequence[Row],
    number: int,
    deployment: str,
    rounds: int,
    split: str = "validation",
) -> dict[str, float]:
    """Return the metrics that a trial is scored by after one evaluated round, by name.

    A method with several stages may deploy a model only in its last stage. Until then the trial is
    scored by the personal models, so that trials whose stages differ in length can be compared.

    Args:
        rows: Lines of a metrics.csv.
        number: Number of rounds done.
        deployment: Name of the deployment.
        rounds: Number of rounds of a complete trial.
        split: Part of the samples.
    """
    there = [row for row in rows if row.round == number and row.split == split]
    is_there = number >= rounds or any(row.protocol == deployment for row in there)
    protocol = deployment if is_there else PERSONAL
    return {row.metric: row.value for row in there if row.protocol == protocol}


def by_round(rows: Sequence[Row], deployment: str, rounds: int) -> dict[int, dict[str, float]]:
    """Return `metrics_at` of each evaluated round on validation parts, by the rounds in order."""
    numbers = dict.fromkeys(row.round for row in rows if row.split == "validation")
    return {number: metrics_at(rows, number, deployment, rounds) for number in numbers}


def reported(
    rows: list[Row], seconds: Mapping[str, float], deployment: str, rounds: int
) -> dict[str, Any]:
    """Return the columns of a trial after its last evaluated round; nothing before the first.

    Args:
        rows: Rows of metrics.csv.
        seconds: Time that the trial has spent, by purpose.
        deployment: Name of the deployment.
        rounds: Number of rounds of a complete trial.

    Returns:
        `round`, the number of rounds done; `val_METRIC` and, if the test parts have been evaluated
        in this round, `test_METRIC`; `loss`, the mean training loss of the last round; `up_bytes`,
        `down_bytes`, `peer_bytes` and `setup_bytes`, the sums over all rounds; `train_seconds`,
        `evaluate_seconds` and `seconds`, the whole time.

    >>> rows = [
    ...     Row(2, "train", "", "up_bytes", 80),
    ...     Row(2, "train", "", "loss", 1.5),
    ...     Row(2, "validation", "personal", "accuracy", 0.5),
    ... ]
    >>> found = reported(rows, {"train": 1.0, "evaluate": 0.5, "total": 2.0}, "personal", 4)
    >>> found["round"], found["val_accuracy"], found["loss"], found["up_bytes"], found["seconds"]
    (2, 0.5, 1.5, 80, 2.0)
    """
    number = RunningSummary(rows).last
    if number is None:
        return {}
    metrics = {
        f"{prefix}_{name}": value
        for split, prefix in (("validation", "val"), ("test", "test"))
        for name, value in metrics_at(rows, number, deployment, rounds, split).items()
    }
    loss = {row.metric: row.value for row in rows if row[:4] == (number, "train", "", "loss")}
    return {
        "round": number,
        **metrics,
        **loss,
        **RunningSummary([row for row in rows if row.round <= number]).totals()["communication"],
        "train_seconds": seconds.get("train", 0.0),
        "evaluate_seconds": seconds.get("evaluate", 0.0),
        "seconds": seconds.get("total", 0.0),
    }


def of_deployment(metric: str, deployment: str) -> str:
    """Return the name of a metric and of its deployment as text; `personal` is left out.

    >>> of_deployment("macro F1", "personal"), of_deployment("macro F1", "noft")
    ('macro F1', 'macro F1 of noft')
    """
    return metric if deployment == PERSONAL else f"{metric} of {deployment}"
