"""Evaluation of models on the clients' samples and on the common test set.

An evaluation runs a local program whose leaves are neither kept nor sent, so it changes no state.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from flbench.algorithms.base import Algorithm, Deployment, is_of_user
from flbench.client.batchnorm import recalibrate
from flbench.client.program import LocalProgram, Statistic, Step, Transform
from flbench.config.schema import EvaluationConfig
from flbench.core.errors import DivergedError
from flbench.core.known_code import is_known
from flbench.core.tree import take
from flbench.core.types import Context, Dispatch, Results, Samples, State, Tree
from flbench.data.federation import Federation
from flbench.engine.base import STATISTIC_BATCH, Engine, LocalWork, RoundSettings, gathered
from flbench.experiment.communication import apply_masks
from flbench.experiment.predictions import PARTS, SCALARS, Evaluation, positive_class
from flbench.experiment.rounds import deployments
from flbench.models.trial import may_draw_in_eval, mixes

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
PREFIX = "evaluation/"
"""Begin of the names of an evaluation's Statistics, which methods may have under any other name."""
Found = dict[str, Tree]
"""What is predicted, by part and result of `Predict`: [n, ...] for the samples of some clients."""


def padded(context: Context, reduced: Tree, *, length: int) -> Tree:
    """Return rows [n, ...] with NaN behind them, [length, ...], as `finish` of a Statistic.

    All clients then have tensors of one shape, in every engine and block.
    """
    # `pad` takes its numbers from the last axis to the first: before and after each.
    return {
        key: pad(rows, (0, 0) * (rows.ndim - 1) + (0, length - len(rows)), value=torch.nan)
        for key, rows in reduced.items()
    }


class Model(NamedTuple):
    """A deployment after a round, as clients compute it.

    Attributes:
        name: Name of the deployment.
        deployment: The deployment, with the dispatch for client 0 alone. A dispatch for many
            clients would need the memory of one or more models for each of them.
        state: State after the round.
        settings: Settings of that round.
        steps: What a client computes before its model predicts.
        dispatched: Ids [K] of clients -> what the server sends them.
        untrained: The model of clients whose training in `steps` diverges; None without training.
    """

    name: str
    deployment: Deployment
    state: State
    settings: RoundSettings
    steps: tuple[Step, ...]
    dispatched: Callable[[Tensor], Dispatch]
    untrained: "Model | None" = None


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
        kept: Predictions of the last evaluation with `stale`, by deployment and stage.
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
    kept: dict[tuple[str, int], Found] = field(default_factory=dict)

    def with_probabilities(self) -> "Evaluator":
        """Return the evaluator with the metrics of probabilities, the loss among them."""
        from flbench.experiment.judging import ClassJudge

        config, judge = self.config.altered(probabilities=True), self.judge
        if isinstance(judge, ClassJudge):
            judge = replace(judge, has_probabilities=True)
        return replace(self, config=config, judge=judge, kept={})

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
            stale: [N] bool: the clients whose leaves may have changed since the last evaluation
                that had `stale`. None evaluates the models of all clients, and keeps nothing.

        Raises:
            DivergedError: A model has weights that are not finite, or the models of all clients
                have NaN scores for all samples.
        """
        evaluation = Evaluation(state.round)
        for model in self.models(state, settings):
            self._add_own(evaluation, model, stale=stale)
            if common and self.has_common():
                self._add_common(evaluation, model)
        return evaluation

    def evaluate_cohort(self, state: State, settings: RoundSettings, ids: Tensor) -> Evaluation:
        """Evaluate the personal models of some clients on the clients' own samples."""
        evaluation = Evaluation(state.round)
        self._add_own(evaluation, next(self.models(state, settings)), ids)
        return evaluation

    def predictions(self, state: State, settings: RoundSettings) -> Iterator[tuple[int, Tensor]]:
        """Yield the predictions of every client's model on the client's test part.

        Yields:
            The client's id and the predicted classes [n_test] int64, in the order of the part's
            rows. Clients without test samples are left out.
        """
        for some, found in self._predicted(next(self.models(state, settings))):
            sizes = self._sizes["test"][some].tolist()
            rows = torch.split(found["test"]["predicted"].long(), sizes)
            yield from ((k, one) for k, one in zip(some.tolist(), rows, strict=True) if len(one))

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
        total, add = 0.0, self._add_common if common else self._add_own
        for model in self.models(state, settings) if self.has_common() or not common else ():
            is_shared = model.name == "gm" or self._is_same_for_all(model)
            begin = time.perf_counter()
            add(Evaluation(state.round), model, None if is_shared else torch.arange(clients))
            share = 1.0 if is_shared else clients / self.federation.clients
            total += (time.perf_counter() - begin) / share
        return total

    def observers(self, deployment: Deployment, *, common: bool) -> tuple[Step, ...]:
        """Return the steps that evaluate a cohort's models right after local training.

        They leave out the common test set, and then are empty, if the predictions of the cohort do
        not fit into memory at once.

        Args:
            deployment: The deployment.
            common: Whether to evaluate on the common test set too.
        """
        parts, both = self.parts, (*self.parts, "common")
        cohort = self.algorithm.setting.train.participation * self.federation.clients
        if common and self.has_common() and self.most_clients(both) >= cohort:
            parts = both
        if self.most_clients(parts) < cohort:
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
        if f"{PREFIX}common.predicted" in results.observed:
            evaluation.common["personal"] = self.judge.scores(self.federation.clients)
        self.add_observed_(evaluation, results)
        return evaluation

    def add_observed_(self, evaluation: Evaluation, results: Results) -> None:
        """Add the results of `statistics` of the personal models to an evaluation, in place."""
        for part in (*self.parts, "common"):
            if found := self._cut(part, results):
                self._add(evaluation, "personal", self._samples(part), results.ids, found)

    def most_clients(self, parts: tuple[str, ...]) -> int:
        """Return for how many clients predictions on parts fit into memory, at least one."""
        longest = sum(int(self._sizes[part].max()) for part in parts)
        return max(1, SCALARS // (max(1, longest) * self.judge.width))

    def no_scores(self, name: str) -> dict[tuple[str, str], Any]:
        """Return scores of all clients on their own parts, without predictions, of a deployment."""
        return {(name, part): self.judge.scores(self.federation.clients) for part in self.parts}

    def models(self, state: State, settings: RoundSettings) -> Iterator[Model]:
        """Yield the method's deployments, the personal one first."""
        for name, one in deployments(self.algorithm, state, torch.tensor([0])).items():
            sent = partial(_sent, self.algorithm, state, name)
            before = self.recalibration_steps(one)
            plain = Model(name, replace(one, program=None), state, settings, before, sent)
            if one.program is None:
                yield plain
            else:
                steps = (*before, *one.program.steps)
                yield plain._replace(deployment=one, steps=steps, untrained=plain)

    def _add_own(
        self,
        evaluation: Evaluation,
        model: Model,
        ids: Tensor | None = None,
        stale: Tensor | None = None,
    ) -> None:
        """Add the predictions of a model on the own samples of clients [K], or of all (None).

        There are none of the global model. For `stale` see `evaluate`.
        """
        if model.name == "gm":
            return
        evaluation.local.update(self.no_scores(model.name))
        pieces = self._predicted(model, stale) if ids is None else self._pieces(model, ids)
        undefined: list[int] = []  # the client of each sample whose scores are NaN
        for some, found in pieces:
            for part in self.parts:
                owner = self._add(evaluation, model.name, Samples(part), some, found[part])
                if "undefined" in found[part]:
                    undefined += owner[found[part]["undefined"] > 0].tolist()
        if undefined and ids is None:
            self._report_undefined(model, undefined)

    def _add_common(self, evaluation: Evaluation, model: Model, ids: Tensor | None = None) -> None:
        """Add the predictions of the personal or the global model on the common test set.

        Those are of clients [K], or of all (None). The global model is evaluated once, on the whole
        set.
        """
        clients, is_global = self.federation.clients, model.name == "gm"
        if model.name not in ("personal", "gm") or (is_global and self.recalibrate):
            return
        samples = Samples("common") if is_global else self._samples("common")
        ids = torch.arange(1 if is_global else clients) if ids is None else ids
        evaluation.common[model.name] = self.judge.scores(1 if is_global else clients)
        if is_global or self._is_same_for_all(model):
            found = self._in_one_pass(model, samples)
            self._add(evaluation, model.name, samples, ids[:1], found, shared=ids)
            return
        for some, piece in self._pieces(model, ids, common=True):
            self._add(evaluation, model.name, samples, some, piece["common"])

    def _add(
        self,
        evaluation: Evaluation,
        name: str,
        samples: Samples,
        ids: Tensor,
        found: Tree,
        shared: Tensor | None = None,
    ) -> Tensor:
        """Add what models predict of clients' samples to an evaluation, in place.

        Args:
            evaluation: Gets the scores.
            name: Name of the deployment.
            samples: Which samples of the clients.
            ids: Ids [K] of the clients whose samples they are.
            found: Results [n, ...] of `Predict`, one client after the other.
            shared: Ids of the clients that share the model; None for the model of each client.

        Returns:
            The client [n] of each sample.
        """
        part, federation = samples.part, self.federation
        if part == "common":
            rows = [federation.common_rows(samples.limit)] * len(ids)
        else:
            rows = [federation.partition.parts[part][client] for client in ids.tolist()]
        client = ids.repeat_interleave(torch.tensor([len(one) for one in rows]))
        true, predicted = self.judge.pairs(np.concatenate(rows), found["predicted"])
        scores = evaluation.common[name] if part == "common" else evaluation.local[name, part]
        if shared is None:
            scores.add_(client, true, predicted)
        else:
            scores.add_shared_(shared, true, predicted)
        if "logarithms" in found:
            scores.add_probabilities_(client, true, found["logarithms"])
        if "margin" in found:
            positive = positive_class(self.config, federation.dataset.classes)
            margin, hit = found["margin"] if positive else -found["margin"], true == positive
            if shared is not None:
                owner = shared.repeat_interleave(len(margin))
                margin, hit = margin.repeat(len(shared)), hit.repeat(len(shared))
            evaluation.add_margins_((name, part), margin, hit, client if shared is None else owner)
        return client

    def _predicted(
        self, model: Model, stale: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Found]]:
        """Yield groups of clients that are all clients together, and what is predicted of them.

        Predictions that depend on the clients' leaves alone are kept for clients that are not
        stale: one array of each result for the samples of all clients.
        """
        everyone, made = torch.arange(self.federation.clients), model.deployment
        fits = sum(map(len, self._owner.values())) * self.judge.width <= SCALARS
        is_sent = made.dispatch.shared.values or made.dispatch.numbers
        entry = model.name, model.state.stage
        found = self.kept.pop(entry, None)  # an evaluation that fails keeps nothing
        if fits and self._is_one_pass(model):
            yield everyone, {part: self._in_one_pass(model, Samples(part)) for part in self.parts}
            return
        # Without whole blocks a resumed run, which has kept nothing, would stack other clients.
        fits = fits and self.most_clients(self.parts) >= KEPT
        if stale is None or is_sent or not fits or not self._can_keep(made):
            yield from self._pieces(model, everyone)
            return
        ids = everyone if found is None else self._with_neighbours(stale)
        found = found or {part: Tree() for part in self.parts}
        for some, piece in self._pieces(model, ids):
            chosen = torch.isin(everyone, some)
            for part, results in piece.items():
                places = chosen[self._owner[part]]
                for key, rows in results.items():
                    if key not in found[part]:
                        found[part][key] = rows.new_empty(len(places), *rows.shape[1:])
                    found[part][key][places] = rows
        self.kept[entry] = found
        yield everyone, found

    def _in_one_pass(self, model: Model, samples: Samples) -> Tree:
        """Return what a model that all clients share predicts of samples, [n, ...].

        The samples are a whole part, of all clients, or the common test set. Clients 0 to P-1 read
        pieces of them, which workers evaluate at the same time. An engine that stacks clients, or
        has larger batches, reads all of them at once.
        """
        length = len(self._owner.get(samples.part, ()))
        if samples.part == "common":
            length = len(self.federation.common_rows(samples.limit))
        piece = max(1, length)
        statistic = self._statistic(
            model.deployment, replace(samples, piece=piece), piece, stacked=False
        )
        size = self.algorithm.setting.train.batch_size
        is_alone = self.engine.stacked(LocalProgram(()), (statistic,), size) == 1
        if is_alone and self._is_same_for_all(model):
            piece = PIECE * -(-piece // (PIECE * self.federation.clients))
            samples = replace(samples, piece=piece)
            statistic = replace(statistic, samples=samples, finish=partial(padded, length=piece))
        ids = torch.arange(max(1, -(-length // piece)))
        found = self.run(model, ids, (statistic,)).observed
        # [P, piece, ...] -> [n, ...]; the last piece alone is padded
        return {
            key.rpartition(".")[2]: value.flatten(0, 1)[:length] for key, value in found.items()
        }

    def _pieces(
        self, model: Model, ids: Tensor, *, common: bool = False
    ) -> Iterator[tuple[Tensor, Found]]:
        """Yield some of the clients [K], and what is predicted of their own or the common samples.

        A call of the engine has as many clients as the memory of their predictions allows, so that
        workers can share them. Which clients are stacked does not depend on the memory.
        """
        parts = ("common",) if common else self.parts
        is_kept = not common and self._can_keep(model.deployment)
        most = self.most_clients(parts)
        group = min(KEPT if is_kept else BLOCK, most)
        at_once = max(1, most * OBSERVED // SCALARS // group) * group
        model = model._replace(settings=replace(model.settings, group=group))
        statistics = self.statistics(model.deployment, parts)
        for some in torch.split(ids, at_once) if len(ids) else ():
            results = self.run(model, some, statistics)
            yield some, {part: self._cut(part, results) for part in parts}

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

        Rounding depends on which clients are stacked, so whole blocks are evaluated again: a
        resumed run, which has kept nothing, has the same predictions.
        """
        size = self.algorithm.setting.train.batch_size
        if self.engine.stacked(LocalProgram(()), (), size) != 1:
            changed = torch.cat([one.any().expand_as(one) for one in torch.split(changed, KEPT)])
        return changed.nonzero()[:, 0]

    def _can_keep(self, made: Deployment) -> bool:
        """Return whether predictions depend on nothing but the model, and can be kept."""
        is_pure = not may_draw_in_eval(self.net) and is_known((made.weights, made.predict))
        return is_pure and not is_of_user(self.algorithm) and not self._is_own(made)

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
        is_plain = not mixes(self.net) and is_known(model.deployment.predict)
        return is_plain and self._is_same_for_all(model)

    def _report_undefined(self, model: Model, whose: list[int]) -> None:
        """Report the clients of the samples whose scores are NaN.

        Raises:
            DivergedError: The personal models of all clients have NaN scores for all samples.
        """
        called, number = self.federation.partition.called, model.state.round
        samples = sum(len(self._owner[part]) for part in self.parts)
        text = (
            f"round {number}: the scores of the model `{model.name}` are NaN for {len(whose)} of"
            f" {samples} samples, at the clients [{', '.join(map(called, sorted(set(whose))))}]."
            " They count as predictions of the class with NaN, mostly the first. Lower"
            " train.optimizer.lr, set train.clip, or correct a method of your own."
        )
        if model.name == "personal" and len(whose) == samples:
            raise DivergedError(text)
        self.warn(text)

    def _samples(self, part: str) -> Samples:
        """Return the samples of a part that each client's model is evaluated on."""
        return Samples(part, limit=self.config.common.limit if part == "common" else None)

    def _cut(self, part: str, results: Results) -> Tree:
        """Return results [K, L, ...] of the Statistic of a part as [n, ...], without padding."""
        sizes, prefix = self._sizes[part][results.ids], f"{PREFIX}{part}."
        return {
            key.removeprefix(prefix): rows[torch.arange(rows.shape[1]) < sizes[:, None]]
            for key, rows in results.observed.items()
            if key.startswith(prefix)
        }

    def statistics(self, deployment: Deployment, parts: tuple[str, ...]) -> tuple[Statistic, ...]:
        """Return a Statistic for each part that evaluates a deployment.

        Its results are those of `Predict`, [L, ...] for at most L samples of a client.

        Args:
            deployment: The deployment.
            parts: Parts of the clients' samples, and perhaps `common`.
        """
        return tuple(
            self._statistic(deployment, self._samples(part), int(self._sizes[part].max()))
            for part in parts
        )

    def _statistic(
        self, deployment: Deployment, samples: Samples, length: int, *, stacked: bool = True
    ) -> Statistic:
        """Return a Statistic that evaluates a deployment on at most `length` samples."""
        return Statistic(
            f"{PREFIX}{samples.part}",
            self.judge.observe(deployment, samples.part),
            reduce="rows",
            finish=partial(padded, length=max(1, length)),
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
        frozen = {} if self.cached is None else self.cached.held
        held = frozen if whole else {}
        names = (described.names("all") | described.fixed) - frozen.keys()
        model = next(self.models(state, settings))
        weights = model.deployment.weights
        write = (Transform(weights),) if weights else ()
        everyone = torch.arange(self.federation.clients) if clients is None else clients
        is_shared, most = self._is_same_for_all(model), max(1, SCALARS // described.size)
        for ids in torch.split(everyone[:1] if is_shared else everyone, min(BLOCK, most)):
            kept = self.run(model, ids, write=write, keeps=names).kept
            for k in range(len(ids)):
                one = held | {leaf: rows[k] for leaf, rows in kept.items()}
                yield from repeat(one, len(everyone) if is_shared else 1)

    def hashed(self, state: State, settings: RoundSettings) -> Iterator[Tree]:
        """Yield what the digest of all clients' models is computed from; see `deployed`.

        Frozen tensors that the engine does not have come first, once for all clients.
        """
        if self.cached is not None:
            yield self.cached.held
        yield from self.deployed(state, settings, whole=False)

    def run(
        self,
        model: Model,
        ids: Tensor,
        observe: tuple[Step, ...] = (),
        *,
        write: tuple[Step, ...] = (),
        keeps: frozenset[str] = frozenset(),
    ) -> Results:
        """Run the steps of a model and then further ones at some clients.

        Clients whose fine-tuning diverges are evaluated without it.

        Args:
            model: The model.
            ids: Ids [K] of the clients.
            observe: Steps whose results are `Results.observed`.
            write: Steps that end the program.
            keeps: Leaves to return as `Results.kept`.

        Raises:
            DivergedError: A model has weights that are not finite.
        """
        program = LocalProgram((*model.steps, *write), keeps)
        rows = partial(take, model.state.clients)
        work = LocalWork(program, rows, model.dispatched, model.settings, observe)
        results = self.engine.run(work, ids)
        if not results.failures:
            return results
        failed = torch.tensor([failure.client for failure in results.failures])
        who = ", ".join(map(self.federation.partition.called, failed.tolist()))
        if model.untrained is None:
            raise DivergedError(
                f"the models of clients [{who}] after round {model.state.round} are not finite"
                f" ({results.failures[0].reason})."
                " Lower the learning rate or set train.clip."
            )
        self.warn(
            f"round {model.state.round}: fine-tuning diverged at clients [{who}]; they are"
            " evaluated without it."
        )
        untuned = self.run(model.untrained, failed, observe, write=write, keeps=keeps)
        return gathered([results, untuned], ids, model.settings.storage)

    def has_common(self) -> bool:
        """Return whether models are evaluated on a common test set."""
        return "test" in self.parts and len(self.federation.common) > 0


def _sent(algorithm: Algorithm, state: State, name: str, ids: Tensor) -> Dispatch:
    """Return what the server sends clients [K] for a deployment, with its masks applied."""
    return apply_masks(deployments(algorithm, state, ids)[name].dispatch)
