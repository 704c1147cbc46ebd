"""FedAvg-FT: FedAvg without fine-tuning, a loop over the fine-tuning, and what is evaluated."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.plain import FULL, Plain, accuracies
from tests.support import build, run


def fine_tuned(plain, start, client, stages):
    """Train a copy of the model: (names, epochs, learning rate, BatchNorm mode) of each stage."""
    x, y = plain.samples(client)
    leaves = {name: value.clone() for name, value in start.items()}
    for names, epochs, lr, batchnorm in stages:
        for name in names:
            leaves[name] = leaves[name].detach().requires_grad_()
        optimizer = torch.optim.SGD([leaves[name] for name in names], lr=lr, momentum=0.9)
        for _ in range(epochs):
            optimizer.zero_grad()
            cross_entropy(plain.outputs(leaves, x, train=batchnorm).logits, y).backward()
            optimizer.step()
        leaves = {name: value.detach() for name, value in leaves.items()}
    return leaves


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("keys", "head", "body", "rate"),
    [
        (("finetune_epochs=3",), 0, 3, None),
        (("finetune=head_first", "finetune_epochs=2", "head_epochs=3"), 3, 2, None),
        (("finetune=head_first", "finetune_epochs=0", "head_epochs=2"), 2, 0, 0.04),
        (("finetune=head_first", "finetune_epochs=1", "head_epochs=1"), 1, 1, 0.04),
    ],
)
def test_fine_tuned_models_equal_a_loop(engine, keys, head, body, rate):
    """In float64, with momentum, which is not carried over from the head to all layers."""
    built = build(
        *("algorithm=ft", "model.name=lenet5", f"engine.name={engine}"),
        *(f"algorithm.{key}" for key in keys),
        f"algorithm.finetune_lr={'null' if rate is None else rate}",
        *("train.optimizer.momentum=0.9", "train.schedule.name=step"),
        *("train.schedule.decay=0.5", "train.schedule.every=1"),
        *FULL,
    )
    plain, net = Plain(built), built.algorithm.setting.net
    state = after(built, 2)
    w = plain.start() | state.server
    lr = 0.5 * (rate or 0.1)  # the factor of round 2
    of_head = [name for name in net.parameters if name.startswith("head.")]
    assert len(of_head) == 2
    stages = ((of_head, head, lr, False), (list(net.parameters), body, lr, True))

    settings = settings_of(built.algorithm, after(built, 1))
    found = list(built.evaluator(print).deployed(state, settings))

    for client in range(5):
        expected = fine_tuned(plain, w, client, stages)
        moved = {name for name, value in expected.items() if not torch.equal(value, w[name])}
        assert moved == set(of_head) if body == 0 else moved > set(of_head)
        for name, value in found[client].items():
            assert torch.allclose(value.double(), expected[name].double(), rtol=0, atol=1e-12), name


@pytest.mark.slow
def test_models_of_other_configurations_are_evaluated_beside_it(tmp_path):
    """`noft` is FedAvg's model, and the fine-tuned one is that of FedAvg's own key."""
    keys = ("train.optimizer.lr=0.1", "train.local_epochs=2", "evaluation.common.every=1")
    ft, summary = run(tmp_path, "algorithm=ft", "algorithm.finetune_epochs=3", *keys)
    fedavg, _ = run(tmp_path, "algorithm=fedavg", "algorithm.finetune_epochs=3", *keys)

    assert accuracies(ft, "personal") == accuracies(fedavg, "ft")
    assert accuracies(ft, "noft") == accuracies(fedavg, "personal")
    assert accuracies(ft, "gm", "common") == accuracies(fedavg, "gm", "common")
    assert accuracies(ft, "personal") != accuracies(ft, "noft")
    assert summary["last"]["test"]["accuracy"] > summary["last"]["test"]["noft"]["accuracy"]
