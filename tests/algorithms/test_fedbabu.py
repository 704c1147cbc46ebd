"""FedBABU: a loop over the fine-tuning, and both deployments."""

import pytest
import torch

from flbench.experiment import rounds
from flbench.testing import after
from tests.algorithms.plain import FULL, Plain, accuracies, assert_close
from tests.support import build, run


@pytest.mark.slow
@pytest.mark.parametrize("part", ["all", "head", "backbone"])
def test_fine_tuned_models_equal_a_loop(part):
    built = build(
        "algorithm=fedbabu",
        "model.name=lenet5",
        f"algorithm.finetune={part}",
        "algorithm.finetune_epochs=3",
        *FULL,
    )
    plain, state = Plain(built), after(built, 2)
    body = {**plain.start(), **state.server}

    settings = rounds.settings_of(built.algorithm, state)
    found = list(built.evaluator(print).deployed(state, settings))

    for client in range(5):
        leaves = body
        for _ in range(3):
            leaves = plain.step(leaves, client, built.algorithm.setting.net.names(part))
        assert_close(found[client], leaves)


@pytest.mark.slow
def test_both_models_are_evaluated_and_training_is_the_same(tmp_path):
    keys = ("algorithm=fedbabu", "train.optimizer.lr=0.1")
    ft, summary = run(tmp_path, *keys)
    noft, plain = run(tmp_path, *keys, "algorithm.evaluated=noft")

    assert accuracies(ft, "personal") == accuracies(noft, "ft")
    assert accuracies(ft, "noft") == accuracies(noft, "personal")
    assert accuracies(ft, "personal") != accuracies(ft, "noft")
    assert accuracies(ft, "gm", "common") == accuracies(noft, "gm", "common")
    assert summary["weights_digest"] != plain["weights_digest"]


def test_gm_is_the_model_before_fine_tuning():
    """All clients share it: body and first head."""
    built = build("algorithm=fedbabu", "model.name=lenet5")
    deployments = built.algorithm.deploy(after(built, 1), torch.arange(2))

    assert list(deployments) == ["personal", "noft", "gm"]
    assert deployments["gm"].program is None
    assert not any(name.startswith("head") for name in deployments["gm"].dispatch.shared.values)
