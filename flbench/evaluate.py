"""Judging models: what a client is judged with, on which samples, and the figures that follow.

Evaluation changes nothing: it is a run of a program without `keeps` and `sends`.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm, Deployment
from flbench.client.program import Collector, LocalProgram, Map, Step
from flbench.config import EvaluationConfig
from flbench.data.federation import Federation
from flbench.engine.base import Engine, RoundSettings
from flbench.metrics.tally import Tally, confusion
from flbench.tree import take
from flbench.types import Dispatch, Info, Rows, State, Tree, View
from flbench.wire import seal_dispatch

BLOCK = 256  # clients that are judged at once; more would hold more confusion matrices
PARTS = ("validation", "test")


@dataclass(frozen=True)
class Judge:
    """What a judging Collector computes: the confusion matrix of a deployment's predictions."""

    weights: Callable[[Tree, Tree], Tree] | None = None
    predict: Callable[[View], Tensor] | None = None

    def scores(self, view: View) -> Tensor:
        """Return the scores [B, C] by which the deployment predicts."""
        if self.weights is not None:
            weights = self.weights(view.leaves, view.ctx)
            view = View(
                partial(view.apply, weights, view.batch.x),
                batch=view.batch,
                ctx=view.ctx,
                leaves=view.leaves,
                start=view.start,
                apply=view.apply,
            )
        return view.out.logits if self.predict is None else self.predict(view)

    def __call__(self, view: View) -> Tree:
        """Return the confusion matrix [C, C] of one batch."""
        return {"confusion": confusion(self.scores(view), view.batch.y, view.batch.mask)}


@dataclass(frozen=True)
class Predictions(Judge):
    """The predicted class of every sample, one after the other."""

    def __call__(self, view: View) -> Tree:
        """Return the predicted classes [B] of one batch."""
        return {"predicted": self.scores(view).argmax(dim=1)}


@dataclass(frozen=True)
class Evaluation:
    """What was found after one round.

    Attributes:
        round: rounds done.
        own: by protocol and part: every client's model on its own samples.
        common: by protocol: `personal` models of all clients, and `gm`, on the common test set.
    """

    round: int
    own: dict[tuple[str, str], Tally]
    common: dict[str, Tally] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluator:
    """Judges the models of a run.

    Attributes:
        algorithm: says what is judged.
        engine: runs the programs.
        federation: the samples.
        settings: of a round: batch size and random streams, for fine-tuning.
        config: when and how.
        recalibrate: steps that estimate BatchNorm statistics anew (`train.batchnorm=drop`), or
            none.
    """

    algorithm: Algorithm
    engine: Engine
    federation: Federation
    config: EvaluationConfig
    recalibrate: tuple[Step, ...] = ()

    def evaluate(self, state: State, settings: RoundSettings, *, common: bool) -> Evaluation:
        """Judge all clients' models after a round (E-deploy): own parts, and the common test set if
        asked.

        Args:
            state: after the round.
            settings: of the round that was done.
            common: whether to judge on the common test set too.
        """
        own: dict[tuple[str, str], Tally] = {}
        clients, classes = self.federation.clients, self.federation.classes
        for ids in self._blocks():
            for name, deployment in self.algorithm.deploy(state, ids).items():
                if name == "gm":
                    continue
                found = self.run(
                    state, settings, name, deployment, ids, self.collectors(deployment)
                )
                for part in PARTS:
                    tally = own.setdefault((name, part), Tally.empty(clients, classes))
                    tally.add_(ids, found[f"{part}.confusion"])
        shared = self.common(state, settings) if common else {}
        return Evaluation(state.round, own, shared)

    def common(self, state: State, settings: RoundSettings) -> dict[str, Tally]:
        """Judge all personal models, and the global one, on the common test set."""
        tallies: dict[str, Tally] = {}
        if not len(self.federation.common):
            return tallies
        rows = Rows("common", limit=self.config.common.limit)
        for ids in self._blocks():
            for name, deployment in self.algorithm.deploy(state, ids).items():
                if name not in ("personal", "gm") or (name == "gm" and name in tallies):
                    continue
                # The global model is the same for all: the first client stands for it, on all
                # samples.
                some, part = (ids[:1], Rows("common")) if name == "gm" else (ids, rows)
                collector = (
                    Collector("common", Judge(deployment.weights, deployment.predict), rows=part),
                )
                found = self.run(state, settings, name, deployment, some, collector)
                size = 1 if name == "gm" else self.federation.clients
                tally = tallies.setdefault(name, Tally.empty(size, self.federation.classes))
                tally.add_(
                    torch.zeros(1, dtype=torch.int64) if name == "gm" else ids,
                    found["common.confusion"],
                )
        return tallies

    def collectors(self, deployment: Deployment) -> tuple[Collector, ...]:
        """Return the Collectors that judge a deployment on a client's validation and test parts."""
        judge = Judge(deployment.weights, deployment.predict)
        return tuple(Collector(part, judge, rows=Rows(part)) for part in PARTS)

    def predictions(self, state: State, settings: RoundSettings) -> Iterator[tuple[int, Tensor]]:
        """Yield each client's id and the classes [n_test] that its model predicts for its test
        rows.
        """
        for client in range(self.federation.clients):
            if not len(self.federation.partition.parts["test"][client]):
                continue
            ids = torch.tensor([client])
            name, deployment = next(iter(self.algorithm.deploy(state, ids).items()))
            judge = Predictions(deployment.weights, deployment.predict)
            collector = Collector("test", judge, reduce="rows", rows=Rows("test"))
            found = self.run(state, settings, name, deployment, ids, (collector,))
            yield client, found["test.predicted"][0]

    def deployed(self, state: State, settings: RoundSettings) -> Iterator[Tree]:
        """Yield the parameters and buffers that each client is judged with, in client order."""
        names = self.algorithm.setting.net.names("all")
        for ids in self._blocks():
            name, deployment = next(iter(self.algorithm.deploy(state, ids).items()))
            steps = self._steps(deployment)
            if deployment.weights is not None:
                steps = (*steps, Map(_Called(deployment.weights)))
            program = LocalProgram(steps, keeps=names)
            results = self.engine.run(
                program,
                ids,
                rows=self._rows(state),
                dispatch=self._dispatch(state, name),
                settings=settings,
            )
            for k in range(len(ids)):
                yield {name: value[k] for name, value in results.kept.items()}

    def run(
        self,
        state: State,
        settings: RoundSettings,
        name: str,
        deployment: Deployment,
        ids: Tensor,
        collectors: tuple[Collector, ...],
    ) -> Tree:
        """Return what Collectors find at clients `ids` [K] with one of their deployments, [K, ...]
        each.
        """
        results = self.engine.run(
            LocalProgram(self._steps(deployment)),
            ids,
            rows=self._rows(state),
            dispatch=self._dispatch(state, name),
            settings=settings,
            observe=collectors,
        )
        if len(results.ids) == len(ids):
            return results.observed
        # Fine-tuning that diverges is given up: those clients are judged without it.
        failed = torch.tensor([failure.client for failure in results.failures])
        warnings.warn(
            f"fine-tuning diverged at clients {failed.tolist()}; judged without it", stacklevel=2
        )
        untuned = self.run(
            state, settings, name, replace(deployment, program=None), failed, collectors
        )
        merged: Tree = {}
        for key, value in untuned.items():
            merged[key] = value.new_zeros(len(ids), *value.shape[1:])
            merged[key][torch.isin(ids, failed)] = value
            merged[key][torch.isin(ids, results.ids)] = results.observed[key]
        return merged

    def _steps(self, deployment: Deployment) -> tuple[Step, ...]:
        return (*self.recalibrate, *(deployment.program.steps if deployment.program else ()))

    def _rows(self, state: State) -> Callable[[Tensor], Tree]:
        return partial(take, state.clients)

    def _dispatch(self, state: State, name: str) -> Callable[[Tensor], Dispatch]:
        return lambda ids: seal_dispatch(self.algorithm.deploy(state, ids)[name].dispatch)

    def _blocks(self) -> Iterator[Tensor]:
        yield from torch.split(torch.arange(self.federation.clients), BLOCK)


@dataclass(frozen=True)
class _Called:
    """A Map that writes what the net is called with into the net's own leaves."""

    weights: Callable[[Tree, Tree], Tree]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        return self.weights(leaves, ctx)
