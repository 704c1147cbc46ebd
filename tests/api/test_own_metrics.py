"""Metrics of the user's own: values, digests, resume and refusals."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import (
    cohen_kappa_score,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
)
from torchmetrics import AUROC, MeanAbsoluteError
from torchmetrics.classification import (
    BinaryCalibrationError,
    BinaryF1Score,
    BinaryMatthewsCorrCoef,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassCohenKappa,
)

import flbench as fl
from flbench.config.schema import EvaluationConfig
from flbench.core.parts import METRICS, offered
from flbench.experiment import own_metrics
from flbench.metrics.own import OwnMetric
from tests.api.own_parts import error_rate

FEW = fl.Dirichlet(alpha=1.0, clients=4, samples=400)


def short(out, metrics=None, **keys):
    """A run of two rounds, with metrics."""
    return fl.run(
        "fedper",
        partition=FEW,
        train={"rounds": 2, "local_epochs": 2, "optimizer": {"lr": 0.1}},
        engine={"threads": 1},
        evaluation={"metrics": metrics or {}, "every": 1},
        output={"dir": out, "predictions": True, "checkpoint_every": 1},
        progress=False,
        **keys,
    )


def share_of_first(confusion):
    """Share of the samples of class 0 that are predicted as such; None without any."""
    total = int(confusion[0].sum())
    return float(confusion[0, 0]) / total if total else None


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run with a metric of torchmetrics, a function without an import path, and one with."""
    here = share_of_first
    metrics = {
        "kappa": MulticlassCohenKappa(num_classes=10),
        "first": lambda confusion: here(confusion),
        "error": error_rate,
    }
    return short(tmp_path_factory.mktemp("metrics"), metrics)


@pytest.mark.slow
def test_values_equal_those_of_the_predictions(measured):
    table = pd.read_csv(measured.path / "predictions.csv")
    true, predicted = (next(c for c in table if c.startswith(name)) for name in ("true", "pred"))
    by_client = {
        client: cohen_kappa_score(rows[true], rows[predicted])
        for client, rows in table.groupby("client")
    }
    last = measured.summary["last"]["test"]

    assert last["kappa"] == pytest.approx(
        cohen_kappa_score(table[true], table[predicted]), abs=1e-6
    )
    assert last["kappa_mean"] == pytest.approx(sum(by_client.values()) / len(by_client), abs=1e-6)
    assert last["kappa_worst10"] == pytest.approx(min(by_client.values()), abs=1e-6)
    clients = measured.clients.query("moment == 'last'").set_index("client")["kappa"]
    assert clients.to_dict() == pytest.approx(by_client, abs=1e-6)
    assert last["error"] == pytest.approx(1 - last["accuracy"], abs=1e-12)
    errors = measured.clients.query("moment == 'last'")["error"]
    assert last["error_worst10"] == errors.max()  # small values of it are good
    recall = measured.per_class.query("moment == 'last' and `class` == 0")["recall"].item()
    assert last["first"] == pytest.approx(recall)


@pytest.mark.slow
def test_metrics_change_no_weights(measured, tmp_path):
    assert measured.digest == short(tmp_path).digest


@pytest.mark.parametrize(
    ("key", "metrics"),
    [
        ("`accuracy`", {"accuracy": error_rate}),
        ("`client_std`", {"client_std": error_rate}),
        ("a b", {"a b": error_rate}),
        ("`e_worst10`", {"e": error_rate, "e_worst10": error_rate}),
        ("`nothing`", {"none": "tests.api.own_parts:nothing"}),
        ("IndexError", {"bad": lambda confusion: confusion[11, 0]}),
        ("text", {"text": lambda confusion: "high"}),
        ("auc", {"auc": MulticlassAUROC(num_classes=10)}),
        ("top", {"top": MulticlassAccuracy(num_classes=10, top_k=3)}),
        (r"`evaluation\.metrics\.word`", {"word": "kappa"}),
        ("own", {"own": lambda confusion: float(np.random.default_rng().random())}),
        ("own", {"own": lambda confusion, calls=[]: calls.append(1) or len(calls)}),
    ],
)
def test_what_is_not_a_metric_is_refused_before_a_run(tmp_path, key, metrics):
    with pytest.raises(fl.ConfigError, match=key):
        short(tmp_path, metrics)
    assert not list(tmp_path.glob("*/*/metrics.csv"))


@pytest.mark.parametrize(
    "metric", [AUROC(task="binary"), BinaryF1Score(threshold=0.3), BinaryCalibrationError()]
)
def test_a_metric_that_needs_scores_is_refused_for_two_classes(metric):
    """Of predicted classes, the AUROC of good scores is that of a single threshold."""
    refused = pytest.raises(fl.ConfigError, match=r"`evaluation\.metrics\.own`")
    with offered({METRICS: {"own": metric}}), refused:
        own_metrics.make(EvaluationConfig(metrics={"own": {"source": "object"}}), 2)


@pytest.mark.parametrize(
    ("metric", "reference"),
    [
        (BinaryF1Score(), f1_score),
        (BinaryMatthewsCorrCoef(), matthews_corrcoef),
        (MulticlassCohenKappa(num_classes=2), cohen_kappa_score),
        (MeanAbsoluteError(), mean_absolute_error),
    ],
)
def test_a_metric_of_two_classes_has_the_value_of_the_predictions(metric, reference):
    true, predicted = np.random.default_rng(0).integers(0, 2, (2, 50))
    confusion = torch.from_numpy(confusion_matrix(true, predicted))
    with offered({METRICS: {"own": metric}}):
        [own] = own_metrics.make(EvaluationConfig(metrics={"own": {"source": "object"}}), 2)

    assert own(confusion) == pytest.approx(reference(true, predicted))


def test_a_metric_has_one_value_also_if_it_draws_and_none_without_samples():
    drawn = OwnMetric("own", lambda confusion: float(np.random.rand()), "object")
    one = OwnMetric("one", lambda confusion: 1.0, "object")

    assert drawn(torch.eye(2)) == drawn(torch.eye(2))
    assert math.isnan(one(torch.zeros(3, 3, dtype=torch.int64)))
    summary = one.summary(math.nan, torch.tensor([torch.nan]))
    assert summary == {"one": None, "one_mean": None, "one_worst10": None}
