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
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import flbench as fl
from flbench.tracking.tree import training

pytestmark = pytest.mark.slow

FEW = fl.Dirichlet(alpha=1.0, clients=3, samples=120)
ALL = fl.IID(clients=1, samples=150)
EACH = {"output.checkpoint_every": 1}
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


@pytest.mark.one_of("clip")
@pytest.mark.parametrize("kind", [Lit, ByStep, ByEpoch])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_one_client_equals_the_trainer_bit_for_bit(tmp_path, kind, clip):
    seen = []

    class Recorded(kind):
        def training_step(self, batch, batch_idx):
            seen.append((batch_idx, [tensor.clone() for tensor in batch]))
            return super().training_step(batch, batch_idx)

    module = made(Recorded)
    run = short(tmp_path, module, rounds=2, partition=ALL, train={"clip": clip})

    # The first steps are those that are tried before the run. An epoch begins at 0.
    epochs = []
    for index, batch in seen[-12:]:
        epochs += [[]] if index == 0 else []
        epochs[-1].append(batch)
    assert [len(epoch) for epoch in epochs] == [3] * 4  # 90 samples, 2 rounds of 2 epochs
    reference = made(kind).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few workers and batches
        for number in range(2):  # the optimizer is new in each round
            trainer = lightning.Trainer(
                max_epochs=2,
                accelerator="cpu",
                logger=False,
                gradient_clip_val=clip,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            loader = DataLoader(Epochs(epochs[2 * number : 2 * number + 2]), batch_size=None)
            trainer.fit(reference.train(), loader)

    found, expected = weights(run), reference.state_dict()
    assert found.keys() == expected.keys()
    start = made(kind).double().state_dict()
    moved = {name for name in found if not torch.equal(found[name], start[name])}
    frozen = {"body.1.bias", "fc.bias"} if kind is ByEpoch else set()
    assert moved == found.keys() - frozen
    for name, leaf in found.items():
        assert torch.equal(leaf, expected[name]), name


@pytest.mark.parametrize("part", ["none", "layer", "body", "whole"])
def test_modules_in_eval_mode_stay_so_as_with_the_trainer(tmp_path, part):
    def module():
        net = made(Lit)
        {"none": nn.Identity(), "layer": batchnorm_of(net), "body": net.body, "whole": net}[
            part
        ].eval()
        return net

    reference = module()
    loader = DataLoader(TensorDataset(torch.randn(16, 1, 8, 8), torch.arange(16) % 10), 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(reference, loader)
    counted = int(batchnorm_of(reference).num_batches_tracked)
    run = short(tmp_path, module())
    [name] = [name for name in weights(run) if name.endswith("num_batches_tracked")]

    assert (counted > 0) == (part == "none")
    assert (int(weights(run)[name]) > 0) == (counted > 0)


def batchnorm_of(module):
    return next(one for one in module.modules() if isinstance(one, nn.BatchNorm1d))


class Plain(Lit):
    """What flbench does with a net: cross entropy, and SGD of `train.optimizer`."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return -self(x).log_softmax(1).gather(1, y[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.one_of("method")
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ditto", "feddyn"])
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


def test_fedprox_without_its_term_equals_fedavg(tmp_path, random_run):
    run, _ = random_run
    zero = short(tmp_path, made(Random), {"name": "fedprox", "mu": 0.0}, rounds=2)
    pulled = short(tmp_path, made(Random), {"name": "fedprox", "mu": 1.0}, rounds=2)

    assert zero.digest == run.digest != pulled.digest


def test_ditto_without_its_pull_equals_local_training(tmp_path):
    # The personal model is a second one, called by functional_call with leaves of its own.
    for kind in (Random, ByEpoch):
        ditto = short(tmp_path, made(kind), {"name": "ditto", "lam": 0.0}, rounds=2)
        assert ditto.digest == short(tmp_path, made(kind), "local", rounds=2).digest


def test_what_is_logged_reaches_callbacks_and_metrics(random_run):
    run, told = random_run
    rows = run.metrics[run.metrics["split"] == "log"]

    assert {*rows["metric"]} == {"loss", "acc", "metric"}
    assert [metrics["log/loss"] for metrics in told] == pytest.approx(
        [metrics["train/loss"] for metrics in told]
    )
    assert [*rows[rows["metric"] == "acc"]["value"]] == [metrics["log/acc"] for metrics in told]
    assert 0 < told[1]["log/metric"] <= 1
    assert any("Random is trained by its own training_step" in note for note in run.notes)


def test_interrupted_run_resumes_with_its_module(tmp_path, random_run):
    whole, _ = random_run
    keys = {"callbacks": Rounds(stop=1), "output.checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt, match=r"fl\.resume\('.*', model=\.\.\.\)"):
        short(tmp_path, made(Random), rounds=2, **keys)
    (path,) = tmp_path.glob("*/*/")

    with pytest.raises(fl.ConfigError, match=r"fl\.resume\(path, model="):
        fl.resume(path, callbacks=Rounds(), progress=False)
    with pytest.raises(fl.ConfigError, match=r"model\.sha256"):
        fl.resume(path, model=made(Random).double(), callbacks=Rounds(), progress=False)
    resumed = fl.resume(path, model=made(Random), callbacks=Rounds(), progress=False)
    assert resumed.digest == whole.digest
    assert resumed.metrics.equals(whole.metrics)


def test_import_path_equals_class(tmp_path):
    path = "tests.api.test_federate:Plain"
    by_class, by_path = (
        short(tmp_path, one, {"name": "fedper"}, head="fc", args={"width": 6})
        for one in (Plain, path)
    )

    assert by_class.digest == by_path.digest
    assert by_class.config.model.name == path
    assert by_class.config.model.args == {"width": 6}
    assert by_class.config.model.lightning
    assert len(by_class.config.model.sha256) == 64
    assert type(by_class.model(client=2).net.module) is Plain
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


# Modules that cannot be trained, and why


def changed(name, function, base=Lit):
    """A class with another method."""
    return type("Changed", (base,), {name: function})


class Manual(Lit):
    """A module with manual optimization."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


def two_optimizers(self):
    return [torch.optim.SGD(half.parameters(), lr=0.1) for half in (self.body, self.fc)]


def plateau(self):
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer)
    return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


def cosine(self):
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    return [optimizer], [CosineAnnealingLR(optimizer, 5)]


def detached(self, batch, batch_idx):
    return self(batch[0]).sum().detach()


def logs_a_vector(self, batch, batch_idx):
    self.log("all", self(batch[0]).mean(0))
    return self(batch[0]).sum()


class Headless(Lit):
    """Logits that no layer returns as they are."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("module", "keys"),
    [
        (Lit, {"method": "pfedme"}),
        (Lit, {"method": "fedrod"}),
        (Headless, {"method": "fedper"}),
        (Lit, {"method": "fedper", "head": "top"}),
        (Lit, {"engine": "vectorized"}),
        (Lit, {"train": {"optimizer": {"lr": 0.1}}}),
        (Lit, {"train": {"terms": ["focal"]}}),
        (nn.Linear(3, 10), {}),
        (lightning.LightningModule, {}),
        (Manual, {}),
        (changed("configure_optimizers", two_optimizers), {}),
        (changed("configure_optimizers", plateau), {}),
        (
            changed("configure_optimizers", cosine),
            {"train": {"rounds": 2, "schedule": {"name": "cosine"}}},
        ),
        (changed("training_step", lambda self, batch: None), {}),
        (changed("training_step", detached), {}),
        (changed("training_step", logs_a_vector), {}),
        (changed("forward", lambda self, x: self.body(x)), {}),
        (changed("forward", lambda self, x: self.fc(self.body(x)).squeeze()), {}),
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


class Told(fl.Callback):
    """What callbacks are told, at the beginning of a run and after each evaluation."""

    def on_run_start(self, run):
        self.module = run.module
        self.losses = [run.loss]


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    told, out = Told(), tmp_path_factory.mktemp("saved")
    logger = CSVLogger(out / "log")
    return short(out, made(Saved), callbacks=told, logger=logger), told, logger


def test_hyper_parameters_are_those_of_the_module(saved_run):
    run, told, logger = saved_run
    logged = yaml.safe_load((Path(logger.log_dir) / "hparams.yaml").read_text())
    [node] = training(run.path, is_over=True).nodes
    sent = node.params

    assert told.module["hyperparameters"] == {"width": 6, "lr": 0.005}
    assert {**told.module["optimizer"]}["name"] == "Adam"
    for found in (logged, sent):
        assert not [key for key in found if key.startswith("train.optimizer")]
        assert str(found["module.optimizer.name"]) == "Adam"
        assert float(found["module.optimizer.lr"]) == 0.005
        assert float(found["module.optimizer.weight_decay"]) == 0.1
        assert float(found["module.hyperparameters.width"]) == 6


def test_deployed_module_has_the_requires_grad_of_the_user(saved_run):
    module = saved_run[0].model(client=1).net.module

    frozen = {name for name, one in module.named_parameters() if not one.requires_grad}
    assert frozen == {"fc.bias"}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch.export.load
def test_recurrent_module_is_exported_as_a_graph(tmp_path, saved_run):
    run, _, _ = saved_run
    x = torch.randint(0, 17, (5, 8, 8), dtype=torch.uint8)
    file = run.export(tmp_path / "module.pt2", client=1)

    model = torch.export.load(file).module()
    torch.testing.assert_close(model(x), run.predict(x, client=1))
    weights_file = run.export(tmp_path / "module.safetensors", client=1)
    assert set(load_file(weights_file)) == {f"module.{name}" for name in weights(run)} - {
        "module._extra_state"
    }


def test_resumed_run_knows_the_loss_of_its_last_round(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        short(tmp_path, Plain, rounds=2, callbacks=Rounds(stop=1), **EACH)
    (path,) = tmp_path.glob("*/*/")
    told = Told()
    run = fl.resume(path, callbacks=told, progress=False)

    losses = run.metrics.query("split == 'train' and metric == 'loss'")["value"]
    assert told.losses == [losses.iloc[0]]


def test_the_mean_over_the_steps_is_logged_and_other_reductions_are_refused(tmp_path):
    def step(self, batch, batch_idx):
        self.log("plain", float(batch_idx), prog_bar=True, batch_size=len(batch[0]))
        return Lit.training_step(self, batch, batch_idx)

    def largest(self, batch, batch_idx):
        self.log("largest", float(batch_idx), reduce_fx="max")
        return Lit.training_step(self, batch, batch_idx)

    told = Rounds()
    run = short(tmp_path, made(changed("training_step", step)), partition=ALL, callbacks=told)

    assert told.metrics[0]["log/plain"] == 1.0  # of 3 steps
    assert not any("self.log" in note for note in run.notes)
    with pytest.raises(fl.ConfigError, match="reduce_fx"):
        short(tmp_path, made(changed("training_step", largest)))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch.export.load
@pytest.mark.slow
def test_exported_module_predicts_without_lightning(tmp_path, random_run):
    run, _ = random_run
    x = torch.randint(0, 17, (5, 8, 8), dtype=torch.uint8)
    file = run.export(tmp_path / "module.pt2", client=1)

    torch.testing.assert_close(torch.export.load(file).module()(x), run.predict(x, client=1))


def test_a_study_searches_arguments_of_the_module(tmp_path):
    """The default trial has the default of the argument."""
    file = tmp_path / "space.yaml"
    keys = {"trials": 1, "seeds": 1, "space": file, "partition": FEW, "output": {"dir": tmp_path}}
    keys["model"] = {"name": "tests.api.test_federate:Plain", "lightning": True}
    file.write_text("method: fedavg\nspace:\n  model.args.depth: {int: [2, 8]}\n")
    with pytest.raises(fl.ConfigError, match=r"argument `depth`.*width"):
        fl.tune(["fedavg"], **keys)
