"""FedDyn's regulariser: value, gradient, safety under vmap."""

import torch

import flbench.algorithms as fl
from flbench.algorithms.feddyn import regularizer
from tests.losses.support import TINY, assert_vmap_safe, case

TERM = fl.bind(regularizer, ("w",))


def with_dual(c, strength: float = 0.3):
    c.leaves["dual.w"] = c.leaves["c.w"]
    c.leaves["strength"] = torch.tensor(strength, dtype=torch.float64)
    return c


def test_dynamic_equals_a_loop_and_its_gradient_is_a_times_step_plus_dual():
    c = with_dual(case())
    w, start, h = c.leaves["w"], c.start["w"], c.leaves["dual.w"]

    found = TERM(c.context())

    expected = sum(
        0.3 * (float(h[i, j]) * float(w[i, j]) + (float(w[i, j]) - float(start[i, j])) ** 2 / 2)
        for i in range(3)
        for j in range(2)
    )
    assert abs(float(found) - expected) < TINY
    gradient = torch.autograd.grad(found, w)[0]
    assert torch.allclose(gradient, 0.3 * (w - start + h), rtol=0, atol=TINY)


def test_dynamic_is_vmap_safe():
    class WithDual:
        def __call__(self, context):
            context.leaves["dual.w"] = context.leaves["c.w"]
            context.leaves["strength"] = context.ctx["beta"]
            return TERM(context)

    assert_vmap_safe(WithDual())
