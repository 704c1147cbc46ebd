"""The judge of targets that are not classes, and the refusal of what needs classes.

A regression or a segmentation is judged by the metrics of torchmetrics that the user gives: for
each client on its own samples, as the mean over clients, for the worst tenth of the clients, and
over the samples of all clients.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from flbench.algorithms.base import Deployment
from flbench.config.schema import BestConfig, Config
from flbench.core.errors import ConfigError
from flbench.core.types import Context, State, Tree
from flbench.data.federation import Federation
from flbench.data.schemes import Indices
from flbench.engine.base import dtype_of
from flbench.experiment.evaluation_tables import client_table
from flbench.experiment.predictions import PARTS, Evaluation, Predict
from flbench.metrics.own import OwnMetric
from flbench.metrics.target_scores import TargetScores, value_of
from flbench.models.lightning_net import LightningNet
from flbench.results.metrics_file import Row

EXAMPLE: Final = "metrics={'mae': torchmetrics.MeanAbsoluteError()}"


@dataclass(frozen=True)
class TargetJudge:
    """Judges outputs for targets by metrics of torchmetrics, as `ClassJudge` judges classes.

    Attributes:
        federation: Samples of all clients.
        metrics: The metrics.
        width: Number of values that the net returns for one sample.
        best: Metric that chooses the best round.
    """

    federation: Federation
    metrics: tuple[OwnMetric, ...]
    width: int
    best: BestConfig

    def observe(self, deployment: Deployment, part: str) -> Callable[[Context], Tree]:
        """Return a function to the outputs [B, ...]."""
        return Predict(deployment.weights, deployment.predict, has_classes=False)

    def pairs(self, rows: Indices, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the targets and the outputs, [n, ...] each."""
        return torch.from_numpy(self.federation.dataset.truth[rows]), predicted

    def scores(self, clients: int) -> TargetScores:
        """Return the scores of N clients before the first sample."""
        return TargetScores.empty(clients, self.metrics, self.federation.partition.called)

    def of(self, federation: Federation) -> "TargetJudge":
        """Return the judge of another federation with targets of the same shape."""
        return replace(self, federation=federation)

    def rows(self, evaluation: Evaluation, suffix: str = "") -> list[Row]:
        """Return the metrics of an evaluation as rows of metrics.csv."""
        found = [(part, name, scores) for (name, part), scores in evaluation.local.items()]
        found += [("common", name, scores) for name, scores in evaluation.common.items()]
        return [
            Row(evaluation.round, part, protocol + suffix, name, value)
            for part, protocol, scores in found
            for name, value in scores.pooled().items()
            if value is not None
        ]

    def tables(
        self, evaluations: Mapping[str, tuple[Evaluation, State]]
    ) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[object]]]]:
        """Yield clients.csv."""
        lines = []
        for moment, (evaluation, evaluated) in evaluations.items():
            metrics = {
                part: {k: v.tolist() for k, v in evaluation.local["personal", part].clients.items()}
                for part in PARTS
            }
            lines += client_table(moment, self.federation, evaluated, metrics)
        yield "clients.csv", tuple(lines[0]), [tuple(line.values()) for line in lines]


def make(
    config: Config, net: nn.Module, federation: Federation, metrics: tuple[OwnMetric, ...]
) -> TargetJudge:
    """Return the judge, with the choice of the best round.

    The metrics are tried on the smallest part of a client.

    Raises:
        ConfigError: A key is for classes, or there is no metric. Or one cannot be computed, or
            does not say whether larger values are better.
    """
    assert isinstance(net, LightningNet)  # no other net has targets that are not classes
    _check_keys(config, federation)
    best = config.evaluation.best
    chosen = {metric.name: metric for metric in metrics}.get(best.metric or metrics[0].name)
    if chosen is None:
        raise ConfigError(
            f"`evaluation.best.metric={best.metric}` is not one of `evaluation.metrics`:"
            f" {', '.join(metric.name for metric in metrics)}."
        )
    mode = best.mode or chosen.direction
    if mode is None:
        raise ConfigError(
            f"`evaluation.metrics.{chosen.name}` does not say whether larger values are better (its"
            " higher_is_better is None). Set evaluation.best.mode to max or min, or"
            " evaluation.best.metric to another metric."
        )
    metrics = tuple(replace(one, mode=mode) if one is chosen else one for one in metrics)
    parts, first = federation.partition.parts, next(net.parameters())
    found = [rows for part in PARTS for rows in parts[part] if len(rows)]
    rows = min(found or [parts["train"][0]], key=len)
    was_training = net.training
    with torch.no_grad():
        output = net.eval().module(federation.inputs(rows, first.dtype)).to(dtype_of(config.engine))
    net.train(was_training)
    truth = torch.from_numpy(federation.dataset.truth[rows])
    for metric in metrics:
        value_of(metric, output, truth, "the untrained model")
    size = int(np.prod(output.shape[1:]))
    return TargetJudge(federation, metrics, size, BestConfig(metric=chosen.name, mode=mode))


def _check_keys(config: Config, federation: Federation) -> None:
    """Raise a ConfigError for keys that need classes, and if metrics are missing."""
    evaluation, name = config.evaluation, federation.dataset.name
    if not evaluation.metrics:
        raise ConfigError(
            f"`evaluation.metrics` is missing: `{name}` has targets that are not classes, so there"
            f" is no accuracy. Give metrics of torchmetrics: {EXAMPLE}."
        )
    if config.data.augment and federation.dataset.truth.ndim > 2:
        raise ConfigError(
            f"`data.augment`={list(config.data.augment)} moves the pixels of images, and not those"
            f" of the targets {list(federation.dataset.truth.shape[1:])} of `{name}`. Leave it out,"
            " and augment both in training_step."
        )
    for key in (
        "evaluation.positive",
        "evaluation.target_accuracy",
        "evaluation.confusable",
        "evaluation.probabilities",
        "output.predictions",
    ):
        if attrgetter(key)(config) not in (None, False):
            raise ConfigError(
                f"`{key}` is for classes, and `{name}` has other targets. Leave it out."
            )
