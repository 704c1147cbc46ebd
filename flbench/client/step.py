"""The one local loss. Every engine, and Lightning's own Trainer, call it."""

import torch
from torch import Tensor

from flbench.client.program import LossTerm
from flbench.config.schema import OptimizerConfig
from flbench.core.types import StepContext


def local_loss(terms: tuple[LossTerm, ...], context: StepContext) -> Tensor:
    """Return sum over terms of weight times term(view), 0-dim."""
    total: Tensor | None = None
    for term in terms:
        value = term(context)
        weight = context.ctx[term.weight] if isinstance(term.weight, str) else term.weight
        if not (isinstance(weight, float | int) and weight == 1):
            value = weight * value
        total = value if total is None else total + value
    if total is None:
        raise ValueError("a Phase needs at least one loss term")
    return total


def make_optimizer(
    config: OptimizerConfig, parameters: list[Tensor], lr: float
) -> torch.optim.Optimizer:
    """Return a new optimiser with this learning rate over the parameters."""
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=config.weight_decay)
