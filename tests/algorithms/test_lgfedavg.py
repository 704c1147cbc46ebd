"""LG-FedAvg between Local-Only and FedAvg, beside FedPer, and in plain loops."""

import pytest

from flbench.core.errors import ConfigError
from flbench.core.tree import only
from flbench.testing import after
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
from tests.algorithms.plain import (
    EPOCHS,
    FULL,
    STATISTICS,
    Plain,
    assert_close,
    deployed,
    lenet5_bytes,
)
from tests.algorithms.test_identities import POLICIES
from tests.support import build

LENET5 = [  # (first layer, its normalization), ... in the order of the forward pass
    ("backbone.conv1", "backbone.norm1"),
    ("backbone.conv2", "backbone.norm2"),
    ("backbone.fc1",),
    ("backbone.fc2",),
    ("head",),
]


@pytest.mark.slow
@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
def test_with_all_layers_it_is_fedavg_and_with_none_local_only(policy):
    """Weights are equal to the bit, with equal weights of the clients."""
    norm = f"train.batchnorm={policy}"
    found = {
        layers: deployed(norm, "algorithm=lgfedavg", f"algorithm.layers={layers}")
        for layers in (0, 4, 5)
    }

    assert found[0] == deployed(norm, "algorithm=local")
    assert found[5] == deployed(norm, "algorithm=fedavg", "algorithm.agg_weights=uniform")
    assert len(set(found.values())) == 3


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


def test_more_layers_than_the_net_has_are_refused():
    with pytest.raises(ConfigError, match=r"layers.*\[0, 5\], got 6"):
        build("algorithm=lgfedavg", "model.name=lenet5", "algorithm.layers=6")


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_heads_of_a_perceptron_equal_a_loop(weights):
    clients = Clients(build("algorithm=fedavg", *KEYS))
    state = platform("algorithm=lgfedavg", f"algorithm.agg_weights={weights}", rounds=3)

    head = only(clients.start, HEAD)
    lower = [only(clients.start, BACKBONE) for _ in range(len(clients))]
    for t in range(3):
        heads, ids = [], clients.cohort(t)
        for i in ids:
            after_training = clients.train(
                i, t, lower[i] | head, lambda z, logits, y: mean_cross_entropy(logits, y)
            )
            lower[i] = only(after_training, BACKBONE)
            heads.append(only(after_training, HEAD))
        n = [1 if weights == "uniform" else clients.size(i) for i in ids]
        head = weighted_sum(heads, [k / sum(n) for k in n])

    assert set(state.server) == set(HEAD)
    assert set(state.clients) == set(BACKBONE)
    for name in HEAD:
        assert_equal(state.server[name], head[name], name)
    for name in BACKBONE:
        for i in range(len(clients)):
            assert_equal(state.clients[name][i], lower[i][name], name)


@pytest.mark.slow
def test_layers_of_lenet_with_batchnorm_equal_a_loop():
    keys = ("algorithm.layers=4", "algorithm.agg_weights=samples")
    built = build("algorithm=lgfedavg", "model.name=lenet5", *keys, *FULL)
    plain, net = Plain(built), built.algorithm.setting.net
    keeps = {name for name in net.leaves if name.rpartition(".")[0] in LENET5[0]}
    assert len(keeps) == 7

    def local(client, leaves):
        for _ in range(EPOCHS):
            leaves = plain.step(leaves, client, net.parameters)
        return leaves

    server, kept = plain.federate(keeps, local)
    state = after(built, 3)

    assert set(state.clients) == keeps
    assert_close(state.server, server)
    for client in range(5):
        assert_close({name: rows[client] for name, rows in state.clients.items()}, kept[client])


@pytest.mark.slow
def test_it_sends_what_fedper_does_not(tmp_path):
    whole = lenet5_bytes(tmp_path, "algorithm=fedavg")
    head = lenet5_bytes(tmp_path, "algorithm=lgfedavg")
    body = lenet5_bytes(tmp_path, "algorithm=fedper")

    assert head == (4 * 850,) * 2
    assert body == (4 * (62_050 - 850) + STATISTICS,) * 2
    assert whole == tuple(a + b for a, b in zip(head, body, strict=True))
