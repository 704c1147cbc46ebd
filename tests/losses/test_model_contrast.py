"""MOON's contrast against a loop over samples in float64, its edges, its safety under vmap."""

from math import exp, log

import pytest
import torch

from flbench.core.types import Batch, Context, Outputs
from flbench.losses import ModelContrast

TINY = 1e-12  # float64 sums in another order
TERM = ModelContrast(("net",), temperature=0.5)


def apply(leaves, x, **_):
    return Outputs(x @ leaves["net"], x)


def case(seed: int = 0, n: int = 7):
    g = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    x = rand(n, 4)
    return x, rand(4, 3), rand(4, 3), rand(4, 3)


def context(x, net, prev, received, mask=None, **more) -> Context:
    mask = torch.ones(len(x), dtype=torch.bool) if mask is None else mask
    y = torch.zeros(len(x), dtype=torch.int64)
    leaves = {"net": net, "prev.net": prev, **more}
    return Context(
        lambda: apply(leaves, x),
        batch=Batch(x, y, mask, y, torch.tensor(0)),
        ctx={},
        leaves=leaves,
        start={"net": received, "prev.net": prev},
        apply=apply,
    )


def cos(a, b) -> float:
    return float(a @ b) / max(float(a.norm()) * float(b.norm()), 1e-12)


def test_model_contrast_equals_a_loop():
    x, net, prev, received = case()
    losses = []
    for row in x:
        z, z_g, z_p = row @ net, row @ received, row @ prev
        e_g, e_p = exp(cos(z, z_g) / 0.5), exp(cos(z, z_p) / 0.5)
        losses.append(-log(e_g / (e_g + e_p)))

    found = TERM(context(x, net, prev, received))

    assert float(found) == pytest.approx(sum(losses) / len(losses), abs=TINY)


def test_equal_references_give_ln_2_without_a_gradient():
    x, net, prev, _ = case()
    net.requires_grad_()

    found = TERM(context(x, net, prev, prev))

    assert float(found) == pytest.approx(log(2), abs=TINY)
    assert float(torch.autograd.grad(found, net)[0].abs().max()) < 1e-16


def test_sharp_temperature_stays_finite():
    x, net, _, received = case()
    net.requires_grad_()

    found = ModelContrast(("net",), temperature=1e-4)(context(x, net, net.detach(), received))

    assert found.isfinite()
    assert torch.autograd.grad(found, net)[0].isfinite().all()


def test_padded_rows_do_not_count():
    x, net, prev, received = case()
    more, *_ = case(1)
    mask = torch.arange(14) < 7

    found = TERM(context(torch.cat([x, more]), net, prev, received, mask))

    assert torch.allclose(found, TERM(context(x, net, prev, received)), rtol=0, atol=TINY)


def test_model_contrast_is_vmap_safe():
    cases = [case(seed) for seed in range(3)]
    loss = torch.func.grad_and_value(lambda net, *rest: TERM(context(rest[0], net, *rest[1:])))

    gradients, values = torch.vmap(loss)(
        *(torch.stack([c[k] for c in cases]) for k in (1, 0, 2, 3))
    )

    for k, (x, net, prev, received) in enumerate(cases):
        net.requires_grad_()
        alone = TERM(context(x, net, prev, received))
        assert torch.allclose(values[k], alone, rtol=0, atol=TINY)
        assert torch.allclose(gradients[k], torch.autograd.grad(alone, net)[0], rtol=0, atol=TINY)


def test_features_of_zero_have_cosine_zero():
    x, net, prev, received = case()

    found = TERM(context(x, torch.zeros_like(net), prev, received))

    assert float(found) == pytest.approx(log(2), abs=TINY)


def test_received_leaves_replace_those_of_the_start():
    x, net, prev, received = case()

    found = TERM(context(x, net, prev, prev, **{"received.net": received}))

    assert torch.equal(found, TERM(context(x, net, prev, received)))
