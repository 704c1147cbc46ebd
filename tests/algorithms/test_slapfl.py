"""SLAPFL against loops over its equations, its readings."""

import pytest
import torch

from flbench.core.types import Message, Results
from flbench.testing import after, played
from tests.support import build

KEYS = ("algorithm=slapfl", "model.name=lenet5", "engine.precision=64-true")
SHARED = ("backbone.conv1", "backbone.norm1", "backbone.conv2", "backbone.norm2")
LINEAR = ("backbone.fc1", "backbone.fc2")
STATISTICS = ("running_mean", "running_var")


def slow(uploads, sizes, layers, *, statistics=STATISTICS):
    """Compute eq. 2 and 3 by loops over clients and layers; all clients took a step."""
    clients = len(sizes)

    def vector(i, names):
        parts = [uploads[f"{n}.{kind}"][i] for n in names for kind in ("weight", "bias")]
        return torch.cat([part.reshape(-1) for part in parts]).double()

    mixed, rows = {}, {}
    for layer in layers:
        names = (layer,)
        for i in range(clients):
            s = []
            for j in range(clients):
                a, b = vector(i, names), vector(j, names)
                norms = float(a.norm() * b.norm())
                s.append(1.0 if i == j else float(a @ b) / norms if norms > 0 else 0.0)
            score = [max(x, 0.0) for x in s]
            score = [x * float(n) for x, n in zip(score, sizes, strict=True)]
            rows[layer, i] = [x / sum(score) for x in score]
            for leaf, values in uploads.items():
                kinds = ("weight", "bias", *statistics)
                if leaf.rsplit(".", 1)[0] == layer and leaf.rsplit(".", 1)[1] in kinds:
                    total = sum(a * v for a, v in zip(rows[layer, i], values, strict=True))
                    mixed[leaf, i] = total
    return mixed, rows


OPTIONS = {
    "literal": ((), {}),
    "last_only": (("last_only=true",), {"layers": (*SHARED, *LINEAR)}),
    "samples": (("agg_weights=samples",), {"sized": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_second_round_equals_a_loop_over_the_equations(option):
    keys, how = OPTIONS[option]
    built = build(*KEYS, *(f"algorithm.{key}" for key in keys))
    state = after(built, 1)

    state, results = played(built, state)

    uploads = results.sent.values
    sizes = built.federation.sizes if how.get("sized") else torch.ones(5)
    layers = how.get("layers", SHARED)
    expected, _ = slow(uploads, sizes.tolist(), layers)
    assert {name.rsplit(".", 1)[0] for name, _ in expected} == set(layers)
    for (name, i), value in expected.items():
        assert torch.allclose(state.clients[name][i], value, rtol=0, atol=1e-10), name
    moved = {name for name, _ in expected}
    for name, value in results.kept.items():
        assert name not in moved
        assert torch.equal(state.clients[name], value), name


def method(*overrides: str):
    return build(*KEYS, *overrides).algorithm


def results_of(steps) -> Results:
    clients = len(steps)
    return Results(
        torch.arange(clients), torch.tensor(steps), torch.zeros(clients), {}, Message(), {}
    )


def test_negative_and_zero_cosines_leave_a_client_to_itself():
    cosine = torch.tensor([[1.0, -0.5, 0.0], [-0.5, 1.0, 0.5], [0.0, 0.5, 1.0]]).double()

    shares = method().shares(cosine, results_of([1, 1, 1]))

    expected = torch.tensor([[3, 0, 0], [0, 2, 1], [0, 1, 2]]).double() / 3
    assert torch.allclose(shares, expected, rtol=0, atol=1e-12)
    without = method().shares(cosine, results_of([1, 1, 0]))  # no step: in no other mixture
    assert without.tolist() == [[1, 0, 0], [0, 1, 0], expected[2].tolist()]


@pytest.mark.slow
def test_client_whose_layer_is_zero_keeps_it_and_changes_no_other():
    built = build(*KEYS)
    state = after(built, 1)
    rows = {name: value.clone() for name, value in state.clients.items()}
    layer = ("backbone.conv1.weight", "backbone.conv1.bias")
    for name in rows:
        rows[name] += torch.rand_like(rows[name]) if rows[name].is_floating_point() else 0
    for name in layer:
        rows[name][2] = 0

    mixed = built.algorithm.aggregate(state, with_uploads(rows)).reply.values
    without = {name: value[[0, 1, 3, 4]] for name, value in rows.items()}
    rest = built.algorithm.aggregate(state, with_uploads(without)).reply.values

    for name in layer:
        assert (mixed[name][2] == 0).all()
        assert torch.allclose(mixed[name][[0, 1, 3, 4]], rest[name], rtol=0, atol=1e-12)


def with_uploads(rows) -> Results:
    clients = len(next(iter(rows.values())))
    steps = torch.ones(clients, dtype=torch.int64)
    return Results(torch.arange(clients), steps, torch.zeros(clients), {}, Message(rows), {})


def test_absent_clients_keep_their_mixture_and_only_the_rounds_clients_are_mixed():
    built = build(*KEYS, "train.participation=0.6")
    state = after(built, 1)
    before = {name: value.clone() for name, value in state.clients.items()}
    ids = torch.tensor([0, 3])

    state, results = played(built, state, ids)

    expected, _ = slow(results.sent.values, [1.0, 1.0], SHARED)
    for (name, k), value in expected.items():
        assert torch.allclose(state.clients[name][ids[k]], value, rtol=0, atol=1e-10), name
    for name, value in state.clients.items():
        assert torch.equal(value[[1, 2, 4]], before[name][[1, 2, 4]])
