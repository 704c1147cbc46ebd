"""Models of others that a client was sent, `model.NAME` [M, ...]: evaluated on its samples, and mixed.

`asked` [M] bool says which of the M there are.
"""

from dataclasses import dataclass

import torch

from flbench.core.types import Info, StepContext, Tree


@dataclass(frozen=True)
class Losses:
    """Sum of the losses of the models that were sent [M] and of the own one, and the count."""

    names: tuple[str, ...]
    models: int

    def __call__(self, context: StepContext) -> Tree:
        """Return the sums of one batch."""
        x, y, mask = context.batch.x, context.batch.y, context.batch.mask
        logits = []
        for m in range(self.models):
            model = {name: context.ctx[f"model.{name}"][m] for name in self.names}
            logits.append(context.apply(context.leaves | model, x).logits)
        scores = torch.stack([*logits, context.out.logits]).double().log_softmax(dim=2)
        losses = -scores.gather(2, y.expand(self.models + 1, -1)[:, :, None])[:, :, 0]
        losses = torch.where(mask, losses, 0.0).sum(dim=1)
        return {"sent": losses[:-1], "own": losses[-1], "count": mask.sum()}


@dataclass(frozen=True)
class Mix:
    """Move towards the models with a smaller loss; write the unclamped weights `raw` [M].

    Attributes:
        names: the leaves of a model.
        parameters: those of them that make the distance.
    """

    names: tuple[str, ...]
    parameters: tuple[str, ...]

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return the mixed leaves, the weights, and which models there were."""
        count, asked = ctx["validation.count"], ctx["asked"]
        gain = (ctx["validation.own"] - ctx["validation.sent"]) / count.clamp_min(1)
        away = {n: ctx[f"model.{n}"].double() - leaves[n].double() for n in self.names}
        squares = [away[name].flatten(1).square().sum(dim=1) for name in self.parameters]
        raw = gain / (torch.stack(squares).sum(dim=0).sqrt() + 1e-5)
        # A model whose loss overflows is of no use to anybody, and no reason to fail.
        raw = torch.where(asked & (count > 0) & raw.isfinite(), raw, 0.0)
        weights = raw.clamp_min(0.0)
        total = weights.sum()
        weights = weights / torch.where(total > 0, total, 1.0)
        mixed: Tree = {}
        for name in self.names:
            own = leaves[name]
            if own.is_floating_point():
                step = torch.tensordot(weights, away[name], dims=1)
                mixed[name] = (own.double() + step).to(own.dtype)
            else:  # BatchNorm's counter: the largest of those that take part
                helps = (weights > 0).reshape(-1, *(1,) * own.dim())
                sent = torch.where(helps, ctx[f"model.{name}"], own)
                mixed[name] = torch.maximum(own, sent.amax(dim=0))
        dtype = leaves[self.parameters[0]].dtype
        return mixed | {"raw": raw.to(dtype), "asked": asked}
