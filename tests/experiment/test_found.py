"""What the user asked for, and what a run finds out beside it."""

import numpy as np
import pytest
import torch
from torch import nn

from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides, from_values, leaves
from flbench.core.errors import UserError
from flbench.core.given import offered
from flbench.experiment import assembly, engine_choice
from tests.support import SMALL

pytestmark = pytest.mark.slow

PARTS = "tests.api.own_parts"
OWN = (
    *("algorithm=fedavg", f"data.source={PARTS}:arrays", f"partition.scheme={PARTS}:every_kth"),
    *("partition.samples=null", f"model.name={PARTS}:Two", "train.rounds=20"),
    f'train.terms=[{{"name": "focal"}}, {{"name": "{PARTS}:confidence", "size": 0.5}}]',
    f'evaluation.metrics={{"errors": "{PARTS}:error_rate"}}',
    "evaluation.every=null",
)
FOUND = {
    *("data.name", "data.sha256", "partition.seed", "partition.sha256", "model.sha256"),
    *("train.terms", "evaluation.metrics.errors.sha256", "evaluation.every"),
    "engine.device",
}
"""Keys that a run with these parts finds values for."""


@pytest.fixture(scope="module")
def asked():
    return resolve([from_overrides([*SMALL, *OWN])])[0]


@pytest.fixture(scope="module")
def built(asked):
    return assembly.build(asked)


def test_configuration_that_the_user_asked_for_does_not_change(asked, built):
    before, after = leaves(asked.tree()), leaves(built.config.tree())

    assert built.asked is asked
    assert before == leaves(resolve([from_overrides([*SMALL, *OWN])])[0].tree())
    assert {key for key in after if before.get(key) != after[key]} == FOUND


def test_complete_configuration_is_a_fixed_point(built):
    again = assembly.build(built.config, built.federation)

    assert again.found == built.found
    assert again.config == built.config


def test_engine_for_measurements_is_not_asked_for(asked, built):
    engine = asked.engine.altered(name="vectorized", block=2)
    other = assembly.build(asked, built.federation, engine=engine)

    assert (other.found.engine.name, other.found.engine.block) == ("vectorized", 2)
    assert other.asked.engine == asked.engine
    assert other.config.hash() == built.config.hash()


def test_found_hash_is_compared_with_the_recorded_one(asked, built):
    complete = built.config
    for section, key in (("model", "sha256"), ("partition", "sha256"), ("data", "sha256")):
        values = {section: getattr(complete, section).altered(**{key: "0" * 64})}
        with pytest.raises(UserError, match="0" * 64):
            assembly.build(complete.altered(**values))


class Draws(nn.Module):
    """A net that cannot be stacked: it draws from NumPy's generator."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(x.flatten(1) * (1 + 0.01 * np.random.rand()))


@pytest.mark.parametrize(
    ("device", "net", "named", "expected"),
    [
        ("cuda", None, (), "vectorized"),
        ("cuda", None, ("engine.name=sequential",), "sequential"),
        ("cuda", Draws, (), "sequential"),
        ("cpu", None, (), "sequential"),
    ],
)
def test_without_a_name_a_gpu_trains_stacked_clients(monkeypatch, device, net, named, expected):
    """The engines themselves are on the CPU here."""
    monkeypatch.setattr(engine_choice, "find_device", lambda name: torch.device(device))
    keys = ["algorithm=fedavg", *named]
    with offered({"model": net()} if net else {}):
        own = [from_values({"model": {"name": "object"}}, "test")] if net else []
        built = assembly.build(resolve([from_overrides([*SMALL, *keys]), *own])[0])

    assert built.config.engine.name == expected
    assert sum(note.startswith("engine:") for note in built.notes) == (net is not None)
