"""The deployment of a method that scores its trials (`flbench tune --deployment NAME`)."""

from dataclasses import replace

import torch
from torch import nn

from flbench.algorithms.base import Algorithm, state_of
from flbench.core.errors import ConfigError, did_you_mean
from flbench.experiment.assembly import Experiment
from flbench.models.base import net_leaves
from flbench.results.metrics_file import Row
from flbench.results.study_folder import PERSONAL

GLOBAL = "gm"  # evaluated on the common test set, and not on the clients' validation parts


def scorable(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the deployments that can score a trial, `personal` first.

    They are those of the method's last stage that clients are evaluated with on their own samples.
    """
    return tuple(name for name in names(experiment.algorithm, experiment.net) if name != GLOBAL)


def names(algorithm: Algorithm, net: nn.Module) -> tuple[str, ...]:
    """Return the names of the deployments of a method's last stage, `personal` first.

    Nothing is trained.

    Args:
        algorithm: The method.
        net: The net with its seeded weights.
    """
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


def check(name: str, experiment: Experiment) -> None:
    """Raise a ConfigError if a method has no deployment of this name that can score a trial.

    Args:
        name: Value of the option `--deployment`.
        experiment: Experiment with the method.
    """
    if name == PERSONAL:
        return
    known = scorable(experiment)
    if name in known:
        return
    why = ""
    if name == GLOBAL:
        why = " The global model is evaluated on the common test set only."
    raise ConfigError(
        f"`deployment={name}`: algorithm.name={experiment.config.algorithm.name} has no"
        " deployment of this name that clients are evaluated with on their validation parts. It"
        f" has: {', '.join(known)}.{why}{did_you_mean(name, known)}"
    )


def score_at(
    rows: list[Row], number: int, metric: str, deployment: str, rounds: int
) -> float | None:
    """Return the score of a trial after one evaluated round; None if there is none.

    A method with several stages may deploy a model only in its last stage. Until then the trial is
    scored by the personal models, so that trials whose stages differ in length can be compared.

    Args:
        rows: Lines of a metrics.csv.
        number: Number of rounds done.
        metric: Name of the metric on validation parts.
        deployment: Name of the deployment.
        rounds: Number of rounds of a complete trial.
    """
    found = {
        row.protocol: row.value
        for row in rows
        if row.round == number and (row.split, row.metric) == ("validation", metric)
    }
    if number < rounds:
        return found.get(deployment, found.get(PERSONAL))
    return found.get(deployment)
