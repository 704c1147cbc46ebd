"""Metrics of models whose targets are not classes: those of torchmetrics that the user gives."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite, isnan, nan
from typing import Any

import torch
from torch import Tensor

from flbench.core.errors import ConfigError, DivergedError
from flbench.core.lightning import Metric
from flbench.metrics.own import OwnMetric


@dataclass(frozen=True)
class TargetScores:
    """Values of metrics of all clients' models on one part of the samples.

    Attributes:
        metrics: The metrics; the function of each is a metric of torchmetrics.
        clients: Values [N] float64 of each metric by its name; NaN for clients without one.
        evaluated: [N] bool: True for clients that have samples in this part.
        together: Copies of the metrics that have got the samples of all clients.
        called: Returns how messages call a client.
    """

    metrics: tuple[OwnMetric, ...]
    clients: dict[str, Tensor]
    evaluated: Tensor
    together: dict[str, Metric]
    called: Callable[[int], str] = str

    @staticmethod
    def empty(
        clients: int, metrics: tuple[OwnMetric, ...], called: Callable[[int], str] = str
    ) -> "TargetScores":
        """Return the scores of N clients before the first sample."""
        unknown = torch.full((clients,), torch.nan, dtype=torch.float64)
        return TargetScores(
            metrics,
            {metric.name: unknown.clone() for metric in metrics},
            torch.zeros(clients, dtype=torch.bool),
            {metric.name: torchmetric(metric).clone() for metric in metrics},
            called,
        )

    def add_(self, client: Tensor, true: Tensor, predicted: Tensor) -> None:
        """Add the outputs for n samples, in place; all samples of a client in one call.

        Args:
            client: Id [n] int64 of each sample's client.
            true: Targets [n, ...].
            predicted: Outputs [n, ...] of the models.

        Raises:
            ConfigError: A metric cannot be computed of them, or is infinite.
            DivergedError: An output is not finite.

        >>> from torchmetrics import MeanAbsoluteError
        >>> scores = TargetScores.empty(3, (OwnMetric("mae", MeanAbsoluteError(), "object"),))
        >>> scores.add_(torch.tensor([0, 2, 2]), torch.zeros(3), torch.tensor([1.0, 2.0, 4.0]))
        >>> scores.clients["mae"].tolist()
        [1.0, nan, 3.0]
        >>> scores.pooled()["mae_worst10"]
        3.0
        """
        client, order = client.sort(stable=True)
        ids, sizes = client.unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
        parts = order.split(sizes.tolist())  # type: ignore[no-untyped-call]
        for k, mine in zip(ids.tolist(), parts, strict=True):
            owner = (
                f"the model of client {self.called(k)}" if len(self.evaluated) > 1 else "the model"
            )
            self._add([k], owner, true[mine], predicted[mine])

    def add_probabilities_(self, client: Tensor, true: Tensor, logarithms: Tensor) -> None:
        """Add nothing: targets that are not classes have no probabilities."""

    def add_shared_(self, ids: Tensor, true: Tensor, predicted: Tensor) -> None:
        """Add the outputs [n, ...] of one model, which the clients `ids` [K] share, in place."""
        owner = f"the model that {len(ids)} clients have"
        self._add(ids.tolist(), owner, true, predicted)

    def pooled(self) -> dict[str, float | None]:
        """Return three values of each metric; see `OwnMetric.summary`."""
        found: dict[str, float | None] = {}
        for metric in self.metrics:
            whole = nan
            if bool(self.evaluated.any()):
                found_whole = _computed(metric, self.together[metric.name].compute)
                whole = _checked(metric, found_whole, "all clients together")
            found |= metric.summary(whole, self.clients[metric.name])
        return found

    def _add(self, ids: list[int], owner: str, true: Tensor, predicted: Tensor) -> None:
        """Add the outputs [n, ...] of the model of some clients; `owner` is for messages."""
        if not len(true):
            return
        if not bool(torch.isfinite(predicted).all()):
            raise DivergedError(
                f"{owner} returns outputs that are not finite. Lower the learning rate of the"
                " module, or set train.clip."
            )
        self.evaluated[ids] = True
        # Where all clients have the model, the samples of one stand for those of all.
        times = 1 if len(ids) == len(self.evaluated) else len(ids)
        for metric in self.metrics:
            self.clients[metric.name][ids] = value_of(metric, predicted, true, owner)
            for _ in range(times):
                _computed(metric, partial(self.together[metric.name].update, predicted, true))


def torchmetric(metric: OwnMetric) -> Metric:
    """Return the metric of torchmetrics of a metric of the user.

    Raises:
        ConfigError: It is something else.
    """
    if not isinstance(metric.function, Metric):
        raise ConfigError(
            f"`evaluation.metrics.{metric.name}` must be a metric of torchmetrics, such as"
            " torchmetrics.MeanAbsoluteError(), because the targets of the data are not classes;"
            f" got {type(metric.function).__name__}."
        )
    return metric.function


def value_of(metric: OwnMetric, predicted: Tensor, true: Tensor, owner: str) -> float:
    """Return a metric of the outputs [n, ...] of one model; NaN if it has no value for them.

    Raises:
        ConfigError: The metric raised an exception, or is not one finite number.
    """
    function = torchmetric(metric)
    function.reset()
    try:
        of = f" for {owner} on {len(true)} samples"
        _computed(metric, partial(function.update, predicted, true), of)
        found = _computed(metric, function.compute, of)
    finally:
        function.reset()
    return _checked(metric, found, owner)


def _computed(metric: OwnMetric, call: Callable[[], Any], of: str = "") -> Any:
    """Return what a call of a metric returns; a ConfigError takes the place of its exceptions."""
    try:
        return call()
    except Exception as error:
        reason = str(error).rstrip(". ")
        raise ConfigError(
            f"`evaluation.metrics.{metric.name}`: {type(metric.function).__name__} raised"
            f" {type(error).__name__}{of}: {reason}. It gets the outputs of the module's forward"
            " and the targets. Give a metric that takes both, or larger parts (partition.split)."
        ) from error


def _checked(metric: OwnMetric, found: Any, owner: str) -> float:
    """Return the value of a metric as a number."""
    if not isinstance(found, Tensor) or found.numel() != 1:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"`evaluation.metrics.{metric.name}` must be one number, got {got}. Let"
            f" {type(metric.function).__name__} average over classes or outputs."
        )
    value = float(found)
    if not isfinite(value) and not isnan(value):
        raise ConfigError(
            f"`evaluation.metrics.{metric.name}` is infinite for {owner}, although all outputs are"
            " finite, so clients have no mean. Give a metric with a finite value for all outputs."
        )
    return value
