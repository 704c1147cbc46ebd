"""Clients without an optimizer step, such as those with one sample where a net has BatchNorm."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flbench.testing.setting import after, independent, played
from tests.support import build, write_npz

pytestmark = pytest.mark.slow

HEADS = ("fedpac", "fedrep", "fedala", "fedas")  # other phases, in eval mode, do take steps
OTHERS = ("fedavg", "feddyn", "fednh", "fedproto", "fedpc", "pfedme")


@pytest.mark.parametrize("method", [*HEADS, *OTHERS])
def test_a_client_whose_body_took_no_step_does_not_enter_the_means(method, tmp_path):
    groups = np.full(120, 3)
    groups[0], groups[4:20], groups[20:50] = 0, 1, 2
    data = write_npz(tmp_path / "poor.npz", train_groups=groups)
    natural = ("partition.scheme=natural", "partition.clients=null", "partition.min_samples=1")
    keys = (f"algorithm={method}", "model.name=lenet5", f"data.path={data}", *natural)
    built = build(*keys, "partition.samples=null", "train.local_epochs=2")
    poor = int(built.federation.sizes.argmin())
    others = [i for i in range(built.federation.clients) if i != poor]
    state = after(built, 1)

    alone, _ = played(built, independent(state), torch.tensor(others))
    together, results = played(built, independent(state), torch.tensor([poor, *others]))

    assert int(built.federation.sizes[poor]) == 1
    assert (int(results.steps[0]) > 0) == (method in HEADS)
    names = together.server if method in OTHERS else built.algorithm.setting.net.parameters
    for name in set(names) & alone.server.keys():
        assert torch.equal(alone.server[name], together.server[name]), name


@pytest.mark.parametrize("method", ["fedadam", "fedavgm", "feddyn", "fednh", "fedpc", "ifca"])
def test_a_round_without_a_step_changes_nothing(method):
    built = build(f"algorithm={method}")
    state, results = played(built, after(built, 1))

    update = built.algorithm.aggregate(state, replace(results, steps=0 * results.steps))

    assert update.server == {}
