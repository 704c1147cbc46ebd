"""What the user asked for, and what a run finds out beside it."""

import numpy as np
import pytest
from torch import nn

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_overrides, from_values, leaves
from flbench.core.errors import UserError
from flbench.core.parts import offered
from flbench.experiment import assembly, engines
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

    assert before == leaves(resolve([from_overrides([*SMALL, *OWN])])[0].tree())
    assert {key for key in after if before.get(key) != after[key]} == FOUND


def test_complete_configuration_is_a_fixed_point(built):
    again = assembly.build(built.config, built.federation)

    assert again.config == built.config


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


def named(*keys, net=None):
    with offered({"model": net} if net else {}):
        own = [from_values({"model": {"name": "object"}}, "test")] if net else []
        layers = [from_overrides([*SMALL, "algorithm=fedavg", *keys]), *own]
        return assembly.build(resolve(layers)[0])


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("model.name=mlp",), "vectorized"),
        (("model.name=mlp", "model.hidden=[2000]"), "sequential"),
        (("model.name=lenet5",), "sequential"),
        (("model.name=mlp", "engine.name=sequential"), "sequential"),
    ],
)
def test_auto_stacks_clients_of_small_nets_without_convolutions(keys, expected):
    built = named("engine.name=auto", *keys)

    assert built.config.engine.name == expected
    assert (built.config.engine.block is not None) == (expected == "vectorized")


def test_auto_stacks_clients_of_all_nets_on_a_gpu():
    engine = Config().engine.altered(device="cuda:0")

    assert engines.auto_stacks(engine, nn.Conv2d(3, 64, 3))
    assert not engines.auto_stacks(engine.altered(device="cpu"), nn.Conv2d(3, 64, 3))


def operations(*keys):
    """Operations of a training of an MLP 64-16-10, which is alone in its layers: by hand."""
    config = resolve([from_overrides([*SMALL, "algorithm=fedavg", "model.name=mlp", *keys])])[0]
    built = assembly.build(config)
    train, sizes = built.config.train, built.federation.sizes.tolist()
    each = [
        size * train.local_epochs
        if train.local_steps is None
        else min(size, train.batch_size) * train.local_steps
        for size in sizes
    ]
    scalars = sum(leaf.numel() for leaf in built.net.parameters() if leaf.dim() == 2)
    return built, 3 * 2 * scalars * sum(each) * train.participation * train.rounds


@pytest.mark.parametrize(
    "keys",
    [
        ("train.local_epochs=3", "train.rounds=4"),
        ("train.local_epochs=null", "train.local_steps=7", "train.batch_size=16"),
        ("train.participation=0.5",),
    ],
)
def test_long_trainings_on_a_gpu_are_compiled(keys, monkeypatch):
    built, count = operations(*keys)
    given = built.config.train, built.net, built.federation
    on_gpu = built.config.engine.altered(name="vectorized", device="cuda:0")

    for bound, expected in ((0.999 * count, True), (1.001 * count, False)):
        monkeypatch.setattr(engines, "LONG_TRAINING", bound)
        assert engines.auto_compiles(on_gpu, *given) == expected
        assert not engines.auto_compiles(on_gpu.altered(name="sequential"), *given)
        assert not engines.auto_compiles(on_gpu.altered(device="cpu"), *given)


@pytest.mark.parametrize(("bound", "expected"), [(0.0, "on"), (1e30, "off")])
def test_a_resumed_run_compiles_as_it_has_begun(bound, expected, monkeypatch):
    monkeypatch.setattr(engines, "captures", lambda config: True)
    monkeypatch.setattr(engines, "LONG_TRAINING", bound)
    first = named("engine.compile=auto", "model.name=mlp", "engine.name=vectorized")
    monkeypatch.setattr(engines, "LONG_TRAINING", 1.0)

    assert first.config.engine.compile == expected
    assert assembly.build(first.config).config.engine.compile == expected


@pytest.mark.parametrize("name", ["sequential", "vectorized"])
@pytest.mark.parametrize(("value", "told"), [("on", 1), ("auto", 0), ("off", 0)])
def test_a_note_names_compile_where_it_has_no_effect(name, value, told):
    notes = named(f"engine.name={name}", f"engine.compile={value}", "model.name=mlp").notes

    assert sum("engine.compile" in note for note in notes) == told


class Cells(nn.GRU):
    """A recurrent layer, which PyTorch cannot stack."""

    def forward(self, x):
        return super().forward(x.unflatten(-1, (8, 8)))[0][:, -1]


@pytest.mark.parametrize(
    "net", [Draws(), nn.Sequential(nn.Flatten(), Cells(8, 16, batch_first=True), nn.Linear(16, 10))]
)
def test_what_cannot_be_stacked_is_sequential(net):
    built = named("engine.name=auto", net=net)

    assert built.config.engine.name == "sequential"
