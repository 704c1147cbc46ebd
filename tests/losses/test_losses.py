"""Every term against a loop over samples in float64, its edges, and vmap of its gradient."""

from dataclasses import dataclass
from math import exp, log, sqrt

import pytest
import torch

from flbench.losses import (
    BalancedSoftmax,
    ClassBalanced,
    ClassPull,
    CosineCrossEntropy,
    CrossEntropy,
    Focal,
    LabelSmoothing,
    Linear,
    LogitAdjustment,
    PrototypeContrast,
    PrototypeDistillation,
    PrototypeL2,
    Proximal,
    SemanticKL,
)
from flbench.losses.cross_entropy import ScoresCrossEntropy
from flbench.losses.similarity import class_sums, cosines
from tests.losses.support import TINY, assert_vmap_safe, case


def scaled(context):
    return context.out.logits * context.leaves["scale"]


FORMS = ("class_mean", "mse")
TERMS = {
    "cross_entropy": CrossEntropy(),
    **{f"prototype_class_pull_{form}": ClassPull(form=form) for form in FORMS},
    "cosine_cross_entropy": CosineCrossEntropy(directions="prototypes"),
    "scores_cross_entropy": ScoresCrossEntropy(scores=scaled),
    "prototype_l2": PrototypeL2(),
    "prototype_contrast": PrototypeContrast(threshold=0.1),
    "prototype_contrast_top": PrototypeContrast(top=2),
    "prototype_contrast_no_pos": PrototypeContrast(threshold=0.1, positive=False),
    "semantic_kl": SemanticKL(),
    "semantic_kl_options": SemanticKL(
        temperature=0.1, diagonal=False, reverse=True, reduction="sum"
    ),
    "prototype_distillation": PrototypeDistillation(),
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


@pytest.mark.parametrize("name", [name for name in TERMS if "proto" in name or "semantic" in name])
def test_term_without_any_prototype_is_zero_with_zero_gradient(name):
    c = case(absent=(0, 1, 2, 3, 4))

    value = TERMS[name](c.context())

    assert float(value) == 0.0
    for gradient in torch.autograd.grad(value, [c.features, c.logits], allow_unused=True):
        assert gradient is None or float(gradient.abs().max()) == 0.0


@pytest.mark.parametrize("name", [name for name in TERMS if "proto" in name or "semantic" in name])
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
    table = c.leaves["prototypes"]
    c.features = (c.features.detach() * (torch.arange(len(c.y)) > 0)[:, None]).requires_grad_()
    losses = []
    for z, label in zip(c.features, c.y.tolist(), strict=True):
        logits = [2.5 * cos(z, row) for row in table]
        losses.append(log(sum(exp(value) for value in logits)) - logits[label])

    value = CosineCrossEntropy(directions="prototypes")(c.context())
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


@pytest.mark.parametrize("form", FORMS)
def test_class_pull_equals_a_loop_over_classes(form):
    """One class of the batch has no prototype, one class with a prototype is not in the batch."""
    c = case(n=9)
    c.y = torch.tensor([0, 0, 0, 3, 3, 1, 1, 4, 0])
    table, present = c.ctx["global.prototypes"].tolist(), c.ctx["global.present"].tolist()
    total = 0.0

    def distance(z: list[float], k: int) -> float:
        return sqrt(sum((a - b) ** 2 for a, b in zip(z, table[k], strict=True)) + 1e-12)

    for k in sorted(set(c.y.tolist())):
        if not present[k]:
            continue
        mine = [z.tolist() for z, y in zip(c.features, c.y.tolist(), strict=True) if y == k]
        mean = [sum(column) / len(mine) for column in zip(*mine, strict=True)]
        if form == "class_mean":
            total += distance(mean, k)
        else:
            total += sum((a - b) ** 2 for a, b in zip(mean, table[k], strict=True)) / len(mean)

    assert total > 0.5
    assert float(ClassPull(form=form)(c.context())) == pytest.approx(total, abs=TINY)


def test_class_pull_pulls_class_means_and_not_their_samples():
    """Samples around their prototype: the mean lies on it, and there the gradient is finite."""
    c = case(n=4, absent=())
    around = torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0], [0, 2, 0, 0], [0, -2, 0, 0]]).double()
    c.y = torch.tensor([2, 2, 2, 2])
    c.features = (c.ctx["global.prototypes"][2] + around).requires_grad_()

    means = ClassPull()(c.context())

    assert float(means) == pytest.approx(1e-6)  # sqrt(0 + 1e-12)
    assert torch.autograd.grad(means, c.features)[0].abs().max() < 1e-6


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("top", [None, 1, 2])
def test_prototype_contrast_equals_a_loop(positive, top):
    tau, alpha, gamma = 0.5, 0.1, 1.7
    c = case()
    table, present, similar = (
        c.ctx[f"global.{key}"] for key in ("prototypes", "present", "similarity")
    )
    classes = [k for k in range(5) if present[k]]
    losses = []
    for z, y in zip(c.features, c.y.tolist(), strict=True):
        if not present[y]:
            continue
        e = {k: exp(cos(z, table[k]) / tau) for k in classes}
        others = [k for k in classes if k != y]
        hard = [k for k in others if float(similar[y, k]) > alpha]
        if top is not None:
            hard = sorted(others, key=lambda k, y=y: -float(similar[y, k]))[:top]
        below = (e[y] if positive else 0.0) + sum(
            gamma * e[k] if k in hard else e[k] for k in others
        )
        losses.append(-log(e[y] / below))

    term = PrototypeContrast(1.0, tau, alpha, gamma, top, positive)

    assert float(term(c.context())) == pytest.approx(sum(losses) / len(losses), abs=1e-11)


def test_prototype_contrast_with_the_positive_pair_is_never_negative():
    for seed in range(20):
        assert float(PrototypeContrast(temperature=0.05)(case(seed).context())) >= 0.0


def test_prototype_contrast_without_hard_weight_is_cross_entropy_of_cosines():
    c = case(absent=())
    scores = cosines(c.features, c.ctx["global.prototypes"]) / 0.2

    term = PrototypeContrast(temperature=0.2, gamma=1.0)

    assert torch.allclose(
        term(c.context()), torch.nn.functional.cross_entropy(scores, c.y), rtol=0, atol=TINY
    )


def test_hard_negatives_are_symmetric_present_and_never_the_class_itself():
    c = case()

    term = PrototypeContrast(threshold=-1.0)
    hard = term.hard_negatives(c.ctx["global.similarity"], c.ctx["global.present"])

    assert not hard.diagonal().any()
    assert not hard[:, 3].any()
    assert hard[0, [1, 2, 4]].all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_semantic_kl_equals_a_loop(reverse, diagonal, reduction):
    temperature = 0.3
    c = case(n=4)
    bank, y = c.leaves["prototypes"], c.y.tolist()
    inside = [k for k in range(5) if k != 3]
    means = {
        k: [
            sum(float(c.features[j, d]) for j in range(len(y)) if y[j] == k) / y.count(k)
            if k in y
            else float(bank[k, d])
            for d in range(4)
        ]
        for k in inside
    }

    def softmax(row: dict[int, float]) -> dict[int, float]:
        total = sum(exp(v / temperature) for v in row.values())
        return {k: exp(v / temperature) / total for k, v in row.items()}

    total = 0.0
    for p in inside:
        columns = [q for q in inside if diagonal or q != p]
        pg = softmax({q: float(c.ctx["global.similarity"][p, q]) for q in columns})
        pl = softmax({q: cos(means[p], means[q]) for q in columns})
        first, second = (pl, pg) if reverse else (pg, pl)
        total += sum(first[q] * log(first[q] / second[q]) for q in columns)
    expected = total / len(inside) if reduction == "mean" else total

    term = SemanticKL(1.0, temperature, diagonal, reverse, reduction)

    assert float(term(c.context())) == pytest.approx(expected, abs=1e-11)


def test_semantic_kl_of_equal_matrices_is_zero_and_else_has_a_gradient():
    """The only gradient runs through the batch's class means."""
    c = case(n=40, absent=())
    assert set(c.y.tolist()) == set(range(5))
    sums, counts = class_sums(c.features, c.y, 5, torch.ones(40, dtype=torch.bool))
    means = sums / counts[:, None]
    c.ctx["global.similarity"] = cosines(means, means).detach()

    equal = SemanticKL()(c.context())
    c.ctx["global.similarity"] = torch.eye(5, dtype=torch.float64)
    other = SemanticKL()(c.context())

    assert abs(float(equal)) < TINY
    assert float(other) > 0
    assert float(torch.autograd.grad(other, c.features)[0].abs().max()) > 0


def test_semantic_kl_of_a_client_with_one_class_is_zero():
    c = case()
    c.leaves["counts"] = torch.tensor([4, 0, 0, 0, 0])

    assert float(SemanticKL()(c.context())) == 0.0


def test_prototype_distillation_equals_a_loop():
    c = case()
    present = [k for k in range(5) if k != 3]
    total = 0.0
    for z, o in zip(c.features, c.logits, strict=True):
        teacher = {k: exp(cos(z, c.ctx["global.prototypes"][k]) / 0.2) for k in present}
        student = {k: exp(float(o[k])) for k in present}
        teacher = {k: v / sum(teacher.values()) for k, v in teacher.items()}
        student = {k: v / sum(student.values()) for k, v in student.items()}
        total += sum(teacher[k] * log(teacher[k] / student[k]) for k in present)

    assert float(PrototypeDistillation()(c.context())) == pytest.approx(total / len(c.y), abs=1e-11)


def test_prototype_distillation_has_no_gradient_through_its_teacher():
    c = case()

    value = PrototypeDistillation()(c.context())

    assert torch.autograd.grad(value, c.features, allow_unused=True)[0] is None


def test_proximal_gradient_is_the_way_from_the_start():
    c = case()

    [gradient] = torch.autograd.grad(Proximal(("w",))(c.context()), c.leaves["w"])

    assert torch.equal(gradient, (c.leaves["w"] - c.start["w"]).detach())


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: PrototypeContrast(temperature=0.0),
        lambda: PrototypeContrast(gamma=0.0),
        lambda: SemanticKL(temperature=-1.0),
        lambda: PrototypeDistillation(temperature=0.0),
    ],
)
def test_terms_refuse_numbers_without_a_meaning(make):
    with pytest.raises(ValueError, match="must be > 0"):
        make()


def test_class_sums_leave_out_masked_rows():
    sums, counts = class_sums(
        torch.ones(3, 2), torch.tensor([0, 0, 1]), 2, torch.tensor([True, False, True])
    )

    assert counts.tolist() == [1, 1]
    assert sums.tolist() == [[1, 1], [1, 1]]


def test_semantic_kl_has_no_gradient_through_the_clients_bank():
    c = case()
    bank = c.leaves["prototypes"].requires_grad_()

    SemanticKL(weight=1.0)(c.context()).backward()

    assert bank.grad is None
    assert c.features.grad.abs().sum() > 0
