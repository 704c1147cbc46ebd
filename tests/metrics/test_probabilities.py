"""Metrics of predicted probabilities equal those of scikit-learn and torchmetrics."""

import csv

import numpy as np
import pytest
import torch
from sklearn import metrics
from torchmetrics.classification import MulticlassAUROC, MulticlassCalibrationError

from flbench.core.types import Batch, Context, Outputs
from flbench.experiment.predictions import Predict
from flbench.metrics.names import PROBABILITY as NAMES
from flbench.metrics.probabilities import Probabilities
from flbench.metrics.probability_scores import BINS, per_client, pooled
from flbench.testing.setting import after, build, run

CLASSES, SIZE, CLIENTS = 4, 400, 3


@pytest.fixture(scope="module")
def made():
    """Clients, true classes and probabilities with ties of samples."""
    rng = torch.Generator().manual_seed(0)
    true = torch.randint(CLASSES, (SIZE,), generator=rng)
    logits = 2 * torch.randn(SIZE, CLASSES, generator=rng)
    logits += 2 * torch.nn.functional.one_hot(true, CLASSES)
    logits[100:150] = logits[50:100]
    client = torch.arange(SIZE) % CLIENTS
    return client, true, logits.log_softmax(dim=1)


def references(true, logarithms):
    """The four metrics by other libraries."""
    p, y = logarithms.double().exp(), true.numpy()
    rows = (p / p.sum(dim=1, keepdim=True)).numpy()
    error = MulticlassCalibrationError(CLASSES, n_bins=BINS, norm="l1")(p, true)
    areas = MulticlassAUROC(CLASSES, average="macro", thresholds=None)(p, true)
    area = metrics.roc_auc_score(y, rows, multi_class="ovr", average="macro")
    assert float(areas) == pytest.approx(area, abs=1e-6)
    return {
        "auroc_macro": area,
        "ece": float(error),
        "nll": metrics.log_loss(y, rows, labels=range(CLASSES)),
        "brier": ((rows - np.eye(CLASSES)[y]) ** 2).sum(axis=1).mean(),
    }


def test_metrics_are_those_of_other_libraries(made):
    client, true, logarithms = made
    probabilities = Probabilities(CLIENTS)
    for some in torch.arange(SIZE).split(130):  # in pieces
        probabilities.add_(client[some], true[some], logarithms[some])

    found, apart = pooled(probabilities), per_client(probabilities)

    expected = references(true, logarithms)
    for name in NAMES:
        assert found[name] == pytest.approx(expected[name], abs=1e-6), name
    brier = metrics.brier_score_loss(
        true.numpy(), logarithms.double().softmax(dim=1).numpy(), scale_by_half=False
    )
    assert found["brier"] == pytest.approx(brier, abs=1e-6)
    for k in range(CLIENTS):
        mine = references(true[client == k], logarithms[client == k])
        for name in NAMES:
            assert apart[name][k] == pytest.approx(mine[name], abs=1e-6), name
    for name in NAMES:
        assert found[f"{name}_mean"] == pytest.approx(np.mean(apart[name]))


def test_absent_classes_and_clients_do_not_count(made):
    _, true, logarithms = made
    probabilities = Probabilities(3)
    few = true < 2
    probabilities.add_(torch.zeros(int(few.sum()), dtype=torch.int64), true[few], logarithms[few])
    one = torch.tensor([0])
    probabilities.add_(torch.tensor([2]), true[one], logarithms[one])

    apart = per_client(probabilities)

    p, y = logarithms[few].exp().numpy(), true[few].numpy()
    areas = [metrics.roc_auc_score(y == k, p[:, k]) for k in (0, 1)]
    assert apart["auroc_macro"][0] == pytest.approx(np.mean(areas))
    assert all(np.isnan(apart[name][1]) for name in NAMES)
    assert np.isnan(apart["auroc_macro"][2])
    assert apart["nll"][2] == pytest.approx(-float(logarithms[0, true[0]]))
    probabilities.add_(one, true[one], torch.full((1, CLASSES), torch.nan))
    assert pooled(probabilities) == {}


def test_scores_that_are_probabilities_are_not_normalized_again():
    class Shares:
        scores = "probabilities"

        def __call__(self, context):
            return context.out.logits

    scores = torch.tensor([[0.25, 0.75], [0.0, 1.0]])
    ones = torch.ones(2, dtype=torch.int64)
    batch = Batch(scores, ones, ones > 0, ones, torch.tensor(2))
    context = Context(
        lambda: Outputs(scores, scores), batch=batch, ctx={}, leaves={}, start={}, apply=None
    )
    found = Predict(predict=Shares(), has_probabilities=True)(context)["logarithms"]
    logits = Predict(has_probabilities=True)(context)["logarithms"]
    assert torch.allclose(found.exp(), scores, atol=1e-6)
    assert bool(found.isfinite().all())
    assert torch.allclose(logits.exp(), scores.softmax(dim=1))


@pytest.mark.slow
def test_run_has_them_in_its_files_and_other_metrics_are_the_same(tmp_path):
    keys = ("algorithm.name=fedavg", "train.rounds=2", "model.name=mlp", "partition.clients=5")
    plain, before = run(tmp_path / "plain", *keys)
    path, summary = run(tmp_path / "with", *keys, "evaluation.probabilities=true")

    assert summary["config_hash"] == before["config_hash"]
    assert summary["weights_digest"] == before["weights_digest"]
    old = (plain / "metrics.csv").read_text().splitlines()
    assert set(old) < set((path / "metrics.csv").read_text().splitlines())
    built = build(*keys)
    state, parts = after(built, 2), built.federation.partition.parts["test"]
    net = built.net.eval()
    net.load_state_dict({n: state.server[n] for n in net.state_dict()})
    rows = np.concatenate(parts)
    with torch.no_grad():
        logits = net(built.federation.inputs(rows, torch.float32)).logits
    loss = torch.nn.functional.cross_entropy(logits, built.federation.y[rows])
    assert summary["last"]["test"]["nll"] == pytest.approx(float(loss), rel=1e-5)
    with (path / "clients.csv").open() as lines:
        table = [row for row in csv.DictReader(lines) if row["moment"] == "last"]
    mean = np.nanmean([float(row["brier"] or "nan") for row in table])
    assert mean == pytest.approx(summary["last"]["test"]["brier_mean"])
    assert all(f"validation_{name}" in table[0] for name in NAMES)
