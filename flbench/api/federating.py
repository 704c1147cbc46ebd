"""Federated training of a LightningModule by its own training step."""

from typing import Any, Unpack

from flbench.api import running
from flbench.api.runs import Run
from flbench.api.settings import Keys, Listening, Training, given, verb
from flbench.core.errors import ConfigError


class FederateSettings(Training, Listening, total=False):
    """The settings of `fl.federate`."""


@verb
def federate(
    module: Any,
    data: Any = None,
    method: str | Keys = "fedavg",
    *,
    head: str | None = None,
    args: Keys | None = None,
    metrics: Keys | None = None,
    **settings: Unpack[FederateSettings],
) -> Run:
    """Train a LightningModule in every client, by its own `training_step` and optimizer.

    Each client of a round calls the module's `training_step((x, y), batch_idx)` and steps the
    optimizer of its `configure_optimizers`, which is made anew in each round. A method adds its
    terms, such as FedProx's on parameters and HFCD's on features, and aggregates. The features
    [B, D] of a batch are the inputs of the module's head, and the logits [B, C] its outputs, in the
    forward pass of `training_step`. With one client and all data, a round
    of E local epochs gives the weights of `Trainer(max_epochs=E).fit(...)`, bit for bit in float64
    (`engine={"precision": "64-true"}`).

    What the module logs by `self.log` is in `run.metrics` and in the metrics of callbacks as
    `log/NAME`: the mean over a client's steps, then over the clients of the round.

    A classification is judged as in `fl.run`. Other targets, such as the numbers of a regression
    [n] or [n, D] or the maps of a segmentation [n, H, W], are judged by `metrics` of torchmetrics,
    which get what the module's `forward` returns and the targets: over the samples of all clients
    (`NAME`), as the mean of the clients' values (`NAME_mean`), for the worst tenth of the clients
    (`NAME_worst10`), and for each client (`run.clients`). The best round is the one with the best
    validation value of the first metric, or of `evaluation={"best": {"metric": NAME}}`; whether
    larger values are better is what the metric says as `higher_is_better`.

    It is `fl.run(method, model={"name": module, "lightning": True, "head": head},
    evaluation={"metrics": metrics}, ...)`, and everything else is as in `fl.run`.

    Args:
        module: A LightningModule, with whose weights all clients start; a class or function that
            makes one, whose arguments `shape` and `classes` get those of the data; or the import
            path `package.module:name` of a class or function.
        data: Section `data`, or data of your own, such as arrays, a list of data loaders with one
            for each client, or a LightningDataModule; see `fl.run` and `fl.Data`. Labels that
            cannot be classes are targets: several values for each sample, or values that are not
            whole numbers; `fl.Data(x, y, targets=True)` says so for whole numbers.
        method: The method: its name, or a dict with `name` and keys of the method. Some methods,
            such as those that compute with the learning rate, are refused with the reason.
        head: Name of the module's submodule that computes the output, for methods that read
            features, such as `hfcd`, or divide the net into backbone and head, such as `fedper`.
            None takes the linear layer whose outputs `forward` returns.
        args: Keyword arguments of the class or function that makes the module.
        metrics: Metrics by name: metrics of torchmetrics, or for classification also functions of
            a confusion matrix; `evaluation={"metrics": ...}`.
        settings: See `FederateSettings`. The keys `optimizer` and `terms` of `train` are refused,
            because the module makes its optimizer and computes its loss.

    Returns:
        The finished run. `run.model(client=7).net.module` is the trained module of client 7, in
        eval mode and with the `requires_grad` of the module that was given.

    Raises:
        ConfigError: Keys are wrong, the module or the method needs something that only a Trainer,
            a net of flbench or classes have, or a metric cannot be computed; the message names it.
        UserError: See `fl.run`.
        RunError: See `fl.run`.
        KeyboardInterrupt: The run was interrupted and saved. `fl.resume(path, model=module)`
            continues it. A class or function with an import path, unlike one of a notebook's cell,
            need not be given again.

    >>> import tempfile
    >>> import lightning, numpy, torch, torchmetrics
    >>> class Line(lightning.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.line = torch.nn.Linear(3, 1)
    ...     def forward(self, x):
    ...         return self.line(x)[:, 0]
    ...     def training_step(self, batch, batch_idx):
    ...         x, y = batch
    ...         return torch.nn.functional.mse_loss(self(x), y)
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> x = numpy.random.default_rng(0).normal(size=(200, 3)).astype("float32")
    >>> y = x @ numpy.float32([1, -2, 0.5])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = federate(Line, (x, y), metrics={"mae": torchmetrics.MeanAbsoluteError()},
    ...                      partition={"scheme": "iid", "clients": 4}, train={"rounds": 2},
    ...                      output={"dir": folder}, progress=False)
    >>> test = found.summary["test"]
    >>> test["mae"] < 0.5, test["mae_worst10"] > test["mae_mean"]
    (True, True)
    """
    asked = {"data": data, "method": method, "head": head, "args": args, "metrics": metrics}
    rest, keys = given("federate", **asked, **settings)
    if wrong := [name for name in ("model", "algorithm") if name in keys]:
        own = "module" if wrong[0] == "model" else "method"
        raise ConfigError(f"`{wrong[0]}` is an argument of fl.run; here it is `{own}`.")
    if not callable(module) and (not isinstance(module, str) or ":" not in module):
        raise ConfigError(
            "`module` must be a LightningModule, a class or function that makes one, or its import"
            f" path `package.module:name`, got {module!r}."
        )
    evaluation = rest["evaluation"]
    if metrics is not None:
        if evaluation is not None and "metrics" in evaluation:
            raise ConfigError("`metrics` is `evaluation['metrics']`. Give one of them.")
        evaluation = {**(evaluation or {}), "metrics": metrics}
    model = {"name": module, "lightning": True, "head": head}
    model |= {} if args is None else {"args": args}
    own_sections = {"algorithm": method, "model": model, "evaluation": evaluation}
    return running.called(rest | own_sections, keys)
