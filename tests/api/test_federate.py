"""`fl.federate`: a user's LightningModule trained by its own step in every client."""

import warnings
from pathlib import Path

import lightning
import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics.classification import MulticlassAccuracy

import flbench as fl
from flbench.tracking.tree import training

pytestmark = pytest.mark.slow

FEW = fl.Dirichlet(alpha=1.0, clients=3, samples=120)
ALL = fl.IID(clients=1, samples=150)
DOUBLE = {"name": "sequential", "precision": "64-true", "threads": 1}


class Lit(lightning.LightningModule):
    """A module with BatchNorm that logs two values."""

    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width))
        self.fc = nn.Linear(width, 10)

    def forward(self, x):
        return self.fc(self.body(x).relu())

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log("loss", loss, prog_bar=True)
        self.log("acc", (logits.argmax(1) == y).float().mean())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class ByStep(Lit):
    """Adam with a scheduler by step, and hooks."""

    def training_step(self, batch, batch_idx):
        # The loss depends on all attributes that give the position in the training.
        place = 1 + batch_idx + 10 * self.current_epoch + 100 * self.global_step
        return {"loss": super().training_step(batch, batch_idx) * (1 + self.factor / place)}

    def on_train_epoch_start(self):
        self.factor = 0.5 * (1 + self.current_epoch)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = {"scheduler": StepLR(optimizer, 2, 0.5), "interval": "step", "frequency": 2}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class ByEpoch(Lit):
    """SGD with momentum on two groups of parameters, a scheduler by epoch, a frozen bias."""

    def __init__(self):
        super().__init__()
        self.body[1].bias.requires_grad_(False)

    def configure_optimizers(self):
        groups = [{"params": self.body.parameters(), "lr": 0.2}, {"params": [self.fc.weight]}]
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)
        return [optimizer], [ExponentialLR(optimizer, 0.5)]


class Epochs(IterableDataset):
    """Batches that were seen before; each iteration is the next epoch."""

    def __init__(self, epochs):
        self.epochs = iter(epochs)

    def __iter__(self):
        yield from next(self.epochs)


def made(kind, *arguments):
    torch.manual_seed(0)
    return kind(*arguments)


def short(out, module, method="fedavg", *, rounds=1, **keys):
    train = {"rounds": rounds, "local_epochs": 2, **keys.pop("train", {})}
    keys = {"partition": FEW, "engine": DOUBLE, "data": "digits", **keys}
    data = keys.pop("data")
    return fl.federate(
        module, data, method, train=train, output={"dir": out}, progress=False, **keys
    )


def weights(run, client=0):
    return {
        name.removeprefix("module."): leaf
        for name, leaf in run.model(client=client, checkpoint="last").net.state_dict().items()
    }


def recorded(kind, seen):
    """A class of modules that keep their batches with their numbers."""

    class Recorded(kind):
        def training_step(self, batch, batch_idx):
            seen.append((batch_idx, [tensor.clone() for tensor in batch]))
            return super().training_step(batch, batch_idx)

    return Recorded


def epochs_of(seen, count):
    """The last epochs of the batches; the first ones are of the trial before the run."""
    epochs = []
    for index, batch in seen:
        epochs += [[]] if index == 0 else []
        epochs[-1].append(batch)
    return epochs[-count:]


def fit(module, loader, epochs=1, **keys):
    """Train a module by Lightning's Trainer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few workers and batches
        lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **keys,
        ).fit(module, loader)


@pytest.mark.parametrize(("kind", "clip"), [(Lit, None), (ByStep, 0.5), (ByEpoch, None)])
def test_one_client_equals_the_trainer_bit_for_bit(tmp_path, kind, clip):
    seen = []
    module = made(recorded(kind, seen))
    run = short(tmp_path, module, rounds=2, partition=ALL, train={"clip": clip})

    epochs = epochs_of(seen, 4)
    assert [len(epoch) for epoch in epochs] == [3] * 4  # 90 samples, 2 rounds of 2 epochs
    reference = made(kind).double()
    for number in (0, 2):  # the optimizer is new in each round
        loader = DataLoader(Epochs(epochs[number : number + 2]), batch_size=None)
        fit(reference.train(), loader, epochs=2, gradient_clip_val=clip)

    found, expected = weights(run), reference.state_dict()
    assert found.keys() == expected.keys()
    start = made(kind).double().state_dict()
    moved = {name for name in found if not torch.equal(found[name], start[name])}
    frozen = {"body.1.bias", "fc.bias"} if kind is ByEpoch else set()
    assert moved == found.keys() - frozen
    for name, leaf in found.items():
        assert torch.equal(leaf, expected[name]), name


def test_a_layer_in_eval_mode_stays_so(tmp_path):
    module = made(Lit)
    module.body[2].eval()

    assert int(weights(short(tmp_path, module))["body.2.num_batches_tracked"]) == 0


class Plain(Lit):
    """What flbench does with a net: cross entropy, and SGD of `train.optimizer`."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return -self(x).log_softmax(1).gather(1, y[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.one_of("method")
@pytest.mark.parametrize("method", ["fedprox", "ditto"])
def test_plain_module_trains_as_its_net(tmp_path, method):
    own = short(tmp_path / "own", made(Plain), method, rounds=2)
    net = fl.run(
        method,
        data="digits",
        model=made(Plain),
        partition=FEW,
        train={"rounds": 2, "local_epochs": 2},
        engine=DOUBLE,
        output={"dir": tmp_path / "net"},
        progress=False,
    )

    expected = list(net.model(client=1, checkpoint="last").net.state_dict().values())
    for leaf, wanted in zip(weights(own, 1).values(), expected, strict=True):
        torch.testing.assert_close(leaf, wanted, rtol=0, atol=1e-12)
    assert own.summary["last"] == net.summary["last"]


class Random(Lit):
    """A module with dropout."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def forward(self, x):
        return self.fc(self.drop(self.body(x)))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.accuracy(self(batch[0]), batch[1])
        self.log("metric", self.accuracy)
        return loss


class Rounds(fl.Callback):
    """Keeps the metrics of each round, and may interrupt the run."""

    def __init__(self, stop=None):
        self.stop, self.metrics = stop, []

    def on_run_start(self, run):
        self.before, self.module = run.loss, run.module

    def on_round_end(self, run, metrics):
        self.metrics.append(dict(metrics))
        if run.round == self.stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def random_run(tmp_path_factory):
    """A run of two rounds of a module with dropout, and the metrics that its callback got."""
    told = Rounds()
    out = tmp_path_factory.mktemp("whole")
    return short(out, made(Random), rounds=2, callbacks=told), told.metrics


def test_ditto_without_its_pull_equals_local_training(tmp_path):
    # The personal model is a second one, called by functional_call with leaves of its own.
    ditto = short(tmp_path, made(Random), {"name": "ditto", "lam": 0.0}, rounds=2)
    assert ditto.digest == short(tmp_path, made(Random), "local", rounds=2).digest


def test_what_is_logged_reaches_callbacks_and_metrics(random_run):
    run, told = random_run
    rows = run.metrics[run.metrics["split"] == "log"]

    assert {*rows["metric"]} == {"loss", "acc", "metric"}
    assert [metrics["log/loss"] for metrics in told] == pytest.approx(
        [metrics["train/loss"] for metrics in told]
    )
    assert [*rows[rows["metric"] == "acc"]["value"]] == [metrics["log/acc"] for metrics in told]
    assert 0 < told[1]["log/metric"] <= 1


def test_interrupted_run_resumes_with_its_module(tmp_path, random_run):
    whole, _ = random_run
    keys = {"callbacks": Rounds(stop=1), "output.checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt, match=r"model="):
        short(tmp_path, made(Random), rounds=2, **keys)
    (path,) = tmp_path.glob("*/*/")

    with pytest.raises(fl.ConfigError, match="model="):
        fl.resume(path, callbacks=Rounds(), progress=False)
    with pytest.raises(fl.ConfigError, match=r"model\.sha256"):
        fl.resume(path, model=made(Random).double(), callbacks=Rounds(), progress=False)
    told = Rounds()
    resumed = fl.resume(path, model=made(Random), callbacks=told, progress=False)
    losses = whole.metrics.query("split == 'train' and metric == 'loss'")["value"]
    assert told.before == losses.iloc[0]
    assert resumed.digest == whole.digest
    assert resumed.metrics.equals(whole.metrics)


def test_import_path_equals_class(tmp_path):
    path = "tests.api.test_federate:Plain"
    by_class, by_path = (
        short(tmp_path, one, {"name": "fedper"}, head="fc", args={"width": 6})
        for one in (Plain, path)
    )

    assert by_class.digest == by_path.digest
    model = by_class.config.model
    assert (model.name, model.args, model.lightning) == (path, {"width": 6}, True)
    assert len(model.sha256) == 64
    heads = [weights(by_path, client)["fc.weight"] for client in (0, 1)]
    assert not torch.equal(*heads)


@pytest.mark.slow
@pytest.mark.processes
def test_ray_trains_the_same(tmp_path, random_run):
    """Ray is started for the run, and has ended after it."""
    ray = pytest.importorskip("ray")
    whole, _ = random_run
    engine = {"name": "ray", "precision": "64-true", "threads": 1, "workers": 1}
    run = short(tmp_path, made(Random), rounds=2, engine=engine)

    assert run.digest == whole.digest
    assert run.metrics.equals(whole.metrics)
    assert run.summary["engine"]["name"] == "ray"
    assert not ray.is_initialized()


# Modules that cannot be trained


def changed(name, function, base=Lit):
    """A class with another method."""
    return type("Changed", (base,), {name: function})


def manual(self):
    Lit.__init__(self)
    self.automatic_optimization = False


def two_optimizers(self):
    return [torch.optim.SGD(half.parameters(), lr=0.1) for half in (self.body, self.fc)]


def logs_the_largest(self, batch, batch_idx):
    self.log("largest", float(batch_idx), reduce_fx="max")
    return self(batch[0]).sum()


@pytest.mark.parametrize(
    ("module", "keys"),
    [
        (Lit, {"method": "pfedme"}),
        (Lit, {"method": "fedper", "head": "top"}),
        (Lit, {"engine": "vectorized"}),
        (Lit, {"train": {"optimizer": {"lr": 0.1}}}),
        (Lit, {"train": {"terms": ["focal"]}}),
        (ByEpoch, {"train": {"schedule": {"name": "cosine"}}}),
        (nn.Linear(3, 10), {}),
        (lightning.LightningModule, {}),
        (changed("__init__", manual), {}),
        (changed("configure_optimizers", two_optimizers), {}),
        (changed("training_step", lambda self, batch: None), {}),
        (changed("training_step", logs_the_largest), {}),
        (changed("forward", lambda self, x: self.body(x)), {}),
    ],
)
def test_what_cannot_be_had_is_refused(tmp_path, module, keys):
    with pytest.raises(fl.ConfigError):
        short(tmp_path, module, **keys)
    assert not [*tmp_path.glob("*/*/metrics.csv")]


class Saved(Lit):
    """A module with hyper-parameters, a GRU, a frozen layer and extra state."""

    def __init__(self, width=6, lr=0.005):
        super().__init__(width)
        self.save_hyperparameters()
        self.gru = nn.GRU(8, width, batch_first=True)
        self.fc.bias.requires_grad_(False)

    def forward(self, x):
        return self.fc(self.gru(x[:, 0])[0][:, -1])

    def get_extra_state(self):
        return {"width": self.hparams.width}

    def set_extra_state(self, state):
        self.extra = state

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, weight_decay=0.1)


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    told, out = Rounds(), tmp_path_factory.mktemp("saved")
    logger = CSVLogger(out / "log")
    return short(out, made(Saved), callbacks=told, logger=logger), told, logger


def test_hyper_parameters_are_those_of_the_module(saved_run):
    run, told, logger = saved_run
    logged = yaml.safe_load((Path(logger.log_dir) / "hparams.yaml").read_text())
    node, _ = training(run.path, is_over=True)

    assert told.module["hyperparameters"] == {"width": 6, "lr": 0.005}
    for found in (logged, node.params):
        assert not [key for key in found if key.startswith("train.optimizer")]
        assert str(found["module.optimizer.name"]) == "Adam"
        assert float(found["module.optimizer.lr"]) == 0.005
        assert float(found["module.hyperparameters.width"]) == 6


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch.export.load
def test_recurrent_module_is_exported_as_a_graph(tmp_path, saved_run):
    run, _, _ = saved_run
    x = torch.randint(0, 17, (5, 8, 8), dtype=torch.uint8)
    file = run.export(tmp_path / "module.pt2", client=1)

    model = torch.export.load(file).module()
    torch.testing.assert_close(model(x), run.predict(x, client=1))
    leaves = load_file(run.export(tmp_path / "module.safetensors", client=1))
    assert set(leaves) == {f"module.{name}" for name in weights(run)} - {"module._extra_state"}
    module = run.model(client=1).net.module
    frozen = {name for name, one in module.named_parameters() if not one.requires_grad}
    assert frozen == {"fc.bias"}  # as the user has set it
