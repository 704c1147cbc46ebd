"""FedPer between FedAvg and Local-Only, its reference, and the head that all started from."""

import pytest
import torch

from flbench.core.tree import only
from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.plain import EPOCHS, FULL, Plain, accuracies, assert_close
from tests.support import build, run, summary_of_run


@pytest.mark.slow
def test_all_personal_sends_nothing():
    summary = summary_of_run("algorithm=fedper", "model.name=logistic", "train.rounds=2")

    assert summary["communication"]["up_bytes"] == summary["communication"]["down_bytes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, 2, 4])
def test_rounds_equal_a_loop(layers):
    built = build(
        "algorithm=fedper", "model.name=lenet5", f"algorithm.layers={layers or 'null'}", *FULL
    )
    plain, net = Plain(built), built.algorithm.setting.net
    keeps = {leaf for layer in net.layers[-(layers or 1) :] for leaf in layer.leaves}

    def local(client, leaves):
        for _ in range(EPOCHS):
            leaves = plain.step(leaves, client, net.parameters)
        return leaves

    server, kept = plain.federate(keeps, local)
    state = after(built, 3)

    assert set(state.clients) == keeps
    assert_close(only(state.server, net.names("all") - keeps), server)
    for client in range(5):
        assert_close({name: rows[client] for name, rows in state.clients.items()}, kept[client])


@pytest.mark.slow
def test_gm_is_the_averaged_body_under_the_first_head():
    built = build("algorithm=fedper", "model.name=lenet5", "engine.precision=64-true")
    plain, state = Plain(built), after(built, 3)
    head = built.algorithm.setting.net.names("head")
    first, rows = only(plain.start(), head), built.federation.common
    assert not torch.equal(state.clients["head.weight"][0], first["head.weight"])

    settings = settings_of(built.algorithm, state)
    counts = built.evaluator(print).evaluate(state, settings, common=True).common["gm"]

    x = plain.federation.inputs(rows, torch.float64)
    logits = plain.outputs({**state.server, **first}, x, train=False).logits
    truth = plain.federation.y[torch.from_numpy(rows)]
    confusion = torch.zeros(10, 10, dtype=torch.int64)
    for y, guess in zip(truth.tolist(), logits.argmax(dim=1).tolist(), strict=True):
        confusion[y, guess] += 1
    assert torch.equal(counts.confusion, confusion)


def test_gm_is_left_out_where_statistics_have_no_common_value():
    built = build("algorithm=fedper", "model.name=lenet5", "train.batchnorm=local")

    assert list(built.algorithm.deploy(built.start(), torch.arange(2))) == ["personal"]


@pytest.mark.slow
def test_fine_tuning_is_evaluated_beside_and_discarded(tmp_path):
    keys = ("algorithm=fedper", "train.optimizer.lr=0.1", "partition.samples=300")
    path, tuned = run(tmp_path, *keys, "algorithm.finetune_epochs=2")
    plain = summary_of_run(*keys)

    assert tuned["weights_digest"] == plain["weights_digest"]
    assert len(accuracies(path, "ft")) == len(accuracies(path, "personal"))
    assert accuracies(path, "ft") != accuracies(path, "personal")
