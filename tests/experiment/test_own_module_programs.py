"""Which methods can train a LightningModule of the user."""

import re
from pathlib import Path

import lightning
import pytest
import torch
from torch import nn

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides, from_values
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.experiment.assembly import build, load_federation

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "your-lightning-module.md"


class Lit(lightning.LightningModule):
    """A small module with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body(x))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def configured(method):
    model = {"name": "object", "lightning": True}
    given = {
        "algorithm": {"name": method},
        "model": model,
        "partition": {"scheme": "iid", "clients": 2, "samples": 80},
        "train": {"rounds": 20, "local_epochs": 2},
        "engine": {"threads": 1},
    }
    needs = from_overrides(ALGORITHMS.find(method).example())
    return resolve([from_values(given, "test"), needs])[0]


class Scaled(Lit):
    """A module whose output is not that of a layer, so that it has no head."""

    def forward(self, x):
        return 2 * super().forward(x)


def refusals(module, federation, *, tried):
    """Return the methods that cannot train the module, tried in a few steps."""
    found = set()
    with offered({"model": module}):
        for method in ALGORITHMS.load():
            try:
                build(configured(method), federation, tried=tried)
            except ConfigError:
                found.add(method)
    return found


def listed(rows):
    return {method for row in rows for method in re.findall("`([^`]*)`", row)}


@pytest.mark.full
def test_the_guide_lists_the_methods_that_are_accepted():
    """Each method is built for a module with a head and for one without, as before a run."""
    federation = load_federation(configured("fedavg"))
    refused = refusals(Lit(), federation, tried=True)
    without_head = refusals(Scaled(), federation, tried=False)
    guide = GUIDE.read_text("utf-8")
    any_module, with_head = (
        listed(re.findall(rf"^\| (`.*`) \| {kind}", guide, re.MULTILINE))
        for kind in ("any module", "a head")
    )

    assert any_module == {*ALGORITHMS.load()} - without_head
    assert with_head == without_head - refused
