"""Evaluation of models on the clients' samples and on the common test set.

An evaluation runs a local program whose leaves are neither kept nor sent, so it changes no state.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flbench.algorithms.base import Algorithm, Deployment, is_of_user
from flbench.client.batchnorm import recalibrate
from flbench.client.program import LocalProgram, Statistic, Step, Transform
from flbench.config.schema import EvaluationConfig
from flbench.core.errors import DivergedError
from flbench.core.known_code import is_known
from flbench.core.tree import digest, take
from flbench.core.types import Dispatch, Info, Results, Samples, State, Tree
from flbench.core.wording import lower_rate
from flbench.data.federation import Federation
from flbench.engine.base import STATISTIC_BATCH, Engine, RoundSettings, gathered
from flbench.experiment.communication import apply_masks
from flbench.experiment.predictions import (
    PARTS,
    RESULTS,
    SCALARS,
    Evaluation,
    Predictions,
    positive_class,
)
from flbench.experiment.rounds import deployments
from flbench.models.module_state import MIXES, may_draw_in_eval

if TYPE_CHECKING:
    from flbench.experiment.frozen_outputs import Cached
    from flbench.experiment.judging import ClassJudge
    from flbench.experiment.target_judging import TargetJudge

BLOCK = 256  # clients evaluated at once; it bounds the memory of their predictions
KEPT = 64  # the same if predictions can be kept: clients that are evaluated again together
OBSERVED = 2**22  # numbers that an engine observes in one call: 16 MB of float32
PIECE = 4 * STATISTIC_BATCH
"""Samples of all clients that one of them reads for a model that all of them share. Workers
evaluate several pieces at the same time. Batches do not depend on them."""


@dataclass(frozen=True)
class Pad:
    """Pads the rows of a client [n, ...] with NaN to [length, ...], as `finish` of a Statistic.

    All clients then have tensors of one shape, in every engine and block.
    """

    length: int

    def __call__(self, reduced: Tree, leaves: Tree, ctx: Tree) -> Tree:
        # `pad` takes its numbers from the last axis to the first: before and after each.
        return {
            key: torch.nn.functional.pad(
                rows, (0, 0) * (rows.ndim - 1) + (0, self.length - len(rows)), value=torch.nan
            )
            for key, rows in reduced.items()
        }


class Model(NamedTuple):
    """A deployment after a round, with the dispatch for client 0 alone.

    Attributes:
        state: State after the round.
        settings: Settings of that round.
        name: Name of the deployment.
        deployment: The deployment.
    """

    state: State
    settings: RoundSettings
    name: str
    deployment: Deployment


class Kept(NamedTuple):
    """What a deployment predicts for all clients, kept until the next evaluation.

    Attributes:
        found: The predictions by `PART.RESULT`, [n, ...] for the samples of all clients.
        clients: The clients' tree that the models were made of; the loop writes it in place.
        others: What else they were made of; see `_made_of`.
    """

    found: Tree
    clients: Tree
    others: tuple[Any, ...]


def _made_of(model: Model) -> tuple[Any, ...]:
    """Return what a model is made of beside the clients' leaves."""
    made, shared = model.deployment, model.deployment.dispatch.shared
    sent = digest([shared.values, shared.mask])
    return made.weights, made.predict, dict(made.dispatch.numbers), sent


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the models of a run.

    Attributes:
        algorithm: The method; its `deploy` defines which models are evaluated.
        engine: Engine that runs the programs of the evaluation.
        federation: Samples of all clients and of the common test set.
        judge: What is judged, and how.
        config: Section `evaluation` of the configuration.
        recalibrate: Whether BatchNorm statistics are re-estimated on the client's training part
            before an evaluation (`train.batchnorm=drop`).
        warn: Function that is called with a sentence if fine-tuning diverges.
        parts: Parts of the clients' samples to evaluate on. A hyper-parameter search evaluates
            `validation` alone; without `test`, the common test set is not used either.
        net: The net of the run. If its code belongs to PyTorch or flbench, and draws no random
            numbers in eval mode, predictions can be kept; if it does not mix the samples of a
            batch, those of several clients can be in one.
        cached: What the engine has in place of net and samples; None if it has these.
        kept: Predictions of the last evaluation, by the name of the deployment.
    """

    algorithm: Algorithm
    engine: Engine
    federation: Federation
    judge: "ClassJudge | TargetJudge"
    config: EvaluationConfig
    recalibrate: bool
    warn: Callable[[str], None]
    net: nn.Module
    parts: tuple[str, ...] = PARTS
    cached: "Cached | None" = None
    kept: dict[str, Kept] = field(default_factory=dict)

    def evaluate(
        self,
        state: State,
        settings: RoundSettings,
        *,
        common: bool,
        stale: Tensor | None = None,
    ) -> Evaluation:
        """Evaluate the models of all clients after a round, participants or not.

        Every client gets what the server would send it now, and its own kept leaves.

        Args:
            state: State after the round.
            settings: Settings of the round that was completed.
            common: Whether to evaluate on the common test set too.
            stale: [N] bool: the clients whose leaves may have changed since the last evaluation of
                the same tree `state.clients`. None evaluates the models of all clients.

        Raises:
            DivergedError: A model has weights that are not finite, or the models of all clients
                have NaN scores for all samples.
        """
        evaluation = Evaluation(state.round)
        for model in self._models(state, settings):
            if model.name != "gm":
                self._add_own(evaluation, model, stale=stale)
        for model in self._models(state, settings) if common and self.has_common() else ():
            self._add_common(evaluation, model)
        return evaluation

    def evaluate_cohort(self, state: State, settings: RoundSettings, ids: Tensor) -> Evaluation:
        """Evaluate the personal models of some clients on the clients' own samples."""
        evaluation = Evaluation(state.round)
        self._add_own(evaluation, next(self._models(state, settings)), ids)
        return evaluation

    def predictions(self, state: State, settings: RoundSettings) -> Iterator[tuple[int, Tensor]]:
        """Yield the predictions of every client's model on the client's test part.

        Args:
            state: State after a round.
            settings: Settings of that round.

        Yields:
            The client's id and the predicted classes [n_test] int64, in the order of the part's
            rows. Clients without test samples are left out.
        """
        found = self._predicted(next(self._models(state, settings)))["test.predicted"].long()
        for client, predicted in enumerate(torch.split(found, self._sizes["test"].tolist())):
            if len(predicted):
                yield client, predicted

    def seconds(
        self, state: State, settings: RoundSettings, clients: int, *, common: bool
    ) -> float:
        """Return the estimated seconds of an evaluation of all clients.

        Models that clients share are evaluated for all of them, and others for the first clients.

        Args:
            state: State after a round.
            settings: Settings of that round.
            clients: Number of clients that are evaluated.
            common: Whether to evaluate on the common test set, not on the clients' own samples.
        """
        total = 0.0
        for model in self._models(state, settings) if self.has_common() or not common else ():
            is_shared = self._is_same_for_all(model) if common else self._is_one_pass(model)
            ids = None if is_shared or model.name == "gm" else torch.arange(clients)
            begin = time.perf_counter()
            if common:
                self._add_common(Evaluation(state.round), model, ids)
            elif model.name != "gm":
                self._add_own(Evaluation(state.round), model, ids)
            share = 1.0 if ids is None else clients / self.federation.clients
            total += (time.perf_counter() - begin) / share
        return total

    def observers(self, deployment: Deployment, *, common: bool) -> tuple[Step, ...]:
        """Return the steps that evaluate a cohort's models right after local training.

        They are empty if the predictions of the cohort do not fit into memory at once.

        Args:
            deployment: The deployment.
            common: Whether to evaluate on the common test set too.
        """
        parts = (*self.parts, "common") if common and self.has_common() else self.parts
        most = self.most_clients(parts)
        cohort = self.algorithm.setting.train.participation * self.federation.clients
        if most is not None and most < cohort:
            return ()
        return (*self.recalibration_steps(deployment), *self.statistics(deployment, parts))

    def observed(self, results: Results, number: int) -> Evaluation:
        """Return the scores of a cohort's models right after local training of round `number`.

        They are without predictions if all clients failed.

        Args:
            results: Results of a call of the engine with `observers`.
            number: Number of the round.
        """
        evaluation = Evaluation(number, self.no_scores("personal"))
        if not len(results.ids):
            return evaluation
        if "common.predicted" in results.observed:
            evaluation.common["personal"] = self.judge.scores(self.federation.clients)
        for part in (*self.parts, "common"):
            if f"{part}.predicted" in results.observed:
                seen = self.predictions_of(part, results.ids, results.observed)
                evaluation.add_("personal", part, seen)
        return evaluation

    def most_clients(self, parts: tuple[str, ...]) -> int | None:
        """Return for how many clients predictions on parts fit into memory; None for any number."""
        return self.judge.most_clients(max(int(self._sizes[part].max()) for part in parts))

    def no_scores(self, name: str) -> dict[tuple[str, str], Any]:
        """Return scores of all clients on their own parts, without predictions, of a deployment."""
        return {(name, part): self.judge.scores(self.federation.clients) for part in self.parts}

    def _add_own(
        self,
        evaluation: Evaluation,
        model: Model,
        ids: Tensor | None = None,
        stale: Tensor | None = None,
    ) -> None:
        """Add the predictions of a model on the clients' own samples.

        Args:
            evaluation: Gets the scores, in place.
            model: The model.
            ids: Ids [K] of the clients; None for all, whose predictions may be kept.
            stale: See `evaluate`.
        """
        evaluation.local.update(self.no_scores(model.name))
        everyone = torch.arange(self.federation.clients)
        most = self.most_clients(self.parts)
        if ids is None and (most is None or most >= len(everyone)):
            found = self._predicted(model, stale)
            self._report_undefined(model, found)
            pieces: Iterable[tuple[Tensor, Tree]] = [(everyone, found)]
        else:
            pieces = self._pieces(model, everyone if ids is None else ids, self.parts)
        for some, piece in pieces:
            for part in self.parts:
                evaluation.add_(model.name, part, self._paired(Samples(part), some, piece))

    def _add_common(self, evaluation: Evaluation, model: Model, ids: Tensor | None = None) -> None:
        """Add the predictions of the personal or the global model on the common test set.

        Args:
            evaluation: Gets the scores, in place.
            model: The model; of other models than these two, nothing is added.
            ids: Ids [K] of the clients whose models are evaluated; None for all. The global model
                is evaluated once, on the whole set.
        """
        clients, is_global = self.federation.clients, model.name == "gm"
        if model.name not in ("personal", "gm") or (is_global and self.recalibrate):
            return
        samples = Samples("common", limit=None if is_global else self.config.common.limit)
        ids = torch.arange(1 if is_global else clients) if ids is None else ids
        evaluation.common[model.name] = self.judge.scores(1 if is_global else clients)
        if is_global or self._is_same_for_all(model):
            seen = self._paired(samples, ids[:1], self._in_one_pass(model, samples))
            evaluation.add_(model.name, "common", seen, ids)
            return
        for some, piece in self._pieces(model, ids, ("common",)):
            evaluation.add_(model.name, "common", self._paired(samples, some, piece))

    def _predicted(self, model: Model, stale: Tensor | None = None) -> Tree:
        """Return what is predicted of the samples of all clients, by `PART.RESULT` [n, ...].

        Predictions are kept from the last evaluation for clients that are not stale.
        """
        found: Tree = {}
        if self._is_one_pass(model):
            for part in self.parts:
                found |= self._in_one_pass(model, Samples(part))
            return found
        state, keeps = model.state, self._can_keep(model.deployment)
        ids, others = torch.arange(self.federation.clients), _made_of(model) if keeps else ()
        kept = self.kept.pop(model.name, None)  # an evaluation that fails keeps nothing
        holds = kept is not None and kept.clients is state.clients and kept.others == others
        if kept is not None and stale is not None and holds:
            found, ids = kept.found, self._with_neighbours(stale)
        for some, piece in self._pieces(model, ids, self.parts):
            chosen = torch.zeros(self.federation.clients, dtype=torch.bool)
            chosen[some] = True
            for key, rows in piece.items():
                owner = self._owner[key.partition(".")[0]]
                if key not in found:
                    found[key] = rows.new_empty(len(owner), *rows.shape[1:])
                found[key][chosen[owner]] = rows
        if keeps:
            self.kept[model.name] = Kept(found, state.clients, others)
        return found

    def _in_one_pass(self, model: Model, samples: Samples) -> Tree:
        """Return what a model that all clients share predicts, by `PART.RESULT` [n, ...].

        Clients 0 to P-1 read pieces of the samples, which workers evaluate at the same time. An
        engine that stacks clients, or has larger batches, reads all of them at once.

        Args:
            model: The model.
            samples: The samples: a whole part, for all clients, or the common test set.
        """
        deployment, length = model.deployment, len(self._owner.get(samples.part, ()))
        if samples.part == "common":
            length = len(self.federation.common_rows(samples.limit))
        piece = max(1, length)
        statistic = self._statistic(deployment, replace(samples, piece=piece), piece, stacked=False)
        size = self.algorithm.setting.train.batch_size
        is_alone = self.engine.stacked(LocalProgram(()), (statistic,), size) == 1
        if is_alone and self._is_same_for_all(model):
            piece = PIECE * -(-piece // (PIECE * self.federation.clients))
            samples = replace(samples, piece=piece)
            statistic = replace(statistic, samples=samples, finish=Pad(piece))
        ids = torch.arange(max(1, -(-length // piece)))
        found = self.run_statistics(model, ids, (statistic,))
        # [P, piece, ...] -> [n, ...]; the last piece alone is padded
        return {key: value.flatten(0, 1)[:length] for key, value in found.items()}

    def _pieces(
        self, model: Model, ids: Tensor, parts: tuple[str, ...]
    ) -> Iterator[tuple[Tensor, Tree]]:
        """Yield the clients of each call of the engine, and what is predicted of their n samples.

        A call has as many clients as the memory of their predictions allows, so that workers can
        share them. Which clients are stacked does not depend on the memory.

        Args:
            model: The model, which may differ between clients.
            ids: Ids [K] of the clients.
            parts: Parts to evaluate on: those of the clients, or `common`.

        Yields:
            Ids of clients, and results by `PART.RESULT` [n, ...].
        """
        most = self.most_clients(parts)
        is_kept = "common" not in parts and self._can_keep(model.deployment)
        group = min(KEPT if is_kept else BLOCK, most or BLOCK)
        # Class, margin and whether it is defined; perhaps a probability for each class.
        width = 3 + (self.federation.classes if self.config.probabilities else 0)
        length = max(1, sum(int(self._sizes[part].max()) for part in parts))
        fitting = OBSERVED // (length * width) if most is None else most * OBSERVED // SCALARS
        model = model._replace(settings=replace(model.settings, group=group))
        statistics = self.statistics(model.deployment, parts)
        for some in torch.split(ids, max(1, fitting // group) * group) if len(ids) else ():
            found = self.run_statistics(model, some, statistics)
            yield some, {k: v for part in parts for k, v in self._cut(part, some, found).items()}

    @cached_property
    def _sizes(self) -> dict[str, Tensor]:
        """Numbers of samples [N] int64 that each client's model is evaluated on, by part."""
        parts, limit = self.federation.partition.parts, self.config.common.limit
        common = torch.tensor(len(self.federation.common_rows(limit)) if self.has_common() else 0)
        return {
            **{part: torch.tensor([len(rows) for rows in parts[part]]) for part in PARTS},
            "common": common.expand(self.federation.clients),
        }

    @cached_property
    def _owner(self) -> dict[str, Tensor]:
        """Client [n] int64 of each sample by part, one client after the other."""
        everyone = torch.arange(self.federation.clients)
        return {part: everyone.repeat_interleave(self._sizes[part]) for part in PARTS}

    def _with_neighbours(self, changed: Tensor) -> Tensor:
        """Return the ids of clients to evaluate, of which some [N] bool have changed.

        Rounding depends on which clients are stacked. Whole blocks are therefore evaluated again,
        so that a resumed run, which has kept nothing, has the same predictions.
        """
        size = self.algorithm.setting.train.batch_size
        if self.engine.stacked(LocalProgram(()), (), size) != 1:
            changed = torch.cat([one.any().expand_as(one) for one in torch.split(changed, KEPT)])
        return changed.nonzero()[:, 0]

    def _can_keep(self, deployment: Deployment) -> bool:
        """Return whether predictions depend on nothing but the model, and can be kept."""
        functions = (deployment.weights, deployment.predict)
        is_pure = (
            not may_draw_in_eval(self.net)
            and is_known(functions)
            and not is_of_user(self.algorithm)
        )
        return is_pure and not self._is_own(deployment)

    def _is_own(self, deployment: Deployment) -> bool:
        """Return whether clients get values or steps of their own, whatever leaves they keep."""
        return bool(deployment.program or deployment.dispatch.rows.values or self.recalibrate)

    def _is_same_for_all(self, model: Model) -> bool:
        """Return whether a deployment is the same model for all clients."""
        state, deployment = model.state, model.deployment
        functions = (deployment.weights, deployment.predict)
        if self._is_own(deployment):
            return False
        if any(functions):  # they may read any leaf of a client
            return not state.clients and is_known(functions)
        return not self.algorithm.setting.net.names("all") & state.clients.keys()

    def _is_one_pass(self, model: Model) -> bool:
        """Return whether the samples of several clients can be in one batch."""
        is_plain = not self.net.__dict__.get(MIXES, False) and is_known(model.deployment.predict)
        return is_plain and self._is_same_for_all(model)

    def _report_undefined(self, model: Model, found: Tree) -> None:
        """Report clients whose models have finite weights, but NaN scores.

        Args:
            model: The model.
            found: What was predicted of the samples of all clients.

        Raises:
            DivergedError: All samples of all clients are among them, for the personal models.
        """
        number, name = model.state.round, model.name
        keys = {part: f"{part}.undefined" for part in self.parts if f"{part}.undefined" in found}
        undefined = sum(int(found[key].sum()) for key in keys.values())
        if not undefined:
            return
        cure = "Lower train.optimizer.lr or set train.clip."
        samples = sum(len(self._owner[part]) for part in self.parts)
        if name == "personal" and undefined == samples:
            raise DivergedError(
                f"the models of all clients after round {number} have finite weights, but NaN"
                f" scores for all samples, so that they predict nothing: training has diverged."
                f" {cure}"
            )
        whose = [self._owner[part][found[key] > 0].tolist() for part, key in keys.items()]
        called = self.federation.partition.called
        clients = ", ".join(map(called, sorted({client for some in whose for client in some})))
        self.warn(
            f"round {number}: the model `{name}` has NaN scores for {undefined} of {samples}"
            f" samples, at the clients [{clients}]. They count as predictions of the class with"
            f" NaN, mostly the first. {cure}"
        )

    def predictions_of(self, part: str, ids: Tensor, observed: Tree) -> Predictions:
        """Return the predictions in results [K, ...] of the Statistic of a part at clients [K]."""
        samples = Samples(part, limit=self.config.common.limit if part == "common" else None)
        return self._paired(samples, ids, self._cut(part, ids, observed))

    def _cut(self, part: str, ids: Tensor, observed: Tree) -> Tree:
        """Return results [K, L, ...] of the Statistic of a part as [n, ...], without padding."""
        sizes = self._sizes[part][ids]
        # A program may have Statistics with other results under the same name.
        mine = [key for key in (f"{part}.{name}" for name in RESULTS) if key in observed]
        inside = {key: torch.arange(observed[key].shape[1]) < sizes[:, None] for key in mine}
        return {key: observed[key][rows] for key, rows in inside.items()}

    def _paired(self, samples: Samples, ids: Tensor, found: Tree) -> Predictions:
        """Return the predictions in results `PART.RESULT` [n, ...] of samples of clients [K]."""
        part, federation = samples.part, self.federation
        if part == "common":
            of_clients = [federation.common_rows(samples.limit)] * len(ids)
        else:
            of_clients = [federation.partition.parts[part][client] for client in ids.tolist()]
        client = ids.repeat_interleave(torch.tensor([len(rows) for rows in of_clients]))
        true, predicted = self.judge.pairs(np.concatenate(of_clients), found[f"{part}.predicted"])
        margins, margin = None, found.get(f"{part}.margin")
        if margin is not None:
            positive = positive_class(self.config, federation.dataset.classes)
            from flbench.metrics.ranking import Margins

            margins = Margins(margin if positive else -margin, true == positive, client)
        return Predictions(client, true, predicted, margins, found.get(f"{part}.logarithms"))

    def statistics(self, deployment: Deployment, parts: tuple[str, ...]) -> tuple[Statistic, ...]:
        """Return a Statistic for each part that evaluates a deployment.

        Its results are `PART.predicted` [L, ...] and, with two classes, `PART.margin` [L], for at
        most L samples of a client.

        Args:
            deployment: The deployment.
            parts: Parts of the clients' samples, and perhaps `common`.
        """
        limits = {"common": self.config.common.limit}
        return tuple(
            self._statistic(
                deployment, Samples(part, limit=limits.get(part)), int(self._sizes[part].max())
            )
            for part in parts
        )

    def _statistic(
        self, deployment: Deployment, samples: Samples, length: int, *, stacked: bool = True
    ) -> Statistic:
        """Return a Statistic that evaluates a deployment on at most `length` samples."""
        return Statistic(
            samples.part,
            self.judge.observe(deployment, samples.part),
            reduce="rows",
            finish=Pad(max(1, length)),
            samples=samples,
            stacked=stacked,
        )

    def recalibration_steps(self, deployment: Deployment) -> tuple[Step, ...]:
        """Return the steps that re-estimate BatchNorm statistics; none without `recalibrate`."""
        if not self.recalibrate:
            return ()
        return recalibrate(self.algorithm.setting.net, deployment.weights)

    def deployed(
        self,
        state: State,
        settings: RoundSettings,
        clients: Tensor | None = None,
        *,
        whole: bool = True,
    ) -> Iterator[Tree]:
        """Yield the parameters and buffers that clients' models are evaluated with.

        Args:
            state: State after a round.
            settings: Settings of that round.
            clients: Ids [K] of the clients; None for clients 0 to N-1.
            whole: Whether frozen tensors that the engine does not have are among them.

        Yields:
            The leaves of the net, for one client after the other.
        """
        described = self.algorithm.setting.net
        held = self._held if whole else {}
        names = (described.names("all") | described.fixed) - self._held.keys()
        model = next(self._models(state, settings))
        weights = model.deployment.weights
        changes = self._steps(model.deployment) or described.fixed
        selects = not changes and getattr(weights, "selects", False)
        write = (Transform(_WriteDeployedWeights(weights)),) if weights and not selects else ()
        keeps = names | model.state.clients.keys() if selects else names
        everyone = torch.arange(self.federation.clients) if clients is None else clients
        is_shared, most = self._is_same_for_all(model), max(1, SCALARS // described.size)
        for ids in torch.split(everyone[:1] if is_shared else everyone, min(BLOCK, most)):
            kept = self._run(model, ids, write, keeps).kept
            if selects and weights:  # of all clients at once
                kept = weights(kept, {})
            for k in range(len(ids)):
                one = held | {leaf: rows[k] for leaf, rows in kept.items()}
                yield from repeat(one, len(everyone) if is_shared else 1)

    def hashed(self, state: State, settings: RoundSettings) -> Iterator[Tree]:
        """Yield what the digest of all clients' models is computed from; see `deployed`.

        Frozen tensors that the engine does not have come first, once for all clients.
        """
        if self._held:
            yield self._held
        yield from self.deployed(state, settings, whole=False)

    @property
    def _held(self) -> Tree:
        """Frozen tensors that the engine's net does not have."""
        return {} if self.cached is None else self.cached.held

    def run_statistics(self, model: Model, ids: Tensor, statistics: tuple[Statistic, ...]) -> Tree:
        """Return results [K, ...] of Statistics at some clients, by `STATISTIC.RESULT`."""
        return self._run(model, ids, statistics).observed

    def _run(
        self,
        model: Model,
        ids: Tensor,
        then: tuple[Step, ...],
        keeps: frozenset[str] = frozenset(),
    ) -> Results:
        """Run a deployment's program and then further steps at some clients.

        Clients whose fine-tuning diverges are evaluated without it.

        Args:
            model: The model.
            ids: Ids [K] of the clients.
            then: Transforms that end the program, and Statistics to compute after it.
            keeps: Leaves to return as `Results.kept`.

        Raises:
            DivergedError: A model has weights that are not finite.
        """
        state, settings, name, deployment = model

        def dispatched(some: Tensor) -> Dispatch:
            return apply_masks(deployments(self.algorithm, state, some)[name].dispatch)

        transforms = tuple(step for step in then if isinstance(step, Transform))
        program = LocalProgram((*self._steps(deployment), *transforms), keeps)
        results = self.engine.run(
            program,
            ids,
            rows=partial(take, state.clients),
            dispatch=dispatched,
            settings=settings,
            observe=tuple(step for step in then if isinstance(step, Statistic)),
        )
        if not results.failures:
            return results
        failed = torch.tensor([failure.client for failure in results.failures])
        who = ", ".join(map(self.federation.partition.called, failed.tolist()))
        if deployment.program is None:
            raise DivergedError(
                f"the models of clients [{who}] after round {state.round} are not finite"
                f" ({results.failures[0].reason})."
                f" {lower_rate(own_optimizer=self.algorithm.setting.own_optimizer)} or set"
                " train.clip."
            )
        self.warn(
            f"round {state.round}: fine-tuning diverged at clients [{who}]; they are"
            " evaluated without it."
        )
        plain = model._replace(deployment=replace(deployment, program=None))
        untuned = self._run(plain, failed, then, keeps)
        return gathered([results, untuned], ids, settings.storage)

    def has_common(self) -> bool:
        """Return whether models are evaluated on a common test set."""
        return "test" in self.parts and len(self.federation.common) > 0

    def _steps(self, deployment: Deployment) -> tuple[Step, ...]:
        tuning = deployment.program.steps if deployment.program else ()
        return (*self.recalibration_steps(deployment), *tuning)

    def _models(self, state: State, settings: RoundSettings) -> Iterator[Model]:
        """Yield the method's deployments, the personal one first.

        Engines ask for the dispatch of the clients that they evaluate next. A dispatch for a whole
        block would need the memory of one or more models for each client.
        """
        for name, one in deployments(self.algorithm, state, torch.tensor([0])).items():
            yield Model(state, settings, name, one)


@dataclass(frozen=True)
class _WriteDeployedWeights:
    """Function of a Transform that sets the leaves to `Deployment.weights`."""

    weights: Callable[[Tree, Tree], Tree]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        return self.weights(leaves, ctx)
