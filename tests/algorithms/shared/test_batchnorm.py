"""Clients with one sample, on which BatchNorm cannot train in train mode."""

import numpy as np
import pytest
import torch

from flbench.testing.setting import after, independent, played
from tests.support import build, write_npz


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedpac", "fedrep", "fedala", "fedas"])
def test_a_client_whose_body_took_no_step_does_not_enter_its_mean(method, tmp_path):
    """Its other phases, of a head or of weights in eval mode, do take steps."""
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
    assert (int(results.steps[0]) > 0) == (method != "fedavg")
    for name in built.algorithm.split()[1] & set(built.algorithm.setting.net.parameters):
        assert torch.equal(alone.server[name], together.server[name]), name
