"""FedCAC: a plain loop, FedAvg, Local-Only, special masks."""

import pytest
import torch

from flbench.algorithms.fedcac import composed, find_critical
from flbench.core.tree import only
from flbench.core.types import Context
from flbench.experiment.rounds import settings_of, train
from flbench.testing import after
from tests.algorithms.loops import (
    KEYS,
    NET,
    Clients,
    assert_equal,
    mean_cross_entropy,
    platform,
    weighted_sum,
)
from tests.support import build


def slow_mask(theta, began, tau):
    """For each parameter, the flat positions of its critical entries, of equal ones the first."""
    most = max(float((theta[name] - began[name]).abs().max()) for name in NET)
    found = set()
    for name in NET:
        changes, values = (theta[name] - began[name]).flatten(), theta[name].flatten()
        still = 16 * torch.finfo(values.dtype).eps * most
        ranked = sorted(
            (-abs(float(change * value)), j)
            for j, (change, value) in enumerate(zip(changes, values, strict=True))
            if abs(float(change)) > still
        )
        found |= {(name, j) for score, j in ranked[: int(tau * len(values))] if score < 0}
    return found


def slow_start(mask, custom, w):
    start = {name: w[name].clone() for name in NET}
    for name, j in mask:
        start[name].view(-1)[j] = custom[name].view(-1)[j]
    return start


def slow_rounds(clients, tau, beta, rounds):
    """Returns w, and the masks and customized models of all clients."""
    w = only(clients.start, NET)
    masks, custom = [set() for _ in range(len(clients))], [w] * len(clients)
    for t in range(1, rounds + 1):
        ids, theta = clients.cohort(t - 1), {}
        for i in ids:
            began = slow_start(masks[i], custom[i], w)
            theta[i] = clients.train(i, t - 1, began, lambda z, o, y: mean_cross_entropy(o, y))
            masks[i] = slow_mask(theta[i], began, tau)
        overlap = {
            (i, j): 1 - len(masks[i] ^ masks[j]) / (2 * len(masks[i]))
            for i in ids
            for j in ids
            if i != j
        }
        mean, most = sum(overlap.values()) / len(overlap), max(overlap.values())
        threshold = mean + t / (beta * rounds) * (most - mean)
        for i in ids:
            group = [j for j in ids if j == i or overlap[i, j] >= threshold - 1e-12]
            custom[i] = weighted_sum([theta[j] for j in group], [1 / len(group)] * len(group))
        n = [clients.size(i) for i in ids]
        w = weighted_sum([theta[i] for i in ids], [k / sum(n) for k in n])
    return w, masks, custom


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(("tau", "beta"), [(0.5, 0.5), (0.2, 3.0)])
def test_rounds_equal_a_loop(tau, beta, engine):
    clients = Clients(build("algorithm=fedavg", *KEYS))
    keys = (f"algorithm.tau={tau}", f"algorithm.beta={beta}", f"engine.name={engine}")
    state = platform("algorithm=fedcac", *keys, rounds=3)

    w, masks, custom = slow_rounds(clients, tau, beta, rounds=3)

    for name in NET:
        assert_equal(state.server[name], w[name], name)
        for i in range(len(clients)):
            mask = torch.zeros(w[name].numel(), dtype=torch.bool)
            mask[[j for other, j in masks[i] if other == name]] = True
            mask = mask.reshape(w[name].shape)
            assert torch.equal(state.clients[f"critical.{name}"][i], mask)
            expected = torch.where(mask, custom[i][name], 0.0)
            assert_equal(state.clients[f"custom.{name}"][i], expected, name)


@pytest.mark.slow
def test_client_without_partners_keeps_its_own_critical_entries():
    """After round beta T nobody has partners: with all entries critical, it is Local-Only."""
    keys = ("algorithm=fedcac", "algorithm.tau=1", "algorithm.beta=0.01", "train.rounds=2")
    state = after(build(*KEYS, *keys), 1)
    local = after(build(*KEYS, "algorithm=local"), 1)

    for name in NET:
        took_part = state.participation_count > 0
        mask = state.clients[f"critical.{name}"][took_part]
        own = torch.where(mask, local.clients[name][took_part], 0.0)
        assert torch.equal(state.clients[f"custom.{name}"][took_part], own)
        assert not state.clients[f"custom.{name}"][~took_part].any()


@pytest.mark.slow
def test_model_of_a_client_is_composed_of_both():
    built = build(*KEYS, "algorithm=fedcac")
    state = after(built, 2)
    models = built.evaluator(print).deployed(state, settings_of(built.algorithm, state))

    for i, model in enumerate(models):
        for name in NET:
            mask = state.clients[f"critical.{name}"][i]
            own = state.clients[f"custom.{name}"][i]
            assert torch.equal(model[name], torch.where(mask, own, state.server[name])), (i, name)


def test_scores_of_ties_and_zeros():
    def mask(theta, began, tau):
        before = torch.tensor(began)
        none = {"critical.w": torch.zeros(len(began), dtype=torch.bool), "custom.w": before}
        start = {"w": before} | none
        context = Context(leaves={"w": torch.tensor(theta)}, start=start, ctx={})
        return find_critical(context, ("w",), tau)["critical.w"].tolist()

    assert mask([2.0, 2.0, 1.0, 0.0], [1.0, 1.0, 0.0, 5.0], 0.5) == [True, True, False, False]
    assert mask([2.0, 2.0, 1.0, 0.0], [1.0, 1.0, 0.0, 5.0], 0.25) == [True, False, False, False]
    assert mask([2.0, 2.0 + 1e-6, 1.0, 0.0], [1.0, 1.0, 0.0, 5.0], 0.25).index(True) == 0
    assert mask([0.0, 0.0], [0.0, 0.0], 1.0) == [False, False]
    assert mask([1e-3, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], 1.0) == [True, True, False, False]
    assert mask([1e-8, 3.0, 0.5, 0.0], [0.0, 0.0, 0.5, 0.0], 1.0) == [False, True, False, False]


@pytest.mark.slow
def test_right_after_training_a_client_has_what_it_trained():
    """Not what its mask makes of the values that the server has not sent yet."""
    built = build(*KEYS, "algorithm=fedcac")
    state = built.start()
    settings = settings_of(built.algorithm, state)

    results = train(built.algorithm, built.engine, state, settings).results

    for k in range(len(results.ids)):
        leaves = {name: value[k] for name, value in {**results.kept, **results.sent.values}.items()}
        model = composed(Context(leaves=leaves, start=leaves, ctx={}), NET)
        for name in NET:
            assert torch.equal(model[name], leaves[name])
            assert leaves[f"critical.{name}"].any()
