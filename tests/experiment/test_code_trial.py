"""Code of the user gives results that depend on the run's seed alone, or is refused before them."""

import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import flbench as fl
from flbench.algorithms import (
    ALGORITHMS,
    Deployment,
    Dispatch,
    LocalProgram,
    Message,
    Stage,
    Statistic,
    Transform,
    Update,
    only,
    repeat,
)
from flbench.algorithms.fedavg import FedAvg
from flbench.core.errors import ConfigError, UnknownNameError
from flbench.core.tree import digest
from flbench.experiment import rounds
from flbench.experiment.code_trial import CodeTrial
from flbench.losses import CrossEntropy
from flbench.losses.cross_entropy import mean_cross_entropy
from tests.support import build
from tests.support import run as small_run

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """A net for digits; a subclass changes the features."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Linear(64, 16)
        self.make()
        self.fc = nn.Linear(16, classes)

    def make(self):
        pass

    def forward(self, x):
        return self.fc(self.between(self.body(x.flatten(1)).relu()))

    def between(self, h):
        return h


class Dropout(Net):
    def between(self, h):
        return functional.dropout(h, 0.3, self.training)


class Leaky(Net):
    def make(self):
        self.act = nn.RReLU()

    def between(self, h):
        return self.act(h - 0.5)


class Attention(Net):
    def make(self):
        self.attend = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

    def between(self, h):
        h = h.reshape(-1, 4, 4)
        return self.attend(h, h, h)[0].flatten(1)


class Recurrent(Net):
    def make(self):
        self.cells = nn.LSTM(4, 16, num_layers=2, dropout=0.3, batch_first=True)

    def between(self, h):
        return self.cells(h.reshape(-1, 4, 4))[0][:, -1]


class Noise(Net):
    """Random in eval mode too."""

    def between(self, h):
        return h + 0.1 * torch.randn_like(h)


class Depth(Net):
    def between(self, h):
        return h * 0 if self.training and random.random() < 0.3 else h


class Numpy(Net):
    def between(self, h):
        return h * (1 + 0.1 * float(np.random.rand()))


RANDOM = (Dropout, Leaky, Attention, Recurrent, Noise, Depth, Numpy)


class All(Net):
    """Draws in all of these ways."""

    def make(self):
        for kind in RANDOM:
            kind.make(self)

    def between(self, h):
        for kind in RANDOM:
            h = kind.between(self, h)
        return h


class Counts(Net):
    """Switches dropout on after some calls."""

    def make(self):
        self.drop, self.n = nn.Dropout(0.0), 0

    def between(self, h):
        self.n += self.training
        self.drop.p = 0.5 if self.n > 4 else 0.0
        return self.drop(h) * (1 + 0.1 * self.n)


class Hooks(Net):
    def between(self, h):
        if self.training:
            self.body.register_forward_hook(lambda module, given, out: out * 1.1)
        return h


class Assigned(Net):
    def make(self):
        self.register_buffer("n", torch.zeros(()))

    def between(self, h):
        if self.training:
            self.n = self.n + 1
        return h / (1 + 0.1 * self.n)


class Moving(Net):
    def make(self):
        self.register_buffer("mean", torch.zeros(16), persistent=False)

    def between(self, h):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * h.detach().mean(0)
        return h - self.mean


class Seen(Net):
    """A buffer of truth values, which engines cannot subtract."""

    def make(self):
        self.register_buffer("seen", torch.tensor(False))

    def between(self, h):
        if self.training:
            self.seen.fill_(True)
        return torch.where(self.seen, h, 2 * h)


def keys(out=None, engine="sequential", **train):
    return {
        "partition": fl.IID(clients=3, samples=120),
        "train": {"rounds": 2, "batch_size": 8, **train},
        "engine": {"name": engine, "threads": 1},
        "output": {"dir": out},
        "progress": False,
    }


def run(out, net, method="fedavg", engine="sequential", **train):
    return fl.run(method, model=net, **keys(out, engine, **train))


@pytest.mark.parametrize("kind", [All, Counts, Hooks])
def test_a_run_depends_on_its_seed_alone(tmp_path, kind):
    found = []
    for seed in (1, 2):
        for seeds in (torch.manual_seed, np.random.seed, random.seed):
            seeds(seed)
        found.append(run(tmp_path / str(seed), kind))

    assert found[0].digest == found[1].digest
    assert found[0].metrics.equals(found[1].metrics)


@pytest.mark.parametrize("kind", [*RANDOM, Counts, Hooks])
def test_what_a_stack_of_clients_would_share_is_refused(tmp_path, kind):
    assert "cannot" in refusal(tmp_path, kind, "vectorized")


@pytest.mark.parametrize("kind", [Dropout, Counts])
def test_a_client_does_not_depend_on_those_that_the_same_process_trains_before(
    tmp_path, kind, monkeypatch
):
    results = {}

    def check(self, anew):
        engine = self._engine("32-true")
        settings = rounds.settings_of(self.config, self.algorithm, self.state)
        for ids in ([0, 1, 2], [2]):
            trained = rounds.train(
                self.algorithm, engine, self.state, settings, ids=torch.tensor(ids)
            )
            last = {name: value[-1] for name, value in trained.results.sent.values.items()}
            results[len(ids)] = digest([last])
        return []

    monkeypatch.setattr(CodeTrial, "check", check)
    run(tmp_path, kind)

    assert results[1] == results[3]


def test_a_resumed_run_draws_the_same(tmp_path):
    class Stop(fl.Callback):
        def on_round_end(self, view, metrics):
            if view.round == 1:
                raise KeyboardInterrupt

    whole = run(tmp_path / "whole", Recurrent)
    with pytest.raises(KeyboardInterrupt):
        fl.run("fedavg", model=Recurrent, callbacks=Stop(), **keys(tmp_path / "cut"))
    (path,) = (tmp_path / "cut").glob("*/*/")
    torch.manual_seed(7)
    assert fl.resume(path, model=Recurrent, progress=False).digest == whole.digest


def test_a_layer_of_dropout_is_accepted_and_the_vectorized_engine_names_it(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.3), nn.Linear(16, 10))

    assert run(tmp_path / "one", net).digest == run(tmp_path / "two", net).digest
    text = refusal(tmp_path, net, "vectorized")
    assert "Dropout" in text
    assert "ray" in text


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_recurrent_nets_train_and_are_not_stacked(tmp_path, name):
    class Cells(Net):
        def make(self):
            self.cells = getattr(nn, name)(4, 16, batch_first=True)

        def between(self, h):
            return self.cells(h.reshape(-1, 4, 4))[0][:, -1]

    for method in ("fedavg", "apfl") if name == "LSTM" else ():
        assert run(tmp_path / method, Cells, method, local_epochs=3).digest
    if name == "GRU":
        assert run(tmp_path / "auto", Cells, engine="auto").config.engine.name == "sequential"
    assert "engine.name=sequential" in refusal(tmp_path, Cells, "vectorized")


@pytest.mark.parametrize("kind", [Assigned, Moving, Seen])
def test_buffers_are_those_of_training_in_every_engine(tmp_path, kind):
    double = {"precision": "64-true", "threads": 1}
    one, many = (
        fl.run(
            "fedavg", model=kind, **{**keys(tmp_path / name), "engine": {"name": name, **double}}
        )
        for name in ("sequential", "vectorized")
    )
    first, second = (
        dict(found.model(client=0, checkpoint="last").net.named_buffers()) for found in (one, many)
    )
    [name] = [name for name in first if name.endswith(("n", "mean", "seen"))]

    assert first[name].any()
    assert torch.allclose(first[name], second[name], rtol=0, atol=1e-9)
    if kind is Seen:
        return
    if kind is Assigned:
        epochs, rounds_done = one.config.train.local_epochs, 2
        assert first[name] == 3 * epochs * rounds_done  # 24 samples of a client in batches of 8
        return
    with pytest.raises(fl.UserError) as unsaved:
        one.export(tmp_path / "x.safetensors", client=0, format="safetensors")
    assert "`backbone.mean`" in str(unsaved.value)


class Average(Net):
    """A mean that is no buffer."""

    def make(self):
        self.mean = torch.zeros(16)

    def between(self, h):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * h.detach().mean(0)
        return h - self.mean


@pytest.mark.parametrize(("kind", "name"), [(Counts, "backbone.n"), (Average, "backbone.mean")])
def test_an_attribute_that_changes_is_noted(tmp_path, kind, name):
    assert any(name in note for note in run(tmp_path, kind).notes)


class Flag(Net):
    """Warns once."""

    def make(self):
        self.warned = False

    def between(self, h):
        if not self.warned:
            self.warned = True
        return h


def test_a_flag_that_is_set_once_can_be_stacked(tmp_path):
    assert run(tmp_path, Flag, engine="vectorized").digest


class Noisy(FedAvg):
    """A method whose server draws from the global generators."""

    def init(self, start):
        server, clients = super().init(start)
        return {**server, "noise": torch.rand(2)}, clients

    def aggregate(self, state, results):
        update = super().aggregate(state, results)
        factor = 1 + 0.1 * float(torch.rand(())) * np.random.rand() * random.random()
        server = {name: factor * value for name, value in update.server.items()}
        return replace(update, server={**server, "noise": state.server["noise"]})


def test_a_method_of_the_user_draws_from_the_seed_of_the_run(tmp_path):
    found = []
    for seed in (1, 2):
        for seeds in (torch.manual_seed, np.random.seed, random.seed):
            seeds(seed)
        found.append(run(tmp_path / str(seed), "mlp", Noisy).digest)

    assert found[0] == found[1]
    assert found[0] != run(tmp_path / "plain", "mlp").digest


@contextmanager
def method_named(name, kind):
    """Within it, a method is registered under a name."""
    ALGORITHMS.register(name)(kind)
    try:
        yield
    finally:
        del ALGORITHMS[name]


@dataclass(frozen=True)
class Sum:
    """The number of samples, under a key."""

    key: str

    def __call__(self, context):
        return {self.key: context.batch.mask.sum().double()}


@dataclass(frozen=True)
class Copy:
    """Writes an entry of ctx to a leaf."""

    entry: str
    leaf: str

    def __call__(self, leaves, start, ctx, info):
        return {self.leaf: ctx[self.entry]}


class Named(FedAvg):
    """A method of two stages whose names agree; a subclass changes one of them."""

    statistic, key, entry, leaf, sent, read = "sizes", "n", "sizes.n", "size", "size", "size"
    weight, number, kept, masks, mask, reply = "mu", "mu", "old", (("old", "held"),), "old", "old"
    server, client, train, reduce, model = "momentum", "old", None, "sum", "old"
    stage = 0  # the stage that has the names of the subclass

    def stages(self):
        return (Stage("warm", 1, setup=True), Stage("main", self.setting.rounds))

    def names(self, state):
        return self if state.stage == self.stage else Named

    def init(self, start):
        server, clients = super().init(start)
        held = {"old": torch.zeros(3), "held": torch.ones(3, dtype=torch.bool)}
        return server | {"momentum": torch.ones(())}, clients | repeat(held, self.setting.clients)

    def program(self, state):
        names = self.names(state)
        steps = (
            Statistic(names.statistic, Sum(names.key), reduce=names.reduce),
            Transform(Copy(names.entry, names.leaf)),
            self.phase(CrossEntropy(weight=names.weight), train=names.train),
        )
        program = super().program(state)
        keeps, sends = {names.kept, "held"}, program.sends | {names.sent, "old"}
        return LocalProgram(steps, frozenset(keeps), frozenset(sends), names.masks)

    def dispatch(self, state, ids):
        names = self.names(state)
        mask = {names.mask: torch.ones(3, dtype=torch.bool)}
        shared = Message(only(state.server, self.split()[1]) | {"old": torch.zeros(3)}, mask)
        return Dispatch(shared, numbers={names.number: 1.0})

    def aggregate(self, state, results):
        names = self.names(state)
        size = results.sent.values[names.read]
        mean = super().aggregate(state, results).server
        changed = {"momentum": state.server[names.server] + state.clients[names.client].sum()}
        reply = Message({names.reply: size[:, None].expand(-1, 3)})
        return Update(mean | changed, reply)

    def deploy(self, state, ids):
        return {"personal": Deployment(self.dispatch(state, ids), predict=self.scores)}

    def scores(self, context):
        return context.out.logits + context.leaves[self.model].sum()


WRONG = {  # names of a subclass: the name that the error has, and the place
    "statistic": ({"statistic": "size"}, "sizes.n", "step 2 (Transform `Copy`)"),
    "key of a statistic": ({"key": "m"}, "sizes.n", "step 2 (Transform `Copy`)"),
    "entry of ctx": ({"entry": "sizes.k"}, "sizes.k", "step 2 (Transform `Copy`)"),
    "entry for a weight": ({"weight": "mus"}, "mus", "step 3 (Phase)"),
    "number of the dispatch": ({"number": "mus"}, "mu", "step 3 (Phase)"),
    "leaf": ({"leaf": "sized"}, "size", "`sends`"),
    "sends": ({"sent": "sized"}, "sized", "`sends`"),
    "values": ({"read": "sized"}, "sized", "`aggregate`"),
    "keeps": ({"kept": "olds"}, "olds", "`keeps`"),
    "masks": ({"masks": (("old", "helt"),)}, "helt", "`masks`"),
    "masked leaf": ({"masks": (("olds", "held"),)}, "olds", "`masks`"),
    "mask of a message": ({"mask": "olds"}, "olds", "a Message has a mask"),
    "reply": ({"reply": "olds"}, "olds", "`aggregate`"),
    "server": ({"server": "momenta"}, "momenta", "`aggregate`"),
    "client": ({"client": "olds"}, "olds", "`aggregate`"),
    "train": ({"train": "back.*"}, "back.*", "step 3 (Phase)"),
    "reduce": ({"reduce": (("m", "sum"),)}, "n", "step 1 (Statistic `sizes`)"),
    "model": ({"model": "olds"}, "olds", "the model `personal`"),
}
LATER = {"statistic", "sends", "values", "keeps", "masks"}  # they are tried in the second stage too


@pytest.mark.parametrize(
    ("case", "stage"), [(case, 0) for case in WRONG] + [(case, 1) for case in sorted(LATER)]
)
def test_a_name_that_nothing_writes_is_an_error_before_the_first_round(case, stage):
    values, name, place = WRONG[case]
    kind = type("Misspelt", (Named,), {**values, "stage": stage})

    with pytest.raises(UnknownNameError) as caught, method_named("misspelt", kind):
        build("algorithm=misspelt", "train.rounds=2")

    assert f"`{name}`" in str(caught.value)
    assert place in str(caught.value)
    assert "`algorithm.name=misspelt`" in str(caught.value)
    assert case == "model" or ("`main`" if stage else "`warm`") in str(caught.value)


def test_the_error_suggests_a_name_that_exists():
    kind = type("Misspelt", (Named,), {"entry": "size.n"})

    with method_named("misspelt", kind), pytest.raises(UnknownNameError, match=r"`sizes\.n`\?"):
        build("algorithm=misspelt")


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_names_that_agree_train(tmp_path, engine):
    with method_named("agreeing", Named):
        _, summary = small_run(tmp_path, "algorithm=agreeing", f"engine.name={engine}")

    assert summary["rounds"] == 3


class Centred(FedAvg):
    """Its server gets a tensor in the last round of the first stage from at least three clients."""

    def stages(self):
        return (Stage("first", 2), Stage("second", self.setting.rounds - 2))

    def aggregate(self, state, results):
        update = super().aggregate(state, results)
        if state.stage_round < 1 or len(results.ids) < 3:
            return update
        return replace(update, server=update.server | {"centre": torch.ones(())})


class Direct(Centred):
    def dispatch(self, state, ids):
        dispatch = super().dispatch(state, ids)
        if state.stage == 0:
            return dispatch
        return replace(dispatch, numbers={"c": float(state.server["centre"])})


class Guarded(Centred):
    def dispatch(self, state, ids):
        dispatch = super().dispatch(state, ids)
        number = {"c": 0.5} if "centre" in state.server else {}
        return replace(dispatch, numbers=number)

    def program(self, state):
        program = super().program(state)
        if state.stage == 0:
            return program
        return replace(program, steps=(self.phase(CrossEntropy(weight="c")),))


class Computed(FedAvg):
    """Names are computed, and tensors that may be missing are asked for."""

    def program(self, state):
        program = super().program(state)
        steps = (*program.steps, Transform(Optional(4)))
        return replace(program, steps=steps, sends=program.sends | set(map("x{}".format, range(4))))

    def aggregate(self, state, results):
        for k in range(4):
            results.sent.values[f"x{k}"]
        results.sent.values.get("another")
        state.server.get("another")
        return super().aggregate(state, results)


@dataclass(frozen=True)
class Optional:
    count: int

    def __call__(self, leaves, start, ctx, info):
        return {f"x{k}": ctx.get(f"y{k}", torch.zeros(())) for k in range(self.count)}


@pytest.mark.parametrize("kind", [Direct, Guarded, Computed])
def test_a_name_that_is_computed_or_comes_later_is_no_error(tmp_path, kind):
    with method_named("computed", kind):
        small_run(tmp_path, "algorithm=computed")


CALLS, HISTORY, DRAW = 0, [], np.random.default_rng(0)


def counted(context):
    global CALLS
    CALLS += 1
    factor = 0.5 if CALLS > 300 else 1.0
    return factor * plain(context)


def plain(context):
    return mean_cross_entropy(context.out.logits, context.batch.y, context.batch.mask)


def logged(context):
    HISTORY.append(1)
    return plain(context)


class Annealed:
    def __init__(self):
        self.calls = 0

    def __call__(self, context):
        self.calls += 1
        return plain(context) * (0.5 if self.calls > 300 else 1.0)


class GlobalNet(Net):
    def between(self, h):
        global CALLS
        CALLS += 1
        return h if CALLS < 300 else h / 2


class Clock(Net):
    def between(self, h):
        return h * (1 + time.perf_counter_ns() % 1000) if self.training else h


class Own(Net):
    def between(self, h):
        return h * float(np.random.default_rng().random())


class Outside(Net):
    def between(self, h):
        return h * float(DRAW.random()) if self.training else h


def refusal(out, net="mlp", engine="sequential", **train):
    with pytest.raises(ConfigError) as found:
        run(out / "refused", net, engine=engine, **train)
    assert not (out / "refused").exists()  # nothing was trained or written
    return str(found.value)


@pytest.mark.parametrize(
    ("term", "name"), [(counted, "CALLS"), (Annealed(), "calls"), (Annealed().__call__, "calls")]
)
def test_a_term_that_remembers_its_calls_is_refused(tmp_path, term, name):
    text = refusal(tmp_path, terms=[{"name": term, "instead": True}])

    assert f"`{name}`" in text
    assert "context.batch.step" in text


@pytest.mark.parametrize(
    ("net", "word"),
    [(GlobalNet, "`CALLS`"), (Clock, "clock"), (Own, "generator"), (Outside, "generator")],
)
def test_a_net_that_depends_on_something_outside_is_refused(tmp_path, net, word):
    assert word in refusal(tmp_path, net)


def test_a_term_that_keeps_a_log_trains(tmp_path):
    ours = run(tmp_path / "a", "mlp", terms=[{"name": logged, "instead": True}])

    assert ours.digest == run(tmp_path / "b", "mlp").digest
    assert HISTORY


def test_code_of_the_user_is_not_traced(tmp_path, monkeypatch):
    """It is called in each step."""
    monkeypatch.setattr("flbench.engine.traced.LOOKS", 1)
    monkeypatch.setattr("flbench.engine.traced.PATIENCE", 0.0)
    HISTORY.clear()
    run(tmp_path, "mlp", terms=[{"name": logged, "instead": True}], local_epochs=4)

    assert len(HISTORY) > 3 * 2 * 4 * 3


class Module(lightning.LightningModule):
    """A LightningModule for digits; a subclass changes the features."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def between(self, h):
        return h

    def forward(self, x):
        return self.fc(self.between(x.flatten(1)))

    def training_step(self, batch, index):
        x, y = batch
        return functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class GlobalModule(Module):
    between = GlobalNet.between


class ClockModule(Module):
    between = Clock.between


@pytest.mark.parametrize(("kind", "word"), [(GlobalModule, "`CALLS`"), (ClockModule, "clock")])
def test_a_lightning_module_that_depends_on_something_outside_is_refused(tmp_path, kind, word):
    with pytest.raises(ConfigError) as found:
        fl.federate(kind(), "digits", method="fedavg", **keys(tmp_path))
    assert word in str(found.value)
