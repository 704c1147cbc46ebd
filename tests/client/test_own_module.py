"""Hooks and attributes of a user's LightningModule, beside Lightning's own Trainer."""

import re

import lightning
import pytest
import torch
from torch import nn

import flbench as fl
from tests.api.test_federate import fit as by_trainer

pytestmark = pytest.mark.slow

ALL = fl.IID(clients=1, samples=150)
DOUBLE = {"name": "sequential", "precision": "64-true", "threads": 1}
EPOCHS = 2
HOOKS = (
    *("setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start"),
    *("training_step", "on_train_batch_end", "on_train_epoch_end", "on_train_end", "on_fit_end"),
    "teardown",
)
PLACES = ("current_epoch", "global_step")
TRAINER = ("max_epochs", "num_training_batches", "estimated_stepping_batches", "should_stop")


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body(x))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def made(kind):
    torch.manual_seed(0)
    return kind()


def trained(out, module, method="fedavg", **keys):
    train = {"rounds": 1, "local_epochs": EPOCHS, **keys.pop("train", {})}
    keys = {"partition": ALL, "engine": DOUBLE, **keys}
    return fl.federate(
        module, "digits", method, train=train, output={"dir": out}, progress=False, **keys
    )


def fit(module, epochs, batches):
    """Train by Lightning's Trainer on batches that were seen before."""

    class Loader:
        def __iter__(self):
            first = module.current_epoch * batches
            return iter(epochs[first : first + batches])

        def __len__(self):
            return batches

    by_trainer(module.double(), Loader(), EPOCHS)
    return module


def recording(kind):
    """A class that records the batches of training steps, and each call of a hook."""
    calls, batches = [], []

    def recorded(name):
        own = getattr(kind, name)

        def hook(self, *arguments, **named):
            place = [getattr(self, key) for key in PLACES]
            if name not in ("setup", "on_fit_start"):  # a Trainer counts the batches later
                place += [getattr(self.trainer, key) for key in TRAINER]
            flags = [parameter.requires_grad for parameter in self.parameters()]
            calls.append((name, place, flags, [one for one in arguments if type(one) is int]))
            if name == "training_step":
                batches.append([tensor.clone() for tensor in arguments[0]])
            return own(self, *arguments, **named)

        if name == "training_step":
            return lambda self, batch, batch_idx: hook(self, batch, batch_idx)
        return hook

    return type(kind.__name__, (kind,), {name: recorded(name) for name in HOOKS}), calls, batches


def frozen(self, *_, **__):
    self.body.requires_grad_(False)


def last_epoch(self):
    self.body.requires_grad_(self.current_epoch == EPOCHS - 1)


def stops(self, *_, **__):
    self.trainer.should_stop = True


class Added(Lit):
    """A body that the optimizer gets in the second epoch."""

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.optimizer.add_param_group({"params": self.body.parameters(), "lr": 0.05})

    def configure_optimizers(self):
        self.optimizer = torch.optim.SGD(self.fc.parameters(), lr=0.1)
        return self.optimizer


class Scheduled(Lit):
    """A scheduler of as many steps as the Trainer takes, and class weights of the start."""

    def on_fit_start(self):
        self.weight = torch.linspace(0.5, 2, 10, dtype=self.dtype, device=self.device)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1], self.weight)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class ByEpoch(Lit):
    """The learning rate of the end of an epoch, which a hook applies to the weights."""

    def on_train_epoch_end(self):
        with torch.no_grad():
            self.fc.bias.add_(self.optimizer.param_groups[0]["lr"])

    def configure_optimizers(self):
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [self.optimizer], [torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)]


class ByHand(Lit):
    """A learning rate and a momentum that a hook changes."""

    def on_train_batch_end(self, *_):
        self.trainer.optimizers[0].param_groups[0]["lr"] = 0.1 / (1 + self.global_step)
        self.trainer.optimizers[0].param_groups[0]["momentum"] = 0.5

    configure_optimizers = ByEpoch.configure_optimizers


class Halved(Lit):
    """A hook of a parameter's gradient."""

    def on_fit_start(self):
        self.handle = self.fc.weight.register_hook(lambda gradient: gradient / 2)

    def on_train_end(self):
        self.handle.remove()


class ByMethod(Lit):
    """Features that a hook keeps; copies of the module have its method of their own."""

    def __init__(self):
        super().__init__()
        self.body.register_forward_hook(self.keep)

    def keep(self, layer, x, out):
        self.features = out

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss + 0.1 * self.features.square().mean()


def changed(hook, function, base=Lit):
    return type(f"{hook}_{function.__name__}", (base,), {hook: function})


KINDS = (
    *(Lit, Added, Scheduled, ByEpoch, ByHand, Halved, ByMethod),
    *(changed(hook, frozen) for hook in ("setup", "on_train_start")),
    *(changed(hook, stops) for hook in ("on_train_batch_end", "on_train_epoch_end")),
    changed("on_train_epoch_start", last_epoch),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_hooks_act_as_beside_a_trainer(tmp_path, kind):
    own, calls, batches = recording(kind)
    run = trained(tmp_path, made(own))
    begins = [k for k, call in enumerate(calls) if call[0] == "setup"]
    calls = calls[begins[-1] :]  # after the steps that are tried before a run
    batches = batches[len(batches) - sum(call[0] == "training_step" for call in calls) :]

    beside, expected, _ = recording(kind)
    reference = fit(made(beside), batches, 3)

    assert calls == expected
    found = run.model(client=0, checkpoint="last").net.module.state_dict()
    for name, leaf in reference.state_dict().items():
        torch.testing.assert_close(found[name], leaf, rtol=0, atol=1e-12, msg=name)


def test_training_may_be_stopped_before_it_begins(tmp_path):
    own, calls, _ = recording(changed("on_fit_start", stops))
    with pytest.raises(fl.RunError):  # no client has taken a step
        trained(tmp_path, made(own))

    names = [call[0] for call in calls]
    names = names[names.index("setup", 1) :]  # after the step that is tried before a run
    assert not {"on_train_start", "on_train_epoch_start", "on_train_end"} & set(names)
    assert names[-2:] == ["on_fit_end", "teardown"]


def test_hooks_of_a_second_model_see_its_parameters(tmp_path):
    class Clamped(Lit):
        def on_train_batch_end(self, *_):
            with torch.no_grad():
                self.fc.weight.clamp_(-0.01, 0.01)

    ditto = trained(tmp_path, made(Clamped), {"name": "ditto", "lam": 0.0})
    local = trained(tmp_path, made(Clamped), "local")

    assert ditto.digest == local.digest
    weight = ditto.model(client=0, checkpoint="last").net.module.fc.weight
    assert float(weight.abs().max()) <= 0.01


def test_the_round_and_the_numbers_of_samples_can_be_read(tmp_path):
    """Each client logs what it reads; the mean over the two clients is known."""

    class Reads(Lit):
        def on_train_start(self):
            trainer = self.trainer
            self.log("round", trainer.round)
            self.log("left", trainer.max_rounds - trainer.round)
            self.log("samples", trainer.num_training_samples)
            self.log_dict({f"class{k}": n for k, n in enumerate(trainer.class_counts)})
            assert trainer.class_counts.dtype == self.fc.weight.dtype

    two = fl.Dirichlet(alpha=0.5, clients=2, samples=60)
    run = trained(tmp_path, made(Reads), partition=two, train={"rounds": 3, "local_epochs": 1})

    found = run.metrics.query("split == 'log'").pivot(
        index="round", columns="metric", values="value"
    )
    assert found["round"].tolist() == [0, 1, 2]
    assert found["left"].tolist() == [3, 2, 1]
    sizes = run.clients.groupby("client")["train_size"].first()
    assert found["samples"].tolist() == [sizes.mean()] * 3
    counts = found[[f"class{k}" for k in range(10)]]
    assert counts.sum(axis=1).tolist() == [sizes.mean()] * 3


USES = {
    "logger": lambda self: self.logger.name,
    "optimizers": lambda self: self.optimizers(),
    "manual_backward": lambda self: self.manual_backward(self.fc.weight.sum()),
    "clip_gradients": lambda self: self.clip_gradients(self.trainer.optimizers[0]),
    "all_gather": lambda self: self.all_gather(self.fc.weight),
    "to": lambda self: self.to(torch.float16),
}


@pytest.mark.parametrize("name", USES)
def test_attributes_that_need_a_trainer_are_refused(tmp_path, name):
    uses = type("Uses", (Lit,), {"on_train_start": USES[name]})

    with pytest.raises(fl.ConfigError, match="Uses"):
        trained(tmp_path, made(uses))
    assert not [*tmp_path.glob("*/*/metrics.csv")]


def test_hooks_that_flbench_does_not_call_have_no_effect(tmp_path):
    hooks = ("validation_step", "on_after_backward", "optimizer_step", "train_dataloader")
    many = type("Many", (Lit,), {name: lambda self, *_: None for name in hooks})
    run, plain = (
        trained(tmp_path / kind.__name__, made(kind), train={"local_epochs": 1})
        for kind in (many, Lit)
    )

    assert len(run.notes) == len(plain.notes) + 1
    assert run.digest == plain.digest


def logs(name, value=1.0, **options):
    def step(self, batch, batch_idx):
        self.log(name, value, **options)
        return Lit.training_step(self, batch, batch_idx)

    return changed("training_step", step)


def replaced(self, *_):
    self.fc.weight = nn.Parameter(torch.zeros_like(self.fc.weight))


def grown(self, *_):
    self.further = nn.Linear(2, 2)


class Late(lightning.LightningModule):
    """Layers that `setup` makes."""

    def setup(self, stage):
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(x.flatten(1))

    training_step, configure_optimizers = Lit.training_step, Lit.configure_optimizers


class Hooked(Lit):
    def __init__(self):
        super().__init__()
        self.fc.weight.register_hook(lambda gradient: 0 * gradient)


def short_schedule(self):
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
    return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (changed("on_train_batch_end", replaced), "fc.weight"),
        (changed("on_fit_start", grown), "further.weight"),
        (Hooked, "fc.weight"),
        (Late, "setup"),
        (changed("on_train_start", lambda self: self.freeze()), "frozen"),
        *((logs(name), repr(name)) for name in ("a, b", 'a"', "a\nb", "\ud800", "", 1)),
        *((logs("v", value), "'v'") for value in ("text", torch.ones(2))),
    ],
)
def test_what_cannot_act_is_refused_before_the_first_round(tmp_path, module, named):
    with pytest.raises(fl.ConfigError, match=re.escape(named)):
        trained(tmp_path, made(module))

    assert not [*tmp_path.glob("*/*/metrics.csv")]


def test_a_schedule_of_fewer_steps_is_an_error(tmp_path):
    with pytest.raises(fl.ConfigError, match="estimated_stepping_batches"):
        trained(tmp_path, made(changed("configure_optimizers", short_schedule)))


def test_numbers_that_are_logged_keep_their_digits(tmp_path):
    values = {"large": 1e39, "integer": 10**22, "digits": 0.1, "flag": True}

    class Logs(Lit):
        def on_train_start(self):
            self.log_dict(values)

    found = trained(tmp_path, made(Logs)).metrics.query("split == 'log'")
    assert dict(zip(found["metric"], found["value"], strict=True)) == values


def test_a_frozen_head_is_refused_for_a_method_that_trains_it_alone(tmp_path):
    class Frozen(Lit):
        def __init__(self):
            super().__init__()
            self.fc.requires_grad_(False)

    with pytest.raises(fl.ConfigError, match="frozen"):
        trained(tmp_path, Frozen, "fedrep", head="fc")
    assert not [*tmp_path.glob("*/*/metrics.csv")]
