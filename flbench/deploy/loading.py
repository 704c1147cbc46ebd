"""Reading of a client's model, or the global one, from the checkpoint of a run.

A model is computed by the steps of an evaluation. So it predicts what the evaluation of the run has
evaluated: with the same parameters, BatchNorm statistics, fine-tuning and prediction rule.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Final, Literal

import numpy as np
import torch

from flbench.client.program import Statistic
from flbench.config.resolve import resolve_written
from flbench.core.errors import DataError, UserError, did_you_mean
from flbench.core.text import one_line
from flbench.core.types import Context, Samples, State, Tree
from flbench.core.wording import how_to_resume, listed
from flbench.data import pixels
from flbench.data.dataset import Dataset
from flbench.data.federation import Federation
from flbench.data.partition import ClientParts
from flbench.data.partition_files import check_unchanged
from flbench.data.unlabelled import Layout
from flbench.deploy import cards
from flbench.deploy.models import DeployedNet, RawInputs, TrainedModel
from flbench.experiment import checkpoint, own_methods, rounds
from flbench.experiment.assembly import Experiment, build
from flbench.experiment.engines import on_this_machine
from flbench.experiment.evaluate import BLOCK, Evaluator, Model
from flbench.experiment.predictions import SCALARS
from flbench.models import freezing
from flbench.models.base import net_leaves
from flbench.models.lightning_net import LightningNet
from flbench.results import metrics_file
from flbench.results.reading import check_run_folder
from flbench.results.summary import RunningSummary

Moment = Literal["best", "last"]
MOMENTS: Final = ("best", "last")


def load(
    path: Path,
    client: int | str | None = None,
    deployment: str | None = None,
    checkpoint: Moment = "best",
    warn: Callable[[str], None] = lambda sentence: None,
) -> TrainedModel:
    """Return a model of a run, finished or not: a client's model or the global model.

    If the method fine-tunes before it predicts, or estimates BatchNorm statistics
    (`train.batchnorm=drop`), this is done here again. The data set of the run must be there and
    unchanged. The number of threads of PyTorch is left as it was.

    Args:
        path: The run folder.
        client: The client; see `client_of`. None for the global model.
        deployment: Name of one of the method's models (`Algorithm.deploy`); None for `personal`,
            by which the method is evaluated, or, without a client, for `gm`.
        checkpoint: `best`: the round with the best validation accuracy, by which runs are compared;
            `last`: the last round that was saved.
        warn: Function that is called with a sentence if fine-tuning diverges, or if the samples of
            the client are shifted.

    Raises:
        UserError: The path is not a run folder, has no such checkpoint, the method has no such
            client or model, or the model needs a client.
        DataError: A file is damaged, or the data differ from those of the run.
        MethodError: The user's method raised an exception.
        DivergedError: The model has weights that are not finite.
    """
    check_run_folder(path)
    if checkpoint not in MOMENTS:
        raise UserError(
            f"there is no checkpoint {checkpoint!r}.{did_you_mean(str(checkpoint), MOMENTS)}"
            " Choose best or last."
        )
    with _built(path) as experiment:
        try:
            state = _read_state(experiment, path, checkpoint)
        except DataError:  # a run that goes on may just have replaced the checkpoint
            state = _read_state(experiment, path, checkpoint)
        partition = experiment.federation.partition
        number = None if client is None else client_of(partition, client)
        evaluator = experiment.evaluator(warn)
        settings = rounds.evaluation_settings(experiment.algorithm, state)
        models = {one.name: one for one in evaluator.models(state, settings)}
        name = _choose(experiment, tuple(models), number, deployment)
        net = _net(experiment, evaluator, models[name], number or 0)
        inputs = _inputs(experiment.federation, number, next(net.net.parameters()).dtype)
        layout = _layout(experiment, number)
        has_classes = experiment.federation.dataset.targets is None
        classes = experiment.federation.dataset.classes if has_classes else ()
        model = TrainedModel(net, inputs, classes, layout, {})
        model.card.update(cards.card(experiment, state, path, number, name, checkpoint, model))
    if shift := model.card["input"].get("shift"):
        warn(shift)
    return model


def client_of(partition: ClientParts, client: int | str) -> int:
    """Return the id of a client.

    Args:
        partition: The partition of the run.
        client: An id in [0, N); or a text: the name of a natural client, or, where clients have no
            names, the digits of an id.

    Raises:
        UserError: The run has no such client.
    """
    names, text = partition.names, str(client)
    if client in names:
        return names.index(text)
    is_id = not (names and isinstance(client, str)) and re.fullmatch("[0-9]{1,11}", text)
    if is_id and int(text) < partition.clients:
        return int(text)
    known = f"{did_you_mean(text, names)} Its clients are {_clients(partition)}."
    raise UserError(f"the run has no client `{client}`.{known}")


def _clients(partition: ClientParts) -> str:
    """Return the names of the first clients, or the range of their ids, for a sentence."""
    names = partition.names
    return listed(map(one_line, names), 5) if names else f"0 to {partition.clients - 1}"


@contextmanager
def _built(path: Path) -> Iterator[Experiment]:
    """Return a context manager for the experiment of a run, whose data are those of the run."""
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


def _read_state(experiment: Experiment, path: Path, moment: Moment) -> State:
    """Return the state of the best or the last round.

    Raises:
        UserError: The run has no such checkpoint.
        DataError: The checkpoint is damaged, or belongs to another configuration or round.
    """
    last, best_file = (path / "checkpoints" / f"{one}.safetensors" for one in ("last", "best"))
    if not last.is_file():
        cure = f"continue the run: {how_to_resume(path)}"
        if (path / "trial.json").is_file():
            cure = "a study keeps those of the best trials, unless output.keep_trials=all"
        raise UserError(f"{path} has no checkpoint, because no round was saved; {cure}.")
    config_hash = experiment.config.hash()
    # The run may have been copied from another machine, into a folder that cannot be written to.
    storage = replace(experiment.storage, folder=Path(gettempdir()))
    state = checkpoint.read(last, config_hash, storage).state
    if moment == "last":
        return state
    rows = metrics_file.read(path / "metrics.csv")
    best = RunningSummary(rows, experiment.config.evaluation.best).best
    if best is None or best == state.round:
        return state  # without a validation part the last round counts
    if best_file.is_file():
        saved = checkpoint.read(best_file, config_hash, storage).state
        if saved.round == best:
            return saved
    raise DataError(
        f"{best_file} is not that of the best round {best}. Take the last round, {state.round},"
        " instead (checkpoint `last`)."
    )


def _choose(
    experiment: Experiment,
    known: tuple[str, ...],
    client: int | None,
    name: str | None,
) -> str:
    """Return the name of the deployment, of those that the method has.

    Raises:
        UserError: There is no such model, or it needs a client.
    """
    method, federation = experiment.config.algorithm.name, experiment.federation
    partition = federation.partition
    name, reason = name or ("gm" if client is None else known[0]), ""
    if client is None and name == "gm" and name not in known:
        reason = f"`{method}` has no global model: each client has a model of its own"
    elif name not in known:
        hint = did_you_mean(name, known)
        raise UserError(f"`{method}` has no model `{name}`.{hint} It has {', '.join(known)}.")
    elif client is None and name != "gm":
        reason = f"the model `{name}` of `{method}` differs between clients"
    elif client is None and experiment.config.train.batchnorm == "drop":
        reason = "with train.batchnorm=drop each client estimates statistics on its own samples"
    elif client is None and federation.owner is not None:
        reason = (
            "with data.normalize=client the global model (deployment `gm`) normalizes by the"
            " statistics of a client"
        )
    if reason:
        raise UserError(f"{reason}. Choose a client: {_clients(partition)}.")
    return name


def _net(experiment: Experiment, evaluator: Evaluator, model: Model, client: int) -> DeployedNet:
    """Return the net that a deployment gives to a client, as the evaluation computes it."""
    deployment = model.deployment
    rule = deployment.predict

    def captured(context: Context, reduced: Tree) -> Tree:
        """Return all tensors that the deployment predicts with."""
        own = context.leaves
        if deployment.weights is not None:  # it may return a part
            own = own | deployment.weights(context)
        trees = (
            {"net": own}
            if rule is None
            else {"net": own, "leaf": context.leaves, "ctx": context.ctx}
        )
        return {f"{kind}/{leaf}": v for kind, tree in trees.items() for leaf, v in tree.items()}

    statistic = Statistic("deployed", _count, finish=captured, samples=Samples("train", limit=1))
    ids = torch.tensor([client])
    if experiment.config.engine.name == "vectorized" and model.steps:
        # Rounding depends on the clients that are trained together: those of an evaluation.
        block = torch.arange(experiment.federation.clients)[client // BLOCK * BLOCK :][:BLOCK]
        ids = block if len(block) * experiment.algorithm.setting.net.size <= SCALARS else ids
    found = evaluator.run(model, ids, (statistic,)).observed
    row = ids.tolist().index(client)
    kinds: dict[str, Tree] = {"net": {}, "leaf": {}, "ctx": {}}
    for key, value in found.items():
        kind, slash, leaf = key.removeprefix("deployed.").partition("/")
        if slash:
            kinds[kind][leaf] = value[row].detach().cpu().clone()
    own = kinds["net"]
    net = deepcopy(experiment.net).cpu()
    net = net.to(next(value for value in own.values() if value.is_floating_point()))
    leaves, saved = net_leaves(net), net.state_dict()
    changed = {leaf for leaf in leaves.keys() & own if not torch.equal(leaves[leaf], own[leaf])}
    with torch.no_grad():
        # Not by load_state_dict, which leaves out the buffers that are not persistent.
        for leaf, tensor in leaves.items():
            tensor.copy_(own.get(leaf, tensor))
    others = {
        leaf: value
        for leaf, value in kinds["leaf"].items()
        if leaf not in leaves or not torch.equal(leaves[leaf], value)
    }
    deployed = DeployedNet(net, rule, others, kinds["ctx"])
    deployed.unsaved = tuple(sorted(changed - saved.keys()))
    if isinstance(net, LightningNet):  # the user's module, which may be trained further
        for leaf, parameter in net.named_parameters():
            parameter.requires_grad_(leaf not in freezing.of(net).parameters)
    return deployed


def _count(context: Context) -> Tree:
    """Return the number of samples of a batch: a Statistic needs a result."""
    return {"count": context.batch.mask.sum()}


def _inputs(federation: Federation, client: int | None, dtype: torch.dtype) -> RawInputs:
    """Return the module that normalizes raw samples of a client, or of any client (None)."""
    row = -1 if client is None else client
    offset, scale = federation.offset.cpu().to(dtype), federation.scale.cpu().to(dtype)
    if federation.owner is not None:  # without a copy, a file would have the rows of all clients
        offset, scale = offset[row].clone(), scale[row].clone()
    dataset, table = federation.dataset, federation.table
    inputs = RawInputs(dataset.x.shape[1:], offset, scale, is_tokens=dataset.kind == "tokens")
    if table is not None:
        inputs.source, inputs.word = torch.from_numpy(table.source), torch.from_numpy(table.word)
        inputs.fill = torch.from_numpy(table.fill[row]).to(dtype)
    return inputs


def _layout(experiment: Experiment, client: int | None) -> Layout:
    """Return what samples a model takes: those of a client, or of any client (None)."""
    federation, data = experiment.federation, experiment.config.data
    dataset, parts = federation.dataset, federation.partition.parts["train"]
    found = None
    if dataset.is_pixels:
        found = (0.0, float(dataset.scale))
    elif dataset.kind == "images":
        own = parts if federation.owner is None or client is None else [parts[client]]
        ranges = [pixels.range_of(federation.x[rows].numpy()) for rows in own if len(rows)]
        found = min(low for low, _ in ranges), max(high for _, high in ranges)
    about = {field.name: getattr(dataset, field.name) for field in fields(Dataset)}
    about |= {k: v[:0].copy() for k, v in about.items() if isinstance(v, np.ndarray)}
    about["extras"] = {}
    if dataset.is_table:
        columns = dataset.columns or tuple(map(str, range(dataset.x.shape[1])))
        about |= {"columns": columns, "words": dataset.words or ((),) * len(columns)}
    return Layout(
        **about,
        arrays=(data.arrays.samples or "", data.arrays.test_samples or ""),
        resize=data.image_size,
        range=found,
    )
