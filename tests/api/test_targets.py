"""`fl.federate` for targets that are not classes: regression and segmentation, by own metrics."""

import lightning
import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score, mean_absolute_error, mean_squared_error
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError, MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

import flbench as fl
from flbench.metrics.own import OwnMetric
from flbench.metrics.target_scores import TargetScores
from tests.api.test_federate import DOUBLE, Epochs, epochs_of, fit, made, recorded

TRAIN = {"rounds": 2, "local_epochs": 1, "batch_size": 16}
FOUR = fl.IID(clients=4)
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(160, 5))
Y = X @ DRAW.normal(size=(5, 2)) + 0.1 * DRAW.normal(size=(160, 2))
IMAGES = DRAW.normal(size=(60, 6, 6)).astype("float32")
IOU = MulticlassJaccardIndex(3)
MAPS = np.digitize(IMAGES, [-0.5, 0.5])  # [n, H, W], three classes of pixels


class Line(lightning.LightningModule):
    """Linear regression."""

    def __init__(self, width=2):
        super().__init__()
        self.line = nn.Linear(5, width)

    def forward(self, x):
        return self.line(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)


class Single(Line):
    """The same for one number, without its axis."""

    def __init__(self):
        super().__init__(1)

    def forward(self, x):
        return self.line(x)[:, 0]


class Pixels(lightning.LightningModule):
    """A convolution that classifies pixels."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, x):
        return self.convolution(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def errors():
    return {"mse": MeanSquaredError(num_outputs=1), "mae": MeanAbsoluteError()}


def federated(out, data=(X, Y), module=Line, method="fedavg", **keys):
    keys = {"partition": FOUR, "engine": DOUBLE, "train": TRAIN, "metrics": errors(), **keys}
    module = made(module) if isinstance(module, type) else module
    return fl.federate(module, data, method, output={"dir": out}, progress=False, **keys)


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """Ditto on vectors: each client has a model of its own."""
    return federated(tmp_path_factory.mktemp("regression"), method="ditto")


@pytest.fixture(scope="module")
def segmentation(tmp_path_factory):
    """FedAvg on maps of classes."""
    metrics = {"iou": IOU, "pixels": MulticlassAccuracy(3, average="micro")}
    out = tmp_path_factory.mktemp("segmentation")
    return federated(out, (IMAGES, MAPS), Pixels, metrics=metrics)


def predictions(run, x, y, part="test"):
    """Each client's outputs and targets, by `run.predict` after the last round."""
    with np.load(run.path / "partition.npz") as saved:
        number = ("train", "validation", "test").index(part)
        rows = [
            np.sort(saved["index"][(saved["client"] == k) & (saved["part"] == number)])
            for k in range(4)
        ]
    found = [run.predict(x[mine], client=k, checkpoint="last") for k, mine in enumerate(rows)]
    return [(out.numpy(), y[mine]) for out, mine in zip(found, rows, strict=True)]


def check(run, name, loop, pairs, *, is_loss):
    """Compare a metric with a slow loop over the clients and all samples together."""
    clients = [loop(true, out) for out, true in pairs]
    whole = loop(*(np.concatenate([pair[k] for pair in pairs]) for k in (1, 0)))
    test = run.summary["last"]["test"]
    worst = max(clients) if is_loss else min(clients)  # a tenth of four clients is one
    assert test[name] == pytest.approx(whole, rel=1e-6)
    assert test[f"{name}_mean"] == pytest.approx(np.mean(clients), rel=1e-6)
    assert test[f"{name}_worst10"] == pytest.approx(worst, rel=1e-6)
    assert len({*np.round(clients, 9)}) == 4
    column = run.clients.query("moment == 'last'")[name]
    assert [*column] == pytest.approx(clients, rel=1e-6)


@pytest.mark.slow
def test_errors_of_a_regression_equal_a_loop_of_scikit_learn(regression):
    pairs = predictions(regression, X, Y)

    check(regression, "mse", mean_squared_error, pairs, is_loss=True)
    check(regression, "mae", mean_absolute_error, pairs, is_loss=True)


@pytest.mark.slow
def test_indices_of_a_segmentation_equal_a_loop_of_scikit_learn(segmentation):
    def jaccard(true, out):
        return jaccard_score(true.ravel(), out.argmax(1).ravel(), average="macro")

    def accuracy(true, out):
        return float((true == out.argmax(1)).mean())

    pairs = predictions(segmentation, IMAGES, MAPS)
    assert pairs[0][0].shape[1:] == (3, 6, 6)
    check(segmentation, "iou", jaccard, pairs, is_loss=False)
    check(segmentation, "pixels", accuracy, pairs, is_loss=False)


@pytest.mark.slow
def test_one_client_equals_the_trainer_and_its_metric_that_of_the_model(tmp_path):
    seen = []
    module = made(recorded(Single, seen))
    run = federated(tmp_path, (X, Y[:, 0]), module, partition=fl.IID(clients=1))

    reference = made(Single).double()
    for epoch in epochs_of(seen, TRAIN["rounds"]):  # the optimizer is new in each round
        fit(reference.train(), DataLoader(Epochs([epoch]), batch_size=None))
    found = run.model(client=0, checkpoint="last").net.module
    for name, leaf in reference.state_dict().items():
        assert torch.equal(found.state_dict()[name], leaf)

    with np.load(run.path / "partition.npz") as saved:
        test = np.sort(saved["index"][saved["part"] == 2])
    inputs = run.trained(client=0, checkpoint="last").inputs(torch.from_numpy(X[test]).float())
    metric = MeanSquaredError()
    metric.update(found(inputs), torch.tensor(Y[test, 0]))
    assert float(metric.compute()) == run.summary["last"]["test"]["mse"]


@pytest.mark.slow
def test_best_round_has_the_smallest_error_of_the_first_metric_or_of_the_chosen_one(tmp_path):
    run = federated(tmp_path / "a", (X, Y[:, 0]), Single)
    values = run.metrics.query("split == 'validation' and protocol == 'personal'")
    by_round = values[values["metric"] == "mse"].set_index("round")["value"]
    assert run.summary["best"]["round"] == by_round.idxmin() == 2
    assert run.config.evaluation.best.model_dump() == {"metric": "mse", "mode": "min"}

    # The mode of the user wins over what the metric says: then the worst round is the best.
    best = {"metric": "mae", "mode": "max"}
    run = federated(tmp_path / "b", (X, Y[:, 0]), Single, evaluation={"best": best})
    assert run.summary["best"]["round"] == run.trained(client=0).card["round"] == 1


@pytest.mark.slow
def test_what_a_run_shows_has_its_metrics_and_nothing_of_classes(regression, segmentation):
    assert [*regression.clients.columns][:7] == [
        *("moment", "client", "train_size", "test_size", "trainings", "steps", "mse")
    ]
    assert {path.name for path in regression.path.glob("*.csv")} == {"metrics.csv", "clients.csv"}
    for found in (regression, fl.load(segmentation.path)):
        metric = found.config.evaluation.best.metric
        for text in ((found.path / "report.html").read_text(), found._repr_html_()):
            assert f"{metric}_worst10" in text
            assert "accuracy" not in text.partition("Configuration")[0]
        assert metric in found.plot("curves").axes[0].get_ylabel()
        for refused in (
            lambda run: run.per_class,
            lambda run: run.confusion,
            lambda run: run.plot("per_class"),
            lambda run: fl.report(run.path),
        ):
            with pytest.raises(fl.UserError, match="classes"):
                refused(found)
    both = fl.runs(regression.path, segmentation.path)
    assert both["test.mse"].notna().tolist() == [True, False]


@pytest.mark.slow
def test_global_model_and_common_test_set(tmp_path):
    run = federated(tmp_path, fl.Data(X[:100], Y[:100], test=(X[100:], Y[100:])))

    net = run.trained(checkpoint="last")
    error = mean_squared_error(Y[100:], net.predict(X[100:]).numpy())
    assert run.summary["last"]["test"]["gm"] == pytest.approx(error, rel=1e-6)
    # All clients have the global model here.
    common = run.summary["last"]["test"]["common"]
    assert common["mse"] == common["mse_worst10"] == pytest.approx(error, rel=1e-6)


class Stop(fl.Callback):
    """Interrupts a run after its first round."""

    def on_round_end(self, run, metrics):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_interrupted_run_resumes_with_its_metrics(tmp_path, regression):
    with pytest.raises(KeyboardInterrupt, match="evaluation="):
        federated(tmp_path, method="ditto", callbacks=Stop())
    (path,) = tmp_path.glob("*/*/")

    again = {"model": made(Line), "progress": False}
    with pytest.raises(fl.DataError):
        fl.resume(path, data=(X, Y + 1), evaluation={"metrics": errors()}, **again)
    with pytest.raises(fl.ConfigError, match=r"`evaluation\.metrics\.mse`"):
        fl.resume(path, data=(X, Y), **again)
    resumed = fl.resume(path, data=(X, Y), evaluation={"metrics": errors()}, **again)
    assert resumed.digest == regression.digest
    assert (path / "metrics.csv").read_bytes() == (regression.path / "metrics.csv").read_bytes()


def test_targets_come_in_any_form_and_whole_numbers_only_if_the_user_says_so():
    forms = ({"train_images": X, "train_labels": Y}, TensorDataset(*map(torch.tensor, (X, Y))))
    for data in (*map(fl.Data, forms), fl.Data(X, Y, targets=True)):
        assert np.array_equal(data.dataset.targets, Y)
        assert not data.dataset.y.any()
    ages = np.round(20 + 5 * Y[:, 0])
    assert fl.Data(X, ages - ages.min()).dataset.targets is None
    assert np.array_equal(fl.Data(X, ages, targets=True).dataset.targets, ages)


@pytest.mark.slow
def test_scheme_of_ones_own_gets_the_targets(tmp_path):
    def by_size(y, clients, rng):
        return np.array_split(np.argsort(y[:, 0]), clients)

    run = federated(
        tmp_path, partition={"scheme": by_size, "clients": 4}, train={**TRAIN, "rounds": 1}
    )
    with np.load(run.path / "partition.npz") as saved:
        first, last = (Y[saved["index"][saved["client"] == k], 0] for k in (0, 3))
    assert first.max() < last.min()


class Endless(MeanAbsoluteError):  # noqa: N818
    """A metric that is infinite for the untrained model."""

    def compute(self):
        return super().compute() * torch.inf


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"metrics": None}, "evaluation.metrics"),
        ({"metrics": {"mse": lambda confusion: 0.0}}, "evaluation.metrics.mse"),
        ({"metrics": {"mae": Endless()}}, "evaluation.metrics.mae"),
        ({"metrics": {"mse": MeanSquaredError(num_outputs=2)}}, "evaluation.metrics.mse"),
        ({"metrics": {"iou": IOU}}, "evaluation.metrics.iou"),
        ({"evaluation": {"best": {"metric": "rmse"}}}, "evaluation.best.metric"),
        ({"evaluation": {"target_accuracy": 0.5}}, "evaluation.target_accuracy"),
        ({"output.predictions": True}, "output.predictions"),
        ({"partition": fl.Dirichlet()}, "partition.scheme"),
        ({"method": "fedproto"}, "algorithm.name"),
        ({"data": (IMAGES, MAPS), "module": Pixels, "data.augment": ["flip"]}, "data.augment"),
    ],
)
def test_what_cannot_be_had_is_refused(tmp_path, keys, key):
    with pytest.raises(fl.ConfigError) as caught:
        federated(tmp_path, **keys)
    assert caught.value.key == key


@pytest.mark.parametrize("y", [np.arange(160) - 80, np.where(Y > 2, np.nan, Y)])
def test_targets_that_are_no_finite_numbers_or_classes_are_refused(tmp_path, y):
    with pytest.raises(fl.DataError):
        federated(tmp_path, (X, y))


def test_other_nets_and_studies_and_comparisons_are_refused(tmp_path):
    keys = {"data": fl.Data(X, Y), "partition": FOUR, "output": {"dir": tmp_path}}
    with pytest.raises(fl.ConfigError):
        fl.run("fedavg", progress=False, **keys)
    keys["model"] = {"name": "tests.api.test_targets:Line", "lightning": True}
    keys["evaluation"] = {"metrics": {"mae": MeanAbsoluteError}}
    space = tmp_path / "space.yaml"
    space.write_text("method: fedavg\nspace:\n  train.local_epochs: {choice: [1, 2]}\n")
    with pytest.raises(fl.ConfigError):
        fl.tune(["fedavg"], trials=2, space=space, **keys)
    with pytest.raises(fl.ConfigError):
        fl.compare(["fedavg", "ditto"], seeds=1, **keys)
    with pytest.raises(fl.ConfigError, match=r"`evaluation\.best`"):
        fl.run("fedavg", evaluation={"best": {"mode": "max"}}, output={"dir": tmp_path})
    assert not [*tmp_path.glob("**/metrics.csv")]


@pytest.mark.slow
def test_metric_without_a_direction_needs_the_users(tmp_path):
    class Silent(MeanAbsoluteError):  # noqa: N818
        higher_is_better = None

    metrics = {"mae": Silent()}
    with pytest.raises(fl.ConfigError, match="mae"):
        federated(tmp_path, metrics=metrics)

    run = federated(tmp_path, metrics=metrics, evaluation={"best": {"mode": "min"}})

    last = run.clients.query("moment == 'last'")["mae"]
    assert run.summary["last"]["test"]["mae_worst10"] == pytest.approx(last.max())


def test_a_model_of_all_clients_is_judged_once_and_samples_of_clients_may_be_mixed():
    shared, one, mixed = (
        TargetScores.empty(3, (OwnMetric("mae", MeanAbsoluteError(), "object"),)) for _ in range(3)
    )
    true, predicted = torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, 6.0])

    shared.add_shared_(torch.arange(3), true, predicted)
    for k in range(3):
        one.add_(torch.full((4,), k), true, predicted)
    mixed.add_(torch.tensor([2, 0, 2]), torch.zeros(3), torch.tensor([1.0, 5.0, 2.0]))

    assert shared.pooled() == one.pooled() == {"mae": 3.0, "mae_mean": 3.0, "mae_worst10": 3.0}
    assert shared.clients["mae"].tolist() == one.clients["mae"].tolist() == [3.0] * 3
    assert mixed.clients["mae"].nan_to_num(-1).tolist() == [5.0, -1.0, 1.5]


@pytest.mark.slow
def test_outputs_that_are_not_finite_stop_the_run(tmp_path):
    class Overflow(Line):
        """The outputs of eval mode are too large once the module is trained."""

        def forward(self, x):
            moved = (self.line.weight - made(Line).line.weight.double()).abs().sum()
            return self.line(x) * (1.0 if self.training else (1 + moved).pow(1e6))

    with pytest.raises(fl.RunError):
        federated(tmp_path, module=Overflow)
