"""FedIT, FFA-LoRA and FedSA-LoRA beside each other, FedAvg and Local-Only, and in plain loops."""

from dataclasses import replace

import pytest
import torch

from flbench.core.tree import digest
from flbench.experiment import rounds
from flbench.models import lora
from flbench.testing import after, played
from tests.algorithms.test_bytes import costs
from tests.installed import needs
from tests.support import build

pytestmark = [pytest.mark.slow, needs("peft")]

MLP = ("model=mlp", "model.hidden=[12]", "partition.samples=200", "train.rounds=2")
LORA = (
    *MLP,
    "model.lora.rank=2",
    "engine.precision=64-true",
    "train.optimizer.lr=0.1",
    "train.local_epochs=2",
)
PART = "train.participation=0.6"
A, B = (f"backbone.fc1.lora_{factor}.default.weight" for factor in "AB")
HEAD = {"head.weight", "head.bias"}


def trained(*keys):
    built = build(*LORA, *keys)
    return built, after(built, 2)


def models(*keys):
    """The digest of the models that clients are evaluated with."""
    built, state = trained(*keys)
    settings = rounds.settings_of(built.algorithm, state)
    return digest(list(built.evaluator(print).deployed(state, settings)))


def test_fedit_is_fedavg_on_adapters_to_the_bit():
    assert models(PART, "algorithm=fedit") == models(PART, "algorithm=fedavg")


def test_one_client_alone_trains_adapters_of_its_own():
    """The mean over one client is what it sent, so all three are Local-Only on what they train."""
    alone = ("partition.clients=1", "train.participation=1")
    local = models(*alone, "algorithm=local")

    assert models(*alone, "algorithm=fedit") == local
    assert models(*alone, "algorithm=fedsalora") == local
    assert models(*alone, "algorithm=ffalora") != local


@pytest.mark.parametrize("sgd", [(), ("momentum=0.9", "weight_decay=0.1")])
def test_the_first_factor_of_ffalora_keeps_its_bits_and_products_are_averaged(sgd):
    keys = [f"train.optimizer.{one}" for one in sgd]
    built = build(*LORA, PART, "algorithm=ffalora", *keys)
    first = built.net.get_parameter(A).detach().clone().double()
    state = after(built, 1)

    now, results = played(built, state)

    sent, shares = results.sent.values, built.algorithm.weights(results)
    assert sent.keys() == {B, *HEAD}
    products = sent[B] @ first  # [K, outputs, inputs]
    mean = (shares[:, None, None] * products).sum(dim=0) / shares.sum()
    assert torch.allclose(now.server[B] @ first, mean, rtol=0, atol=1e-15)
    settings = rounds.settings_of(built.algorithm, now)
    for weights in built.evaluator(print).deployed(now, settings, torch.arange(5)):
        assert torch.equal(weights[A], first)
        assert torch.equal(weights[B], now.server[B])


def test_ffalora_of_full_rank_is_fedavg_on_the_weights_themselves(monkeypatch):
    """With A_0 = 1 and s = 1 the weights are W_0 + B."""
    inject = lora.inject

    def inject_ones(net, config, head):
        inject(net, config, head)
        with torch.no_grad():
            net.get_parameter(A).copy_(torch.eye(64))

    monkeypatch.setattr(lora, "inject", inject_ones)
    square = "model.hidden=[64]"  # the rank is at most the smaller side of a weight
    full = (*MLP, PART, square, "engine.precision=64-true", "train.optimizer.lr=0.1")
    plain = after(build(*full, "algorithm=fedavg", "model.freeze=[backbone.fc1.bias]"), 2).server
    built = build(*full, "algorithm=ffalora", "model.lora.rank=64", "model.lora.alpha=64")
    start = built.net.get_parameter("backbone.fc1.base_layer.weight").double()

    found = after(built, 2).server

    assert found[B].abs().max() > 1e-3
    assert torch.allclose(start + found[B], plain["backbone.fc1.weight"], rtol=0, atol=1e-12)
    assert torch.allclose(found["head.weight"], plain["head.weight"], rtol=0, atol=1e-12)


def test_the_factor_of_ffalora_is_a_learning_rate_and_that_of_fedit_is_not():
    keys = (PART, "algorithm.head=frozen")
    found = {}
    for method in ("fedit", "ffalora"):
        ends = []
        for alpha, lr in ((2.0, 0.4), (4.0, 0.1)):
            more = (f"model.lora.alpha={alpha}", f"train.optimizer.lr={lr}")
            _, state = trained(*keys, f"algorithm={method}", *more)
            ends.append(alpha * state.server[B])
        found[method] = float((ends[0] - ends[1]).abs().max())

    assert found["ffalora"] < 1e-12 < 1e-4 < found["fedit"]


def test_error_of_the_product_of_means_is_that_of_whole_matrices():
    built = build(*LORA, PART, "algorithm=fedit", "partition.alpha=0.1")
    state = after(built, 1)

    _, results = played(built, state)

    sent, shares = results.sent.values, built.algorithm.weights(results)
    shares = (shares / shares.sum())[:, None, None]
    mean = {name: (shares * sent[name]).sum(dim=0) for name in (A, B)}
    difference = (shares * (sent[B] @ sent[A])).sum(dim=0) - mean[B] @ mean[A]
    wanted = float(difference.norm() / (mean[B] @ mean[A]).norm())
    found = built.algorithm.aggregate(state, results).metrics["product_error"]
    assert wanted > 1e-3
    assert found == pytest.approx(wanted, rel=1e-10)


def test_fedsalora_sends_the_first_factor_and_clients_keep_the_rest():
    built = build(*LORA, PART, "algorithm=fedsalora")
    state = after(built, 1)
    before = {name: rows.clone() for name, rows in state.clients.items()}

    now, results = played(built, state)

    assert results.sent.values.keys() == now.server.keys() == {A}
    assert now.clients.keys() == {B, *HEAD}
    absent = [i for i in range(5) if i not in results.ids.tolist()]
    for name, rows in now.clients.items():
        assert torch.equal(rows[absent], before[name][absent])
        assert not torch.equal(rows[results.ids], before[name][results.ids])
    cosine = built.algorithm.aggregate(state, results).metrics["cosine"]
    assert 0.5 < cosine <= 1
    assert "gm" not in built.algorithm.deploy(now, torch.arange(5))


def test_a_square_layer_costs_half_if_one_factor_is_sent():
    square = ("model.hidden=[64]", "algorithm.head=frozen")
    up = {}
    for method in ("fedit", "ffalora", "fedsalora"):
        built = build(*LORA, *square, f"algorithm={method}")
        up[method] = sum(one["up_bytes"] for one in costs(built, 2))

    whole = up.pop("fedit")
    assert whole == 2 * 5 * 2 * (64 * 2) * 8  # rounds, clients, factors, entries, bytes
    assert all(2 * half == whole for half in up.values())


@pytest.mark.parametrize("method", ["fedit", "ffalora", "fedsalora"])
def test_head_is_shared_or_personal_or_frozen(method):
    for head in ("shared", "personal", "frozen"):
        built, state = trained(f"algorithm={method}", f"algorithm.head={head}")
        where = {"shared": state.server, "personal": state.clients, "frozen": {}}[head]
        assert where.keys() >= (HEAD if where else set())
        for tree in (state.server, state.clients):
            assert tree is where or not HEAD & tree.keys()
        settings = rounds.settings_of(built.algorithm, state)
        [weights] = built.evaluator(print).deployed(state, settings, torch.tensor([0]))
        start = built.net.get_parameter("head.weight").double()
        assert torch.equal(weights["head.weight"], start) == (head == "frozen")


def test_ffalora_refuses_embeddings_whose_first_factor_is_zero():
    algorithm = build(*LORA, "algorithm=ffalora").algorithm
    net = algorithm.setting.net
    embedding = replace(net.adapters[0], layer="backbone.words", begins_with_zero_a=True)
    setting = replace(algorithm.setting, net=replace(net, adapters=(embedding,)))

    [sentence] = algorithm.with_setting(setting).requires()

    assert "`backbone.words`" in sentence
