"""The models of a run: the net that is deployed to a client, or the global model, ready to use.

A model is read from a checkpoint by the steps of an evaluation. So it predicts what the evaluation
of the run has evaluated: with the same parameters, BatchNorm statistics, fine-tuning and prediction
rule.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flbench import __version__
from flbench.algorithms.base import Deployment
from flbench.client.forward import apply
from flbench.client.program import Statistic
from flbench.config.resolve import resolve_written
from flbench.config.schema import Config
from flbench.core import files, shapes
from flbench.core.documents import as_data_error, read_json
from flbench.core.errors import DataError, UserError, did_you_mean
from flbench.core.shapes import TokenShape
from flbench.core.text import one_line
from flbench.core.types import Batch, Outputs, Samples, State, StepContext, Tree
from flbench.core.wording import how_to_resume, listed, setting
from flbench.data import pixels, tokens, unlabelled
from flbench.data.dataset import Dataset
from flbench.data.federation import FEW_SAMPLES, Federation, means_of, normalization_of
from flbench.data.partition import ClientParts
from flbench.data.partition_files import check_unchanged, data_hash
from flbench.data.unlabelled import Layout
from flbench.experiment import checkpoint, own_methods, rounds
from flbench.experiment.assembly import Experiment, build
from flbench.experiment.evaluate import BLOCK, SCALARS
from flbench.experiment.found import on_this_machine
from flbench.metrics import probability_names, ranking_names
from flbench.models.base import net_leaves
from flbench.models.lightning_net import LightningNet
from flbench.models.module_state import isolated, needs_isolation
from flbench.results import metrics_file
from flbench.results.reading import VALIDATION, check_run_folder, client_scores
from flbench.results.summary import best_round

Moment = Literal["best", "last"]
RawSamples = Tensor | NDArray[Any] | Sequence[Sequence[int]]
"""Raw samples; sequences of tokens may be a list."""
MOMENTS: Final = ("best", "last")
CAPTURED: Final = "deployed"  # name of the Statistic that reads a deployment's tensors
CHUNK: Final = 512  # samples that `TrainedModel.predict` computes at once


class DeployedNet(nn.Module):
    """A net with the parameters of one deployment, and the rule by which it predicts.

    Args:
        net: The net in eval mode, with the parameters and buffers that it is called with.
        rule: `Deployment.predict`; None takes the net's logits.
        leaves: Leaves that the rule reads.
        ctx: Entries of ctx that the rule reads.

    Attributes:
        net: The net: normalized inputs [B, ...] to features [B, D] and logits [B, C].
        unsaved: Names of the net's buffers that training has changed and that `state_dict` leaves
            out, because they are not persistent.
    """

    unsaved: tuple[str, ...] = ()

    def __init__(
        self,
        net: nn.Module,
        rule: Callable[[StepContext], Tensor] | None = None,
        leaves: Tree | None = None,
        ctx: Tree | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self._rule = rule
        # Names of buffers have no dots.
        self._leaves = {name: f"leaf_{k}" for k, name in enumerate(leaves or {})}
        self._ctx = {name: f"ctx_{k}" for k, name in enumerate(ctx or {})}
        for names, tree in ((self._leaves, leaves), (self._ctx, ctx)):
            for name, buffer in names.items():
                self.register_buffer(buffer, (tree or {})[name])
        self.requires_grad_(False)
        self.eval()

    @property
    def has_rule(self) -> bool:
        """Whether the model predicts by a rule of its method instead of the net's logits."""
        return self._rule is not None

    @property
    def scores(self) -> str:
        """What the scores are: `logits`, whose softmax are probabilities, or something else."""
        return str(getattr(self._rule, "scores", "logits"))

    def features(self, x: Tensor) -> Tensor:
        """Return the features [B, D] of normalized inputs [B, ...]."""
        out: Outputs = self.net(x)
        return out.features

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores [B, C] of normalized inputs [B, ...]; the largest one is predicted."""
        if self._rule is None:
            out: Outputs = self.net(x)
            return out.logits
        leaves = {name: getattr(self, buffer) for name, buffer in self._leaves.items()}
        ctx = {name: getattr(self, buffer) for name, buffer in self._ctx.items()}
        return self._rule(_context(self.net, x, leaves, ctx))


class RawInputs(nn.Module):
    """Samples as the data set stores them to normalized inputs of the net.

    Images are [B, height, width] with one channel, and otherwise [B, height, width, channels];
    series are [B, channels, length]; tokens are [B, length] int64 and stay as they are; rows of
    tables are [B, columns] float32, with NaN for missing values and with the position of the word
    in a column of words. The output is [B, channels, height, width], [B, channels, length],
    [B, length] or [B, width].

    Args:
        shape: Shape of one input of the net.
        offset: Offset of the normalization (x - offset) * scale; it broadcasts against one input.
        scale: Factor of the normalization.
        source: Column of the table that each input comes from, [width] int64; None for images.
        word: Position of the word that an input stands for, [width] int64; -1 for numbers.
        fill: Values that replace missing ones, [width].
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        offset: Tensor,
        scale: Tensor,
        source: Tensor | None = None,
        word: Tensor | None = None,
        fill: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.takes_tokens = isinstance(shape, TokenShape)
        self.register_buffer("offset", offset)
        self.register_buffer("scale", scale)
        self.register_buffer("source", source)
        self.register_buffer("word", word)
        self.register_buffer("fill", fill)

    offset: Tensor
    scale: Tensor
    source: Tensor | None
    word: Tensor | None
    fill: Tensor | None

    def encoded(self, raw: Tensor) -> Tensor:
        """Return inputs before the normalization; NaN where a value of a table is missing."""
        x = raw.to(self.offset.dtype)
        if self.source is not None and self.word is not None:
            x = x[:, self.source]  # [B, columns] -> [B, width]
            has_word = (x == self.word).to(x.dtype)
            return torch.where((self.word >= 0) & ~torch.isnan(x), has_word, x)
        if len(self.shape) == 2:
            return x
        if self.shape[0] == 1:
            return x[:, None]  # [B, H, W] -> [B, 1, H, W]
        return x.permute(0, 3, 1, 2)  # [B, H, W, C] -> [B, C, H, W]

    def forward(self, raw: Tensor) -> Tensor:
        """Return normalized inputs of raw samples; tokens as they are."""
        if self.takes_tokens:
            return raw.to(torch.int64)
        x = self.encoded(raw)
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self.fill, x)
        return (x - self.offset) * self.scale


@dataclass(frozen=True)
class Normalization:
    """The normalization (x - mean) / std of raw samples; `TrainedModel.predict` applies it.

    Attributes:
        mean: Mean of each channel or column, in the units of the raw samples (pixels of uint8
            images are not divided by 255 first).
        std: Standard deviation, or the width of the range with `data.normalize=unit`; infinity for
            a channel or column of one value, so that the input is 0.
        axis: What the arrays are indexed by: `channel`, or `column`: a column of the net's input;
            `none` for tokens, which are not normalized.
        columns: Names of the net's input columns; `NAME=WORD` for a column of words. Empty for
            images.
        fill: Values that replace missing ones, by column. Empty for images.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    axis: Literal["channel", "column", "none"]
    columns: tuple[str, ...] = ()
    fill: tuple[float, ...] = ()


@dataclass(frozen=True)
class TrainedModel:
    """A model of a run, to predict with.

    Attributes:
        net: The net in eval mode, on the CPU: normalized inputs [B, ...] to scores [B, C].
        inputs: The module that normalizes raw samples for `net`.
        normalization: The same normalization as numbers.
        classes: Names of the C classes; empty for targets that are not classes.
        columns: Names of the columns of the table; empty for images.
        words: Words of each column of the table; empty tuples for columns of numbers.
        largest: Largest value of uint8 images; None for other data.
        range: Smallest and largest value of the images that the normalization is computed from, if
            they are in floating point; None for other data.
        layout: The same about samples, to read them from files.
        card: What the model is: method, client, metrics, hashes, classes, inputs; JSON values.
    """

    net: DeployedNet
    inputs: RawInputs
    normalization: Normalization
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    largest: float | None
    range: tuple[float, float] | None
    layout: Layout
    card: dict[str, Any]

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one raw sample.

        It is (height, width), (height, width, channels), (channels, length), (columns,) or, of
        tokens, (length,).
        """
        if self.inputs.source is not None:
            return (len(self.columns),)
        if len(self.inputs.shape) < 3:
            return tuple(self.inputs.shape)
        channels, height, width = self.inputs.shape
        return (height, width) if channels == 1 else (height, width, channels)

    @property
    def raw_dtype(self) -> torch.dtype:
        """Type of raw samples: uint8 or float32, and int64 of tokens."""
        if self.inputs.takes_tokens:
            return torch.int64
        return torch.float32 if self.largest is None else torch.uint8

    @property
    def module(self) -> nn.Module:
        """The whole model as one module: raw samples [B, ...] to scores [B, C]."""
        return nn.Sequential(self.inputs, self.net).eval()

    def predict(self, x: RawSamples) -> Tensor:
        """Return the scores of raw samples; the largest score is the predicted class.

        The samples are normalized as in training. Equal calls have equal results, also of a net
        that draws random numbers or remembers earlier calls.

        Args:
            x: Samples as the data set stores them: [B, height, width] or [B, height, width, 3], or
                [B, channels, height, width], uint8 where the data set has uint8 images; series
                [B, channels, length]; tokens [B, length], integers; rows of tables [B, columns],
                NaN for missing values. With a padding id, sequences of tokens may be shorter, and
                a list of sequences may have several lengths.

        Returns:
            Scores [B, C] on the CPU.

        Raises:
            UserError: The samples have another shape, type or range than those of the data set.
        """
        raw, module = self.check(x), self.module
        # For a net of the user alone, because it takes longer than a small batch.
        alone = isolated(module) if needs_isolation(self.net.net) else nullcontext()
        with torch.no_grad(), alone:
            parts = [module(part) for part in torch.split(raw, CHUNK)] if len(raw) else []
        first = next(self.net.parameters())
        return torch.cat(parts) if parts else first.new_empty(0, *self.card["output"]["shape"][1:])

    def unknown_words(self, x: NDArray[Any]) -> dict[str, int]:
        """Return how many values of each column of words are words that no training part has.

        Args:
            x: Raw samples; `predict` takes them.

        Returns:
            Numbers of at least 1, by the name of the column; empty for images.
        """
        found: dict[str, int] = {}
        if self.inputs.source is None or self.inputs.word is None:
            return found
        for k, (name, words) in enumerate(zip(self.columns, self.words, strict=False)):
            known = self.inputs.word[self.inputs.source == k].numpy()
            count = int((~np.isnan(x[:, k]) & ~np.isin(x[:, k], known)).sum()) if words else 0
            if count:
                found[name] = count
        return found

    def check(self, x: RawSamples) -> Tensor:
        """Return raw samples [B, *raw_shape] in the type of the data set.

        Args:
            x: See `predict`.

        Raises:
            UserError: The samples have another shape, type or range than those of the data set.
        """
        shape = self.raw_shape
        if isinstance(self.inputs.shape, TokenShape):
            x = _filled(x, self.inputs.shape)
        raw = _as_tensor(x)
        expected = f"[B, {', '.join(map(str, shape))}]"
        is_image = len(self.inputs.shape) == 3
        if raw.dim() == 4 and tuple(raw.shape[1:]) == self.inputs.shape:
            raw = raw.permute(0, 2, 3, 1) if len(shape) == 3 else raw[:, 0]
        if self.inputs.shape[:1] == (1,) and raw.dim() == 4 and raw.shape[1:] == (*shape, 1):
            raw = raw[..., 0]
        if raw.dim() != len(shape) + 1 or tuple(raw.shape[1:]) != shape:
            hint = " Add the axis B of the samples." if tuple(raw.shape) == shape else ""
            raise UserError(
                f"the samples have the shape {list(raw.shape)}, but the model of"
                f" `{self.card['dataset']}` takes {expected}.{hint}"
            )
        if isinstance(self.inputs.shape, TokenShape):
            return self._checked_tokens(raw, self.inputs.shape.vocabulary)
        if self.largest is None:
            if is_image and not raw.is_floating_point():
                raise UserError(
                    f"the samples have the type {_name(raw.dtype)}, but `{self.card['dataset']}`"
                    f" has images in floating point{self._within}. Give them in that type and in"
                    " these units: the model normalizes them."
                )
            raw = raw.to(torch.float32)
            self._check_finite(raw)
            if self.range is not None and raw.numel():
                found = pixels.range_of(raw.numpy())
                if pixels.has_other_units(found, self.range):
                    raise UserError(
                        f"the samples have values in [{found[0]:g}, {found[1]:g}], but the images"
                        f" of `{self.card['dataset']}` are{self._within}. Give them in these units:"
                        " the model normalizes them."
                    )
            return raw
        if raw.is_floating_point() or raw.dtype == torch.bool:
            raise UserError(
                f"the samples have the type {_name(raw.dtype)}, but `{self.card['dataset']}` has"
                f" images of whole numbers in [0, {self.largest:g}] (uint8). Give the pixels as"
                " they are: the model normalizes them."
            )
        if raw.numel() and (raw.min() < 0 or raw.max() > self.largest):
            raise UserError(
                f"the samples have values in [{int(raw.min())}, {int(raw.max())}], but the pixels"
                f" of `{self.card['dataset']}` lie in [0, {self.largest:g}]. Scale them to that"
                " range."
            )
        return raw.to(torch.uint8)

    @property
    def _within(self) -> str:
        """` in [LOW, HIGH]`, the range of images in floating point, if it is known."""
        return "" if self.range is None else f" in [{self.range[0]:g}, {self.range[1]:g}]"

    def _checked_tokens(self, raw: Tensor, vocabulary: int) -> Tensor:
        """Return tokens as int64; raise a UserError for one that is not in the vocabulary."""
        if raw.is_floating_point() or raw.dtype == torch.bool:
            raise UserError(
                f"the samples have the type {_name(raw.dtype)}, but `{self.card['dataset']}` has"
                " sequences of tokens. Give their ids as integers."
            )
        wrong = ((raw < 0) | (raw >= vocabulary)).nonzero()
        if len(wrong):
            row, place = wrong[0].tolist()
            raise UserError(
                f"sample {row} (counted from 0) has the token {int(raw[row, place])} at position"
                f" {place}, but the vocabulary of `{self.card['dataset']}` has the ids 0 to"
                f" {vocabulary - 1}. Replace it."
            )
        return raw.to(torch.int64)

    def _check_finite(self, raw: Tensor) -> None:
        """Raise a UserError if samples in float32 have values that are not finite.

        Args:
            raw: Samples [B, *raw_shape]. NaN is a missing value of a table.
        """
        is_table = self.inputs.source is not None
        wrong = torch.isinf(raw) if is_table else ~torch.isfinite(raw)
        if wrong.any():
            first = tuple(wrong.nonzero()[0].tolist())
            where = f", column `{self.columns[first[1]]}`" if is_table else ""
            missing = ", or give NaN for a missing value" if is_table else ""
            raise UserError(
                f"sample {first[0]} (counted from 0){where} has the value {float(raw[first])} in"
                f" float32, but the model takes finite numbers. Correct it{missing}."
            )


def load(
    path: Path,
    client: int | None = None,
    deployment: str | None = None,
    checkpoint: Moment = "best",
    warn: Callable[[str], None] | None = None,
    normalize_by: Path | Tensor | NDArray[Any] | None = None,
) -> TrainedModel:
    """Return a model of a run, finished or not: a client's model or the global model.

    The model is the one that the run evaluates. If the method fine-tunes before it predicts, or
    estimates BatchNorm statistics (`train.batchnorm=drop`), this is done here again. The data set
    of the run must be there and unchanged. The number of threads of PyTorch is left as it was.

    Args:
        path: The run folder.
        client: Id of the client, in [0, N); None for the global model.
        deployment: Name of one of the method's models (`Algorithm.deploy`); None for `personal`,
            by which the method is evaluated, or, without a client, for `gm`.
        checkpoint: `best`: the round with the best validation accuracy, by which runs are compared;
            `last`: the last round that was saved.
        warn: Function that is called with a sentence if fine-tuning diverges, if the samples of the
            client are shifted, or if those of `normalize_by` are few, have a column or channel with
            one value, or unknown words.
        normalize_by: For the global model of a run with `data.normalize=client`: samples of a new
            client [n, ...], or a file of them, by whose statistics the model normalizes, and fills
            missing values, as those of its training part.

    Raises:
        UserError: The path is not a run folder, has no such checkpoint, the method has no such
            client or model, the normalization is none that `normalize_by` can give or that needs
            it, or `normalize_by` has no samples, or none that the model takes.
        DataError: A file is damaged, or the data differ from those of the run.
        DivergedError: The model has weights that are not finite.
    """
    check_run_folder(path)
    if checkpoint not in MOMENTS:
        raise UserError(
            f"there is no checkpoint {checkpoint!r}.{did_you_mean(str(checkpoint), MOMENTS)}"
            " Choose best or last."
        )
    with _built(path) as experiment:
        state = _read_state(experiment, path, checkpoint)
        name, ids = _choose(experiment, state, path, client, deployment)
        tell = warn or (lambda sentence: None)
        _check_normalization(experiment, path, client, normalize_by)
        return _load(experiment, state, path, client, name, ids, checkpoint, tell, normalize_by)


@contextmanager
def _built(path: Path) -> Iterator[Experiment]:
    """Return a context manager for the experiment of a run, whose data are those of the run."""
    check_run_folder(path)
    threads = torch.get_num_threads()
    config, _ = resolve_written(path / "config.yaml")
    engine = on_this_machine(config.engine)
    experiment = build(config, tried=False, engine=engine, folder=path)
    try:
        samples = experiment.federation
        check_unchanged(path, samples.partition, samples.dataset, "Restore the old files.")
        with own_methods.named(experiment.algorithm.config):
            yield experiment
    finally:
        experiment.engine.close()
        torch.set_num_threads(threads)


def client_of(path: Path, client: int | str) -> int:
    """Return the id of the client that a name or a number means.

    Where clients have names, a number is refused if it may mean two clients: 3 is the id of the
    fourth client, and the number in `hospital03`.

    Args:
        path: The run folder.
        client: The name of a natural client, or an id in [0, N), as a number or as its digits.

    Raises:
        UserError: The run has no such client, or the number may mean two clients.
    """
    check_run_folder(path)
    names = _client_names(path)
    text = str(client)
    if isinstance(client, str) and text in names:
        return names.index(text)
    if not re.fullmatch(r"-?[0-9]{1,11}", text):
        shown = did_you_mean(text, names) or (
            f" Its clients are {listed(map(one_line, names), 5)}."
            if names
            else " Its clients have numbers, from 0."
        )
        raise UserError(f"{path} has no client `{text}`.{shown}")
    number = int(text)
    by_name = [k for k, name in enumerate(names) if number in _numbers_of(name)]
    if names and not 0 <= number < len(names):
        close = f" Did you mean `{names[by_name[0]]}`?" if by_name else ""
        raise UserError(
            f"{path} has no client {number}: its {len(names)} clients have the names"
            f" {listed(map(one_line, names), 5)}, and the numbers 0 to {len(names) - 1}.{close}"
            " Give one of them."
        )
    if names and set(by_name) - {number}:
        others = [names[k] for k in by_name if k != number]
        raise UserError(
            f"the client {number} of {path} may be `{names[number]}`, whose id it is, or"
            f" `{others[0]}`, whose name has this number. Give the name."
        )
    return number


def _client_names(path: Path) -> list[str]:
    """Return the names of the clients of a run; empty if they have none.

    Raises:
        DataError: partition.json is damaged.
    """
    file = path / "partition.json"
    names = read_json(file).get("client_names")
    with as_data_error(file):
        return [str(name) for name in names or ()]


def _numbers_of(name: str) -> set[int]:
    """Return the numbers that a name contains.

    >>> sorted(_numbers_of("ward 3, hospital07"))
    [3, 7]
    """
    return {int(digits) for digits in re.findall("[0-9]{1,11}", name)}


def _checkpoint(path: Path) -> Path:
    """Return the checkpoint of the last round of a run.

    Raises:
        UserError: There is none.
    """
    last = path / "checkpoints" / "last.safetensors"
    if not last.is_file() and (path / "trial.json").is_file():
        raise UserError(
            f"{path} has no checkpoint: a study keeps those of the best trial of each method, and"
            " of the final trainings (output.keep_trials=best). Take one of these, or start a new"
            " study with output.keep_trials=all."
        )
    if not last.is_file():
        raise UserError(
            f"{path} has no checkpoint checkpoints/{last.name}: no round was saved. Continue the"
            f" run: {how_to_resume(path)}"
        )
    return last


def _read_state(experiment: Experiment, path: Path, moment: Moment) -> State:
    """Return the state of the best or the last round.

    Raises:
        UserError: The run has no such checkpoint.
        DataError: The checkpoint is damaged, or belongs to another configuration or round.
    """
    config_hash = experiment.config.hash()
    # The run may have been copied from another machine, into a folder that cannot be written to.
    storage = replace(experiment.storage, folder=Path(gettempdir()))
    state = checkpoint.read(_checkpoint(path), config_hash, storage).state
    if moment == "last":
        return state
    best = best_round(metrics_file.read(path / "metrics.csv"), experiment.config.evaluation.best)
    if best is None or best == state.round:
        return state  # without a validation part the last round counts
    file = path / "checkpoints" / "best.safetensors"
    if not file.is_file():
        raise UserError(
            f"{path} has no checkpoint checkpoints/{file.name} of its best round {best}. Take the"
            f" last round, {state.round}, instead (checkpoint `last`)."
        )
    saved = checkpoint.read(file, config_hash, storage).state
    if saved.round != best:
        raise DataError(
            f"{file} is of round {saved.round}, but the best round of {path} is {best}. Take the"
            f" last round, {state.round}, instead (checkpoint `last`)."
        )
    return saved


def _choose(
    experiment: Experiment, state: State, path: Path, client: int | None, name: str | None
) -> tuple[str, Tensor]:
    """Return the name of the deployment, and the clients [K] to compute it for.

    Raises:
        UserError: There is no such client or model.
    """
    method, clients = experiment.config.algorithm.name, experiment.federation.clients
    deployments = rounds.deployments(experiment.algorithm, state, torch.tensor([0]))
    names = experiment.federation.partition.names
    which = listed(map(one_line, names), 5) if names else f"0 to {clients - 1}"
    if client is not None and not 0 <= client < clients:
        raise UserError(f"{path} has no client {client}: its {clients} clients are {which}.")
    if name is None:
        name = "gm" if client is None else next(iter(deployments))
        if name not in deployments:
            raise UserError(
                f"`{method}` has no global model: each client has a model of its own. Choose a"
                f" client of {path}, {which}."
            )
    if name not in deployments:
        raise UserError(
            f"`{method}` has no model `{name}`.{did_you_mean(name, deployments)} Its models:"
            f" {', '.join(deployments)}."
        )
    if client is None and name != "gm":
        raise UserError(
            f"the model `{name}` of `{method}` differs between clients. Choose a client of {path},"
            f" {which}."
        )
    if name == "gm" and client is None and experiment.config.train.batchnorm == "drop":
        raise UserError(
            f"{path} has no global model: with train.batchnorm=drop each client estimates the"
            f" BatchNorm statistics on its own samples. Choose a client, {which}."
        )
    return name, torch.tensor([client or 0])


def _check_normalization(
    experiment: Experiment, path: Path, client: int | None, normalize_by: object
) -> None:
    """Raise a UserError if a model has no normalization, or is given a second one."""
    by_client = experiment.federation.owner is not None
    if by_client and client is None and normalize_by is None:
        raise UserError(
            f"the global model of {path} has no normalization of its own (data.normalize=client)."
            f" Give samples of the new client, {setting('normalize_by')}; or choose a client and"
            f" {setting('deployment', 'gm')}."
        )
    if normalize_by is not None and not (by_client and client is None):
        called = experiment.federation.partition.called
        whose = f"client {called(client)}" if by_client and client is not None else "all clients"
        raise UserError(
            f"{setting('normalize_by')} is for the global model of a run with"
            f" data.normalize=client; this model of {path} has the normalization of {whose}. Leave"
            " it out."
        )


def _load(
    experiment: Experiment,
    state: State,
    path: Path,
    client: int | None,
    name: str,
    ids: Tensor,
    moment: Moment,
    warn: Callable[[str], None],
    normalize_by: Path | Tensor | NDArray[Any] | None,
) -> TrainedModel:
    """Return the model that a deployment gives to the client `ids` [1]."""
    evaluator = experiment.evaluator(warn)
    deployment = rounds.deployments(experiment.algorithm, state, torch.tensor([0]))[name]
    settings = rounds.evaluation_settings(experiment.algorithm, state)
    known = experiment.algorithm.setting.net.fixed
    capture = _Capture(deployment.weights, deployment.predict is not None, known)
    statistic = Statistic(CAPTURED, _count, finish=capture, samples=Samples("train", limit=1))
    block = _block(experiment, deployment, ids)
    found = evaluator.run_statistics(state, settings, name, deployment, block, (statistic,))
    row = block.tolist().index(int(ids))
    tensors = {
        key.removeprefix(f"{CAPTURED}."): value[row].detach().cpu().clone()
        for key, value in found.items()
    }
    own, leaves, ctx = (_of_kind(kind, tensors) for kind in ("net", "leaf", "ctx"))

    first_float = next(value for value in own.values() if value.is_floating_point())
    net = deepcopy(experiment.net).cpu().to(first_float)
    with torch.no_grad():
        # Not by load_state_dict, which leaves out the buffers that are not persistent.
        leaves_of_net = net_leaves(net)
        first = {leaf: tensor.clone() for leaf, tensor in leaves_of_net.items()}
        for leaf, tensor in leaves_of_net.items():
            tensor.copy_(own.get(leaf, tensor))
    saved = net.state_dict().keys()
    unsaved = (leaf for leaf in leaves_of_net if leaf not in saved)
    net = uncompiled(net)
    net.eval().requires_grad_(False)
    if deployment.predict is None:
        deployed = DeployedNet(net)
    else:
        leaves, ctx = _that_are_read(net, deployment.predict, leaves, ctx, experiment)
        deployed = DeployedNet(net, deployment.predict, leaves, ctx)
    deployed.unsaved = tuple(
        leaf for leaf in unsaved if not torch.equal(first[leaf], leaves_of_net[leaf])
    )
    if isinstance(net, LightningNet):  # the user's module, which may be trained further
        for leaf, parameter in net.named_parameters():
            parameter.requires_grad_(leaf not in net.frozen)

    inputs = _inputs(experiment.federation, client, first_float.dtype)
    dataset = experiment.federation.dataset
    normalization = _normalization(experiment.federation, inputs)
    arrays = experiment.config.data.arrays
    model = TrainedModel(
        net=deployed,
        inputs=inputs,
        normalization=normalization,
        classes=dataset.classes if dataset.targets is None else (),
        columns=_columns(dataset),
        words=dataset.words if dataset.is_table else (),
        largest=dataset.scale if dataset.is_pixels else None,
        range=_range(experiment.federation, client) if normalize_by is None else None,
        layout=Layout(
            experiment.federation.shape if not dataset.is_table else (dataset.x.shape[1],),
            dataset.is_pixels,
            _columns(dataset),
            dataset.words or ((),) * len(_columns(dataset)),
            experiment.config.data.layout,
            dataset.kind,
            (arrays.samples or "", arrays.test_samples or ""),
            dataset.tokens if dataset.starts is not None else (),
            experiment.config.data.image_size,
        ),
        card={"dataset": dataset.name},
    )
    if normalize_by is not None:
        model = _normalized_by(model, normalize_by, experiment.federation, warn)
    model.card.update(_card(experiment, state, path, client, name, moment, model))
    if shift := model.card["input"].get("shift"):
        warn(shift)
    return model


def uncompiled(net: nn.Module) -> nn.Module:
    """Return a net in which modules of `torch.compile` are replaced by those that they compile.

    The names of parameters and buffers are then those of the user's net, without `_orig_mod`.

    Args:
        net: The net; it is changed.
    """
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            # Its class is not imported, because that takes seconds.
            if type(child).__name__ == "OptimizedModule":
                setattr(module, name, child.get_submodule("_orig_mod"))
    return net


def _block(experiment: Experiment, deployment: Deployment, ids: Tensor) -> Tensor:
    """Return the clients to compute a deployment for, so that one client's bits are the run's.

    The rounding of training depends on how many clients are stacked, in the vectorized engine. So
    the evaluation's block of clients is computed, unless the deployment trains nothing or the
    models of a block take too much memory.
    """
    trains = deployment.program is not None or experiment.config.train.batchnorm == "drop"
    clients = experiment.federation.clients
    if experiment.config.engine.name != "vectorized" or not trains:
        return ids
    first = int(ids) // BLOCK * BLOCK
    block = torch.arange(first, min(first + BLOCK, clients))
    return block if len(block) * experiment.algorithm.setting.net.size <= SCALARS else ids


def _count(context: StepContext) -> Tree:
    """Return the number of samples of a batch: a Statistic needs a result."""
    return {"count": context.batch.mask.sum()}


@dataclass(frozen=True)
class _Capture:
    """Function `finish` of a Statistic that returns all tensors that a deployment predicts with.

    They are `net/NAME`, the parameters and buffers that the net is called with; for a deployment
    with a prediction rule also `leaf/NAME`, the client's leaves, and `ctx/NAME`.

    Attributes:
        weights: `Deployment.weights`.
        has_rule: Whether the deployment has a prediction rule.
        fixed: Names of the parameters and buffers that the user has fixed, which `weights` may
            leave out.
    """

    weights: Callable[[Tree, Tree], Tree] | None
    has_rule: bool
    fixed: frozenset[str] = frozenset()

    def __call__(self, reduced: Tree, leaves: Tree, ctx: Tree) -> Tree:
        own = leaves
        if self.weights is not None:
            own = {name: leaves[name] for name in self.fixed if name in leaves} | self.weights(
                leaves, ctx
            )
        found = {f"net/{name}": value for name, value in own.items()}
        if self.has_rule:
            found |= {f"leaf/{name}": value for name, value in leaves.items()}
            found |= {f"ctx/{name}": value for name, value in ctx.items()}
        return found


def _of_kind(kind: str, tensors: Tree) -> Tree:
    """Return the tensors `KIND/NAME` by their names."""
    begin = f"{kind}/"
    return {key.removeprefix(begin): v for key, v in tensors.items() if key.startswith(begin)}


def _context(net: nn.Module, x: Tensor, leaves: Tree, ctx: Tree) -> StepContext:
    """Return what a prediction rule reads for normalized inputs [B, ...]."""
    # [B]; made from x, so that exported programs keep the axis B variable.
    zeros = torch.zeros_like(x.flatten(1)[:, 0], dtype=torch.int64)
    batch = Batch(x, y=zeros, mask=zeros == 0, key=zeros, step=torch.tensor(0))
    return StepContext(
        partial(net, x),
        batch=batch,
        ctx=ctx,
        leaves=leaves,
        start=leaves,
        apply=partial(apply, net),
    )


class _Recorded(dict[str, Tensor]):
    """A tree that records which of its tensors are read."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read |= {name} & self.keys()
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def items(self) -> Any:
        self.read.update(super().keys())
        return super().items()

    def values(self) -> Any:
        self.read.update(super().keys())
        return super().values()


def _that_are_read(
    net: nn.Module,
    rule: Callable[[StepContext], Tensor],
    leaves: Tree,
    ctx: Tree,
    experiment: Experiment,
) -> tuple[Tree, Tree]:
    """Return the leaves and the entries of ctx that a prediction rule reads."""
    recorded = _Recorded(leaves), _Recorded(ctx)
    first = next(net.parameters())
    x = shapes.zeros(experiment.federation.shape, 2, first.dtype)
    with torch.no_grad():
        rule(_context(net, x, *recorded))
    kept = [{name: dict.__getitem__(tree, name) for name in sorted(tree.read)} for tree in recorded]
    return kept[0], kept[1]


def _inputs(federation: Federation, client: int | None, dtype: torch.dtype) -> RawInputs:
    """Return the module that normalizes raw samples of a client, or of any client (None)."""
    offset, scale = federation.offset.cpu().to(dtype), federation.scale.cpu().to(dtype)
    if federation.owner is not None:
        # Without a copy, a file would have the rows of all clients. The last row is that of no
        # client, which `_normalized_by` replaces.
        row = -1 if client is None else client
        offset, scale = offset[row].clone(), scale[row].clone()
    table = federation.table
    if table is None:
        return RawInputs(federation.shape, offset, scale)
    return RawInputs(
        federation.shape,
        offset,
        scale,
        torch.from_numpy(table.source),
        torch.from_numpy(table.word),
        torch.from_numpy(table.fill[-1 if client is None else client]).to(dtype),
    )


def _range(federation: Federation, client: int | None) -> tuple[float, float] | None:
    """Return the range of the training images in floating point; None for other samples.

    With `data.normalize=client`, they are those of the client.
    """
    dataset = federation.dataset
    if dataset.kind != "images" or dataset.is_pixels:
        return None
    parts = federation.partition.parts["train"]
    if federation.owner is not None and client is not None:
        parts = [parts[client]]
    ranges = [pixels.range_of(federation.x[rows].numpy()) for rows in parts if len(rows)]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _normalized_by(
    model: TrainedModel,
    samples: Path | Tensor | NDArray[Any],
    federation: Federation,
    note: Callable[[str], None],
) -> TrainedModel:
    """Return a model that normalizes by the statistics of samples, as a client by its own.

    Args:
        model: The model, with any normalization.
        samples: Raw samples, or the file that has them.
        federation: The samples of the run.
        note: Function that is called with a sentence about samples whose statistics are uncertain.
    """
    what, error_type = "`normalize_by`", UserError
    if isinstance(samples, Path):
        what, error_type = str(samples), DataError
        samples = np.concatenate([part.x for part in unlabelled.read(samples, model.layout, note)])
    try:
        raw = model.check(samples)
    except UserError as error:
        raise error_type(f"{what}: {error}") from error
    if not len(raw):
        raise error_type(f"{what} has no samples. Give the samples of the new client.")
    for column, count in model.unknown_words(raw.numpy()).items():
        note(
            f"{what}: {count} of {len(raw)} values of the column `{column}` are words that no"
            " training part has; they count as 0 in the columns of all words."
        )
    x = model.inputs.encoded(raw).numpy()
    fill = None
    if model.inputs.fill is not None:
        fill = np.nan_to_num(means_of(x)).astype(x.dtype)  # 0 for a column without a value
        x = np.where(np.isnan(x), fill, x)
    offset, scale = normalization_of(x, np.arange(len(x)), federation.dataset)
    each, flat = "columns" if federation.dataset.is_table else "channels", int((scale == 0).sum())
    if flat:
        note(
            f"{what}: {flat} of {scale.size} {each} of the inputs"
            f" {'has' if flat == 1 else 'have'} one value, or none, and"
            f" {'is' if flat == 1 else 'are'} 0 for all samples."
        )
    if len(raw) < FEW_SAMPLES:
        number = "1 sample is" if len(raw) == 1 else f"{len(raw)} samples are"
        note(f"{what}: {number} few; means and standard deviations are uncertain.")
    inputs = deepcopy(model.inputs)
    inputs.offset, inputs.scale = (
        torch.from_numpy(value).to(model.inputs.offset.dtype) for value in (offset, scale)
    )
    inputs.fill = None if fill is None else torch.from_numpy(fill)
    is_image = model.largest is None and len(federation.shape) == 3
    return replace(
        model,
        inputs=inputs,
        normalization=_normalization(federation, inputs),
        range=pixels.range_of(raw.numpy()) if is_image else None,
    )


def _filled(x: RawSamples, shape: TokenShape) -> RawSamples:
    """Return sequences of tokens that are shorter than those of the data set with padding.

    Args:
        x: Sequences, as an array or tensor [B, length], or as a list of B sequences.
        shape: Shape of a sample. Nothing is filled up if it has no padding id.

    Raises:
        DataError: An item of a list is not a sequence of whole numbers.
    """
    if shape.padding is None:
        return x
    if isinstance(x, list | tuple) and all(isinstance(one, Sized) for one in x):
        x = tokens.padded(x, shape.padding, "the samples")
    raw = _as_tensor(x)
    missing = shape[0] - raw.shape[1] if raw.dim() == 2 else 0
    if missing <= 0:
        return raw
    return torch.nn.functional.pad(raw, (0, missing), value=shape.padding)


def _as_tensor(x: RawSamples) -> Tensor:
    """Return samples as a tensor on the CPU.

    Raises:
        UserError: They are no real numbers.
    """
    try:
        # A copy of an array, because arrays of images and files may be read-only.
        raw = x.detach().cpu() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    except (TypeError, ValueError) as error:
        raise _no_numbers(x) from error
    if raw.is_complex():
        raise _no_numbers(x)
    return raw


def _no_numbers(x: object) -> UserError:
    """Return the error about samples that are no real numbers."""
    kind = f" of {_name(x.dtype)}" if isinstance(x, Tensor | np.ndarray) else ""
    return UserError(
        f"the samples must be a tensor or an array of real numbers, got {type(x).__name__}{kind}."
        " Give numbers; in a column of words the position of the word, or -1 for another word. A"
        " file is given by its path."
    )


def _normalization(federation: Federation, inputs: RawInputs) -> Normalization:
    """Return the normalization as numbers."""
    if federation.dataset.kind == "tokens":
        return Normalization(np.zeros(0), np.ones(0), "none")
    mean, std = (
        np.atleast_1d(value.double().numpy().squeeze())
        for value in (inputs.offset, 1.0 / inputs.scale.double())
    )
    table, dataset = federation.table, federation.dataset
    if table is None or inputs.fill is None:
        return Normalization(mean, std, "channel")
    names = _columns(dataset)
    columns = [
        names[k] if word < 0 else f"{names[k]}={dataset.words[k][word]}"
        for k, word in zip(table.source.tolist(), table.word.tolist(), strict=True)
    ]
    return Normalization(mean, std, "column", tuple(columns), tuple(inputs.fill.tolist()))


def _columns(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of a table's columns, their numbers without names; empty for images."""
    if not dataset.is_table:
        return ()
    return dataset.columns or tuple(str(k) for k in range(dataset.x.shape[1]))


def _name(dtype: torch.dtype | np.dtype[Any]) -> str:
    """Return the name of a type without `torch.`."""
    return str(dtype).removeprefix("torch.")


def _card(
    experiment: Experiment,
    state: State,
    path: Path,
    client: int | None,
    name: str,
    moment: Moment,
    model: TrainedModel,
) -> dict[str, Any]:
    """Return the model's card; its values are JSON values."""
    config, federation = experiment.config, experiment.federation
    paper, normal = experiment.algorithm.paper, model.normalization
    partition = federation.partition
    who: dict[str, Any] = {"client": client}
    if client is not None:
        if partition.names:
            who["client_name"] = partition.names[client]
        who["train_samples"] = int(federation.sizes[client])
    inputs: dict[str, Any] = {
        "shape": ["B", *model.raw_shape],
        "dtype": _name(model.raw_dtype),
    }
    if model.largest is not None:
        inputs["range"] = [0, model.largest]
    elif model.range is not None:
        inputs["range"] = list(model.range)
    if client is not None and (shift := _shift_of(partition, client)):
        inputs["shift"] = shift
    if isinstance(model.inputs.shape, TokenShape):
        dataset = federation.dataset
        inputs |= {"vocabulary": dataset.vocabulary, "padding": dataset.padding}
        if dataset.tokens:
            inputs["tokens"] = list(dataset.tokens)
    if model.columns:
        inputs["columns"] = list(model.columns)
        inputs["words"] = {
            column: list(words)
            for column, words in zip(model.columns, model.words, strict=False)
            if words
        }
        if federation.dataset.dropped:
            inputs["dropped"] = list(federation.dataset.dropped)
        by_client = federation.owner is not None
        inputs |= _about_gaps(client, by_client=by_client, has_words=bool(inputs["words"]))
    if federation.owner is None:
        origin = "the training parts of all clients"
    else:
        origin = "the samples that were given" if client is None else "the client's training part"
    normalization: dict[str, Any] = {
        "axis": normal.axis,
        "from": origin,
        "mean": normal.mean.tolist(),
        # JSON has no infinity.
        "std": [value if math.isfinite(value) else None for value in normal.std.tolist()],
    }
    if normal.columns:
        normalization |= {"columns": list(normal.columns), "fill": list(normal.fill)}
    metrics, validation = _metrics(path, config, state, client, name)
    return {
        "flbench": __version__,
        "method": config.algorithm.name,
        "paper": {key: value for key, value in vars(paper).items() if value is not None},
        **who,
        "model": name,
        "checkpoint": moment,
        "round": state.round,
        "seed": config.seed,
        "dataset": federation.dataset.name,
        "classes": list(model.classes),
        "input": inputs,
        "normalization": normalization,
        "output": _output(model, federation),
        "metrics": metrics,
        "validation": validation,
        "net": config.model.model_dump(mode="json"),
        "parameters": sum(parameter.numel() for parameter in model.net.parameters()),
        "precision": config.engine.precision,
        "data_hash": data_hash(federation.dataset),
        "partition_hash": partition.hash(),
        "config_hash": config.hash(),
    }


def _shift_of(partition: ClientParts, client: int) -> str:
    """Return a sentence about the shift of a client's samples, which models do not apply."""
    if partition.shifts:
        what = f"are shifted ({partition.shifts[client]})"
    elif partition.transformed:
        what = "are transformed by the partition scheme"
    else:
        return ""
    return (
        f"the samples of client {partition.called(client)} {what}: its model takes samples that"
        " have been changed in this way, and predicts classes as the client has them."
    )


def _about_gaps(client: int | None, *, by_client: bool, has_words: bool) -> dict[str, str]:
    """Return what a model does with missing values and unknown words, as entries of its card.

    Args:
        client: Id of the client; None for the global model.
        by_client: Whether each client normalizes by its own training part.
        has_words: Whether the table has columns of words.
    """
    if client is not None:
        otherwise = "0" if by_client else "the mean over the other clients"
        fill = f"the mean over the client's training part, or {otherwise} if that has no value"
    elif by_client:
        fill = "the mean over the samples that were given, or 0 if they have no value"
    else:
        fill = "the mean over the clients of the means of their training parts"
    words = " A missing word is replaced by the shares of the words in the same samples."
    about = {
        "missing_values": "NaN is replaced by the value of the column in normalization.fill:"
        f" {fill}.{words if has_words else ''}"
    }
    if has_words:
        about["unknown_words"] = (
            "A column of words has the position of the word in input.words, counted from 0. Any"
            " other number, such as -1, is an unknown word; it is 0 in the columns of all words in"
            " normalization.columns, and so is a word that no training part has."
        )
    return about


def _output(model: TrainedModel, federation: Federation) -> dict[str, Any]:
    """Return the entry `output` of a model's card."""
    if federation.dataset.targets is None:
        return {"shape": ["B", len(model.classes)], "scores": model.net.scores}
    first = next(model.net.parameters())
    with torch.no_grad():
        found = model.net(shapes.zeros(federation.shape, 1, first.dtype))
    return {"shape": ["B", *found.shape[1:]], "scores": "outputs"}


def _metrics(
    path: Path, config: Config, state: State, client: int | None, name: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the model's test and validation metrics that the run has written, or empty dicts.

    They are those of a client's personal model on the client's own parts. Those of the global model
    are on the common test set, without validation metrics.
    """
    if client is None:
        with as_data_error(path / "metrics.csv"):
            rows = metrics_file.read(path / "metrics.csv")
        found = {
            row.metric: row.value
            for row in rows
            if row[:3] == (state.round, "common", "gm") and row.metric in client_scores(config)
        }
        return found, {}
    file = path / "clients.csv"
    if name != "personal" or not file.is_file():
        return {}, {}
    summary = read_json(path / "summary.json")
    with as_data_error(path / "summary.json"):
        moment = "last" if summary.get("last", {}).get("round") == state.round else "best"
    with as_data_error(file):
        for row in csv.DictReader(StringIO(files.read_text(file)), strict=True):
            if row["moment"] == moment and int(row["client"]) == client:
                known = (
                    *client_scores(config),
                    *ranking_names.NAMES,
                    *probability_names.NAMES,
                )
                return (
                    {"test_samples": int(row["test_size"]), **_numbers(row, known)},
                    _numbers(row, known, VALIDATION),
                )
    return {}, {}


def _numbers(row: dict[str, str], names: Sequence[str], prefix: str = "") -> dict[str, float]:
    """Return the cells PREFIX NAME of a row of clients.csv that have a value, by NAME."""
    cells = {name: row.get(f"{prefix}{name}") for name in names}
    values = {name: float(cell) for name, cell in cells.items() if cell}
    return {name: value for name, value in values.items() if not math.isnan(value)}
