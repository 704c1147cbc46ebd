"""FedPer: nets without a shared layer, and the global model."""

import pytest
import torch

from flbench.core.tree import only
from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.plain import Plain
from tests.support import build, summary_of_run


@pytest.mark.slow
def test_all_personal_sends_nothing():
    summary = summary_of_run("algorithm=fedper", "model.name=logistic", "train.rounds=2")

    assert summary["communication"]["up_bytes"] == summary["communication"]["down_bytes"] == 0


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
