"""FedALA against FedAvg and a plain loop over its formulas; evaluating writes nothing."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.algorithms.fedala import is_learnt
from flbench.core.types import Context, Samples
from flbench.experiment.rounds import settings_of
from flbench.models.base import net_leaves
from flbench.testing import played
from tests.support import build

EXACT = "engine.precision=64-true"


def start(*overrides: str):
    built = build("algorithm=fedala", *overrides)
    return built, built.start()


def evaluate(built, state):
    settings = settings_of(built.algorithm, state)
    return built.evaluator(print).evaluate(state, settings, common=True)


def deployed(built, state):
    settings = settings_of(built.algorithm, state)
    return list(built.evaluator(print).deployed(state, settings))


class PlainClient:
    """The paper's formulas for one client and full batches, with a module of its own."""

    def __init__(self, built, client: int, config) -> None:
        self.built, self.client, self.c = built, client, config
        self.federation = built.federation.to(torch.device("cpu"), torch.float64)
        self.net = deepcopy(built.net).double()
        self.leaves = net_leaves(self.net)
        self.top = list(built.algorithm.setting.net.parameters)[-2:]
        self.old: dict = {}
        self.weight = {name: torch.ones_like(self.leaves[name]) for name in self.top}
        self.first = True
        self.epochs = 0

    def data(self, rows: Samples, settings):
        chosen = self.federation.rows(rows, self.client, settings.draw)
        x = self.federation.inputs(chosen, torch.float64)
        return x, self.federation.y[torch.from_numpy(chosen)]

    def begin(self, received, settings) -> None:
        """Learn the weights and start from the mixed model."""
        with torch.no_grad():
            for name, leaf in self.leaves.items():
                leaf.copy_(received[name])
        self.epochs = 0
        if not self.old or all(torch.equal(self.old[n], received[n]) for n in self.top):
            return
        share = self.c.rand_percent / 100
        x, y = self.data(Samples(high=share, redraw="round"), settings)
        self.net.eval()
        losses: list[float] = []
        while True:
            self.mix(received)
            loss = cross_entropy(self.net(x).logits, y)
            gradients = torch.autograd.grad(loss, [self.leaves[name] for name in self.top])
            for name, g in zip(self.top, gradients, strict=True):
                step = self.c.eta * g * (received[name] - self.old[name])
                self.weight[name] = (self.weight[name] - step).clamp(0, 1)
            losses.append(float(loss.detach()))
            last = torch.tensor(losses[-10:], dtype=torch.float64)
            spread = ((last - last.mean()) ** 2).mean().sqrt()
            done = len(losses) > 10 and float(spread) < 0.1
            if not self.first or done or len(losses) == 50:
                break
        self.first, self.epochs = False, len(losses)
        self.mix(received)

    def mix(self, received) -> None:
        with torch.no_grad():
            for name in self.top:
                old = self.old[name]
                self.leaves[name].copy_(old + (received[name] - old) * self.weight[name])

    def train(self, received, settings) -> None:
        self.begin(received, settings)
        self.net.train()
        x, y = self.data(Samples(), settings)
        names = self.built.algorithm.setting.net.parameters
        trained = [self.leaves[name] for name in names]
        for _ in range(2):
            found = torch.autograd.grad(cross_entropy(self.net(x).logits, y), trained)
            with torch.no_grad():
                for leaf, gradient in zip(trained, found, strict=True):
                    leaf -= 0.1 * gradient
        self.old = {name: self.leaves[name].detach().clone() for name in self.top}


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("rand_percent", [80, 50])
def test_four_rounds_equal_a_plain_loop(rand_percent, engine):
    """Client 1 is there in all rounds, client 2 comes in the second: its weights wait a round."""
    keys = (EXACT, "model.name=lenet5", "train.batch_size=2048", "train.local_epochs=2")
    keys = (*keys, "train.optimizer.lr=0.1", f"engine.name={engine}", "algorithm.eta=20")
    built, state = start(*keys, f"algorithm.rand_percent={rand_percent}")
    plain = {i: PlainClient(built, i, built.algorithm.config) for i in (1, 2)}
    found = {1: [], 2: []}

    for ids in ([0, 1], [1, 2], [1, 2, 4], [1, 2, 3]):
        settings = settings_of(built.algorithm, state)
        received = {name: state.server[name].clone() for name in net_leaves(built.net)}
        state, results = played(built, state, torch.tensor(ids))
        for i in set(ids) & {1, 2}:
            plain[i].train(received, settings)
            found[i].append(plain[i].epochs)
            for name, leaf in plain[i].leaves.items():
                sent = results.sent.values[name][ids.index(i)]
                assert torch.allclose(sent, leaf, rtol=0, atol=1e-9), (i, name)
            for name, weight in plain[i].weight.items():
                mine = state.clients["ala." + name][i]
                assert torch.allclose(mine, weight, rtol=0, atol=1e-9), (i, name)

    assert found == {1: [0, 11, 1, 1], 2: [0, 11, 1]}
    settings = settings_of(built.algorithm, state)
    model = list(built.evaluator(print).deployed(state, settings))[1]  # what round 5 begins with
    plain[1].begin({name: state.server[name] for name in plain[1].leaves}, settings)
    for name, leaf in plain[1].leaves.items():
        assert torch.allclose(model[name], leaf, rtol=0, atol=1e-9), name
    moved = torch.cat([(1 - w).flatten() for w in plain[1].weight.values()])
    assert float(moved.max()) > 0.01
    assert float(moved.min()) == 0.0


def test_weights_stay_where_global_and_own_model_are_the_same():
    """One client is the whole federation: what it receives is what it sent."""
    built, state = start(EXACT, "partition.clients=1", "algorithm.eta=1000")

    for _ in range(3):
        state, results = played(built, state)

    assert (state.clients["ala.head.weight"] == 1).all()
    assert not state.clients["settled"].any()
    expected = -(-int(built.federation.sizes[0]) // 32)
    assert results.steps.tolist() == [expected]  # the weights were not trained without need


def test_losses_settle_when_the_last_ten_agree():
    """Of equal ones, only more than ten are enough; the last ten of 13 have a deviation of 0.07."""
    losses = torch.tensor([5.0, 3.0, 2.0, *([1.0, 1.14] * 5), *[torch.nan] * 37])

    def settled(losses, done, *, first):
        leaves = {"w": torch.zeros(1), "own.w": torch.ones(1), "settled": torch.tensor(not first)}
        context = Context(leaves=leaves, start={}, ctx={})
        return bool(is_learnt(context, losses, torch.tensor(done), ("w",)))

    ends = [done for done in range(14) if settled(losses, done, first=True)]

    assert ends == [13]
    flat = torch.ones(50)
    assert [settled(flat, done, first=True) for done in (10, 11)] == [False, True]
    assert [settled(flat, done, first=False) for done in (0, 1)] == [False, True]
