"""kNN-Per: FedAvg's training, a plain loop of the prediction, special neighbours."""

from math import exp

import pytest
import torch

from flbench.algorithms import Batch, Context, Outputs, Statistic
from flbench.algorithms.knnper import Mixture, best_share
from flbench.core.types import Samples
from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.loops import CLASSES, KEYS, WIDTH, Clients, assert_equal, net
from tests.support import build


def slow_probabilities(w, x, store, keys):
    """(p_k, softmax) of each query, by sorting all samples of the datastore."""
    z, logits = net(w, x)
    for query, row in zip(z, logits, strict=True):
        near = []
        for number, (key, label) in enumerate(store):
            square = float(((query - key) ** 2).sum())
            near.append((square / WIDTH, number, label))
        near = sorted(near)[: keys["neighbours"]]
        weights = [exp((near[0][0] - far) / keys["sigma"]) for far, _, _ in near]
        votes = [0.0] * CLASSES
        for weight, (_, _, label) in zip(weights, near, strict=True):
            votes[label] += weight / sum(weights)
        grown = row.exp()
        yield torch.tensor(votes, dtype=torch.float64), grown / grown.sum()


def slow_share(pairs, labels):
    """The best multiple of 0.1 on the validation part."""
    correct = {}
    for step in range(11):
        mixed = [step / 10 * votes + (1 - step / 10) * soft for votes, soft in pairs]
        hits = [int(p.argmax()) == label for p, label in zip(mixed, labels, strict=True)]
        correct[step / 10] = sum(hits)
    best = [share for share, hits in correct.items() if hits == max(correct.values())]
    return min(best, key=lambda share: (round(abs(share - 0.5), 9), share)) if labels else 0.5


class Scores:
    """Function of a Statistic: the scores of a deployment."""

    def __init__(self, predict):
        self.predict = predict

    def __call__(self, context):
        return {"scores": torch.where(context.batch.mask[:, None], self.predict(context), 0.0)}


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    "keys", [{}, {"neighbours": 1, "sigma": 0.02}, {"neighbours": 1000}], ids=str
)
def test_probabilities_equal_a_loop(keys, engine):
    """Of all clients after three rounds, also of those that never took part."""
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    built = build(*KEYS, "algorithm=knnper", f"engine.name={engine}", *overrides)
    clients, state = Clients(built), after(built, 3)
    keys = {"neighbours": 10, "sigma": 1.0} | keys
    settings = settings_of(built.algorithm, state)
    ids = torch.arange(len(clients))
    deployment = built.algorithm.deploy(state, ids)["personal"]
    scores = Statistic("s", Scores(deployment.predict), reduce="rows", samples=Samples("test"))
    evaluator = built.evaluator(print)
    model = next(evaluator.models(state, settings))
    found = [
        evaluator.run(model, ids[i : i + 1], (scores,)).observed["s.scores"][0]
        for i in range(len(clients))
    ]

    federation, shares = built.federation, set()
    data, parts = federation.to(torch.device("cpu"), torch.float64), federation.partition.parts

    def part(name, i):
        rows = parts[name][i]
        x = data.inputs(rows, torch.float64).flatten(1)
        return x, data.y[torch.from_numpy(rows)].tolist()

    for i in range(len(clients)):
        store = list(zip(net(state.server, clients.x[i])[0], clients.y[i], strict=True))
        x, labels = part("validation", i)
        pairs = list(slow_probabilities(state.server, x, store, keys))
        share = slow_share(pairs, labels)
        shares.add(share)
        pairs = slow_probabilities(state.server, part("test", i)[0], store, keys)
        expected = torch.stack([share * votes + (1 - share) * soft for votes, soft in pairs])
        assert_equal(found[i], expected, i)
    assert len(shares) > 1 or keys["sigma"] == 1.0


def test_three_models_are_reported():
    built = build(*KEYS, "algorithm=knnper")

    models = built.algorithm.deploy(built.start(), torch.arange(5))
    assert models.keys() >= {"personal", "knn", "noknn"}


def predicted(queries, keys, labels, *, share, neighbours=1, sigma=1.0, real=None):
    """Probabilities for queries on a datastore; the net's logits favour class 0 a little."""
    queries, keys = torch.tensor(queries).double(), torch.tensor(keys).double()
    logits = torch.zeros(len(queries), 3).double()
    logits[:, 0] = 0.1
    real = torch.ones(len(keys)).double() if real is None else torch.tensor(real).double()
    mask = torch.ones(len(queries), dtype=torch.bool)
    context = Context(
        lambda: Outputs(queries, logits),
        batch=Batch(queries, mask.long(), mask, mask.long(), mask.sum()),
        ctx={"store.z": keys, "store.y": torch.tensor(labels).double(), "store.real": real},
        leaves={"knn_share": torch.tensor(share)},
        start={},
        apply=None,
    )
    return Mixture(neighbours, sigma)(context), logits.softmax(dim=1)


def test_special_neighbours():
    keys, labels = [[0.0, 0], [3, 0], [0, 4], [0, 5]], [1, 2, 0, 0]
    own, soft = predicted(keys, keys, labels, share=1.0)  # each sample finds itself
    assert own.argmax(dim=1).tolist() == labels

    none, soft = predicted(keys, keys, labels, share=0.0)
    assert torch.equal(none, soft)

    votes, _ = predicted([[9.0, 9]], keys, labels, share=1.0, neighbours=9, sigma=1e12)
    assert votes[0].tolist() == pytest.approx([0.5, 0.25, 0.25])  # a majority

    order = [2, 0, 3, 1]
    one, _ = predicted([[1.0, 2]], keys, labels, share=0.6, neighbours=3)
    two, _ = predicted(
        [[1.0, 2]], [keys[j] for j in order], [labels[j] for j in order], share=0.6, neighbours=3
    )
    assert torch.allclose(one, two, rtol=0, atol=1e-15)

    far, _ = predicted([[1e6, 0.0]], keys, labels, share=1.0, neighbours=4)
    assert float(far.sum()) == pytest.approx(1)  # exp(-d) alone would be 0 / 0

    # Of neighbours at the same distance but for rounding, the first ones in the store vote.
    near = [[0.0, 3 + 1e-15], [3, 0], [0, -3], [-3 - 1e-15, 0]]
    first, _ = predicted([[0.0, 0]], near, [1, 1, 2, 2], share=1.0, neighbours=2)
    assert first[0].tolist() == [0, 1, 0]

    padding = [[0.0, 0], [float("nan"), float("nan")]]
    few, _ = predicted([[1.0, 1]], padding, [2, 0], share=1.0, neighbours=2, real=[1, 0])
    assert few[0].tolist() == [0, 0, 1]
    empty, soft = predicted([[1.0, 1]], padding, [2, 0], share=1.0, real=[0, 0])
    assert torch.equal(empty, soft)


def test_ties_of_lambda_go_to_the_middle():
    def chosen(*best, count=9):
        correct = torch.tensor([5 if step in best else 1 for step in range(11)]).double()
        sums = {"correct": correct, "count": torch.tensor(count)}
        return float(best_share(Context(leaves={}, start={}, ctx={}), sums)["share"])

    assert chosen(0, 1) == 0.1
    assert chosen(4, 6) == 0.4
    assert chosen(10) == 1.0
    assert chosen(*range(11)) == 0.5
    assert chosen(0, count=0) == 0.5
