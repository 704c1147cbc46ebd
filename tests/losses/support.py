"""Step contexts made by hand; a term must give the same under vmap of grad as client by client."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.types import Batch, Context, Outputs, Tree
from flbench.losses.class_counts import COUNTS

TINY = 1e-12  # float64 sums in another order


@dataclass
class Case:
    features: Tensor
    logits: Tensor
    y: Tensor
    ctx: Tree
    leaves: Tree
    start: Tree
    mask: Tensor | None = None

    def context(self) -> Context:
        n = len(self.y)
        mask = torch.ones(n, dtype=torch.bool) if self.mask is None else self.mask
        batch = Batch(self.features, self.y, mask, torch.arange(n), torch.tensor(0))
        return Context(
            lambda: Outputs(self.features, self.logits),
            batch=batch,
            ctx=self.ctx,
            leaves=self.leaves,
            start=self.start,
            apply=None,
        )


def case(
    seed: int = 0, n: int = 12, classes: int = 5, width: int = 4, absent: tuple[int, ...] = (3,)
) -> Case:
    """Random features.

    Classes in `absent` have neither a global prototype, nor a place in the bank, nor a training
    sample of the client.
    """
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    present = torch.tensor([k not in absent for k in range(classes)])
    prototypes = torch.randn(classes, width, generator=g, dtype=torch.float64) * present[:, None]
    unit = prototypes / prototypes.norm(dim=1, keepdim=True).clamp_min(1e-12)
    bank = torch.randn(classes, width, generator=g, dtype=torch.float64) * present[:, None]
    return Case(
        torch.randn(n, width, generator=g, dtype=torch.float64).requires_grad_(),
        torch.randn(n, classes, generator=g, dtype=torch.float64).requires_grad_(),
        y,
        {
            "global.prototypes": prototypes,
            "global.present": present,
            "global.similarity": unit @ unit.T,
            "group.prototypes": prototypes,
            "group.present": present,
            "beta": torch.tensor(0.3, dtype=torch.float64),
            COUNTS: torch.tensor([40.0, 7.0, 1.0, 12.0, 3.0], dtype=torch.float64)[:classes]
            * present,
        },
        {
            "prototypes": bank,
            "head.weight": bank,
            "counts": present.int() * 3,
            "w": torch.randn(3, 2, generator=g, dtype=torch.float64).requires_grad_(),
            "scale": torch.tensor(2.5, dtype=torch.float64),
            "c.w": torch.randn(3, 2, generator=g, dtype=torch.float64),
        },
        {"w": torch.randn(3, 2, generator=g, dtype=torch.float64)},
    )


def assert_vmap_safe(term) -> None:
    """The values and gradients of three clients at once equal those of one after the other."""
    cases = [case(seed, absent=(seed,)) for seed in range(3)]

    def loss(features, logits, w, rest):
        y, ctx, leaves, start = rest
        made = Case(features, logits, y, ctx, {**leaves, "w": w}, start)
        return term(made.context())

    def stack(items):
        if isinstance(items[0], dict):
            return {key: stack([item[key] for item in items]) for key in items[0]}
        return torch.stack([item.detach() for item in items])

    features, logits, w = (
        stack([c.features for c in cases]),
        stack([c.logits for c in cases]),
        stack([c.leaves["w"] for c in cases]),
    )
    rest = (
        stack([c.y for c in cases]),
        stack([c.ctx for c in cases]),
        stack([c.leaves for c in cases]),
        stack([c.start for c in cases]),
    )
    grad = torch.func.grad_and_value(loss, argnums=(0, 1, 2))
    together, values = torch.vmap(grad)(features, logits, w, rest)

    for k, one in enumerate(cases):
        alone = term(one.context())
        inputs = [one.features, one.logits, one.leaves["w"]]
        found = torch.autograd.grad(alone, inputs, allow_unused=True)
        assert torch.allclose(values[k], alone, rtol=0, atol=TINY)
        for a, b, tensor in zip(together, found, inputs, strict=True):
            expected = torch.zeros_like(tensor) if b is None else b
            assert torch.allclose(a[k], expected, rtol=0, atol=TINY)
            assert a[k].isfinite().all()
