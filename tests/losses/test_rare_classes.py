"""Terms for rare classes against loops over samples in float64, identities, and their edges."""

from dataclasses import replace
from math import exp, log

import pytest
import torch

from flbench.losses import (
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    Focal,
    LabelSmoothing,
    LogitAdjustment,
)
from flbench.losses.class_counts import COUNTS
from tests.losses.support import case

TINY = 1e-12
ABSENT = ((3,), (0, 2), ())
TERMS = (
    BalancedSoftmax(),
    LogitAdjustment(tau=1.5),
    Focal(gamma=0.5),
    Focal(gamma=2.0),
    ClassBalanced(beta=0.99),
    LabelSmoothing(epsilon=0.2),
)


def samples(c):
    """Logits (a list of floats) and label of each sample."""
    return [(row.tolist(), int(y)) for row, y in zip(c.logits, c.y, strict=True)]


def counts_of(c) -> list[float]:
    """Class counts of the client, where a class without a sample counts as one."""
    return [max(1.0, float(n)) for n in c.ctx[COUNTS]]


def mean(losses) -> float:
    return sum(losses) / len(losses)


def share(logits: list[float], y: int, factors: list[float]) -> float:
    """factors[y] exp(logits[y]) over the sum of this over all classes."""
    terms = [n * exp(value) for n, value in zip(factors, logits, strict=True)]
    return terms[y] / sum(terms)


@pytest.mark.parametrize("absent", ABSENT)
def test_balanced_softmax_equals_a_loop(absent):
    c = case(absent=absent)
    loop = mean([-log(share(logits, y, counts_of(c))) for logits, y in samples(c)])

    assert float(BalancedSoftmax()(c.context())) == pytest.approx(loop, abs=TINY)


@pytest.mark.parametrize("tau", [0.5, 2.0])
@pytest.mark.parametrize("absent", ABSENT)
def test_logit_adjustment_equals_a_loop(absent, tau):
    c = case(absent=absent)
    n = counts_of(c)
    prior = [value / sum(n) for value in n]
    losses = []
    for logits, y in samples(c):
        adjusted = [f + tau * log(p) for f, p in zip(logits, prior, strict=True)]
        losses.append(-adjusted[y] + log(sum(exp(value) for value in adjusted)))

    value = float(LogitAdjustment(tau=tau)(c.context()))

    assert value == pytest.approx(mean(losses), abs=TINY)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_equals_a_loop(gamma):
    c = case()
    ones = [1.0] * c.logits.shape[1]
    p = [share(logits, y, ones) for logits, y in samples(c)]
    loop = mean([-((1 - one) ** gamma) * log(one) for one in p])

    assert float(Focal(gamma=gamma)(c.context())) == pytest.approx(loop, abs=TINY)


@pytest.mark.parametrize("beta", [0.5, 0.9999])
@pytest.mark.parametrize("absent", ABSENT)
def test_class_balanced_equals_a_loop(absent, beta):
    c = case(absent=absent)
    held = [k for k, n in enumerate(c.ctx[COUNTS].tolist()) if n > 0]
    # Cui et al.: the weight of a class is 1 / E_n, scaled so that the weights sum to their number.
    weight = [(1 - beta) / (1 - beta**n) for n in counts_of(c)]
    scale = len(held) / sum(weight[k] for k in held)
    ones = [1.0] * len(weight)
    loop = mean([-scale * weight[y] * log(share(x, y, ones)) for x, y in samples(c)])

    assert float(ClassBalanced(beta=beta)(c.context())) == pytest.approx(loop, abs=1e-11)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_label_smoothing_equals_a_loop_and_pytorch(epsilon):
    c = case()
    classes = c.logits.shape[1]
    losses = []
    for logits, y in samples(c):
        p = [share(logits, k, [1.0] * classes) for k in range(classes)]
        q = [(1 - epsilon) * (k == y) + epsilon / classes for k in range(classes)]
        losses.append(-sum(a * log(b) for a, b in zip(q, p, strict=True)))

    value = LabelSmoothing(epsilon=epsilon)(c.context())

    assert float(value) == pytest.approx(mean(losses), abs=TINY)
    torch_value = torch.nn.functional.cross_entropy(c.logits, c.y, label_smoothing=epsilon)
    assert float(value) == pytest.approx(float(torch_value), abs=TINY)


@pytest.mark.parametrize(
    "term",
    [
        LogitAdjustment(tau=0.0),
        Focal(gamma=0.0),
        ClassBalanced(beta=0.0),
        LabelSmoothing(epsilon=0.0),
    ],
    ids=lambda term: term.name,
)
def test_term_with_its_number_at_zero_is_cross_entropy(term):
    assert_same(term, CrossEntropy(), case())


@pytest.mark.parametrize(
    "term",
    [BalancedSoftmax(), LogitAdjustment(tau=2.0), ClassBalanced(beta=0.99)],
    ids=lambda term: term.name,
)
def test_term_of_a_client_with_equal_counts_is_cross_entropy(term):
    c = case(absent=())
    c.ctx[COUNTS] = torch.full_like(c.ctx[COUNTS], 17.0)

    assert_same(term, CrossEntropy(), c)


def test_balanced_softmax_is_logit_adjustment_with_tau_one():
    assert_same(BalancedSoftmax(), LogitAdjustment(tau=1.0), case())


def assert_same(one, two, c) -> None:
    """Two terms have the same value and the same gradient."""
    values = [term(c.context()) for term in (one, two)]
    gradients = [torch.autograd.grad(value, c.logits)[0] for value in values]
    assert torch.allclose(*values, rtol=0, atol=TINY)
    assert torch.allclose(*gradients, rtol=0, atol=TINY)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_term_is_finite_for_certain_predictions_right_and_wrong(term):
    """The probability of the label is exactly 1 or 0 in float32."""
    c = case()
    for sign in (1, -1):
        logits = torch.full_like(c.logits, 0.0, dtype=torch.float32)
        logits[torch.arange(len(c.y)), c.y] = sign * 1000.0
        extreme = replace(c, logits=logits.requires_grad_())

        value = term(extreme.context())

        assert value.isfinite()
        [gradient] = torch.autograd.grad(value, extreme.logits)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_term_of_a_client_without_a_sample_is_zero(term):
    """No counts, and only rows of padding: what an engine shows for a client without samples."""
    c = case(absent=(0, 1, 2, 3, 4))
    c.mask = torch.zeros(len(c.y), dtype=torch.bool)

    value = term(c.context())

    assert float(value) == 0
    [gradient] = torch.autograd.grad(value, c.logits)
    assert not gradient.any()


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_term_under_autocast_is_that_of_the_rounded_logits(term):
    """Class counts and sums keep float32, where bfloat16 rounds 300 + 1 to 300."""
    c = case()
    c.ctx[COUNTS] = c.ctx[COUNTS] * 301
    rounded = c.logits.detach().to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = term(replace(c, logits=rounded).context())
    expected = term(replace(c, logits=rounded.double()).context())

    assert float(found) == pytest.approx(float(expected), rel=1e-5)
