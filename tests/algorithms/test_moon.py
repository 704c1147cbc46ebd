"""MOON against FedAvg, against a plain loop, and what a client remembers."""

from copy import deepcopy
from math import log

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from flbench.models.base import net_leaves
from flbench.testing import played
from tests.support import build

LENET = ("model.name=lenet5", "engine.precision=64-true")
FULL_BATCH = ("train.batch_size=2048", "train.optimizer.lr=0.1")
POLICIES = ["average", "local", "drop"]


def start(name: str, *overrides: str):
    built = build(f"algorithm={name}", *overrides)
    return built, built.start()


def samples(built, client: int):
    federation = built.federation.to(torch.device("cpu"), torch.float64)
    rows = federation.partition.parts["train"][client]
    return federation.inputs(rows, torch.float64), federation.y[torch.from_numpy(rows)]


@pytest.mark.slow
@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
def test_first_participation_adds_ln_2_and_no_gradient(policy):
    """Client 2 comes in the second round: it has no previous model, client 1 has one."""
    keys = (*LENET, f"train.batchnorm={policy}", "train.optimizer.lr=0.1")
    (moon, a), (fedavg, b) = start("moon", *keys), start("fedavg", *keys)

    a, first = played(moon, a, torch.tensor([0, 1]))
    b, plain = played(fedavg, b, torch.tensor([0, 1]))
    for name, leaf in b.server.items():
        assert torch.allclose(a.server[name], leaf, rtol=0, atol=1e-12), name
    _, second = played(moon, a, torch.tensor([1, 2]))
    _, plainer = played(fedavg, b, torch.tensor([1, 2]))

    gaps = torch.cat([first.losses - plain.losses, second.losses - plainer.losses]) / 5
    assert gaps[[0, 1, 3]].tolist() == pytest.approx([log(2)] * 3, abs=1e-6)  # losses are float32
    assert abs(float(gaps[2]) - log(2)) > 1e-4


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_second_participation_equals_a_plain_loop(engine):
    """Full batches, two epochs; the reference models are in eval mode on their own statistics."""
    built, state = start(
        "moon", *LENET, *FULL_BATCH, "train.local_epochs=2", f"engine.name={engine}"
    )
    state, _ = played(built, state, torch.tensor([0, 1, 2]))
    names = [name for layer in built.algorithm.setting.net.layers for name in layer.leaves]
    own = {name: rows[1].clone() for name, rows in state.clients.items()}

    after, results = played(built, state, torch.tensor([1]))

    def loaded(tree, prefix=""):
        net = deepcopy(built.net).double()
        leaves = net_leaves(net)
        with torch.no_grad():
            for name in names:
                leaves[name].copy_(tree[prefix + name])
        return net

    received = {name: state.server[name] for name in names}
    net, ahead = loaded(received).train(), loaded(received).eval()
    behind = loaded(own, "prev.").eval()
    x, y = samples(built, 1)
    for _ in range(2):
        out = net(x)
        to_g = cosine_similarity(out.features, ahead(x).features.detach()) / 0.5
        to_p = cosine_similarity(out.features, behind(x).features.detach()) / 0.5
        l_con = -(to_g - torch.stack([to_g, to_p]).logsumexp(dim=0)).mean()
        loss = cross_entropy(out.logits, y) + 5.0 * l_con
        leaves = net_leaves(net)
        trained = [leaves[name] for name in names if leaves[name].requires_grad]
        for leaf, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            leaf.data -= 0.1 * gradient
    for name, leaf in net_leaves(net).items():
        assert torch.allclose(results.sent.values[name][0], leaf, rtol=0, atol=1e-10), name
        assert torch.equal(after.clients["prev." + name][1], results.sent.values[name][0])
