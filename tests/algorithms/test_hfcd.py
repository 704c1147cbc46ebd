"""HFCD's terms and statistics where tests/algorithms/test_hfcd_loops.py has no loop."""

from functools import partial
from math import exp, log

import pytest
import torch

from flbench.algorithms.hfcd import (
    contrast_loss,
    ordinary_distillation,
    similarity_loss,
)
from flbench.algorithms.shared import prototypes
from flbench.client.batchnorm import recalibrate
from flbench.client.program import LocalProgram, Statistic, bind
from flbench.core.tree import take
from flbench.core.types import Dispatch
from flbench.engine.base import LocalWork
from flbench.experiment.rounds import settings_of
from flbench.losses.similarity import class_sums, cosines
from flbench.testing import after
from tests.losses.support import TINY, case
from tests.support import build


def cos(a, b) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-12))


@pytest.mark.slow
def test_prototypes_under_dropped_statistics_are_those_of_the_recalibrated_net():
    keys = ("algorithm=hfcd", "model.name=lenet5", "train.batchnorm=drop")
    built = build(*keys, "engine.precision=64-true")
    state = after(built, 1)
    net = built.algorithm.setting.net

    found = {}
    for name, steps in (("anew", recalibrate(net)), ("left behind", ())):
        collect = Statistic("classes", bind(prototypes.sums_by_class, 10))
        rows, settings = partial(take, state.clients), settings_of(built.algorithm, state)
        work = LocalWork(LocalProgram(steps), rows, lambda _: Dispatch(), settings, (collect,))
        found[name] = built.engine.run(work, torch.arange(5)).observed

    held = state.clients["counts"] > 0
    for name, right in (("anew", True), ("left behind", False)):
        counts = found[name]["classes.counts"].clamp_min(1)[:, :, None]
        means = (found[name]["classes.sums"] / counts)[held]
        close = torch.allclose(means, state.clients["prototypes"][held], rtol=0, atol=1e-12)
        assert close == right, name


# The terms of the loss; tests/algorithms/test_hfcd_loops.py compares them with loops


def test_contrast_is_never_negative_and_without_hard_weight_cross_entropy_of_cosines():
    for seed in range(20):
        assert float(contrast_loss(case(seed).context(), 0.05, 0.7, 1.3)) >= 0.0
    c = case(absent=())
    scores = cosines(c.features, c.ctx["global.prototypes"]) / 0.2

    found = contrast_loss(c.context(), 0.2, 0.7, 1.0)

    expected = torch.nn.functional.cross_entropy(scores, c.y)
    assert torch.allclose(found, expected, rtol=0, atol=TINY)


def test_similarity_loss_of_equal_matrices_is_zero_and_else_has_a_gradient():
    """The only gradient runs through the batch's class means."""
    c = case(n=40, absent=())
    assert set(c.y.tolist()) == set(range(5))
    sums, counts = class_sums(c.features, c.y, 5, torch.ones(40, dtype=torch.bool))
    means = sums / counts[:, None]
    c.ctx["global.similarity"] = cosines(means, means).detach()
    bank = c.leaves["prototypes"].requires_grad_()

    equal = similarity_loss(c.context())
    c.ctx["global.similarity"] = torch.eye(5, dtype=torch.float64)
    other = similarity_loss(c.context())
    other.backward()

    assert abs(float(equal.detach())) < TINY
    assert float(other.detach()) > 0
    assert float(c.features.grad.abs().max()) > 0
    assert bank.grad is None


def test_similarity_loss_of_a_client_with_one_class_is_zero():
    c = case()
    c.leaves["counts"] = torch.tensor([4, 0, 0, 0, 0])

    value = similarity_loss(c.context())

    assert float(value.detach()) == 0.0
    assert not torch.autograd.grad(value, c.features)[0].any()


def test_ordinary_distillation_equals_a_loop_and_has_a_constant_teacher():
    c = case()
    present = [k for k in range(5) if k != 3]
    total = 0.0
    for z, o in zip(c.features, c.logits, strict=True):
        teacher = {k: exp(cos(z, c.ctx["global.prototypes"][k]) / 0.2) for k in present}
        student = {k: exp(float(o[k])) for k in present}
        teacher = {k: v / sum(teacher.values()) for k, v in teacher.items()}
        student = {k: v / sum(student.values()) for k, v in student.items()}
        total += sum(teacher[k] * log(teacher[k] / student[k]) for k in present)

    value = ordinary_distillation(c.context(), 0.2)

    assert float(value.detach()) == pytest.approx(total / len(c.y), abs=1e-11)
    assert torch.autograd.grad(value, c.features, allow_unused=True)[0] is None
