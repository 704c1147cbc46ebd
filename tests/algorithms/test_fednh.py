"""FedNH: a loop over its rounds, its prototypes' invariants, its scale, and what it sends."""

from math import cos, pi

import pytest
import torch

from flbench.algorithms.fednh import SMALLEST_SCALE, far_apart, keep_positive
from flbench.client.program import Phase
from flbench.core.types import Context, Message, Results, State
from flbench.testing import after
from tests.algorithms.plain import EPOCHS, FULL, ROUNDS, Plain, assert_close
from tests.support import build

C = 10


def cosine_loss(leaves, out, y):
    """-log softmax(s <z, W>)[y] in a loop over samples."""
    losses = []
    for z, label in zip(out.features, y.tolist(), strict=True):
        logits = leaves["scale"] * (leaves["W"] @ (z / z.norm().clamp_min(1e-12)))
        losses.append(logits.logsumexp(dim=0) - logits[label])
    return torch.stack(losses).mean()


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_rounds_equal_a_loop(weights):
    rho = 0.6
    built = build(
        "algorithm=fednh",
        "model.name=lenet5",
        f"algorithm.rho={rho}",
        f"algorithm.agg_weights={weights}",
        *FULL,
    )
    plain, body = Plain(built), built.algorithm.setting.net.names("backbone")
    w = {name: value for name, value in plain.start().items() if name in body}
    w |= {"scale": torch.ones((), dtype=torch.float64)}
    table = built.start().server["head.weight"].clone()
    for t in range(ROUNDS):
        sent, sums, counts = {}, torch.zeros_like(table), torch.zeros(C)
        for i in plain.cohort(t):
            leaves = {**plain.start(), **w, "W": table}
            for _ in range(EPOCHS):
                leaves = plain.step(leaves, i, {*body, "scale"}, loss=cosine_loss)
            x, y = plain.samples(i)
            features = plain.outputs(leaves, x, train=False).features
            for k in set(y.tolist()):
                mine = torch.stack([z / z.norm().clamp_min(1e-12) for z in features[y == k]])
                mean = mine.mean(dim=0)
                sums[k] += len(mine) * mean / mean.norm().clamp_min(1e-12)
                counts[k] += len(mine)
            sent[i] = {name: leaves[name] for name in w}
        w = plain.mean(sent, uniform=weights == "uniform")
        for k in range(C):
            if counts[k]:
                new = sums[k] / counts[k]
                mixed = rho * table[k] + (1 - rho) * new / new.norm()
                table[k] = mixed / mixed.norm()

    state = after(built, ROUNDS)

    assert set(state.server) == {*body, "scale", "head.weight"}
    assert_close(state.server, {**w, "head.weight": table})
    assert float(w["scale"]) != 1.0


def aggregated(built, prototypes, counts, *, steps, old):
    state = State(
        0, 1, 1, built.start().server | {"head.weight": old}, {}, torch.zeros(5), torch.zeros(5)
    )
    sent = {
        name: torch.stack([value, 3 * value])
        for name, value in state.server.items()
        if name != "head.weight"
    }
    sent |= {"prototypes": prototypes, "counts": counts}
    ids = torch.arange(2)
    results = Results(ids, torch.tensor(steps), torch.zeros(2), {}, Message(sent), {})
    return built.algorithm.aggregate(state, results).server


@pytest.fixture(scope="module")
def built():
    return build("algorithm=fednh", "algorithm.rho=0.5")


@pytest.mark.parametrize("rho", [0.5, 0.0])
def test_class_without_holder_and_one_that_cancels_stay(rho):
    """Their new prototype would be a row of zeros, which has no direction."""
    built = build("algorithm=fednh", f"algorithm.rho={rho}", "engine.precision=64-true")
    old = far_apart(C, 64, seed=1)
    other = far_apart(C, 64, seed=2)
    prototypes = torch.stack([other, -other])
    counts = torch.zeros(2, C, dtype=torch.int32)
    counts[:, 2] = 3  # two clients that cancel
    counts[0, 3], counts[1, 3] = 9, 1
    prototypes[0, 4], counts[0, 4] = -old[4], 5  # the opposite of what the server has

    table = aggregated(built, prototypes, counts, steps=[1, 1], old=old)["head.weight"]

    unheld = (counts == 0).all(dim=0)
    assert torch.equal(table[unheld], old[unheld])
    assert torch.allclose(table[2], old[2], rtol=0, atol=1e-6)
    expected = torch.nn.functional.normalize(rho * old[3] + (1 - rho) * other[3], dim=0)
    assert torch.allclose(table[3], expected, rtol=0, atol=1e-6)
    assert torch.allclose(table[4], old[4] if rho else -old[4], rtol=0, atol=1e-6)


def test_scale_that_would_turn_negative_stays_at_its_least():
    built = build("algorithm=fednh")
    [phase] = [s for s in built.algorithm.program(built.start()).steps if isinstance(s, Phase)]
    assert phase.project is keep_positive
    context = Context(leaves={}, start={}, ctx={}, trained={"scale": torch.tensor(-2.0)})
    assert float(keep_positive(context)["scale"]) == pytest.approx(SMALLEST_SCALE)


@pytest.mark.slow
def test_fixed_scale_neither_moves_nor_travels():
    keys = ("algorithm=fednh", "algorithm.learn_scale=false", "algorithm.scale=30")
    built = build(*keys)
    state = after(built, 2)

    assert float(state.server["scale"]) == 30.0
    assert "scale" not in built.algorithm.program(state).sends
    assert state.clients["scale"].tolist() == [30.0] * 5


# Directions that are far apart


def nearest(rows: torch.Tensor) -> float:
    """The largest cosine of two rows."""
    return float((rows @ rows.T).fill_diagonal_(-1.0).max())


def test_rows_in_enough_dimensions_are_orthonormal():
    rows = far_apart(10, 64, seed=0)

    assert torch.allclose(rows @ rows.T, torch.eye(10).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("count", "width", "best"),
    [(3, 2, -1 / 2), (4, 3, -1 / 3), (6, 3, 0.0), (10, 2, cos(2 * pi / 10))],
)
def test_rows_in_fewer_dimensions_are_as_far_apart_as_possible(count, width, best):
    """Triangle, tetrahedron, octahedron, and the corners of a decagon."""
    rows = far_apart(count, width, seed=0)

    assert nearest(rows) == pytest.approx(best, abs=0.01)
    assert torch.allclose(rows.norm(dim=1), torch.ones(count).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [8, 3])
def test_rows_follow_from_the_seed_alone(width):
    torch.manual_seed(5)
    first = far_apart(4, width, seed=0)
    torch.manual_seed(6)

    assert torch.equal(first, far_apart(4, width, seed=0))
    assert not torch.allclose(first, far_apart(4, width, seed=1))
