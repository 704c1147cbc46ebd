"""Evaluation of models on the clients' samples and on the common test set.

An evaluation runs a local program whose leaves are neither kept nor sent, so it changes no state.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import repeat
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from flbench.algorithms.base import Algorithm, Deployment, is_of_user
from flbench.client.batchnorm import recalibrate
from flbench.client.program import LocalProgram, Statistic, Step, Transform
from flbench.config.schema import BestConfig, EvaluationConfig
from flbench.core.errors import ConfigError, DivergedError
from flbench.core.ownership import is_known
from flbench.core.tree import copied, take
from flbench.core.types import Dispatch, Info, Results, Samples, State, StepContext, Tree
from flbench.core.wording import lower_rate
from flbench.data.federation import Federation
from flbench.data.schemes import Indices
from flbench.engine.base import STACKED_SIZE, STATISTIC_BATCH, Engine, RoundSettings
from flbench.experiment.communication import apply_masks
from flbench.experiment.rounds import deployments
from flbench.metrics.own import OwnMetric
from flbench.metrics.ranking import Margins
from flbench.results.metrics_file import Row

BLOCK = 256  # clients evaluated at once; it bounds the memory of their predictions
KEPT = (
    64  # clients evaluated at once if their predictions can be kept, and evaluated again together
)
POOLED = 2048  # samples of several clients that share a model, which are evaluated together
OBSERVED = 2**22  # numbers that an engine observes in one call: 16 MB of float32
PIECE = 4 * STATISTIC_BATCH
"""Samples of the common test set that one call reads for a model that all clients share. Workers
evaluate several pieces at the same time. Batches do not depend on them."""
SCALARS = 2**26  # parameters of the models that `deployed` computes at once: 256 MB of float32
PARTS = ("validation", "test")
RESULTS = ("predicted", "undefined", "margin", "logarithms")
"""What `Judge.observe` computes; a program may have other Statistics of the same names."""


@dataclass(frozen=True)
class Predict:
    """Computes the predicted classes of a deployment, as the function of a Statistic.

    Attributes:
        weights: `Deployment.weights`: maps (leaves, ctx) to the parameters and buffers that the net
            is called with; None calls it with the leaves.
        predict: `Deployment.predict`: maps a StepContext to scores [B, C]; None takes the logits.
        has_margin: Whether to return the margins of two classes too.
        has_probabilities: Whether to return the logarithms of the predicted probabilities too.
    """

    weights: Callable[[Tree, Tree], Tree] | None = None
    predict: Callable[[StepContext], Tensor] | None = None
    has_margin: bool = False
    has_probabilities: bool = False

    def scores(self, context: StepContext) -> Tensor:
        """Return the scores [B, C] whose largest entry is the predicted class.

        For targets that are not classes they are the outputs [B, ...] of the module.
        """
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
        """Return the predicted classes [B] of one batch, and with `has_margin` margins [B].

        A margin is the score of the second class minus that of the first. `undefined` [B] is 1
        where a score is NaN and the prediction therefore means nothing, and 0 elsewhere. All are
        floating-point numbers, NaN for padding; float32 has all integers up to 16,777,216.
        """
        scores, batch = self.scores(context), context.batch
        classes = scores.argmax(dim=1).float()  # [B, C] -> [B]
        undefined = scores.isnan().any(dim=1).float()  # [B, C] -> [B]
        found = {
            "predicted": torch.where(batch.mask, classes, torch.nan),
            "undefined": torch.where(batch.mask, undefined, torch.nan),
        }
        if self.has_margin:
            wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
            found["margin"] = torch.where(batch.mask, wide[:, 1] - wide[:, 0], torch.nan)
        if self.has_probabilities:
            found["logarithms"] = torch.where(
                batch.mask[:, None], self._logarithms(scores), torch.nan
            )
        return found

    def _logarithms(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the probabilities [B, C] that scores stand for, float32.

        Scores that are called probabilities are at least the smallest difference from 1, as in
        scikit-learn; all others are taken for logits.
        """
        wide = scores.float()
        if getattr(self.predict, "scores", None) == "probabilities":
            return wide.clamp_min(torch.finfo(wide.dtype).eps).log()
        return wide.log_softmax(dim=1)


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


def positive_class(config: EvaluationConfig, classes: Sequence[str]) -> int:
    """Return the positive class of two, 0 or 1: the second one, or that of `evaluation.positive`.

    Args:
        config: Section `evaluation`.
        classes: Names of the classes.

    Raises:
        ConfigError: `evaluation.positive` is set, and is no name of one of two classes.
    """
    if config.positive is None:
        return 1
    if len(classes) != 2:
        raise ConfigError(
            f"`evaluation.positive={config.positive}` chooses one of two classes, and the data have"
            f" {len(classes)}. Leave it out."
        )
    if config.positive not in classes or classes[0] == classes[1]:
        raise ConfigError(
            f"`evaluation.positive={config.positive}` is no class of the data. Choose"
            f" `{classes[0]}` or `{classes[1]}`."
        )
    return list(classes).index(config.positive)


@dataclass(frozen=True)
class Predictions:
    """Predictions of clients' models on n samples.

    Attributes:
        client: Id [n] int64 of each sample's client.
        true: True class [n] int64 of each sample, or its target [n, ...].
        predicted: Predicted class [n] int64 of each sample, or the output [n, ...] for it.
        margins: Margins of the positive class, if the data set has two classes; otherwise None.
        logarithms: Logarithms [n, C] of the predicted probabilities, if they are kept.
    """

    client: Tensor
    true: Tensor
    predicted: Tensor
    margins: Margins | None = None
    logarithms: Tensor | None = None


class Scores(Protocol):
    """What is known of all clients' predictions on one part: confusion counts, for example."""

    @property
    def evaluated(self) -> Tensor:
        """[N] bool: True for clients that have samples in this part."""

    def add_(self, client: Tensor, true: Tensor, predicted: Tensor) -> None:
        """Add predictions, in place; the arguments are as in `Predictions`."""

    def add_probabilities_(self, client: Tensor, true: Tensor, logarithms: Tensor) -> None:
        """Add the logarithms [n, C] of predicted probabilities, in place."""

    def add_shared_(self, ids: Tensor, true: Tensor, predicted: Tensor) -> None:
        """Add the predictions of one model that the clients `ids` [K] share, in place."""


@dataclass(frozen=True)
class NetTraits:
    """What decides how a net can be evaluated.

    Attributes:
        is_pure: Whether its outputs in eval mode depend on weights and samples alone: all of its
            code belongs to PyTorch or flbench, and it draws no random numbers.
        mixes: Whether the score of a sample depends on the other samples of its batch.
        size: Number of scalars of the net that the engine has; None for the whole net.
        held: Values of the frozen tensors that the engine's net does not have, by name.
    """

    is_pure: bool = False
    mixes: bool = True
    size: int | None = None
    held: Mapping[str, Tensor] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Kept:
    """What a deployment predicts for all clients, kept until the next evaluation.

    Attributes:
        clients: The clients' tree that the models were made of; the loop writes it in place.
        sent: A copy of what the server sent all clients, values and masks.
        functions: What else the models were made of: `weights`, `predict`, and the numbers sent.
        found: The predictions by `PART.RESULT`, [n, ...] for the samples of all clients.
    """

    clients: Tree
    sent: Tree
    functions: tuple[Any, ...]
    found: Tree

    @staticmethod
    def of(model: Model, found: Tree) -> "Kept":
        """Return the predictions of a model with what it is made of."""
        made = model.deployment
        shared = made.dispatch.shared
        sent = {**shared.values, **{f"mask {name}": mask for name, mask in shared.mask.items()}}
        functions = (made.weights, made.predict, dict(made.dispatch.numbers))
        return Kept(model.state.clients, sent, functions, found)

    def holds_for(self, model: Model) -> bool:
        """Return whether a model can differ only for clients whose leaves have changed."""
        now = Kept.of(model, {})
        return (
            now.clients is self.clients
            and now.functions == self.functions
            and now.sent.keys() == self.sent.keys()
            and all(torch.equal(value, now.sent[name]) for name, value in self.sent.items())
        )


S = TypeVar("S", bound=Scores)


@dataclass(frozen=True)
class Evaluation(Generic[S]):
    """Scores of the models after one round: the confusion counts of a classification.

    Attributes:
        round: Number of rounds completed.
        local: Scores of every client's model on the client's own samples, by protocol (name of the
            deployment) and part (`validation`, `test`).
        common: Scores on the common test set, by protocol: `personal` for the clients' models and
            `gm` for the global model. Empty if it was not evaluated.
        margins: Margins of the same predictions by protocol and part (`validation`, `test`,
            `common`), if the data set has two classes; otherwise empty.
    """

    round: int
    local: dict[tuple[str, str], S]
    common: dict[str, S] = field(default_factory=dict)
    margins: dict[tuple[str, str], Margins] = field(default_factory=dict)

    def add_(self, protocol: str, part: str, seen: Predictions, ids: Tensor | None = None) -> None:
        """Add the predictions of a protocol on a part, in place.

        Args:
            protocol: Name of the deployment.
            part: `validation`, `test` or `common`.
            seen: The predictions.
            ids: Ids [K] of the clients that share the model of the predictions; None for the model
                of each sample's own client.
        """
        scores = self.common[protocol] if part == "common" else self.local[protocol, part]
        if ids is None:
            scores.add_(seen.client, seen.true, seen.predicted)
        else:
            scores.add_shared_(ids, seen.true, seen.predicted)
        if seen.logarithms is not None:
            scores.add_probabilities_(seen.client, seen.true, seen.logarithms)
        if (more := seen.margins) is not None:
            if ids is not None:
                more = Margins(
                    more.value.repeat(len(ids)),
                    more.positive.repeat(len(ids)),
                    ids.repeat_interleave(len(more.value)),
                )
            key = (protocol, part)
            before = self.margins.get(key)
            self.margins[key] = more if before is None else Margins.joined([before, more])


class Judge(Protocol):
    """What is judged in an evaluation, and how.

    `ClassJudge` judges predicted classes by confusion counts, `TargetJudge` the outputs for other
    targets by metrics of the user. All else in an evaluation is the same for both.
    """

    @property
    def metrics(self) -> tuple[OwnMetric, ...]:
        """Metrics of the user."""

    @property
    def best(self) -> BestConfig:
        """Section `evaluation.best` with the metric that chooses the best round."""

    def observe(self, deployment: Deployment, part: str) -> Callable[[StepContext], Tree]:
        """Return the function of a Statistic that computes the predictions of a deployment.

        It maps a batch of the part `validation`, `test` or `common` to `predicted` [B, ...] and
        perhaps `margin` [B] and `logarithms` [B, C].
        """

    def pairs(self, rows: Indices, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is true of n rows of the data set, and what was predicted for them."""

    def scores(self, clients: int) -> Any:
        """Return the `Scores` of N clients before the first prediction."""

    def most_clients(self, samples: int) -> int | None:
        """Return for how many clients with so many samples each predictions fit into memory.

        None stands for any number.
        """

    def of(self, federation: Federation) -> "Judge":
        """Return the judge of another federation with the same classes or targets."""

    def rows(self, evaluation: Evaluation[Any], suffix: str = "") -> list[Row]:
        """Return the metrics of an evaluation as rows of metrics.csv.

        The suffix ends the protocols' names; `@local` marks an evaluation of the cohort right after
        local training.
        """

    def tables(
        self, evaluations: Mapping[str, tuple[Evaluation[Any], State]]
    ) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[object]]]]:
        """Yield name, header and lines of the tables of a finished run.

        The argument has evaluation and evaluated state of the moment `last` and, if it is another
        round, of the moment `best`.
        """


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
        net: What is known of the net, which decides whether samples of several clients can be in
            one batch, and whether predictions can be kept.
        kept: Predictions of the last evaluation, by the name of the deployment.
    """

    algorithm: Algorithm
    engine: Engine
    federation: Federation
    judge: Judge
    config: EvaluationConfig
    recalibrate: bool
    warn: Callable[[str], None]
    parts: tuple[str, ...] = PARTS
    net: NetTraits = NetTraits()
    kept: dict[str, Kept] = field(default_factory=dict)

    def evaluate(
        self,
        state: State,
        settings: RoundSettings,
        *,
        common: bool,
        stale: Tensor | None = None,
    ) -> Evaluation[Any]:
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
        evaluation: Evaluation[Any] = Evaluation(state.round, {})
        everyone = torch.arange(self.federation.clients)
        most = self.judge.most_clients(self.longest(common=False))
        for model in self._models(state, settings):
            if model.name == "gm":
                continue
            evaluation.local.update({(model.name, part): self.no_scores() for part in self.parts})
            if most is None:
                found = self._predicted(model, stale)
                self._report_undefined(model, found)
                pieces: Iterable[tuple[Tensor, Tree]] = [(everyone, found)]
            else:  # the outputs of all clients may be too large
                pieces = self._pieces(model, everyone, most)
            for ids, piece in pieces:
                for part in self.parts:
                    evaluation.add_(model.name, part, self._paired(part, ids, piece))
        if common:
            self._add_common(evaluation, state, settings)
        return evaluation

    def evaluate_cohort(
        self, state: State, settings: RoundSettings, ids: Tensor
    ) -> Evaluation[Any]:
        """Evaluate the personal models of some clients on the clients' own samples.

        Args:
            state: State before or after a round.
            settings: Settings of that round.
            ids: Ids [K] of the clients.

        Raises:
            DivergedError: A model has weights that are not finite.
        """
        model = next(self._models(state, settings))
        statistics = self.part_statistics(model.deployment)
        local = {(model.name, part): self.no_scores() for part in self.parts}
        evaluation = Evaluation(state.round, local)
        for some, grouped in self._calls(model, ids, BLOCK, self._length):
            found = self.run_statistics(*grouped, some, statistics)
            for part in self.parts:
                evaluation.add_(model.name, part, self.predictions_of(part, some, found))
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
        sizes = self._sizes["test"].tolist()
        for client, predicted in enumerate(torch.split(found, sizes)):
            if len(predicted):
                yield client, predicted

    def measure(self, state: State, settings: RoundSettings, clients: int) -> None:
        """Evaluate the first clients on their own samples, for a measurement of the time."""
        ids = torch.arange(clients)
        most = self.judge.most_clients(self.longest(common=False))
        for model in self._models(state, settings):
            if model.name != "gm":
                for _ in self._pieces(model, ids, most):
                    pass

    def common_passes(self, state: State, settings: RoundSettings) -> float:
        """Return how often an evaluation reads as many common samples as one client's model does.

        It is 0 without a common test set, and N for personal models.
        """
        if not self.has_common():
            return 0.0
        models = {model.name: model for model in self._models(state, settings)}
        is_one = self._is_same_for_all(models["personal"])
        passes = 1.0 if is_one else float(self.federation.clients)
        if "gm" in models and not self.recalibrate:
            limited = self.federation.common_rows(self.config.common.limit)
            passes += len(self.federation.common) / len(limited)
        return passes

    def _predicted(self, model: Model, stale: Tensor | None = None) -> Tree:
        """Return what is predicted of the samples of all clients, by `PART.RESULT` [n, ...].

        Predictions are kept from the last evaluation for clients that are not stale.
        """
        found: Tree = {}
        ids = torch.arange(self.federation.clients)
        kept = self.kept.pop(model.name, None)  # an evaluation that fails keeps nothing
        if stale is not None and kept is not None and kept.holds_for(model):
            found, ids = kept.found, self._with_neighbours(stale)
        for some, piece in self._pieces(model, ids):
            chosen = torch.zeros(self.federation.clients, dtype=torch.bool)
            chosen[some] = True
            for key, rows in piece.items():
                owner = self._owner[key.partition(".")[0]]
                if key not in found:
                    found[key] = rows.new_empty(len(owner), *rows.shape[1:])
                found[key][chosen[owner]] = rows
        if self._can_keep(model.deployment) and not self._is_same_for_all(model):
            now = Kept.of(model, found)
            self.kept[model.name] = replace(now, sent=copied(now.sent))
        return found

    def _pieces(
        self, model: Model, ids: Tensor, most: int | None = None
    ) -> Iterator[tuple[Tensor, Tree]]:
        """Yield ids [K] of clients, piece after piece, and what is predicted of their n samples.

        If clients share a model, the samples of several clients are evaluated together.

        Args:
            model: The model.
            ids: Ascending ids [K] of all clients of the pieces; 0 to K-1 if they share a model.
            most: Largest number of clients whose predictions fit into memory; None for any number.
        """
        deployment, group = model.deployment, 1
        if self._is_same_for_all(model) and not self.net.mixes and is_known(deployment.predict):
            samples = sum(int(sizes.sum()) for sizes in self._sizes.values())
            group = max(1, POOLED * self.federation.clients // max(1, samples))
            group = min(group, most or group, len(ids))
            # The samples of `group` clients are read as those of the first of them.
            split = torch.split(ids[::group], BLOCK if most is None else most // group)
            calls: Iterable[tuple[Tensor, Model]] = ((some, model) for some in split)
        else:
            stacked = KEPT if self._can_keep(deployment) else BLOCK
            calls = self._calls(model, ids, stacked, self._length, most)
        statistics = self.part_statistics(deployment, group)
        for some, called in calls:
            found = self.run_statistics(*called, some, statistics)
            theirs = some if group == 1 else ids[int(some[0]) : int(some[-1]) + group]
            sizes = {part: _summed(self._sizes[part][theirs], group) for part in self.parts}
            flat = (_cut(part, found, sizes[part]) for part in self.parts)
            yield theirs, {key: rows for tree in flat for key, rows in tree.items()}

    def _calls(
        self, model: Model, ids: Tensor, group: int, length: int, most: int | None = None
    ) -> Iterator[tuple[Tensor, Model]]:
        """Yield the clients of each call of the engine, and the model with the call's settings.

        A call has as many clients as the memory of their predictions allows, so that workers can
        share them. Which clients are stacked depends on `group` alone.

        Args:
            model: The model.
            ids: Ids [K] of the clients.
            group: Largest number of clients that are stacked.
            length: Largest number of samples of a client.
            most: Largest number of clients whose predictions fit into memory; None for any number.
        """
        group = min(group, most or group)
        # Class, margin and whether it is defined; perhaps a probability for each class.
        width = 3 + (self.federation.classes if self.config.probabilities else 0)
        fitting = OBSERVED // (max(1, length) * width)
        if most is not None:
            fitting = most * OBSERVED // SCALARS
        grouped = model._replace(settings=replace(model.settings, group=group))
        for some in torch.split(ids, max(1, fitting // group) * group) if len(ids) else ():
            yield some, grouped

    @cached_property
    def _sizes(self) -> dict[str, Tensor]:
        """Numbers of samples [N] int64 of all clients by part."""
        parts = self.federation.partition.parts
        return {part: torch.tensor([len(rows) for rows in parts[part]]) for part in PARTS}

    @cached_property
    def _owner(self) -> dict[str, Tensor]:
        """Client [n] int64 of each sample by part, one client after the other."""
        everyone = torch.arange(self.federation.clients)
        return {part: everyone.repeat_interleave(sizes) for part, sizes in self._sizes.items()}

    @property
    def _length(self) -> int:
        """Largest number of samples of a client in each part, added up."""
        return sum(int(self._sizes[part].max()) for part in self.parts)

    def _with_neighbours(self, changed: Tensor) -> Tensor:
        """Return the ids of clients to evaluate, of which some [N] bool have changed.

        Rounding depends on which clients are stacked. Whole blocks are therefore evaluated again,
        so that a resumed run, which has kept nothing, has the same predictions.
        """
        stacks = self.engine.block(self.algorithm.setting.train.batch_size) is not None
        if stacks or self._size <= STACKED_SIZE:
            blocks = _summed(changed.long(), KEPT) > 0
            changed = blocks.repeat_interleave(KEPT)[: len(changed)]
        return changed.nonzero()[:, 0]

    @property
    def _size(self) -> int:
        """Number of scalars of the net that the engine has."""
        whole = self.algorithm.setting.net.size
        return whole if self.net.size is None else self.net.size

    def _can_keep(self, deployment: Deployment) -> bool:
        """Return whether predictions depend on nothing but the model, and can be kept."""
        changes = deployment.program or deployment.dispatch.rows.values or self.recalibrate
        functions = (deployment.weights, deployment.predict)
        is_pure = self.net.is_pure and is_known(functions) and not is_of_user(self.algorithm)
        return is_pure and not changes

    def _is_same_for_all(self, model: Model) -> bool:
        """Return whether a deployment is the same model for all clients."""
        state, deployment = model.state, model.deployment
        if deployment.program or deployment.dispatch.rows.values or self.recalibrate:
            return False
        functions = (deployment.weights, deployment.predict)
        if any(functions):  # they may read any leaf of a client
            return not state.clients and is_known(functions)
        return not self.algorithm.setting.net.names("all") & state.clients.keys()

    def _report_undefined(self, model: Model, found: Tree) -> None:
        """Report clients whose models have finite weights, but NaN scores.

        Args:
            model: The model.
            found: What was predicted of the samples of all clients.

        Raises:
            DivergedError: All samples of all clients are among them, for the personal models.
        """
        number, name = model.state.round, model.name
        undefined = torch.zeros(self.federation.clients, dtype=torch.float32)
        for part in self.parts:
            undefined.index_add_(0, self._owner[part], found[f"{part}.undefined"].float())
        if not undefined.any():
            return
        cure = "Lower train.optimizer.lr or set train.clip."
        samples = sum(len(self._owner[part]) for part in self.parts)
        if name == "personal" and int(undefined.sum()) == samples:
            raise DivergedError(
                f"the models of all clients after round {number} have finite weights, but NaN"
                f" scores for all samples, so that they predict nothing: training has diverged."
                f" {cure}"
            )
        called = self.federation.partition.called
        clients = ", ".join(map(called, undefined.nonzero()[:, 0].tolist()))
        self.warn(
            f"round {number}: the model `{name}` has NaN scores for {int(undefined.sum())} of"
            f" {samples} samples, at the clients [{clients}]. They count as predictions"
            f" of the class with NaN, mostly the first. {cure}"
        )

    def no_scores(self) -> Any:
        """Return scores of all clients without predictions."""
        return self.judge.scores(self.federation.clients)

    def longest(self, *, common: bool) -> int:
        """Return the largest number of samples that a model is evaluated on, at least 1.

        Args:
            common: Whether the common test set counts, beside the clients' own parts.
        """
        lengths = [int(self._sizes[part].max()) for part in self.parts]
        if common:
            lengths.append(len(self.federation.common_rows(self.config.common.limit)))
        return max(1, *lengths)

    def predictions_of(
        self, part: str, ids: Tensor, observed: Tree, *, whole: bool = False
    ) -> Predictions:
        """Return the predictions that Statistics have computed.

        Args:
            part: `validation`, `test` or `common`: the Statistic that computed them.
            ids: Ids [K] of the clients.
            observed: Results [K, ...] of the Statistics.
            whole: Whether the whole common test set was read, not `evaluation.common.limit`.
        """
        rows = self._rows(part, ids, whole=whole)
        sizes = torch.tensor([len(mine) for mine in rows], dtype=torch.int64)  # [K]
        return self._paired(part, ids, _cut(part, observed, sizes), whole=whole)

    def _paired(self, part: str, ids: Tensor, flat: Tree, *, whole: bool = False) -> Predictions:
        """Return predictions as `predictions_of` does, of results [n, ...] without padding."""
        rows = self._rows(part, ids, whole=whole)
        sizes = torch.tensor([len(mine) for mine in rows], dtype=torch.int64)  # [K]
        client = ids.repeat_interleave(sizes)
        true, predicted = self.judge.pairs(np.concatenate(rows), flat[f"{part}.predicted"])
        margins, margin = None, flat.get(f"{part}.margin")
        if margin is not None:
            positive = positive_class(self.config, self.federation.dataset.classes)
            margins = Margins(margin if positive else -margin, true == positive, client)
        return Predictions(client, true, predicted, margins, flat.get(f"{part}.logarithms"))

    def _rows(self, part: str, ids: Tensor, *, whole: bool) -> list[Indices]:
        """Return the rows of the data set of each client's samples; see `predictions_of`."""
        if part == "common":
            limit = None if whole else self.config.common.limit
            return [self.federation.common_rows(limit)] * len(ids)
        parts = self.federation.partition.parts[part]
        return [parts[client] for client in ids.tolist()]

    def _add_common(
        self, evaluation: Evaluation[Any], state: State, settings: RoundSettings
    ) -> None:
        """Add the predictions of the personal and the global model on the common test set.

        Personal models are evaluated on at most `evaluation.common.limit` samples, the global model
        on all, and not if each client re-estimates the BatchNorm statistics. Nothing is added if
        there is no common test set or the part `test` is not evaluated.

        Args:
            evaluation: Gets the scores, in place: those of N clients under `personal`, and of one
                model under `gm`.
            state: State after a round.
            settings: Settings of that round.

        Raises:
            DivergedError: A model has weights that are not finite.
        """
        everyone = torch.arange(self.federation.clients)
        for model in self._models(state, settings) if self.has_common() else ():
            name, is_gm = model.name, model.name == "gm"
            if name not in ("personal", "gm") or (is_gm and self.recalibrate):
                continue
            evaluation.common[name] = self.judge.scores(1) if is_gm else self.no_scores()
            [statistic] = self.common_statistics(model.deployment, whole=is_gm)
            if is_gm or self._is_same_for_all(model):
                found = self._common_of_one(model, statistic)
                seen = self.predictions_of("common", everyone[:1], found, whole=is_gm)
                evaluation.add_(name, "common", seen, None if is_gm else everyone)
                continue
            length = len(self.federation.common_rows(self.config.common.limit))
            most = self.judge.most_clients(length)
            for ids, grouped in self._calls(model, everyone, BLOCK, length, most):
                found = self.run_statistics(*grouped, ids, (statistic,))
                evaluation.add_(name, "common", self.predictions_of("common", ids, found))

    def _common_of_one(self, model: Model, statistic: Statistic) -> Tree:
        """Return what a model that all clients share predicts on the common test set, [1, L].

        Clients 0 to P-1 read pieces of it, which workers evaluate at the same time. An engine that
        stacks clients, or has larger batches, reads all of it at once.
        """
        length = len(self.federation.common_rows(statistic.samples.limit))
        piece = PIECE * -(-length // (PIECE * self.federation.clients))
        size = self.algorithm.setting.train.batch_size
        # Each client has random numbers of its own, if the net or the method draws any.
        if (
            length > piece
            and self._is_same_for_all(model)
            and self._can_keep(model.deployment)
            and self.engine.block(size) is None
            and self.engine.stacked(LocalProgram(()), (statistic,), size) == 1
        ):
            samples = replace(statistic.samples, piece=piece)
            statistic = replace(statistic, samples=samples, finish=Pad(piece))
        else:
            piece = length
        ids = torch.arange(-(-length // piece))
        found = self.run_statistics(*model, ids, (statistic,))
        # [P, piece, ...] -> [1, L, ...]; the last piece alone is padded
        return {key: value.flatten(0, 1)[None, :length] for key, value in found.items()}

    def part_statistics(self, deployment: Deployment, clients: int = 1) -> tuple[Statistic, ...]:
        """Return one Statistic for each of `parts`.

        Its results are `PART.predicted` [L, ...] and, with two classes, `PART.margin` [L], for at
        most L samples of a client.

        Args:
            deployment: The deployment.
            clients: Number of clients whose samples are read together, see `Samples.clients`.
        """
        return tuple(
            self._statistic(
                part,
                deployment,
                Samples(part, clients=clients),
                int(_summed(self._sizes[part], clients).max()),
                stacked=clients == 1,
            )
            for part in self.parts
        )

    def common_statistics(
        self, deployment: Deployment, *, whole: bool = False
    ) -> tuple[Statistic, ...]:
        """Return the Statistic that evaluates a deployment on the common test set.

        Its results are named as those of `part_statistics`. The tuple is empty if there is no
        common test set or the part `test` is not evaluated.

        Args:
            deployment: The deployment.
            whole: Whether to read the whole common test set, not `evaluation.common.limit`.
        """
        if not self.has_common():
            return ()
        limit = None if whole else self.config.common.limit
        length = len(self.federation.common_rows(limit))
        return (self._statistic("common", deployment, Samples("common", limit=limit), length),)

    def _statistic(
        self,
        name: str,
        deployment: Deployment,
        samples: Samples,
        length: int,
        *,
        stacked: bool = True,
    ) -> Statistic:
        """Return a Statistic that evaluates a deployment on at most `length` samples."""
        return Statistic(
            name,
            self.judge.observe(deployment, name),
            reduce="rows",
            finish=Pad(max(1, length)),
            samples=samples,
            stacked=stacked,
        )

    def recalibration_steps(self, deployment: Deployment) -> tuple[Step, ...]:
        """Return the steps that re-estimate BatchNorm statistics before a deployment is evaluated.

        They are empty unless `recalibrate` is set.
        """
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
        held = dict(self.net.held) if whole else {}
        names = (described.names("all") | described.fixed) - self.net.held.keys()
        most = max(1, SCALARS // described.size)
        model = next(self._models(state, settings))
        everyone = torch.arange(self.federation.clients) if clients is None else clients
        if self._is_same_for_all(model):
            [one] = self._deployed(model, everyone[:1], names)
            yield from repeat(held | one, len(everyone))
            return
        for ids in torch.split(everyone, min(BLOCK, most)):
            for one in self._deployed(model, ids, names):
                yield held | one

    def hashed(
        self, state: State, settings: RoundSettings, clients: Tensor | None = None
    ) -> Iterator[Tree]:
        """Yield what the digest of clients' models is computed from; see `deployed`.

        Frozen tensors that the engine does not have come first, once for all clients.
        """
        if self.net.held:
            yield dict(self.net.held)
        yield from self.deployed(state, settings, clients, whole=False)

    def _deployed(self, model: Model, ids: Tensor, names: frozenset[str]) -> Iterator[Tree]:
        """Yield the leaves `names` of the net that some clients are evaluated with."""
        net, weights = self.algorithm.setting.net, model.deployment.weights
        changes = self._steps(model.deployment) or net.fixed
        chosen = None if changes else _selection(weights, names | model.state.clients.keys())
        if chosen is None:
            call = () if weights is None else (Transform(_WriteDeployedWeights(weights)),)
            kept = self._run(model, ids, call, names).kept
            sources = {leaf: leaf for leaf in kept}
        else:  # the leaves are copied, without a step of a program
            sources = {leaf: chosen.get(leaf, leaf) for leaf in net.leaves}
            kept = self._run(model, ids, (), frozenset(sources.values())).kept
        for k in range(len(ids)):
            yield {leaf: kept[source][k] for leaf, source in sources.items()}

    def run_statistics(
        self,
        state: State,
        settings: RoundSettings,
        name: str,
        deployment: Deployment,
        ids: Tensor,
        statistics: tuple[Statistic, ...],
    ) -> Tree:
        """Compute Statistics of the models that are deployed to some clients.

        Args:
            state: State after a round.
            settings: Settings of that round.
            name: Name of the deployment.
            deployment: The deployment, which holds for all these clients.
            ids: Ids [K] of the clients.
            statistics: Statistics to compute.

        Returns:
            Results [K, ...] of the Statistics, by `STATISTIC.RESULT`.

        Raises:
            DivergedError: A model has weights that are not finite.
        """
        return self._run(Model(state, settings, name, deployment), ids, statistics).observed

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
        # Bring the clients that succeeded and those that failed back into the order of `ids`.
        order = torch.argsort(torch.cat([results.ids, failed]))
        order = order[torch.argsort(torch.argsort(ids))]  # argsort twice: rank of each id
        return replace(
            results,
            ids=ids,
            kept=_joined(results.kept, untuned.kept, order),
            observed=_joined(results.observed, untuned.observed, order),
            failures=(),
        )

    def has_common(self) -> bool:
        """Return whether models are evaluated on a common test set."""
        return "test" in self.parts and len(self.federation.common) > 0

    def _steps(self, deployment: Deployment) -> tuple[Step, ...]:
        return (
            *self.recalibration_steps(deployment),
            *(deployment.program.steps if deployment.program else ()),
        )

    def _models(self, state: State, settings: RoundSettings) -> Iterator[Model]:
        """Yield the method's deployments, the personal one first.

        Engines ask for the dispatch of the clients that they evaluate next. A dispatch for a whole
        block would need the memory of one or more models for each client.
        """
        for name, one in deployments(self.algorithm, state, torch.tensor([0])).items():
            yield Model(state, settings, name, one)


def _summed(numbers: Tensor, group: int) -> Tensor:
    """Return the sums [K / group, rounded up] of each `group` of K numbers."""
    whole = torch.nn.functional.pad(numbers, (0, -len(numbers) % group))
    return whole.reshape(-1, group).sum(dim=1)


def _cut(part: str, observed: Tree, sizes: Tensor) -> Tree:
    """Return the results [K, L, ...] of one Statistic as [n, ...], without the padding.

    Args:
        part: Name of the Statistic.
        observed: Results of all Statistics.
        sizes: Numbers [K] of samples of each row.
    """
    keys = [key for key in (f"{part}.{result}" for result in RESULTS) if key in observed]
    return {
        key: observed[key][torch.arange(observed[key].shape[1]) < sizes[:, None]] for key in keys
    }


def _joined(first: Tree, second: Tree, order: Tensor) -> Tree:
    """Concatenate the rows [K1, ...] and [K2, ...] of two trees and reorder them.

    Leaves that `first` lacks (it may be empty) have the rows of `second` alone.
    """
    return {
        name: torch.cat([first[name], rows])[order] if name in first else rows[order]
        for name, rows in second.items()
    }


def _selection(
    weights: Callable[[Tree, Tree], Tree] | None, names: Iterable[str]
) -> dict[str, str] | None:
    """Return which of a client's leaves `Deployment.weights` gives under each name.

    Args:
        weights: The function; None calls the net with the leaves themselves.
        names: Names of all leaves of a client.

    Returns:
        An empty dict without a function, and None if the function computes something.
    """
    if weights is None:
        return {}
    if not is_known(weights):
        return None
    probe = {name: torch.zeros(0) for name in names}
    given = {id(value): name for name, value in probe.items()}
    try:
        found = weights(probe, {})
    except Exception:  # noqa: BLE001 it computes with ctx, or with shapes
        return None
    chosen = {name: given.get(id(value), "") for name, value in found.items()}
    return chosen if all(chosen.values()) else None


@dataclass(frozen=True)
class _WriteDeployedWeights:
    """Function of a Transform that sets the leaves to `Deployment.weights`."""

    weights: Callable[[Tree, Tree], Tree]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        return self.weights(leaves, ctx)
