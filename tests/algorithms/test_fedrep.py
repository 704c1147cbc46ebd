"""FedRep: epochs of both phases, fine-tuned heads, frozen bodies."""

import pytest
import torch

from flbench.testing import after
from tests.algorithms.plain import accuracies
from tests.support import build, run, summary_of_run


def test_head_gets_the_epochs_that_are_left_or_its_own():
    for key, epochs in (("train.local_epochs=5", [4, 1]), ("algorithm.head_epochs=2", [2, 1])):
        steps = build("algorithm=fedrep", key).algorithm.program(None).steps
        assert [step.epochs for step in steps] == epochs


@pytest.mark.slow
def test_heads_are_fine_tuned_beside_and_discarded(tmp_path):
    keys = ("algorithm=fedrep", "train.local_epochs=2", "train.optimizer.lr=0.1")
    keys += ("partition.samples=300",)
    path, tuned = run(tmp_path, *keys, "algorithm.finetune_epochs=3")
    plain = summary_of_run(*keys)

    program = build(*keys, "algorithm.finetune_epochs=3").algorithm
    tuning = program.deploy(build(*keys).start(), torch.arange(2))["ft"].program.steps
    assert [(step.train, step.epochs) for step in tuning] == [(program.personal(), 3)]
    assert tuned["weights_digest"] == plain["weights_digest"]
    assert accuracies(path, "ft") != accuracies(path, "personal")


def test_a_frozen_body_leaves_the_head_phase():
    """With a frozen body all clients train as with FedPer, and send nothing."""
    keys = ("model.name=lenet5", "model.freeze=backbone", "model.cache=off")
    built = [build(*keys, f"algorithm.name={name}") for name in ("fedrep", "fedper")]
    one, other = (after(each, 2) for each in built)

    assert one.clients.keys() == other.clients.keys()
    assert all(torch.equal(value, other.clients[name]) for name, value in one.clients.items())
    assert not built[0].algorithm.split()[1]
