"""A phase gives the same weights under an engine and under Lightning's own Trainer, or is refused.

`FIELDS` names every field of `Phase` with the phases that exercise it.
"""

from dataclasses import fields, replace

import lightning
import pytest
import torch

from flbench.client.forward import apply
from flbench.client.module import ClientModule
from flbench.client.program import LocalProgram, Phase
from flbench.config.schema import OptimizerConfig, TrainConfig
from flbench.core.rng import Draw
from flbench.core.types import Dispatch, Samples
from flbench.engine.base import LocalWork, RoundSettings
from flbench.engine.training import ClientBatches
from flbench.losses import CrossEntropy, Proximal
from flbench.models.base import net_leaves
from flbench.models.freezing import mode
from tests.support import build

CLIENT = 2
SETTINGS = RoundSettings(TrainConfig(batch_size=16), Draw(0, (0,), 5))
SGD = OptimizerConfig(lr=0.05)
PULL = Proximal(("head.weight", "head.bias"), 0.5)


def halved(context):
    """The net is called with half of its weights."""
    return {n: v / 2 if n.endswith("weight") else v for n, v in context.leaves.items()}


def shrink(context):
    return {name: 0.9 * value for name, value in context.trained.items()}


def phase(**keys) -> Phase:
    given = {"train": "*", "terms": (CrossEntropy(),), "optimizer": SGD, "epochs": 2}
    return Phase(**given | keys)


MOMENTUM = OptimizerConfig(lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
FIELDS = {
    "train": [phase(train="head.*"), phase(train=frozenset({"head.bias", "backbone.fc1.weight"}))],
    "terms": [phase(terms=(CrossEntropy(), PULL))],
    "optimizer": [
        phase(optimizer=MOMENTUM),
        phase(optimizer=OptimizerConfig(name="adam", lr=0.01, weight_decay=1e-3)),
        phase(optimizer=OptimizerConfig(name="adamw", lr=0.01, weight_decay=1e-3)),
    ],
    "epochs": [phase(epochs=3)],
    "steps": [phase(epochs=None, steps=7)],
    "clip": [phase(clip=0.05), phase(clip=0.05, optimizer=MOMENTUM)],
    "weights": [phase(weights=halved)],
    "project": [phase(project=shrink), phase(project=shrink, clip=0.05)],
    "batchnorm": [phase(batchnorm="eval")],
    "samples": [phase(samples=Samples(high=0.5)), phase(samples=Samples("validation"))],
}


def trained_by_engine(experiment, phase: Phase) -> dict[str, torch.Tensor]:
    """Return the leaves after the phase."""
    program = LocalProgram((phase,), keeps=experiment.algorithm.setting.net.names("all"))
    work = LocalWork(program, lambda ids: {}, lambda ids: Dispatch(), SETTINGS)
    results = experiment.engine.run(work, torch.tensor([CLIENT]))
    return {name: value[0] for name, value in results.kept.items()}


def module_of(phase: Phase, kind=ClientModule) -> ClientModule:
    net = build("model.name=lenet5").net.eval()  # a Trainer does not set the mode
    leaves = net_leaves(net)
    return kind(net, phase, leaves, {n: v.detach().clone() for n, v in leaves.items()}, {})


def batches_of(experiment, phase: Phase) -> ClientBatches:
    keys = {"dtype": torch.float32, "skip_single": True}
    return ClientBatches(experiment.federation, phase, CLIENT, SETTINGS, **keys)


def trainer_of(phase: Phase, **keys) -> lightning.Trainer:
    limits = {"max_epochs": phase.epochs or -1, "max_steps": phase.steps or -1}
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return lightning.Trainer(**{"accelerator": "cpu", **limits, **quiet, **keys})


def trained_by_lightning(experiment, phase: Phase, kind=ClientModule, **keys):
    """Return the same as `trained_by_engine`, from the same batches."""
    module = module_of(phase, kind)
    trainer_of(phase, **keys).fit(module, batches_of(experiment, phase))
    return {n: v.detach() for n, v in net_leaves(module.net).items()}


@pytest.fixture(scope="module")
def experiment():
    return build("model.name=lenet5", "algorithm=local")


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def test_every_field_of_a_phase_is_compared_with_lightnings_trainer():
    """A new field needs an entry: phases that are trained alike, or a refusal."""
    # `by_module` leaves the optimizer to a LightningModule of the user; see tests/api.
    others = {"by_module", "until", "record", "gradient"}
    assert set(FIELDS) == {field.name for field in fields(Phase)} - others
    plain = phase()
    for name, phases in FIELDS.items():
        assert phases, name
        assert all(getattr(some, name) != getattr(plain, name) for some in phases), name


@pytest.mark.parametrize(
    ("name", "some"), [(name, some) for name, phases in FIELDS.items() for some in phases]
)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trainer_and_engine_give_equal_weights(experiment, name, some):
    expected = trained_by_engine(experiment, some)

    assert_equal(expected, trained_by_lightning(experiment, some))
    if name not in ("epochs", "steps"):  # the field has an effect
        without = replace(some, **{name: getattr(phase(), name)})
        other = trained_by_engine(experiment, without)
        assert any(not torch.equal(value, other[leaf]) for leaf, value in expected.items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trainer_and_engine_give_equal_weights_in_half_precision():
    experiment = build("model.name=lenet5", "algorithm=local", "engine.precision=bf16-mixed")
    some = phase(clip=0.1)

    found = trained_by_lightning(experiment, some, precision="bf16-mixed")

    assert_equal(trained_by_engine(experiment, some), found)


def lenet():
    net = build("model.name=lenet5").net
    return net, {name: leaf.detach().clone() for name, leaf in net_leaves(net).items()}


def test_apply_writes_to_nothing_and_keeps_the_mode():
    net, leaves = lenet()
    net.train()
    before = {name: leaf.clone() for name, leaf in leaves.items()}
    own = {name: leaf.detach().clone() for name, leaf in net_leaves(net).items()}

    for train in (False, True):
        apply(net, leaves, torch.rand(4, 1, 8, 8), train=train)

    assert net.training
    assert all(module.training for module in net.modules())
    assert all(torch.equal(leaves[name], before[name]) for name in leaves)
    assert all(torch.equal(leaf, own[name]) for name, leaf in net_leaves(net).items())


def test_apply_runs_references_on_their_own_statistics():
    net, leaves = lenet()
    other = leaves | {"backbone.norm1.running_mean": leaves["backbone.norm1.running_mean"] + 1}
    x = torch.rand(4, 1, 8, 8)

    assert not torch.equal(apply(net, leaves, x).logits, apply(net, other, x).logits)
    assert torch.equal(
        apply(net, leaves, x, train=True).logits, apply(net, other, x, train=True).logits
    )


def test_activations_are_input_and_output_of_a_layer_and_leave_no_hooks():
    net, leaves = lenet()

    out = apply(net, leaves, torch.rand(4, 1, 8, 8), activations=("head", "backbone.fc2"))

    assert torch.equal(out.activations["head"][0], out.features)
    assert torch.equal(out.activations["head"][1], out.logits)
    assert out.activations["backbone.fc2"][1].shape == (4, 84)
    assert not any(module._forward_hooks for module in net.modules())


def test_mode_is_restored_after_an_error():
    net, _ = lenet()
    net.train()
    net.backbone.norm1.eval()

    with pytest.raises(ZeroDivisionError), mode(net, train=False):
        _ = 1 / (0 if not net.training else 1)

    assert net.training
    assert not net.backbone.norm1.training
