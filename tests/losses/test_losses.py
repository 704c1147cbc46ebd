"""Every term against a loop over samples in float64, its edges, and vmap of its gradient."""

from dataclasses import dataclass
from math import exp, log, sqrt

import pytest
import torch

from flbench.algorithms.fednh import by_cosine
from flbench.algorithms.fedpc import class_pull
from flbench.algorithms.hfcd import contrast_loss, ordinary_distillation, similarity_loss
from flbench.client.program import Term, bind
from flbench.losses import (
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    Focal,
    LabelSmoothing,
    Linear,
    LogitAdjustment,
    PrototypeL2,
    Proximal,
)
from flbench.losses.cross_entropy import ScoresCrossEntropy
from tests.losses.support import TINY, assert_vmap_safe, case


def scaled(context):
    return context.out.logits * context.leaves["scale"]


TERMS = {
    "cross_entropy": CrossEntropy(),
    "cosine_cross_entropy": ScoresCrossEntropy(scores=by_cosine),
    "scores_cross_entropy": ScoresCrossEntropy(scores=scaled),
    "prototype_l2": PrototypeL2(),
    "fedpc_pull": Term(1.0, bind(class_pull, False)),
    "fedpc_pull_mse": Term(1.0, bind(class_pull, True)),
    "hfcd_contrast": Term(1.0, bind(contrast_loss, 0.2, 0.1, 1.3)),
    "hfcd_similarity": Term(1.0, similarity_loss),
    "hfcd_ordinary": Term(1.0, bind(ordinary_distillation, 0.2)),
    "proximal": Proximal(("w",)),
    "linear": Linear(("w",), "c."),
    "balanced_softmax": BalancedSoftmax(),
    "logit_adjustment": LogitAdjustment(tau=0.7),
    "focal": Focal(gamma=2.0),
    "focal_below_one": Focal(gamma=0.5),
    "class_balanced": ClassBalanced(beta=0.9),
    "label_smoothing": LabelSmoothing(epsilon=0.1),
}


@dataclass(frozen=True)
class OfOtherLogits(CrossEntropy):
    def outputs(self, context):
        return context.out._replace(logits=scaled(context))


@pytest.mark.parametrize("term", [OfOtherLogits(), ScoresCrossEntropy(scores=scaled)])
def test_cross_entropy_is_that_of_the_outputs_of_a_subclass(term):
    c = case()

    found = term(c.context())

    expected = torch.nn.functional.cross_entropy(c.logits * 2.5, c.y)
    assert torch.allclose(found, expected, rtol=0, atol=TINY)


@pytest.mark.parametrize("name", TERMS)
def test_term_is_vmap_safe(name):
    assert_vmap_safe(TERMS[name])


@pytest.mark.parametrize("name", ["prototype_l2", "fedpc_pull", "hfcd_contrast"])
def test_term_without_any_prototype_is_zero_with_zero_gradient(name):
    c = case(absent=(0, 1, 2, 3, 4))

    value = TERMS[name](c.context())

    assert float(value) == 0.0
    for gradient in torch.autograd.grad(value, [c.features, c.logits], allow_unused=True):
        assert gradient is None or float(gradient.abs().max()) == 0.0


@pytest.mark.parametrize("name", ["prototype_l2", "fedpc_pull", "hfcd_contrast"])
def test_term_with_zero_features_is_finite(name):
    c = case()
    c.features = torch.zeros_like(c.features).requires_grad_()

    value = TERMS[name](c.context())

    assert value.isfinite()
    for gradient in torch.autograd.grad(value, [c.features, c.logits], allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@pytest.mark.parametrize("name", TERMS)
def test_padded_rows_change_neither_value_nor_gradient(name):
    c, padded = case(), case()
    n = len(c.y)
    more = torch.Generator().manual_seed(1)
    for key in ("features", "logits"):
        rows = getattr(c, key).detach()
        noise = torch.randn(5, rows.shape[1], generator=more, dtype=rows.dtype)
        setattr(padded, key, torch.cat([rows, noise]).requires_grad_())
    padded.y = torch.cat([c.y, torch.tensor([0, 1, 2, 3, 4])])
    padded.mask = torch.arange(n + 5) < n

    value, other = TERMS[name](c.context()), TERMS[name](padded.context())

    assert torch.allclose(value, other, rtol=0, atol=1e-12)
    for key in ("features", "logits"):
        one, two = (
            torch.autograd.grad(v, getattr(x, key), retain_graph=True, allow_unused=True)[0]
            for v, x in ((value, c), (other, padded))
        )
        if one is not None:
            assert torch.allclose(one, two[:n], rtol=0, atol=1e-12)
            assert not two[n:].any()


def cos(a, b) -> float:
    dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    norms = sqrt(sum(float(x) ** 2 for x in a)) * sqrt(sum(float(y) ** 2 for y in b))
    return dot / max(norms, 1e-12)


def test_cross_entropy_equals_a_loop():
    c = case()
    losses = [
        -float(row[label]) + log(sum(exp(float(v)) for v in row))
        for row, label in zip(c.logits, c.y, strict=True)
    ]

    assert float(CrossEntropy()(c.context())) == pytest.approx(sum(losses) / len(losses), abs=TINY)


def test_cosine_cross_entropy_equals_a_loop_and_a_zero_feature_has_equal_logits():
    c = case()
    table = c.leaves["head.weight"]
    c.features = (c.features.detach() * (torch.arange(len(c.y)) > 0)[:, None]).requires_grad_()
    losses = []
    for z, label in zip(c.features, c.y.tolist(), strict=True):
        logits = [2.5 * cos(z, row) for row in table]
        losses.append(log(sum(exp(value) for value in logits)) - logits[label])

    value = TERMS["cosine_cross_entropy"](c.context())
    value.backward()

    assert losses[0] == pytest.approx(log(5), abs=TINY)
    assert float(value) == pytest.approx(sum(losses) / len(losses), abs=TINY)
    assert c.features.grad.isfinite().all()


def test_prototype_l2_equals_a_loop():
    c = case()
    table, present = c.ctx["global.prototypes"], c.ctx["global.present"]
    losses = [
        sum((float(a) - float(b)) ** 2 for a, b in zip(z, table[k], strict=True)) / len(z)
        for z, k in zip(c.features, c.y.tolist(), strict=True)
        if present[k]
    ]

    assert len(losses) < len(c.y)
    assert float(PrototypeL2()(c.context())) == pytest.approx(sum(losses) / len(losses), abs=TINY)


@pytest.mark.parametrize("anchor", ["start", "now"])
def test_proximal_of_a_second_model_pulls_it_towards_the_first_and_leaves_that_alone(anchor):
    c = case()
    second = c.leaves["v.w"] = c.leaves["c.w"].clone().requires_grad_()
    first = c.start["w"] if anchor == "start" else c.leaves["w"]

    value = Proximal(("w",), prefix="v.", anchor=anchor)(c.context())

    expected = sum(float(x) ** 2 for x in (second - first).flatten()) / 2
    assert float(value) == pytest.approx(expected, abs=TINY)
    [gradient] = torch.autograd.grad(value, second)
    assert torch.equal(gradient, second - first)


def test_linear_gradient_is_its_constant_from_leaves_or_ctx():
    c = case()
    c.ctx["s.w"] = torch.full((3, 2), 2.5, dtype=torch.float64)

    for prefix, expected in (("c.", c.leaves["c.w"]), ("s.", c.ctx["s.w"])):
        [gradient] = torch.autograd.grad(Linear(("w",), prefix)(c.context()), c.leaves["w"])
        assert torch.equal(gradient, expected)
