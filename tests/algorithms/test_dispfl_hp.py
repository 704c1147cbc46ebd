from math import cos, pi

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flbench.algorithms.dfedhp import PHI
from flbench.algorithms.shared.sparse import MASK
from flbench.experiment.rounds import settings_of
from flbench.testing import after, played
from tests.algorithms.plain import assert_close, generated, pruned_and_regrown
from tests.algorithms.test_dfedhp import HEAD, LEAVES, ROUGH, SMALL
from tests.support import build

METHOD, LENET, RING = "algorithm=dispfl-hp", "model.name=lenet5", "algorithm.topology=ring"
DOUBLE, GROUP = "engine.precision=64-true", "model.norm=group"


@pytest.mark.slow
def test_dense_models_are_dfedhp():
    """Masks of ones change nothing."""
    keys = (LENET, RING, DOUBLE, *SMALL, *ROUGH)
    plain = after(build("algorithm=dfedhp", *keys), 2)

    dense = after(build(METHOD, "algorithm.density=1", *keys), 2)

    for name, value in plain.clients.items():
        assert torch.allclose(dense.clients[name].double(), value.double(), atol=1e-12), name


@pytest.mark.slow
def test_rounds_are_the_loop_of_dfedhp_with_masks():
    """Weights and masks of four clients on a ring after each of three rounds.

    The masks are on what h generates and stay private.
    """
    rates = {"v": 0.01, "phi": 0.02, "z": 0.1}
    keys = ("train.batch_size=2000", "partition.clients=4", "train.local_epochs=4", *ROUGH)
    lrs = [f"algorithm.lr_{name}={lr}" for name, lr in rates.items()]
    keys += (LENET, GROUP, DOUBLE)
    built = build(METHOD, RING, *keys, *lrs, *SMALL)
    state, net = built.start(), build(*keys).net.double()
    shapes = {name: p.shape for name, p in net.named_parameters() if not name.startswith("head")}
    weighty = [name for name, shape in shapes.items() if len(shape) > 1]
    federation = built.federation.to(torch.device("cpu"), torch.float64)
    data = []
    for rows in federation.partition.parts["train"]:
        data.append((federation.inputs(rows, torch.float64), federation.y[torch.from_numpy(rows)]))
    clients = [{n: state.clients[n][i].clone() for n in HEAD | LEAVES} for i in range(4)]
    masks = [{n: state.clients[MASK + n][i].clone() for n in weighty} for i in range(4)]

    def looked_at(own, mask):
        made = generated(own, shapes) | {n: own[n] for n in HEAD}
        return made | {n: made[n] * mask[n] for n in weighty}

    def loss(looked, x, y):
        return cross_entropy(functional_call(net, looked, (x,)).logits, y)

    returned = 0
    for t in range(3):
        share, new = 0.5 / 2 * (1 + cos(pi * t / 3)), []
        for own, mask, (x, y) in zip(clients, masks, data, strict=True):
            for part, names, k in (("v", HEAD, 1), ("phi", PHI, 2), ("z", {"z"}, 1)):
                momentum = {name: torch.zeros_like(own[name]) for name in names}
                for _ in range(k):
                    here = {name: own[name].requires_grad_() for name in sorted(names)}
                    found = torch.autograd.grad(
                        loss(looked_at(own, mask), x, y), list(here.values())
                    )
                    for (name, value), g in zip(here.items(), found, strict=True):
                        decay = 0.0 if part == "z" else 0.01
                        momentum[name] = 0.9 * momentum[name] + g + decay * value.detach()
                        own[name] = value.detach() - rates[part] * momentum[name]
            looked = {n: v.detach() for n, v in looked_at(own, mask).items()}
            dense = [looked[name].requires_grad_() for name in weighty]
            gradients = torch.autograd.grad(loss(looked, x, y), dense)
            new.append({})
            for name, gradient in zip(weighty, gradients, strict=True):
                pruned, regrown = pruned_and_regrown(mask[name], looked[name], gradient, share)
                returned += int((mask[name] & ~pruned & regrown).sum())
                new[-1][name] = regrown
        sent = [{name: own[name] for name in LEAVES} for own in clients]
        for i, own in enumerate(clients):
            heard = [(i - 1) % 4, i, (i + 1) % 4]
            for name in LEAVES:
                own[name] = sum(sent[j][name] for j in heard) / 3
        masks = new

        state, _ = played(built, state)

        models = list(built.evaluator(print).deployed(state, settings_of(built.algorithm, state)))
        for i, own in enumerate(clients):
            assert_close(models[i], looked_at(own, masks[i]), tiny=1e-12)
            for name in weighty:
                assert torch.equal(state.clients[MASK + name][i], masks[i][name]), (t, i, name)
            for name, value in own.items():
                found = state.clients[name][i]
                assert torch.allclose(found, value, rtol=0, atol=1e-12), (t, i, name)
    assert returned > 100, "no entry that was pruned has returned"
