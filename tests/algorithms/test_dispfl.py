from math import cos, pi

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.algorithms.shared.sparse import MASK
from flbench.experiment import rounds
from flbench.models.base import net_leaves
from flbench.testing import after, played
from tests.algorithms.plain import EPOCHS, FULL, Plain, assert_close, pruned_and_regrown
from tests.support import build

METHOD, LENET = "algorithm=dispfl", "model.name=lenet5"
DOUBLE = "engine.precision=64-true"
ROUGH = ("train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0.01")


def trained(built, state):
    settings = rounds.settings_of(built.algorithm, state)
    return rounds.train(built.algorithm, built.engine, state, settings)


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "net"), [("random", "mlp"), ("star", "lenet5")])
def test_dense_models_are_dfedavg(topology, net):
    """With masks of ones the overlap is the plain mean, and there is nothing to prune."""
    keys = (f"algorithm.topology={topology}", "algorithm.neighbours=2", f"model.name={net}", DOUBLE)
    plain = after(build("algorithm=dfedavg", *keys, *ROUGH), 3)

    dense = after(build(METHOD, "algorithm.density=1", *keys, *ROUGH), 3)

    for name, value in plain.clients.items():
        found = dense.clients[name].double()
        assert torch.allclose(found, value.double(), rtol=0, atol=1e-12), name


def test_local_training_is_masked_descent():
    """Gradient and weight times the mask after each step; two full-batch steps."""
    keys = ("train.batch_size=1024", "train.local_epochs=2", "train.optimizer.momentum=0.9", DOUBLE)
    built = build(METHOD, *keys, "train.optimizer.weight_decay=0.01")
    start = built.start()

    kept = trained(built, start).results.sent.values

    federation = built.federation.to(torch.device("cpu"), torch.float64)
    for client, rows in enumerate(federation.partition.parts["train"]):
        net = build(*keys).net.double()
        leaves = net_leaves(net)
        masks = {name: start.clients[MASK + name][client] for name in built.algorithm.masked()}
        x, y = federation.inputs(rows, torch.float64), federation.y[torch.from_numpy(rows)]
        momentum = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        for name, mask in masks.items():
            leaves[name].data *= mask
        for _ in range(2):
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(x).logits, y).backward()
            for name, leaf in leaves.items():
                mask = masks.get(name, torch.ones(()))
                momentum[name] = 0.9 * momentum[name] + mask * (leaf.grad + 0.01 * leaf.data)
                leaf.data = (leaf.data - 0.01 * momentum[name]) * mask
        for name, leaf in leaves.items():
            assert torch.allclose(kept[name][client], leaf.data, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("net", ["mlp", "lenet5"])
@pytest.mark.slow
def test_rounds_are_the_loop_of_the_paper(net):
    """Models and masks of seven clients on a ring after each of four rounds; some are absent.

    The authors' order is kept: the weights that a client receives are divided by the masks under
    which they were trained, then the receiver's new mask is applied.
    """
    keys = ("algorithm.topology=ring", "algorithm.density=0.3", "train.rounds=4")
    more = ("partition.clients=7", f"model.name={net}")
    built = build(METHOD, *FULL, *keys, *more)
    state, plain = built.start(), Plain(built)
    weighty = [name for name in plain.start() if name.endswith("weight") and "norm" not in name]
    masks = [{name: state.clients[MASK + name][i].clone() for name in weighty} for i in range(7)]
    own = [inside(plain.start(), mask) for mask in masks]
    returned = 0

    for t in range(4):
        share = 0.5 / 2 * (1 + cos(pi * t / 4))
        present, trained_, new = plain.cohort(t), {}, {}
        for i in present:
            w = own[i]
            for _ in range(EPOCHS):
                w = inside(plain.step(w, i, w.keys()), masks[i])
            trained_[i], new[i] = w, {}
            for name, gradient in dense_gradient(plain, w, i, weighty).items():
                pruned, regrown = pruned_and_regrown(masks[i][name], w[name], gradient, share)
                returned += int((masks[i][name] & ~pruned & regrown).sum())
                new[i][name] = regrown
        for i in present:
            heard = [j for j in (i, (i + 1) % 7, (i - 1) % 7) if j in present]
            for name, value in trained_[i].items():
                received = [trained_[j][name] for j in heard]
                if not value.is_floating_point():
                    own[i][name] = torch.stack(received).amax(dim=0)
                elif name not in weighty:
                    own[i][name] = sum(received) / len(heard)
                else:
                    count = sum(masks[j][name].double() for j in heard)
                    mean = torch.where(count > 0, sum(received) / count.clamp_min(1), 0.0)
                    own[i][name] = torch.where(new[i][name], mean, 0.0)
        for i in present:
            masks[i] = new[i]

        state, _ = played(built, state)

        settings = rounds.settings_of(built.algorithm, state)
        for i, model in enumerate(built.evaluator(print).deployed(state, settings)):
            for name in weighty:
                assert torch.equal(state.clients[MASK + name][i], masks[i][name]), (t, i, name)
            assert_close(own[i], model, tiny=1e-12)
    assert returned > 100, "no entry that was pruned has returned"

    asked = build(METHOD, *FULL, *keys, *more, "algorithm.after_training=true")
    unmixed = list(asked.evaluator(print).deployed(after(asked, 4), settings))
    for i in present:
        assert_close(trained_[i], unmixed[i], tiny=1e-12)


def inside(leaves, masks):
    return leaves | {name: leaves[name] * mask for name, mask in masks.items()}


def dense_gradient(plain, leaves, client, names):
    """The gradient of all entries, inside and outside the masks, in eval mode."""
    x, y = plain.samples(client)
    looked = {name: leaves[name].clone().requires_grad_() for name in names}
    loss = cross_entropy(plain.outputs(leaves | looked, x, train=False).logits, y)
    return dict(zip(names, torch.autograd.grad(loss, list(looked.values())), strict=True))
