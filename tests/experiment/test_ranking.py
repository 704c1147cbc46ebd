"""AUROC and average precision of a run, on data sets with two classes."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from flbench.core.errors import ConfigError
from flbench.experiment.rounds import settings_of
from flbench.metrics import ranking
from flbench.results import metrics_file
from flbench.testing import after
from tests.support import build, run

NAMES = ("auroc", "auroc_mean", "average_precision", "average_precision_mean")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two classes that a net cannot tell apart in all samples."""
    path = tmp_path_factory.mktemp("data") / "two.npz"
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 300), ("test", 80)):
        y = (rng.random(n) < 0.35).astype(np.int64)
        x = rng.integers(0, 120, (n, 8, 8)) + 40 * y[:, None, None] * rng.random((n, 8, 8))
        arrays |= {f"{part}_images": x.astype(np.uint8), f"{part}_labels": y}
    np.savez(path, **arrays)
    return path


def reference(experiment, weights, rows) -> np.ndarray:
    """The margins of a net with these weights, sample by sample."""
    net, found = experiment.net, []
    for row in rows:
        x = experiment.federation.inputs(np.array([row]), torch.float32)
        with torch.no_grad():
            logits = torch.func.functional_call(net.eval(), weights, (x,)).logits
        found.append(float(logits[0, 1] - logits[0, 0]))
    return np.array(found)


@pytest.mark.parametrize(
    ("engine", "more"),
    [("sequential", ()), ("vectorized", ()), ("vectorized", ("engine.block=2",))],
)
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
@pytest.mark.slow
def test_margins_are_those_of_each_clients_model(data, method, engine, more):
    keys = (f"data.path={data}", "evaluation.common.limit=30", *more)
    built = build(f"algorithm={method}", f"engine.name={engine}", *keys)
    state, evaluator = after(built, 2), built.evaluator(print)
    settings = settings_of(built.algorithm, state)
    y, parts = built.federation.dataset.y, built.federation.partition.parts

    made = evaluator.evaluate(state, settings, common=True)

    assert len({len(rows) for rows in parts["test"]}) > 1
    for client, weights in enumerate(evaluator.deployed(state, settings)):
        for part, rows in (
            *((part, parts[part][client]) for part in ("validation", "test")),
            ("common", built.federation.common_rows(30)),
        ):
            found = made.margins["personal", part]
            mine = found.client == client
            expected = reference(built, weights, rows)
            assert found.value[mine].numpy() == pytest.approx(expected, abs=1e-5)
            assert found.positive[mine].tolist() == (y[rows] == 1).tolist()
    if method == "fedavg":
        expected = reference(built, weights, built.federation.common)
        assert made.margins["gm", "common"].value.numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_metrics_stand_where_others_do(data, tmp_path):
    learnt = ("partition.scheme=iid", "train.optimizer.lr=0.1", "train.local_epochs=3")
    path, summary = run(tmp_path, f"data.path={data}", "algorithm=fedavg", *learnt)

    rows = metrics_file.read(path / "metrics.csv")

    for split, protocol in (
        ("validation", "personal"),
        ("test", "personal"),
        ("test", "personal@local"),
        ("common", "personal"),
        ("common", "gm"),
    ):
        found = {row.metric for row in rows if (row.split, row.protocol) == (split, protocol)}
        assert set(NAMES) <= found
    assert set(NAMES) <= summary["last"]["test"].keys()
    assert summary["last"]["test"]["auroc"] > 0.6
    with (path / "clients.csv").open() as file:
        clients = [row for row in csv.DictReader(file) if row["moment"] == "last"]
    for name in ("auroc", "average_precision"):
        scores = [float(row[name]) for row in clients if row[name]]
        assert np.mean(scores) == pytest.approx(summary["last"]["test"][f"{name}_mean"])


def test_metrics_are_scikit_learns_over_all_clients(data):
    built = build("algorithm=local", f"data.path={data}")
    state = after(built, 1)
    settings = settings_of(built.algorithm, state)

    made = built.evaluator(print).evaluate(state, settings, common=False)

    margins = made.margins["personal", "test"]
    truth, value = margins.positive.numpy(), margins.value.numpy()
    found = ranking.pooled(margins)
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, value))
    assert found["average_precision"] == pytest.approx(average_precision_score(truth, value))


@pytest.mark.slow
def test_positive_class_can_be_chosen(data, tmp_path):
    keys = (f"data.path={data}", "algorithm=local", "train.rounds=1")
    one = build(*keys)
    other = build(*keys, "evaluation.positive=0")
    state = after(one, 1)
    settings = settings_of(one.algorithm, state)

    first, second = (
        built.evaluator(print).evaluate(state, settings, common=False).margins["personal", "test"]
        for built in (one, other)
    )

    assert torch.equal(second.value, -first.value)
    assert torch.equal(second.positive, ~first.positive)
    assert ranking.pooled(second)["auroc"] == pytest.approx(ranking.pooled(first)["auroc"])
    assert one.config.hash() == other.config.hash()
    _, summary = run(tmp_path, *keys, "evaluation.positive=0")
    assert summary["positive_class"] == "0"
    for wrong in ((*keys, "evaluation.positive=maybe"), ("evaluation.positive=1",)):
        with pytest.raises(ConfigError, match=r"evaluation\.positive"):
            build(*wrong)
