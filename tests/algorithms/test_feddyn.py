"""FedDyn: its fixed point, its duals, and the paper's formulas in a plain loop."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.models.base import net_leaves
from flbench.testing import played
from tests.support import build, write_npz

EXACT = "engine.precision=64-true"
LENET = ("model.name=lenet5", EXACT)


def start(*overrides: str, name: str = "feddyn"):
    built = build(f"algorithm={name}", *overrides)
    return built, built.start()


def samples(built, client: int):
    federation = built.federation.to(torch.device("cpu"), torch.float64)
    rows = federation.partition.parts["train"][client]
    return federation.inputs(rows, torch.float64), federation.y[torch.from_numpy(rows)]


def gradient_norm(built, w, bias, shares) -> float:
    """Of the joint loss with weight decay 0.1, at one linear layer."""
    w, bias = w.clone().requires_grad_(), bias.clone().requires_grad_()
    loss = 0.05 * (w.square().sum() + bias.square().sum())
    for client, share in enumerate(shares):
        x, y = samples(built, client)
        loss = loss + share * cross_entropy(x.flatten(1) @ w.T + bias, y)
    found = torch.autograd.grad(loss, [w, bias])
    return float(torch.cat([gradient.flatten() for gradient in found]).norm())


@pytest.mark.slow
def test_fixed_point_is_the_joint_optimum_where_fedavg_is_biased(tmp_path):
    """Two convex losses, full batches, ten local steps; sizes 10 and 30.

    At a fixed point of `wbar` all w_i = w, so a_i h_i = -grad_i, and the duals sum to 0: the sum of
    grad_i / a_i is 0, with 1 / a_i in proportion to the samples.
    """
    groups = (np.arange(40) % 4 > 0).astype(int)  # client 0 has class 0 alone
    data = write_npz(tmp_path / "two.npz", n=40, train_groups=groups)
    keys = (
        f"data.path={data}",
        "partition.scheme=natural",
        "partition.clients=null",
        "partition.split=[1,0,0]",
        "model.name=logistic",
        EXACT,
        "train.batch_size=64",
        "train.local_epochs=10",
        "train.optimizer.lr=0.1",
        "train.optimizer.weight_decay=0.1",
    )
    feddyn, state = start(*keys, "algorithm.alpha=0.3")
    fedavg, other = start(*keys, "algorithm.agg_weights=samples", name="fedavg")

    for _ in range(45):
        state, _ = played(feddyn, state)
        other, _ = played(fedavg, other)

    assert feddyn.federation.sizes.tolist() == [10, 30]
    w, bias = state.server["mean.head.weight"], state.server["mean.head.bias"]
    assert gradient_norm(feddyn, w, bias, (0.25, 0.75)) < 1e-4
    w, bias = other.server["head.weight"], other.server["head.bias"]
    assert gradient_norm(feddyn, w, bias, (0.25, 0.75)) > 1e-2


@pytest.mark.slow
def test_two_rounds_equal_a_plain_loop():
    """The formulas client by client, with BatchNorm, unequal sizes, two full-batch steps."""
    alpha, lr, n = 0.2, 0.1, 5
    built, state = start(
        *LENET,
        f"algorithm.alpha={alpha}",
        "train.batch_size=2048",
        "train.local_epochs=2",
        f"train.optimizer.lr={lr}",
    )
    sizes = built.federation.sizes.tolist()
    names = list(built.algorithm.setting.net.parameters)
    net = deepcopy(built.net).double().train()
    leaves = net_leaves(net)
    w = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    dual = [{name: torch.zeros_like(w[name]) for name in names} for _ in range(n)]
    for cohort in ([0, 1, 2], [1, 2, 4]):
        models = []
        for i in cohort:
            a = alpha / (sizes[i] * n / sum(sizes))
            x, y = samples(built, i)
            with torch.no_grad():
                for name, leaf in leaves.items():
                    leaf.copy_(w[name])
            for _ in range(2):
                loss = cross_entropy(net(x).logits, y)
                found = torch.autograd.grad(loss, [leaves[name] for name in names])
                with torch.no_grad():
                    for name, gradient in zip(names, found, strict=True):
                        leaf = leaves[name]
                        leaf -= lr * (gradient + a * (leaf - w[name] + dual[i][name]))
            for name in names:
                dual[i][name] = dual[i][name] + leaves[name].detach() - w[name]
            models.append({name: leaf.detach().clone() for name, leaf in leaves.items()})
        mean = {}
        for name, leaf in leaves.items():
            rows = torch.stack([model[name] for model in models])
            mean[name] = rows.mean(dim=0) if leaf.is_floating_point() else rows.amax(dim=0)
        w = dict(mean)
        for name in names:
            w[name] = mean[name] + sum(dual[i][name] for i in range(n)) / n

        state, _ = played(built, state, torch.tensor(cohort))

        for name in leaves:
            close = {"rtol": 0, "atol": 1e-10}
            assert torch.allclose(state.server[name], w[name], **close), name
            assert torch.allclose(state.server[f"mean.{name}"], mean[name], **close), name
    for i in range(n):
        for name in names:
            found = state.clients[f"dual.{name}"][i]
            assert torch.allclose(found, dual[i][name], rtol=0, atol=1e-10), name


def test_mean_is_evaluated_and_the_dual_iterate_is_sent():
    built, state = start(EXACT)

    state, _ = played(built, state, torch.tensor([0, 1]))

    evaluated = built.algorithm.deploy(state, torch.arange(5))
    sent = built.algorithm.dispatch(state, torch.arange(5)).shared.values
    assert list(evaluated) == ["personal", "gm"]
    for name in built.algorithm.setting.net.parameters:
        for model in evaluated.values():
            assert torch.equal(model.dispatch.shared.values[name], state.server[f"mean.{name}"])
        assert torch.equal(sent[name], state.server[name])
        assert not torch.equal(sent[name], state.server[f"mean.{name}"])
