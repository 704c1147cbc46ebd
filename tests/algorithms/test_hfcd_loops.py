"""HFCD against loops over the equations of its paper, in float64: each loss, and whole rounds."""

from dataclasses import replace
from functools import cache
from math import exp, log

import pytest
import torch
from torch import Tensor

from flbench.core.types import Tree
from tests.algorithms.loops import (
    BACKBONE,
    CLASSES,
    HEAD,
    KEYS,
    Clients,
    assert_equal,
    class_means,
    cosine,
    mean_cross_entropy,
    platform,
    weighted_sum,
)
from tests.losses.support import Case, case
from tests.support import build

ROUNDS = 4
TAU, ALPHA, GAMMA, LAMBDA0 = 0.2, 0.7, 1.3, 0.7  # table 1, CIFAR-100


class Table:
    """What the server sends: prototypes by class, and similarities by pair of classes."""

    def __init__(self) -> None:
        self.prototypes: dict[int, Tensor] = {}
        self.similarity: dict[tuple[int, int], float] = {}


def contrast_loss(z: Tensor, y: list[int], table: Table, *, hard: bool = True) -> Tensor:
    """L_cont: the mean over the samples whose class has a prototype.

    Without hard negatives, gamma is 1 for all of them.
    """
    losses = []
    for feature, k in zip(z, y, strict=True):
        if k not in table.prototypes:
            continue
        e = {q: (cosine(feature, c) / TAU).exp() for q, c in table.prototypes.items()}
        negatives = [q for q in e if q != k]
        similar = {q for q in negatives if hard and table.similarity[k, q] > ALPHA}
        regular = [q for q in negatives if q not in similar]
        below = e[k] + sum(GAMMA * e[q] for q in similar) + sum(e[r] for r in regular)
        losses.append(-(e[k] / below).log())
    return sum(losses) / len(losses) if losses else z.sum() * 0


def similarity_loss(z: Tensor, y: list[int], table: Table, bank: dict[int, Tensor]) -> Tensor:
    """L_KD: the double sum over pairs of classes of Pg log(Pg / Pl), not divided."""
    common = sorted(set(bank) & set(table.prototypes))
    if len(common) < 2:
        return z.sum() * 0
    of_batch = class_means(z, y)
    local = {p: of_batch.get(p, bank[p]) for p in common}
    total = z.sum() * 0
    for p in common:
        of_server = {q: exp(table.similarity[p, q]) for q in common}
        of_client = {q: cosine(local[p], local[q]).exp() for q in common}
        for q in common:
            pg = of_server[q] / sum(of_server.values())
            pl = of_client[q] / sum(of_client.values())
            total = total + pg * (log(pg) - pl.log())
    return total


# Each loss


@pytest.mark.slow
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_contrast_equals_the_loop_in_value_and_gradient(seed, hard):
    c, table, _ = situation(seed)
    algorithm = build("algorithm=hfcd", f"algorithm.hard_negatives={str(hard).lower()}").algorithm

    _, term, _ = algorithm.terms()
    found = term(c.context())
    [gradient] = torch.autograd.grad(found, c.features)

    expected = contrast_loss(c.features, c.y.tolist(), table, hard=hard)
    assert_equal(found.detach(), expected.detach(), "value")
    assert_equal(gradient, torch.autograd.grad(expected, c.features)[0], "gradient")


@pytest.mark.parametrize("size", [3, 12])
@pytest.mark.parametrize("seed", range(2))
def test_distillation_equals_the_loop_in_value_and_gradient(seed, size):
    """The smaller batch lacks classes, whose prototypes then come from the bank."""
    c, table, bank = situation(seed, size)

    _, _, term = build("algorithm=hfcd").algorithm.terms()
    found = term(c.context())
    [gradient] = torch.autograd.grad(found, c.features)

    expected = similarity_loss(c.features, c.y.tolist(), table, bank)
    assert float(expected) > 0
    assert_equal(found.detach(), expected.detach(), "value")
    assert_equal(gradient, torch.autograd.grad(expected, c.features)[0], "gradient")


def situation(seed: int, size: int = 12) -> tuple[Case, Table, dict[int, Tensor]]:
    """A batch, the global table as dictionaries, and the client's bank; class 3 is in neither.

    The similarities are not cosines of the table and not symmetric, so that a row and a column are
    told apart.
    """
    c = case(seed, n=size)
    g = torch.Generator().manual_seed(seed)
    similarity = 0.4 + 0.6 * torch.rand(5, 5, generator=g, dtype=torch.float64)
    c = replace(c, ctx=c.ctx | {"global.similarity": similarity})
    table = Table()
    classes = [k for k in range(5) if c.ctx["global.present"][k]]
    table.prototypes = {k: c.ctx["global.prototypes"][k] for k in classes}
    table.similarity = {(p, q): float(similarity[p, q]) for p in classes for q in classes}
    bank = {k: c.leaves["prototypes"][k] for k in range(5) if c.leaves["counts"][k] > 0}
    return c, table, bank


# Whole rounds


def server_table(clients: Clients, banks: dict[int, dict[int, Tensor]], *, plain: bool) -> Table:
    """Compute C_glob and S_glob from the last upload of each client."""
    table = Table()
    for k in range(CLASSES):
        holders = [i for i, bank in banks.items() if k in bank]
        if not holders:
            continue
        largest = max(clients.count(i, k) for i in holders)
        a = {}
        for i in holders:
            others = [float(cosine(banks[i][k], banks[j][k])) for j in holders if j != i]
            agreement = sum(others) / len(others) if others else 1.0
            a[i] = 0.0 if plain else clients.count(i, k) / largest * agreement
        total = sum(exp(value) for value in a.values())
        table.prototypes[k] = sum(exp(a[i]) / total * banks[i][k] for i in holders)
    for p in table.prototypes:
        for q in table.prototypes:
            both = [bank for bank in banks.values() if p in bank and q in bank]
            of_clients = [float(cosine(bank[p], bank[q])) for bank in both]
            of_table = float(cosine(table.prototypes[p], table.prototypes[q]))
            mean = sum(of_clients) / len(both) if both else of_table
            table.similarity[p, q] = 1.0 if p == q else mean
    return table


def rounds_by_loops(
    clients: Clients,
    *,
    full: bool = False,
    form: str = "nested",
    contrast: bool = True,
    hard: bool = True,
    plain: bool = False,
) -> tuple[dict[int, Tree], Tree, dict[int, dict[int, Tensor]], Table]:
    """Return the clients' weights, the server's weights, the banks and the last table."""
    server = clients.start
    weights = dict.fromkeys(range(len(clients)), clients.start)
    banks: dict[int, dict[int, Tensor]] = {}
    table = Table()
    for t in range(ROUNDS):
        beta, lam = LAMBDA0 * (1 - exp(-t / ROUNDS)), LAMBDA0 * exp(-t / ROUNDS)
        of_kd = beta * lam if form == "nested" else lam
        cohort = clients.cohort(t)
        for i in cohort:
            bank = banks.get(i, {})

            def loss(z, logits, y, bank=bank, table=table, beta=beta, of_kd=of_kd):
                total = mean_cross_entropy(logits, y)
                if contrast:
                    total = total + beta * contrast_loss(z, y, table, hard=hard)
                return total + of_kd * similarity_loss(z, y, table, bank)

            weights[i] = clients.train(i, t, server if full else weights[i], loss)
        for i in cohort:
            banks[i] = clients.prototypes(i, weights[i])
        if full:
            total = sum(clients.size(i) for i in cohort)
            shares = [clients.size(i) / total for i in cohort]
            server = weighted_sum([weights[i] for i in cohort], shares)
        table = server_table(clients, banks, plain=plain)
    return weights, server, banks, table


VARIANTS = {
    "share=none": {},
    "share=full": {"full": True},
    "loss_form=separate": {"form": "separate"},
    "contrast=false": {"contrast": False},
    "hard_negatives=false": {"hard": False},
    "aggregation=mean": {"plain": True},
}


@cache
def expected_of(option: str):
    """The results of the loops, which do not depend on the engine."""
    clients = Clients(build(*KEYS, "algorithm=hfcd"))
    return rounds_by_loops(clients, **VARIANTS[option])


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("option", VARIANTS)
def test_rounds_equal_loops_over_the_equations(option, engine):
    """Four rounds with absent clients, several batches, and classes that no client has sent yet."""
    keys = (f"algorithm.{option}", f"engine.name={engine}")
    state = platform("algorithm=hfcd", *keys, rounds=ROUNDS)

    weights, server, banks, table = expected_of(option)

    for name in (*BACKBONE, *HEAD):
        if option == "share=full":
            assert_equal(state.server[name], server[name], name)
        else:
            expected = torch.stack([weights[i][name] for i in sorted(weights)])
            assert_equal(state.clients[name], expected, name)
    for i, bank in banks.items():
        assert set(bank) == {k for k in range(CLASSES) if state.clients["counts"][i, k]}
        for k, prototype in bank.items():
            assert_equal(state.clients["prototypes"][i, k], prototype, f"prototype {k} of {i}")
    assert state.server["global.present"].tolist() == [
        k in table.prototypes for k in range(CLASSES)
    ]
    for k, prototype in table.prototypes.items():
        assert_equal(state.server["global.prototypes"][k], prototype, f"global prototype {k}")
    for (p, q), value in table.similarity.items():
        found = state.server["global.similarity"][p, q]
        assert_equal(found, torch.tensor(value, dtype=torch.float64), f"similarity of {p} and {q}")
