"""FedRep: epochs of both phases, fine-tuned heads, frozen bodies."""

import torch

from flbench.testing import after
from tests.support import build


def test_head_gets_the_epochs_that_are_left_or_its_own():
    for key, epochs in (("train.local_epochs=5", [4, 1]), ("algorithm.head_epochs=2", [2, 1])):
        steps = build("algorithm=fedrep", key).algorithm.program(None).steps
        assert [step.epochs for step in steps] == epochs


def test_heads_are_fine_tuned():
    built = build("algorithm=fedrep", "train.local_epochs=2", "algorithm.finetune_epochs=3")
    models = built.algorithm.deploy(built.start(), torch.arange(2))

    [tuning] = models["ft"].program.steps
    assert (tuning.train, tuning.epochs) == (built.algorithm.personal(), 3)


def test_a_frozen_body_leaves_the_head_phase():
    """With a frozen body all clients train as with FedPer, and send nothing."""
    keys = ("model.name=lenet5", "model.freeze=backbone", "model.cache=off")
    built = [build(*keys, f"algorithm.name={name}") for name in ("fedrep", "fedper")]
    one, other = (after(each, 2) for each in built)

    assert one.clients.keys() == other.clients.keys()
    assert all(torch.equal(value, other.clients[name]) for name, value in one.clients.items())
    assert not built[0].algorithm.split()[1]
