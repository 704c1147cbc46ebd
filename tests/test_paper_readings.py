"""The readings of papers that `benchmarks/paper_readings.py` measures."""

from dataclasses import replace

import pytest
import torch

from flbench.algorithms.base import state_of
from flbench.algorithms.fedpc import FedPc
from flbench.models.base import net_leaves
from flbench.testing import fingerprint, played
from tests.support import benchmark_script, build

KEYS = ("algorithm=fedpc", "partition.clients=6")


@pytest.fixture(scope="module")
def readings():
    """The module of the script."""
    with benchmark_script("paper_readings") as module:
        yield module


def test_first_round_has_the_mixed_prototypes_of_the_set_up(readings):
    """P^_j is a mean over the clients of a group with the class, P^(j) its mixture by eq. 5-8."""
    built = build(*KEYS, "algorithm.groups=2")
    algorithm = readings.FirstPull(FedPc.Config(groups=2), built.algorithm.setting)
    first = replace(built, algorithm=algorithm)
    state, trained = played(first, state_of(algorithm, net_leaves(built.net)))

    table, held = trained.sent.values["prototypes"], trained.sent.mask["prototypes"]
    groups = state.server["groups"].tolist()
    assert set(groups) == {0, 1}
    means = [{}, {}]
    for j in (0, 1):
        for c in range(10):
            own = [table[i, c] for i in range(6) if groups[i] == j and held[i, c]]
            if own:
                means[j][c] = sum(own) / len(own)
    common = sorted(means[0].keys() & means[1].keys())
    a, b = (torch.cat([mean[c] for c in common]) for mean in means)
    cosine = max(0.0, float(a @ b / (a.norm() * b.norm())))
    for j in (0, 1):
        for c in range(10):
            parts = {k: 1.0 if k == j else cosine for k in (0, 1) if c in means[k]}
            assert bool(state.server["group.present"][j, c]) == bool(parts)
            if parts:
                mixed = sum(weight * means[k][c] for k, weight in parts.items())
                found = state.server["group.prototypes"][j, c]
                assert torch.allclose(found, mixed / sum(parts.values()), rtol=0, atol=1e-6)

    dispatch = algorithm.dispatch(state, torch.arange(6))
    assert bool(dispatch.rows.mask["group.prototypes"].all())


def test_pull_of_the_first_round_reaches_the_models(readings):
    built = build(*KEYS)
    found = []
    for gamma in (0.0, 5.0):
        algorithm = readings.FirstPull(FedPc.Config(gamma=gamma), built.algorithm.setting)
        changed = replace(built, algorithm=algorithm)
        state = state_of(algorithm, net_leaves(built.net))
        for _ in range(2):
            state, _ = played(changed, state)
        found.append(fingerprint(state))

    assert found[0] != found[1]
