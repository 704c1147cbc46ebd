"""FedAP: statistics of BatchNorm's inputs, weights, mixtures, and stages."""

from functools import partial

import pytest
import torch

from flbench.algorithms.fedap import distances, near_weights
from flbench.models.base import net_leaves
from flbench.testing import after, played
from tests.support import build

KEYS = ("algorithm=fedap", "model.name=lenet5", "engine.precision=64-true", "train.rounds=4")
NORMS = {"backbone.norm1": 6, "backbone.norm2": 16}


def method(*overrides: str):
    return build(*KEYS, *overrides).algorithm


def statistics(clients: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    sent = {}
    for layer, channels in NORMS.items():
        sent[f"mean.{layer}"] = torch.randn(clients, channels, generator=g, dtype=torch.float64)
        sent[f"variance.{layer}"] = torch.rand(clients, channels, generator=g, dtype=torch.float64)
    return sent


def slow_weights(sent, lam: float, layers) -> list[list[float]]:
    clients = len(next(iter(sent.values())))
    rows = []
    for i in range(clients):
        near = []
        for j in range(clients):
            distance = 0.0
            for layer in layers:
                mean, variance = sent[f"mean.{layer}"], sent[f"variance.{layer}"]
                deviation = [variance[k].sqrt() for k in (i, j)]
                squares = (mean[i] - mean[j]).square().sum()
                squares += (deviation[0] - deviation[1]).square().sum()
                distance += float(squares.sqrt())
            near.append(0.0 if i == j else 1 / max(distance, 1e-12))
        rows.append([lam if i == j else (1 - lam) * r / sum(near) for j, r in enumerate(near)])
    return rows


def test_weights_equal_a_loop_over_the_formula():
    """Rows sum to one, and W_ii = lam."""
    algorithm = method("algorithm.lam=0.3")
    sent = statistics(5)

    weights = near_weights(distances(sent, algorithm.normalised()), algorithm.config.lam)

    expected = torch.tensor(slow_weights(sent, 0.3, NORMS), dtype=torch.float64)
    assert torch.allclose(weights, expected, rtol=0, atol=1e-12)
    assert torch.allclose(weights.sum(dim=1), torch.ones(5).double(), rtol=0, atol=1e-12)
    assert torch.equal(weights.diagonal(), torch.full((5,), 0.3).double().fill_(0.3))


def test_identical_statistics_take_all_but_the_own_weight_and_no_more():
    algorithm = method()
    sent = {name: value.clone() for name, value in statistics(5).items()}
    for value in sent.values():
        value[3] = value[1]

    weights = near_weights(distances(sent, algorithm.normalised()), algorithm.config.lam)

    assert torch.isfinite(weights).all()
    for i, j in ((1, 3), (3, 1)):
        assert float(weights[i, j]) == pytest.approx(0.5, abs=1e-9)
    assert torch.allclose(weights.sum(dim=1), torch.ones(5).double())


@pytest.mark.slow
def test_one_client_mixes_with_itself_alone():
    built = build(*KEYS, "partition.clients=1", "algorithm.lam=0")

    assert after(built, 3).server["mixing"].tolist() == [[1.0]]


def remember(inputs, name, module, args, out) -> None:
    inputs[name] = args[0]


def test_statistics_are_those_of_the_inputs_of_batchnorm_under_the_common_model():
    built = build(*KEYS, "train.participation=0.6")
    state = after(built, 1)

    over, results = played(built, state)

    assert results.ids.tolist() == [0, 1, 2, 3, 4]
    net = built.net.double().eval()
    with torch.no_grad():
        for name, leaf in net_leaves(net).items():
            leaf.copy_(state.server[name])
    federation = built.federation.to(torch.device("cpu"), torch.float64)
    inputs: dict[str, torch.Tensor] = {}
    for name in NORMS:
        net.get_submodule(name).register_forward_hook(partial(remember, inputs, name))
    for client in range(5):
        rows = federation.partition.parts["train"][client]
        with torch.no_grad():
            net(federation.inputs(rows, torch.float64))
        for layer, channels in NORMS.items():
            for c in range(channels):
                values = inputs[layer][:, c]
                mean, variance = values.mean(), values.var(unbiased=False)
                found = results.sent.values
                assert float(found[f"mean.{layer}"][client, c]) == pytest.approx(float(mean))
                assert float(found[f"variance.{layer}"][client, c]) == pytest.approx(
                    float(variance)
                )
    expected = slow_weights(results.sent.values, 0.5, NORMS)
    assert torch.allclose(over.server["mixing"], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.slow
def test_client_without_statistics_mixes_with_no_other():
    """One that failed in the set-up."""
    built = build(*KEYS)
    state = after(built, 1)

    over, _ = played(built, state, torch.tensor([0, 2, 3, 4]))

    mixing = over.server["mixing"]
    assert mixing[1].tolist() == [0, 1, 0, 0, 0]
    assert mixing[:, 1].tolist() == [0, 1, 0, 0, 0]
    assert torch.allclose(mixing.sum(dim=1), torch.ones(5).double())


def test_mixture_takes_last_uploads_stale_ones_too_and_the_common_model_before():
    built = build(*KEYS, "train.participation=0.6", "train.rounds=5")
    state = after(built, 1)
    state, _ = played(built, state)  # statistics
    shared = built.algorithm.split()[1] - built.algorithm.setting.net.names("batchnorm")
    last = {name: [state.server[name]] * 5 for name in shared}

    for cohort in ([0, 1], [1, 2]):
        state, results = played(built, state, torch.tensor(cohort))
        assert set(results.sent.values) == shared
        for name in shared:
            for k, client in enumerate(cohort):
                last[name][client] = results.sent.values[name][k]

    assert set(built.algorithm.deploy(state, torch.arange(5))) == {"personal"}
    rows = built.algorithm.dispatch(state, torch.arange(5)).rows.values
    assert set(rows) == shared
    for i in range(5):
        for name, value in rows.items():
            weights = state.server["mixing"][i]
            total = sum(w * model for w, model in zip(weights, last[name], strict=True))
            assert torch.allclose(value[i], total, rtol=0, atol=1e-12), name


@pytest.mark.slow
def test_models_are_the_common_one_until_statistics_are_known():
    built = build(*KEYS, "train.rounds=20")
    fedavg = build(*KEYS[1:], "algorithm=fedavg", "train.rounds=20")

    state, other = after(built, 2), after(fedavg, 2)

    assert [stage.rounds for stage in built.algorithm.stages()] == [2, 1, 18]
    models = built.algorithm.deploy(state, torch.arange(5))
    assert set(models) == {"personal", "gm"}
    for name, value in models["personal"].dispatch.shared.values.items():
        assert torch.equal(value, other.server[name])


def test_batchnorm_begins_as_the_common_models():
    built = build(*KEYS)
    state = after(built, 1)
    local = built.algorithm.setting.net.names("batchnorm")

    begun, _ = played(built, state)

    for name in local:
        common = state.server[name]
        assert torch.equal(begun.clients[name], common.expand(5, *common.shape)), name
