import lightning
import pytest
import torch
from torch import nn

from flbench.client.module import ClientModule, apply, mode
from flbench.client.program import LocalProgram, Phase
from flbench.config.schema import OptimizerConfig, TrainConfig
from flbench.core.rng import Draw
from flbench.core.types import Dispatch
from flbench.data import batches
from flbench.engine.base import RoundSettings
from flbench.losses import CrossEntropy, Proximal
from flbench.models.base import net_leaves
from tests.support import build


def trained_by_lightning(experiment, phase: Phase, client: int) -> dict[str, torch.Tensor]:
    """The same batches through Lightning's own Trainer."""
    net = build("model.name=lenet5").net
    leaves = net_leaves(net)
    start = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    federation = experiment.federation
    rows = federation.partition.parts["train"][client]

    class Epochs(torch.utils.data.IterableDataset):
        number = 0

        def __iter__(self):
            keys = {"dtype": torch.float32, "skip_single": True, "first_step": 0}
            yield from batches.epoch(
                federation, rows, client, self.number, Draw(0, (0,), 5), TrainConfig(), **keys
            )
            self.number += 1

    trainer = lightning.Trainer(
        max_epochs=phase.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = ClientModule(net, phase, leaves, start, {})
    trainer.fit(module, torch.utils.data.DataLoader(Epochs(), batch_size=None))
    return {name: leaf.detach() for name, leaf in net_leaves(net).items()}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.filterwarnings("ignore")
def test_lightning_trainer_and_engine_give_equal_weights(optimizer):
    experiment = build("model.name=lenet5", "algorithm=local")
    names = experiment.algorithm.setting.net.parameters
    config = OptimizerConfig(
        name=optimizer, momentum=0.9 if optimizer == "sgd" else 0.0, weight_decay=1e-3
    )
    phase = Phase("*", (CrossEntropy(), Proximal(names, 0.1)), config, epochs=2)
    program = LocalProgram((phase,), keeps=experiment.algorithm.setting.net.names("all"))

    results = experiment.engine.run(
        program,
        torch.tensor([2]),
        rows=lambda ids: {},
        dispatch=lambda ids: Dispatch(),
        settings=RoundSettings(TrainConfig(), Draw(0, (0,), 5)),
    )

    expected = trained_by_lightning(experiment, phase, 2)
    for name, value in expected.items():
        assert torch.equal(results.kept[name][0], value), name


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


def test_taps_are_input_and_output_of_a_layer_and_leave_no_hooks():
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


def test_frozen_batchnorm_stays_in_eval_mode_while_the_rest_trains():
    net, leaves = lenet()
    phase = Phase("head.*", (CrossEntropy(),), OptimizerConfig(), epochs=1, batchnorm="eval")

    module = ClientModule(net, phase, net_leaves(net), leaves, {}).train()

    assert module.net.backbone.conv1.training
    assert not any(m.training for m in net.modules() if isinstance(m, nn.BatchNorm2d))


def test_only_named_parameters_are_in_the_optimiser():
    net, leaves = lenet()
    phase = Phase("head.*", (CrossEntropy(),), OptimizerConfig(weight_decay=0.1), epochs=1)

    module = ClientModule(net, phase, net_leaves(net), leaves, {})
    optimizer = module.configure_optimizers()

    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == 850
    assert [name for name, p in net.named_parameters() if p.requires_grad] == [
        "head.weight",
        "head.bias",
    ]
