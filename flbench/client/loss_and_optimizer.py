"""The local loss and the local optimizer, which all engines and Lightning's Trainer use."""

import torch
from torch import Tensor

from flbench.client.program import LossTerm
from flbench.config.schema import OptimizerConfig
from flbench.core.errors import ConfigError
from flbench.core.types import Context


def local_loss(terms: tuple[LossTerm, ...], context: Context) -> Tensor:
    """Return the local loss of a step, 0-dim: the sum over all terms of weight times value.

    Args:
        terms: The terms. A weight that is a string names a 0-dim entry of `context.ctx`.
        context: What the step reads: batch, outputs of the net, leaves and ctx.

    Raises:
        ConfigError: There is no term, or one does not return one number.
        KeyError: ctx has no entry for a weight.

    Example:
        >>> from flbench.core.types import Batch, Outputs, Context
        >>> from flbench.losses import CrossEntropy, Proximal
        >>> y, mask = torch.tensor([0, 1]), torch.tensor([True, True])
        >>> batch = Batch(torch.zeros(2, 3), y, mask, key=y, step=torch.tensor(0))
        >>> outputs = Outputs(features=torch.zeros(2, 3), logits=torch.zeros(2, 4))
        >>> context = Context(
        ...     lambda: outputs,
        ...     batch=batch,
        ...     ctx={"mu": torch.tensor(0.1)},
        ...     leaves={"w": torch.ones(5)},
        ...     start={"w": torch.zeros(5)},
        ...     apply=None,
        ... )
        >>> round(local_loss((CrossEntropy(),), context).item(), 4)  # ln 4
        1.3863
        >>> pull = Proximal(("w",), weight="mu")  # 0.1 * 1/2 * 5
        >>> round(local_loss((CrossEntropy(), pull), context).item(), 4)
        1.6363
    """
    total: Tensor | None = None
    for term in terms:
        value = term(context)
        if isinstance(value, Tensor) and value.ndim and value.numel() == 1:
            value = value.reshape(())  # such as a mean with keepdim=True
        if not isinstance(value, int | float) and getattr(value, "ndim", True):
            got = f"the shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ConfigError(
                f"the loss term {type(term).__name__} returned {got}. It must return one number:"
                " reduce the values of a batch, for example to their mean."
            )
        weight = context.ctx[term.weight] if isinstance(term.weight, str) else term.weight
        if not (isinstance(weight, float | int) and weight == 1):
            value = weight * value
        total = value if total is None else total + value
    if total is None:
        raise ConfigError("a phase has no loss term. Return one or more from `terms`.")
    return total


def make_optimizer(
    config: OptimizerConfig, parameters: list[Tensor], lr: float | Tensor, *, captured: bool = False
) -> torch.optim.Optimizer:
    """Return a new optimizer over the parameters.

    Args:
        config: Kind of optimizer, momentum and weight decay; its `lr` is not read.
        parameters: The tensors that the optimizer changes.
        lr: Learning rate, >= 0.
        captured: Whether steps may be captured as CUDA graphs, with a tensor as learning rate.
    """
    decay, fused = config.weight_decay, captured or None
    if config.name == "sgd":
        nesterov, momentum = config.nesterov, config.momentum
        return torch.optim.SGD(
            parameters, lr, momentum, weight_decay=decay, nesterov=nesterov, fused=fused
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr, weight_decay=decay, fused=fused, capturable=captured)
