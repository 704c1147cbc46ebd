"""Evaluating models: what a client is evaluated with, on which samples, and the figures that follow.

Evaluation changes nothing: it is a run of a program without `keeps` and `sends`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm, Deployment
from flbench.client.batchnorm import recalibrate
from flbench.client.program import LocalProgram, Statistic, Step, Transform
from flbench.config.schema import EvaluationConfig
from flbench.core.errors import DivergedError
from flbench.core.tree import take
from flbench.core.types import Info, Results, Samples, State, StepContext, Tree
from flbench.data.federation import Federation
from flbench.engine.base import Engine, RoundSettings
from flbench.experiment.communication import apply_masks
from flbench.metrics.confusion import ConfusionCounts, confusion

BLOCK = 256  # clients that are evaluated at once; more would hold more confusion matrices
SCALARS = 2**26  # of models that are handed out at once: 256 MB
PARTS = ("validation", "test")
COMMON_CONFUSION = "common.confusion"  # what a Statistic `common` finds


@dataclass(frozen=True)
class CountConfusion:
    """What a evaluating Statistic computes: the confusion matrix of a deployment's predictions."""

    weights: Callable[[Tree, Tree], Tree] | None = None
    predict: Callable[[StepContext], Tensor] | None = None

    def scores(self, context: StepContext) -> Tensor:
        """Return the scores [B, C] by which the deployment predicts."""
        if self.weights is not None:
            weights = self.weights(context.leaves, context.ctx)
            context = StepContext(
                partial(context.apply, weights, context.batch.x),
                batch=context.batch,
                ctx=context.ctx,
                leaves=context.leaves,
                start=context.start,
                apply=context.apply,
            )
        return context.out.logits if self.predict is None else self.predict(context)

    def __call__(self, context: StepContext) -> Tree:
        """Return the confusion matrix [C, C] of one batch."""
        return {"confusion": confusion(self.scores(context), context.batch.y, context.batch.mask)}


@dataclass(frozen=True)
class Predictions(CountConfusion):
    """The predicted class of every sample, one after the other."""

    def __call__(self, context: StepContext) -> Tree:
        """Return the predicted classes [B] of one batch."""
        return {"predicted": self.scores(context).argmax(dim=1)}


@dataclass(frozen=True)
class Evaluation:
    """What was found after one round.

    Attributes:
        round: rounds done.
        local: by protocol and part: every client's model on its own samples.
        common: by protocol: `personal` models, and `gm`, on the common test set.
    """

    round: int
    local: dict[tuple[str, str], ConfusionCounts]
    common: dict[str, ConfusionCounts] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the models of a run.

    Attributes:
        algorithm: says what is evaluated.
        engine: runs the programs.
        federation: the samples.
        config: when and how.
        recalibrate: whether BatchNorm statistics are estimated anew (`train.batchnorm=drop`).
        warn: is told of fine-tuning that diverged.
        parts: of the clients' samples that are evaluated. A search evaluates `validation` alone: then no
            test sample is looked at, the common test set's neither.
    """

    algorithm: Algorithm
    engine: Engine
    federation: Federation
    config: EvaluationConfig
    recalibrate: bool
    warn: Callable[[str], None]
    parts: tuple[str, ...] = PARTS

    def evaluate(self, state: State, settings: RoundSettings, *, common: bool) -> Evaluation:
        """Evaluate all clients' models after a round (E-deploy).

        Args:
            state: after the round.
            settings: of the round that was done.
            common: whether to evaluate on the common test set too.
        """
        local: dict[tuple[str, str], ConfusionCounts] = {}
        clients, classes = self.federation.clients, self.federation.classes
        for ids in self._blocks():
            for name, deployment in self._deployments(state).items():
                if name == "gm":
                    continue
                some = ids
                if deployment.clients is not None:
                    some = ids[torch.isin(ids, deployment.clients)]
                    if not len(some):
                        continue
                found = self.run_statistics(
                    state, settings, name, deployment, some, self.part_statistics(deployment)
                )
                for part in self.parts:
                    counts = local.setdefault((name, part), ConfusionCounts.empty(clients, classes))
                    counts.add_(some, found[f"{part}.confusion"])
        shared = self.evaluate_common(state, settings) if common else {}
        return Evaluation(state.round, local, shared)

    def evaluate_common(self, state: State, settings: RoundSettings) -> dict[str, ConfusionCounts]:
        """Evaluate all personal models, and the global one, on the common test set."""
        counts_by_part: dict[str, ConfusionCounts] = {}
        if not self._has_common():
            return counts_by_part
        for ids in self._blocks():
            for name, deployment in self._deployments(state).items():
                if name == "gm" and (name in counts_by_part or self.recalibrate):
                    # Statistics that each client estimates anew make no model that all share.
                    continue
                if name not in ("personal", "gm"):
                    continue
                # The first client stands for the global model, and on all samples.
                some, statistics = ids, self.common_statistics(deployment)
                if name == "gm":
                    some, statistics = ids[:1], (replace(statistics[0], samples=Samples("common")),)
                elif self._is_one(state, deployment):
                    some = ids[:1]
                found = self.run_statistics(state, settings, name, deployment, some, statistics)[
                    COMMON_CONFUSION
                ]
                size = 1 if name == "gm" else self.federation.clients
                counts = counts_by_part.setdefault(
                    name, ConfusionCounts.empty(size, self.federation.classes)
                )
                place = some if name == "gm" else ids
                counts.add_(place, found.expand(len(place), *found.shape[1:]))
        return counts_by_part

    def _is_one(self, state: State, deployment: Deployment) -> bool:
        """Return whether all clients are evaluated with the same model: one can stand for all."""
        changes = (deployment.weights, deployment.predict, deployment.program)
        own = self.algorithm.setting.net.names("all") & state.clients.keys()
        return not (any(changes) or own or deployment.dispatch.rows.values or self.recalibrate)

    def part_statistics(self, deployment: Deployment) -> tuple[Statistic, ...]:
        """Return the Statistics that evaluate a deployment on a client's validation and test parts."""
        evaluate = CountConfusion(deployment.weights, deployment.predict)
        return tuple(Statistic(part, evaluate, samples=Samples(part)) for part in self.parts)

    def recalibration_steps(self, deployment: Deployment) -> tuple[Step, ...]:
        """Return the steps that estimate statistics anew, of the net as it is evaluated; or none."""
        if not self.recalibrate:
            return ()
        return recalibrate(self.algorithm.setting.net, deployment.weights)

    def common_statistics(self, deployment: Deployment) -> tuple[Statistic, ...]:
        """Return the Statistic that evaluates a deployment on the common test set, if there is one."""
        if not self._has_common():
            return ()
        evaluate = CountConfusion(deployment.weights, deployment.predict)
        return (
            Statistic(
                "common", evaluate, samples=Samples("common", limit=self.config.common.limit)
            ),
        )

    def predictions(self, state: State, settings: RoundSettings) -> Iterator[tuple[int, Tensor]]:
        """Yield each client's id and what its model predicts for its test rows [n_test]."""
        for client in range(self.federation.clients):
            if not len(self.federation.partition.parts["test"][client]):
                continue
            ids = torch.tensor([client])
            name, deployment = next(iter(self._deployments(state).items()))
            evaluate = Predictions(deployment.weights, deployment.predict)
            statistic = Statistic("test", evaluate, reduce="rows", samples=Samples("test"))
            found = self.run_statistics(state, settings, name, deployment, ids, (statistic,))
            yield client, found["test.predicted"][0]

    def deployed(self, state: State, settings: RoundSettings) -> Iterator[Tree]:
        """Yield the parameters and buffers that each client is evaluated with, in client order."""
        names = self.algorithm.setting.net.names("all")
        most = max(1, SCALARS // self.algorithm.setting.net.size)
        for ids in self._blocks(most):
            name, deployment = next(iter(self._deployments(state).items()))
            call = () if deployment.weights is None else (Transform(_Called(deployment.weights)),)
            results = self._run(state, settings, name, deployment, ids, call, names)
            for k in range(len(ids)):
                yield {name: value[k] for name, value in results.kept.items()}

    def run_statistics(
        self,
        state: State,
        settings: RoundSettings,
        name: str,
        deployment: Deployment,
        ids: Tensor,
        statistics: tuple[Statistic, ...],
    ) -> Tree:
        """Return what Statistics find at clients `ids` [K] with their deployment, [K, ...] each.

        Args:
            state: after a round.
            settings: of that round.
            name: of the deployment.
            deployment: of these clients.
            ids: [K] of the clients.
            statistics: look at the deployed models.
        """
        return self._run(state, settings, name, deployment, ids, statistics).observed

    def _run(
        self,
        state: State,
        settings: RoundSettings,
        name: str,
        deployment: Deployment,
        ids: Tensor,
        then: tuple[Step, ...],
        keeps: frozenset[str] = frozenset(),
    ) -> Results:
        """Return what the clients have after the deployment's program and further steps.

        Fine-tuning that diverges is given up: those clients are evaluated without it.
        """
        maps = tuple(step for step in then if isinstance(step, Transform))
        program = LocalProgram((*self._steps(deployment), *maps), keeps)
        results = self.engine.run(
            program,
            ids,
            rows=partial(take, state.clients),
            dispatch=lambda some: apply_masks(self.algorithm.deploy(state, some)[name].dispatch),
            settings=settings,
            observe=tuple(step for step in then if isinstance(step, Statistic)),
        )
        if not results.failures:
            return results
        failed = torch.tensor([failure.client for failure in results.failures])
        if deployment.program is None:
            raise DivergedError(
                f"the models of clients {failed.tolist()} after round {state.round} are not finite"
                f" ({results.failures[0].reason}). Lower train.optimizer.lr or set train.clip."
            )
        self.warn(
            f"round {state.round}: fine-tuning diverged at clients {failed.tolist()}; they are"
            " evaluated without it."
        )
        plain = replace(deployment, program=None)
        untuned = self._run(state, settings, name, plain, failed, then, keeps)
        order = torch.argsort(torch.cat([results.ids, failed]))
        order = order[torch.argsort(torch.argsort(ids))]
        return replace(
            results,
            ids=ids,
            kept=_joined(results.kept, untuned.kept, order),
            observed=_joined(results.observed, untuned.observed, order),
            failures=(),
        )

    def _has_common(self) -> bool:
        return "test" in self.parts and len(self.federation.common) > 0

    def _steps(self, deployment: Deployment) -> tuple[Step, ...]:
        return (
            *self.recalibration_steps(deployment),
            *(deployment.program.steps if deployment.program else ()),
        )

    def _deployments(self, state: State) -> dict[str, Deployment]:
        """Return what is evaluated, with the dispatch of one client: engines ask for those they evaluate.

        A dispatch for a whole block would hold a model, or several, for each of its clients.
        """
        return self.algorithm.deploy(state, torch.tensor([0]))

    def _blocks(self, most: int = BLOCK) -> Iterator[Tensor]:
        yield from torch.split(torch.arange(self.federation.clients), min(BLOCK, most))


def _joined(first: Tree, second: Tree, order: Tensor) -> Tree:
    """Return the rows of both trees in this order; the first may be empty."""
    return {
        name: torch.cat([first[name], rows])[order] if name in first else rows[order]
        for name, rows in second.items()
    }


@dataclass(frozen=True)
class _Called:
    """A Transform that writes what the net is called with into the net's own leaves."""

    weights: Callable[[Tree, Tree], Tree]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        return self.weights(leaves, ctx)
