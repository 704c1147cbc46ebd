import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.algorithms.shared.prototypes import NearestPrototype
from flbench.core.types import Message, Results, State
from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.plain import EPOCHS, FULL, ROUNDS, Plain, assert_close
from tests.losses.support import case
from tests.support import build


def method(*overrides: str):
    return build("algorithm=fedproto", *overrides).algorithm


def aggregated(algorithm, counts, rows, steps=(1, 1)):
    server = {
        "global.prototypes": torch.full((3, 2), 9.0),
        "global.present": torch.tensor([False, False, True]),
    }
    state = State(0, 1, 1, server, {}, torch.zeros(5), torch.zeros(5))
    sent = Message({"prototypes": rows, "counts": counts})
    results = Results(torch.arange(2), torch.tensor(steps), torch.zeros(2), {}, sent, {})
    return algorithm.aggregate(state, results).server


COUNTS = torch.tensor([[1, 0, 0], [3, 2, 0]], dtype=torch.int32)
ROWS = torch.tensor([[[4.0, 0], [0, 0], [0, 0]], [[0, 8.0], [5.0, 5], [0, 0]]])


def test_prototype_weighted_by_counts():
    server = aggregated(method("algorithm.agg_weights=samples"), COUNTS, ROWS)

    assert server["global.prototypes"][0].tolist() == [1, 6]


def test_nearest_prototype_never_chooses_an_absent_class():
    """Class 3 has a zero row in the table and is nearest to zero features."""
    c = case()
    c.features = torch.zeros_like(c.features)

    scores = NearestPrototype(own=False)(c.context())

    assert not (scores.argmax(dim=1) == 3).any()
    distances = (c.features[:, None] - c.ctx["global.prototypes"][None]).norm(dim=2)
    distances[:, 3] = torch.inf
    assert torch.equal(scores.argmax(dim=1), distances.argmin(dim=1))


def test_nearest_prototype_among_own_classes_only():
    c = case()
    c.leaves["counts"] = torch.tensor([0, 3, 0, 0, 3])

    assert set(NearestPrototype(own=True)(c.context()).argmax(dim=1).tolist()) <= {1, 4}


def test_classifier_decides_while_there_is_no_prototype():
    c = case(absent=(0, 1, 2, 3, 4))

    assert torch.equal(NearestPrototype(own=False)(c.context()), c.logits)


@pytest.mark.slow
def test_prototypes_and_predictions_of_each_rule_equal_a_loop():
    """In float64: the table of the last round, and every client's test predictions."""
    lam = 0.7
    keys = (
        "algorithm=fedproto",
        f"algorithm.lam={lam}",
        "model.name=lenet5",
        "partition.alpha=0.1",
        "partition.samples=null",
    )
    built = build(*keys, *FULL)
    plain, names = Plain(built), built.algorithm.setting.net.parameters
    w = [plain.start() for _ in range(5)]
    table: dict[int, torch.Tensor] = {}

    def loss(leaves, out, y):
        """The mean over the samples with a prototype; the authors' code divides by all samples."""
        known = [(z, int(k)) for z, k in zip(out.features, y, strict=True) if int(k) in table]
        total = cross_entropy(out.logits, y)
        if known:
            far = [((z - table[k]) ** 2).mean() for z, k in known]
            total = total + lam * sum(far) / len(far)
        return total

    held = [set(plain.samples(i)[1].tolist()) for i in range(5)]
    for t in range(ROUNDS):
        sent: dict[int, list[torch.Tensor]] = {}
        for i in plain.cohort(t):
            for _ in range(EPOCHS):
                w[i] = plain.step(w[i], i, names, loss=loss)
            x, y = plain.samples(i)
            z = plain.outputs(w[i], x, train=False).features.detach()
            for k in held[i]:
                sent.setdefault(k, []).append(z[y == k].mean(dim=0))
        table |= {k: torch.stack(rows).mean(dim=0) for k, rows in sent.items()}

    state = after(built, ROUNDS)
    settings = settings_of(built.algorithm, state)
    counts = built.evaluator(print).evaluate(state, settings, common=False).local

    found = {k: state.server["global.prototypes"][k] for k in table}
    assert_close(found, table, tiny=1e-12)
    assert sorted(table) == state.server["global.present"].nonzero()[:, 0].tolist()
    seen = set()
    for rule, protocol in (("proto", "personal"), ("proto_own", "proto_own"), ("head", "head")):
        expected = torch.zeros(10, 10, dtype=torch.int64)
        for i in range(5):
            rows = plain.federation.partition.parts["test"][i]
            out = plain.outputs(w[i], plain.federation.inputs(rows, torch.float64), train=False)
            labels = plain.federation.y[torch.from_numpy(rows)]
            for z, logits, y in zip(out.features, out.logits, labels, strict=True):
                allowed = [k for k in table if rule == "proto" or k in held[i]]
                chosen = min(allowed, key=lambda k, z=z: float((z - table[k]).norm()))
                expected[int(y), int(logits.argmax()) if rule == "head" else chosen] += 1
        assert torch.equal(counts[protocol, "test"].confusion, expected), rule
        seen.add(tuple(expected.flatten().tolist()))
    assert len(seen) == 3  # the rules differ on these samples
