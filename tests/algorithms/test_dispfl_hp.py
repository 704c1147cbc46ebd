import numpy as np
import pytest
import torch
from torch.func import functional_call

from flbench.algorithms.shared import gossip
from flbench.algorithms.shared.hypernetwork import LEAVES
from flbench.algorithms.shared.sparse import MASK
from flbench.experiment import rounds
from tests.algorithms.test_contract import after
from tests.algorithms.test_dfedhp import ROUGH, SMALL, SmallChunks
from tests.support import build

METHOD, LENET, RING = "algorithm=dispfl-hp", "model.name=lenet5", "algorithm.topology=ring"
DOUBLE, GROUP, PHI = "engine.precision=64-true", "model.norm=group", "algorithm.mask_phi=true"
WHERE = ["false", "true"]


def trained(built, state):
    settings = rounds.settings_of(built.config, built.algorithm, state)
    return rounds.train(built.algorithm, built.engine, state, settings)


@pytest.mark.slow
def test_it_is_dispfl_with_the_hypernetwork(monkeypatch):
    monkeypatch.setattr(gossip, "HypernetworkConfig", SmallChunks)
    keys = (LENET, "train.participation=0.6", *ROUGH)
    preset = after(build(METHOD, *keys, *SMALL), 2)

    plugged = after(build("algorithm=dispfl", "algorithm.hypernetwork=true", *keys), 2)

    assert preset.clients.keys() == plugged.clients.keys()
    for name, value in preset.clients.items():
        assert torch.equal(value, plugged.clients[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_dense_models_are_dfedhp(where):
    """Masks of ones, on theta or on phi, change nothing."""
    keys = (LENET, RING, DOUBLE, *SMALL, *ROUGH)
    plain = after(build("algorithm=dfedhp", *keys), 2)

    built = build(METHOD, "algorithm.density=1", f"algorithm.mask_phi={where}", *keys)
    dense = after(built, 2)

    assert any("density=1 leaves nothing to prune: this is DFedHP" in n for n in built.notes)
    for name, value in plain.clients.items():
        assert torch.allclose(dense.clients[name].double(), value.double(), atol=1e-12), name


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_masks_keep_their_size_and_what_they_mask_is_zero_outside(where):
    """Masks are on the evaluated weights, or on phi as it is kept and sent."""
    built = build(METHOD, LENET, f"algorithm.mask_phi={where}", *SMALL, *ROUGH, DOUBLE)
    start, state, masked = built.start(), after(built, 2), built.algorithm.masked()
    settings = rounds.settings_of(built.config, built.algorithm, state)

    models = list(built.evaluator(print).deployed(state, settings))

    assert not any(name.startswith("head") for name in masked)
    moved = 0
    for name in masked:
        before, mask = start.clients[MASK + name], state.clients[MASK + name]
        assert torch.equal(before.flatten(1).sum(dim=1), mask.flatten(1).sum(dim=1))
        moved += not torch.equal(before, mask)
        for client, model in enumerate(models):
            value = state.clients[name][client] if where == "true" else model[name]
            assert bool((value[~mask[client]] == 0).all()), name
        if where == "false":
            inside = torch.stack([model[name] for model in models])[mask]
            assert bool((inside != 0).all()), "what comes in has the value that h gives it"
    assert moved >= 2


@pytest.mark.slow
def test_private_masks_never_cross_and_phi_is_mixed_as_it_is():
    built = build(METHOD, LENET, RING, "partition.clients=4", *SMALL, DOUBLE)
    state = after(built, 1)
    done = trained(built, state)

    over = rounds.exchange(built.algorithm, state, done)

    assert built.algorithm.program(state).sends == LEAVES
    payload = 0
    for name, sent in done.results.sent.values.items():
        expected = (sent + sent.roll(1, 0) + sent.roll(-1, 0)) / 3
        assert torch.allclose(over.state.clients[name], expected, atol=1e-12), name
        payload += sent[0].numel() * 8
    assert over.costs["peer_bytes"] == 8 * payload


@pytest.mark.slow
def test_masked_phi_is_sent_and_averaged_where_masks_overlap():
    """Phi is mixed as DisPFL mixes weights; embeddings and biases are dense."""
    built = build(METHOD, PHI, LENET, RING, "partition.clients=4", *SMALL, DOUBLE)
    state = after(built, 1)
    done = trained(built, state)

    over = rounds.exchange(built.algorithm, state, done)

    payload = 0
    for name, sent in done.results.sent.values.items():
        full = torch.ones_like(sent, dtype=torch.bool)
        mask = over.state.clients.get(MASK + name, full)
        payload += int(mask[0].sum()) * 8
        total, count = sent * mask, mask.double()
        total = total + total.roll(1, 0) + total.roll(-1, 0)
        count = count + count.roll(1, 0) + count.roll(-1, 0)
        expected = torch.where(mask, total / count.clamp_min(1), 0.0)
        assert torch.allclose(over.state.clients[name], expected, atol=1e-12), name
    assert over.costs["peer_bytes"] == 8 * payload
    assert payload < 0.7 * sum(8 * v[0].numel() for v in done.results.sent.values.values())


@pytest.mark.parametrize("where", WHERE)
def test_prune_and_regrow_look_at_sizes_and_at_the_dense_gradient(where):
    """The loop reads theta and its gradient, or phi and its gradient, of one client."""
    keys = (LENET, GROUP, DOUBLE, "train.batch_size=2000", "partition.clients=3")
    built = build(METHOD, f"algorithm.mask_phi={where}", *keys, *SMALL)
    start = built.start()
    algorithm, masked = built.algorithm, built.algorithm.masked()
    program = algorithm.program(start)
    everything = frozenset(start.clients)
    settings = rounds.settings_of(built.config, algorithm, start)

    done = built.engine.run(
        type(program)(program.steps, everything),
        torch.arange(3),
        rows=lambda ids: {name: value[ids] for name, value in start.clients.items()},
        dispatch=lambda ids: algorithm.dispatch(start, ids),
        settings=settings,
    )

    federation = built.federation.to(torch.device("cpu"), torch.float64)
    rows = federation.partition.parts["train"][1]
    x, y = federation.inputs(rows, torch.float64), federation.y[torch.from_numpy(rows)]
    net, h = build(*keys).net.double().eval(), algorithm.generation.hypernetwork
    shell = {name: leaf.detach() for name, leaf in net.named_parameters()}
    leaves = shell | {name: value[1] for name, value in done.kept.items()}
    old = {name: start.clients[MASK + name][1] for name in masked}
    if where == "true":
        looked = {n: (leaves[n] * old[n]).requires_grad_() for n in masked}
        weights = h(leaves | looked, {})
    else:
        made = h(leaves, {})
        looked = {n: (made[n] * old[n]).requires_grad_() for n in masked}
        weights = made | looked
    loss = torch.nn.functional.cross_entropy(functional_call(net, weights, (x,)).logits, y)
    found = torch.autograd.grad(loss, list(looked.values()))
    for (name, value), gradient in zip(looked.items(), found, strict=True):
        was = old[name].flatten().numpy()
        size = coarse(value.detach())
        worth = coarse(gradient)
        k = min(int(np.ceil(0.5 * was.sum())), int((~was).sum()))
        inside, outside = np.flatnonzero(was), np.flatnonzero(~was)
        out = inside[np.argsort(size[inside], kind="stable")[:k]]
        new = outside[np.argsort(-worth[outside], kind="stable")[:k]]
        expected = was.copy()
        expected[out], expected[new] = False, True
        assert np.array_equal(leaves[MASK + name].flatten().numpy(), expected), name


def coarse(value: torch.Tensor) -> np.ndarray:
    """Return absolute values, rounded relative to the largest; equal ones keep their order."""
    size = value.flatten().abs().numpy()
    return np.round(size * (2.0**20 / size.max()))


def test_charge_masks_without_sent_masks_is_noted():
    told = "algorithm.charge_masks has no effect: masks are not sent."
    charge = "algorithm.charge_masks=true"

    assert told in build(METHOD, LENET, charge, *SMALL).notes
    assert told not in build(METHOD, LENET, charge, PHI, *SMALL).notes
    assert told not in build(METHOD, LENET, *SMALL).notes
    sends = build(METHOD, LENET, charge, PHI, *SMALL).algorithm.program(None).sends
    assert sends == LEAVES | {"bits"}
