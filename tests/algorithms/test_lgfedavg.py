"""LG-FedAvg between Local-Only and FedAvg, beside FedPer, and in plain loops."""

import pytest
import torch

from flbench.core.tree import only
from flbench.experiment.communication import apply_masks
from tests.algorithms.loops import (
    BACKBONE,
    HEAD,
    KEYS,
    Clients,
    assert_equal,
    mean_cross_entropy,
    platform,
    weighted_sum,
)
from tests.support import build

LENET5 = [  # (first layer, its normalization), ... in the order of the forward pass
    ("backbone.conv1", "backbone.norm1"),
    ("backbone.conv2", "backbone.norm2"),
    ("backbone.fc1",),
    ("backbone.fc2",),
    ("head",),
]


@pytest.mark.parametrize("layers", range(6))
def test_last_layers_are_shared_with_their_normalization(layers):
    built = build("algorithm=lgfedavg", "model.name=lenet5", f"algorithm.layers={layers}")
    keeps, sends = built.algorithm.split()

    def owners(leaves):
        return {name.rpartition(".")[0] for name in leaves}

    assert owners(keeps) == {name for block in LENET5[: 5 - layers] for name in block}
    assert owners(sends) == {name for block in LENET5[5 - layers :] for name in block}


def test_default_shares_what_fedper_keeps():
    lg, per = (
        build(f"algorithm={name}", "model.name=lenet5").algorithm for name in ("lgfedavg", "fedper")
    )

    assert lg.split() == per.split()[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [0, 1, 2])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_heads_of_a_perceptron_equal_a_loop(weights, warmup):
    """In the rounds of the warm-up the layers below are averaged too."""
    clients = Clients(build("algorithm=fedavg", *KEYS))
    keys = (f"algorithm.agg_weights={weights}", f"algorithm.warmup={warmup / 3}")
    built = build("algorithm=lgfedavg", *KEYS, *keys)
    state = platform("algorithm=lgfedavg", *keys, rounds=3)

    common, own = dict(clients.start), [{} for _ in range(len(clients))]
    for t in range(3):
        sent, ids = [], clients.cohort(t)
        for i in ids:
            trained = clients.train(
                i, t, common | own[i], lambda z, logits, y: mean_cross_entropy(logits, y)
            )
            own[i] = only(trained, BACKBONE) if t >= warmup else {}
            sent.append(trained)
        n = [1 if weights == "uniform" else clients.size(i) for i in ids]
        mean = weighted_sum(sent, [k / sum(n) for k in n])
        common |= mean if t < warmup else only(mean, HEAD)

    assert set(state.server) == ({*HEAD, *BACKBONE, "owns"} if warmup else {*HEAD})
    ids = torch.arange(len(clients))
    sent = apply_masks(built.algorithm.dispatch(state, ids))
    for name in HEAD:
        assert_equal(sent.shared.values[name], common[name], name)
    for name in BACKBONE:
        for i in ids.tolist():
            mask = sent.rows.mask.get(name)
            new = mask is not None and bool(mask[i])
            found = sent.rows.values[name][i] if new else state.clients[name][i]
            assert_equal(found, (common | own[i])[name], name)
            assert new == bool(warmup and not own[i])
