"""SCAFFOLD: its fixed point, its variates, and the paper's formulas in a plain loop."""

import numpy as np
import pytest
import torch

from flbench.testing import after, played
from tests.algorithms.plain import EPOCHS, FULL, LR, ROUNDS, Plain, assert_close
from tests.support import build, write_npz

EXACT = "engine.precision=64-true"


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_rounds_equal_a_plain_loop(weights, rate):
    built = build(
        "algorithm=scaffold",
        "model.name=lenet5",
        f"algorithm.agg_weights={weights}",
        f"algorithm.server_lr={rate}",
        *FULL,
    )
    plain, names = Plain(built), built.algorithm.setting.net.parameters
    sizes = [len(plain.samples(i)[1]) for i in range(5)]
    w = plain.start()
    zero = {name: torch.zeros_like(w[name]) for name in names}
    c, own = dict(zero), [dict(zero) for _ in range(5)]
    for t in range(ROUNDS):
        sent, change = {}, {}
        for i in plain.cohort(t):
            y = w
            for _ in range(EPOCHS):
                y = plain.step(y, i, names)
                for name in names:
                    y[name] = y[name] - LR * (c[name] - own[i][name])
            new = {n: own[i][n] - c[n] + (w[n] - y[n]) / (EPOCHS * LR) for n in names}
            sent[i], change[i] = y, {n: new[n] - own[i][n] for n in names}
            own[i] = new
        mean = plain.mean(sent, uniform=weights == "uniform")
        w = mean | {n: w[n] + rate * (mean[n] - w[n]) for n in names}
        part = len(sent) / 5 if weights == "uniform" else sum(sizes[i] for i in sent) / sum(sizes)
        change = plain.mean(change, uniform=weights == "uniform")
        c = {n: c[n] + part * change[n] for n in names}

    state = after(built, ROUNDS)

    assert_close(state.server, w | {f"c.{n}": value for n, value in c.items()})
    for i in range(5):
        assert_close({n: state.clients[f"c_i.{n}"][i] for n in names}, own[i])


@pytest.mark.slow
def test_one_client_has_the_servers_variate_and_trains_as_sgd_does():
    """c_i = c after each round, so the correction is zero; the variates themselves are not."""
    keys = ("partition.clients=1", EXACT, "train.local_epochs=2", "train.optimizer.lr=0.1")
    scaffold, sgd = build("algorithm=scaffold", *keys), build("algorithm=local", *keys)
    names, state, other = sgd.algorithm.setting.net.parameters, scaffold.start(), sgd.start()

    for _ in range(3):
        state, _ = played(scaffold, state)
        other, _ = played(sgd, other)
        for name in names:
            c_i, c = state.clients[f"c_i.{name}"][0], state.server[f"c.{name}"]
            assert c.any()
            assert torch.allclose(c_i, c, rtol=0, atol=1e-12), name
            expected = other.clients[name][0]
            assert torch.allclose(state.server[name], expected, rtol=0, atol=1e-12), name


def slope(built, state, shares) -> float:
    """The gradient's norm of the joint loss with weight decay 1, at the server's model."""
    plain = Plain(built)
    leaves = {n: state.server[n].clone().requires_grad_() for n in plain.start()}
    loss = 0.5 * sum(leaf.square().sum() for leaf in leaves.values())
    for i, share in enumerate(shares):
        x, y = plain.samples(i)
        out = plain.outputs(leaves, x, train=False)
        loss = loss + share * torch.nn.functional.cross_entropy(out.logits, y)
    found = torch.autograd.grad(loss, list(leaves.values()))
    return float(torch.cat([gradient.flatten() for gradient in found]).norm())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "shares"), [("uniform", (0.5, 0.5)), ("samples", (0.25, 0.75))]
)
def test_it_ends_at_the_joint_optimum_where_fedavg_does_not(tmp_path, weights, shares):
    """Two convex losses, full batches, eight local steps; sizes 10 and 30."""
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
        "train.local_epochs=8",
        "train.optimizer.lr=0.05",
        "train.optimizer.weight_decay=1",
        f"algorithm.agg_weights={weights}",
    )
    scaffold, fedavg = build("algorithm=scaffold", *keys), build("algorithm=fedavg", *keys)
    state, other = scaffold.start(), fedavg.start()

    for _ in range(50):
        state, _ = played(scaffold, state)
        other, _ = played(fedavg, other)

    assert scaffold.federation.sizes.tolist() == [10, 30]
    assert slope(scaffold, state, shares) < 1e-6
    assert slope(fedavg, other, shares) > 1e-2
    assert slope(scaffold, state, shares[::-1]) > 1e-2 or weights == "uniform"
    assert all(value.abs().max() < 1e-6 for n, value in state.server.items() if n[:2] == "c.")


@pytest.mark.slow
def test_client_without_a_step_changes_nothing():
    """tau eta = 0: nothing to divide by."""
    for keys in (("train.last_batch=drop", "train.batch_size=2048"), ("train.optimizer.lr=0",)):
        state = after(build("algorithm=scaffold", *keys), 2)
        for tree, prefix in ((state.clients, "c_i."), (state.server, "c.")):
            rows = [value for name, value in tree.items() if name.startswith(prefix)]
            assert rows
            assert not any(value.any() for value in rows)
