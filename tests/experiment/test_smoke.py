"""Code of the user gives results that depend on the run's seed alone, or is refused before them."""

import logging
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

import flbench as fl
from flbench.algorithms import (
    ALGORITHMS,
    Communication,
    Deployment,
    Dispatch,
    LocalProgram,
    Message,
    Paper,
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
from flbench.experiment.smoke import Smoke
from flbench.losses import CrossEntropy
from flbench.losses.cross_entropy import mean_cross_entropy
from tests.forks import Fork
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


class Several(Net):
    """Draws in several ways; a subclass says in which ones."""

    ways = ()

    def make(self):
        for kind in self.ways:
            kind.make(self)

    def between(self, h):
        for kind in self.ways:
            h = kind.between(self, h)
        return h


class All(Several):
    ways = (Dropout, Recurrent, Noise, Depth, Numpy)


class Stackable(Several):
    ways = (Dropout, Noise)


class Counts(Net):
    """Switches dropout on after some calls."""

    def make(self):
        self.drop, self.n = nn.Dropout(0.0), 0

    def between(self, h):
        self.n += self.training
        self.drop.p = 0.5 if self.n > 4 else 0.0
        return self.drop(h) * (1 + 0.1 * self.n)


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


class Mean(Net):
    """Reads the batch as a whole, with rows of padding."""

    def between(self, h):
        return h - h.mean(0)


class Single(Net):
    """Cannot compute in float64."""

    def forward(self, x):
        return super().forward(x.float())


class SingleMean(Single, Mean):
    pass


class Deep(Net):
    """Rounding in float32 changes what three steps train by about as much as the steps do."""

    def make(self):
        layers = [
            layer
            for _ in range(20)
            for layer in (nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU())
        ]
        self.deep = nn.Sequential(*layers)

    def between(self, h):
        return self.deep(h)


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
        "train": {"rounds": 2, "batch_size": 8, "local_epochs": 2, **train},
        "engine": {"name": engine, "threads": 1},
        "output": {"dir": out},
        "progress": False,
    }


def run(out, net, method="fedavg", engine="sequential", **train):
    return fl.run(method, model=net, **keys(out, engine, **train))


def test_a_run_depends_on_its_seed_alone(tmp_path):
    found = []
    for seed in (1, 2):
        for seeds in (torch.manual_seed, np.random.seed, random.seed):
            seeds(seed)
        found.append(run(tmp_path / str(seed), All))

    assert found[0].digest == found[1].digest
    assert found[0].metrics.equals(found[1].metrics)


class Wide(nn.Module):
    """A net of 70 MB."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8192), nn.ReLU())
        self.body.append(nn.Linear(8192, 2048))
        self.head = nn.Linear(2048, classes)

    def forward(self, x):
        return self.head(self.body(x))


def memory(name):
    """Return a number of bytes in the status of this process, such as its peak, VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def test_a_large_net_is_tried_in_the_memory_of_some_copies(tmp_path):
    def measured():
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = memory("VmRSS")
        run(tmp_path / "runs", Wide, rounds=1, local_epochs=1, batch_size=64)
        copies = (memory("VmHWM") - before) / (4 * 8192 * (64 + 2048))
        (tmp_path / "copies").write_text(str(copies))

    fork = Fork(tmp_path, measured)
    fork.process.join()
    assert float((tmp_path / "copies").read_text()) < 26


@pytest.mark.parametrize("kind", [Recurrent, Depth, Numpy, Moving, Mean, SingleMean])
def test_what_a_stack_of_clients_would_share_is_refused(tmp_path, kind):
    """`Moving` and `Mean` count rows of padding, which a stack has for a batch that is not full."""
    assert refusal(tmp_path, kind, "vectorized")
    if kind is Recurrent:
        found = run(tmp_path / "auto", kind, "apfl", "auto", local_epochs=1)
        assert found.config.engine.name == "sequential"
    if kind is Moving:
        trained = run(tmp_path / "one", Moving)
        assert trained.model(client=0, checkpoint="last").net.backbone.mean.any()
        with pytest.raises(fl.UserError, match=r"`backbone\.mean`"):
            trained.export(tmp_path / "x.safetensors", client=0)


@pytest.mark.parametrize("kind", [Single, Deep])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_rounding_of_a_net_is_no_reason_to_refuse_it(kind, precision):
    keys = ("partition.clients=3", "partition.samples=90", f"engine.precision={precision}")
    built = build(f"model={__file__}:{kind.__name__}", "engine.name=vectorized", *keys)

    assert built.config.engine.name == "vectorized"


def test_a_client_does_not_depend_on_those_that_the_same_process_trains_before(
    tmp_path, monkeypatch
):
    results = {}

    def check(self, anew):
        engine = self._sequential()
        state = self.begin(self.net, self.algorithm, torch.float32)
        settings = rounds.settings_of(self.algorithm, state)
        for ids in ([0, 1, 2], [2]):
            trained = rounds.train(self.algorithm, engine, state, settings, ids=torch.tensor(ids))
            last = {name: value[-1] for name, value in trained.results.sent.values.items()}
            results[len(ids)] = digest([last])
        return engine.net

    monkeypatch.setattr(Smoke, "check", check)
    run(tmp_path, All)

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


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_random_layers_draw_from_the_seed_alone(tmp_path, engine):
    """For batches that are not full, several blocks, and fine-tuning before evaluations."""
    digests = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(number)
        before = torch.get_rng_state()
        given = keys(tmp_path / str(number), local_epochs=1)
        given["partition"] = fl.IID(clients=3, samples=70)
        given["engine"] |= {"name": engine, "block": 2}
        digests.append(fl.run("ft", model=Stackable, data="digits", seed=seed, **given).digest)
        assert torch.equal(before, torch.get_rng_state())

    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("kind", [Assigned, Seen])
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
    [name] = [name for name in first if name.endswith(("n", "seen"))]

    assert first[name].any()
    assert torch.allclose(first[name], second[name], rtol=0, atol=1e-9)
    if kind is Assigned:
        epochs, rounds_done = one.config.train.local_epochs, 2
        assert first[name] == 3 * epochs * rounds_done  # 24 samples of a client in batches of 8


class Teacher(Net):
    """A layer that follows another one, which the user has frozen."""

    def make(self):
        self.slow = nn.Linear(64, 16).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.slow.weight.lerp_(self.body.weight, 0.1)
        return self.fc(self.body(x.flatten(1)).relu() + self.slow(x.flatten(1)))


class Makes(Net):
    def between(self, h):
        if not hasattr(self, "late"):
            self.late = nn.Linear(16, 16)
        return self.late(h)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        *((kind, kind.__name__) for kind in (Counts, Teacher)),
        (Makes, "late.weight"),
    ],
)
def test_a_net_that_keeps_state_outside_parameters_and_buffers_is_refused(tmp_path, kind, named):
    assert named in refusal(tmp_path, kind)


class Late(Net):
    """Raises an exception in the second round."""

    def make(self):
        self.register_buffer("steps", torch.zeros(()))

    def between(self, h):
        if self.training:
            self.steps += 1
            if self.steps > 5:
                raise ValueError("a spike of the loss")
        return h


def test_an_exception_of_a_net_in_a_round_is_an_error_with_its_line(tmp_path):
    with pytest.raises(ConfigError, match=r"a spike of the loss.*\.py:\d+") as found:
        run(tmp_path, Late)
    assert isinstance(found.value.__cause__, ValueError)


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

    def __call__(self, context):
        return {self.leaf: context.ctx[self.entry]}


class Named(FedAvg):
    """A method of two stages whose names agree; a subclass changes one of them."""

    statistic, entry, sent, reduce = "sizes", "sizes.n", "size", "sum"
    kept, masks, mask, reply, model = "old", (("old", "held"),), "old", "old", "old"
    where = 0  # the stage that has the names of the subclass

    def stages(self):
        return (Stage("warm", 1, setup=True), Stage("main", self.setting.rounds))

    def names(self, state):
        return self if state.stage == self.where else Named

    def init(self, start):
        server, clients = super().init(start)
        held = {"old": torch.zeros(3), "held": torch.ones(3, dtype=torch.bool)}
        return server | {"momentum": torch.ones(())}, clients | repeat(held, self.setting.clients)

    def program(self, state):
        names = self.names(state)
        steps = (
            Statistic(names.statistic, Sum("n"), reduce=names.reduce),
            Transform(Copy(names.entry, "size")),
            self.phase(CrossEntropy(weight="mu")),
        )
        program = super().program(state)
        keeps, sends = {names.kept, "held"}, program.sends | {names.sent, "old"}
        return LocalProgram(steps, frozenset(keeps), frozenset(sends), names.masks)

    def dispatch(self, state, ids):
        names = self.names(state)
        mask = {names.mask: torch.ones(3, dtype=torch.bool)}
        shared = Message(only(state.server, self.split()[1]) | {"old": torch.zeros(3)}, mask)
        return Dispatch(shared, numbers={"mu": 1.0})

    def aggregate(self, state, results):
        names = self.names(state)
        size = results.sent.values["size"]
        mean = super().aggregate(state, results).server
        changed = {"momentum": state.server["momentum"] + state.clients["old"].sum()}
        reply = Message({names.reply: size[:, None].expand(-1, 3)})
        return Update(mean | changed, reply)

    def deploy(self, state, ids):
        return {"personal": Deployment(self.dispatch(state, ids), predict=self.scores)}

    def scores(self, context):
        return context.out.logits + context.leaves[self.model].sum()


WRONG = {  # the names of a subclass, and the name that the error has
    "entry of ctx": ({"entry": "sizes.k"}, "sizes.k"),
    "statistic": ({"statistic": "size"}, "sizes.n"),
    "sends": ({"sent": "sized"}, "sized"),
    "keeps": ({"kept": "olds"}, "olds"),
    "masks": ({"masks": (("old", "helt"),)}, "helt"),
    "mask of a message": ({"mask": "olds"}, "olds"),
    "reply": ({"reply": "olds"}, "olds"),
    "reduce": ({"reduce": (("m", "sum"),)}, "n"),
    "model": ({"model": "olds"}, "olds"),
}


@pytest.mark.parametrize(
    ("case", "stage"), [*((case, 0) for case in WRONG), ("statistic", 1), ("keeps", 1)]
)
def test_a_name_that_nothing_writes_is_an_error_before_the_first_round(case, stage):
    values, name = WRONG[case]
    kind = type("Misspelt", (Named,), {**values, "where": stage})

    with pytest.raises(UnknownNameError, match=f"`{name}`"), method_named("misspelt", kind):
        build("algorithm=misspelt", "train.rounds=2")


class Messages(FedAvg):
    """Sends a row to each client, and replies with one."""

    dispatched, replied = slice(None), slice(None)

    def init(self, start):
        server, clients = super().init(start)
        return server, clients | repeat({"own": torch.zeros(2)}, self.setting.clients)

    def dispatch(self, state, ids):
        rows = Message({"tag": ids.double()[self.dispatched]})
        return replace(super().dispatch(state, ids), rows=rows)

    def aggregate(self, state, results):
        rows = torch.ones(len(results.ids), 2)
        reply = Message({"own": rows[self.replied]})
        return replace(super().aggregate(state, results), reply=reply)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        *(({"dispatched": rows}, "tag") for rows in (slice(1), None)),
        *(({"replied": rows}, "own") for rows in (slice(1), (slice(None), 0))),
    ],
)
def test_messages_have_a_row_for_each_client(values, name, tmp_path):
    """Rows that PyTorch would broadcast, or that belong to other clients, are refused."""
    kind = type("Wrong", (Messages,), values)

    with method_named("wrong", kind), pytest.raises(ConfigError, match=f"`{name}`"):
        small_run(tmp_path, "algorithm=wrong", "train.rounds=2", "engine.name=vectorized")


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


def test_a_name_that_comes_later_is_no_error(tmp_path):
    with method_named("guarded", Guarded):
        small_run(tmp_path, "algorithm=guarded")


HISTORY, DRAW = [], np.random.default_rng(0)


def plain(context):
    return mean_cross_entropy(context.out.logits, context.batch.y, context.batch.mask)


def logged(context):
    HISTORY.append(1)
    return plain(context)


class Clock(Net):
    def between(self, h):
        return h * (1 + time.perf_counter_ns() % 1000) if self.training else h


class Outside(Net):
    def between(self, h):
        return h * float(DRAW.random()) if self.training else h


def refusal(out, net="mlp", engine="sequential", **train):
    with pytest.raises(ConfigError) as found:
        run(out / "refused", net, engine=engine, **train)
    assert not (out / "refused").exists()  # nothing was trained or written
    return str(found.value)


@pytest.mark.parametrize("net", [Clock, Outside])
def test_a_net_that_depends_on_something_outside_is_refused(tmp_path, net):
    assert net.__name__ in refusal(tmp_path, net)


def test_a_term_that_keeps_a_log_trains(tmp_path):
    ours = run(tmp_path / "a", "mlp", terms=[{"name": logged, "instead": True}])

    assert ours.digest == run(tmp_path / "b", "mlp").digest
    assert HISTORY


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


class ClockModule(Module):
    between = Clock.between


class OwnMethod(FedAvg):
    paper = Paper("Own", "nobody", "invented")
    communication = Communication(down="w", up="w", keeps="nothing")

    def scaled(self, update, factor):
        return replace(update, server={k: v * factor for k, v in update.server.items()})


def method(**changes):
    """Return a method in which f(self, found, *given) changes what a hook of FedAvg has found."""

    def changed(hook, change):
        return lambda self, *given: change(self, getattr(FedAvg, hook)(self, *given), *given)

    hooks = {hook: changed(hook, change) for hook, change in changes.items()}
    return type("Changed", (OwnMethod,), hooks)


def drawn():
    return 1 + 0.1 * random.SystemRandom().random()


class DrawsWhenMade(OwnMethod):
    def __init__(self, config, setting):
        super().__init__(config, setting)
        self.factor = drawn()

    def aggregate(self, state, results):
        return self.scaled(super().aggregate(state, results), self.factor)


class KeepsMomentum(OwnMethod):
    before = None

    def aggregate(self, state, results):
        update = super().aggregate(state, results)
        if self.before is not None:
            update = replace(
                update, server={k: v + 0.1 * self.before[k] for k, v in update.server.items()}
            )
        self.before = update.server
        return self.scaled(update, 0.9)


OUTSIDE = [
    *(DrawsWhenMade, KeepsMomentum),
    method(aggregate=lambda self, found, *_: self.scaled(found, drawn())),
    method(
        dispatch=lambda self, found, *_: replace(found, numbers={"mu": time.perf_counter()}),
        deploy=lambda self, found, state, ids: {
            name: replace(one, dispatch=self.dispatch(state, ids)) for name, one in found.items()
        },
    ),
    method(init=lambda self, found, _: ({k: drawn() * v for k, v in found[0].items()}, found[1])),
]


@pytest.mark.parametrize("kind", OUTSIDE)
def test_a_method_whose_server_depends_on_something_outside_its_state_is_refused(tmp_path, kind):
    # With many clients, two draws are hardly ever equal.
    many = keys(tmp_path / "out") | {"partition": fl.IID(clients=60, samples=600)}

    with pytest.raises(ConfigError, match=f"`{kind.__name__.lower()}`"):
        fl.run(kind, data="digits", **many)
    assert not (tmp_path / "out").exists()


class Legitimate(OwnMethod):
    """A log, a counter that is only written, a memo, a warning, and a clock for a diagnostic."""

    def __init__(self, config, setting):
        super().__init__(config, setting)
        self.sizes, self.count, self.memo, self.begin = [], 0, {}, time.time()
        self.told = False

    @lru_cache  # noqa: B019
    def power(self, number):
        return 2**number

    def aggregate(self, state, results):
        self.sizes.append(len(results.ids))
        self.count += 1
        if not self.told:
            self.told = True
        if state.round not in self.memo:
            self.memo[state.round] = self.power(state.round)
        if self.memo[state.round] != self.power(state.round):  # pytest's `assert` reads locals
            raise ValueError
        for _ in tqdm(range(2), disable=True):
            logging.getLogger(__name__).debug("round %d", state.round)
        seconds = time.time() - self.begin
        return replace(super().aggregate(state, results), metrics={"seconds": seconds})


def needs_all(self, found, state, results):
    assert len(results.ids) == self.setting.clients == 3
    return found


@pytest.mark.parametrize("kind", [Legitimate, method(aggregate=needs_all)])
def test_a_method_may_log_remember_what_it_computed_and_read_a_clock(tmp_path, kind):
    ours = fl.run(kind, data="digits", **keys(tmp_path / "a"))

    assert ours.digest == fl.run("fedavg", data="digits", **keys(tmp_path / "b")).digest


def test_weights_that_init_changes_are_those_that_clients_begin_with(tmp_path):
    """Clients with a learning rate near zero return what they were sent."""
    short = keys(tmp_path)
    short["train"] = {**short["train"], "rounds": 1, "optimizer": {"lr": 1e-12}}
    zeros = method(init=lambda self, found, _: ({k: v * 0 for k, v in found[0].items()}, found[1]))
    ours = fl.run(zeros, data="digits", **short)

    assert all(float(one.detach().abs().max()) < 1e-6 for one in ours.model().parameters())


class StepDraws(Module):
    def training_step(self, batch, index):
        return super().training_step(batch, index) * random.SystemRandom().random()


class WeightsDraw(Module):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.fc.weight += np.random.default_rng().random()


@pytest.mark.parametrize("kind", [StepDraws, WeightsDraw, ClockModule])
def test_a_class_of_lightning_modules_with_random_numbers_of_its_own_is_refused(tmp_path, kind):
    with pytest.raises(ConfigError, match=f"`{kind.__name__}`"):
        fl.federate(kind, "digits", method="fedavg", **keys(tmp_path))


class CountingTerm:
    """A term that counts its calls within a program."""

    weight = 1.0

    def __init__(self):
        self.calls = 0

    def __call__(self, context):
        self.calls += 1
        return context.out.logits.square().mean() * self.calls


class RowLosses(CountingTerm):
    """A term with a value for each sample."""

    def __call__(self, context):
        return context.out.logits.mean(1)


def in_place(self, found, state, ids):
    for value in state.server.values():
        value.mul_(0.5)
    return found


def softmax(self, found, results):
    return torch.softmax(-results.losses, dim=0)  # losses may be NaN


def with_rows(update):
    return Update({name: value[None] for name, value in update.server.items()})


RETURNED = {
    "rows": method(aggregate=lambda self, found, *_: with_rows(found)),
    "weights by losses": method(weights=softmax),
    "one weight": method(weights=lambda self, found, _: found[:1]),
    "a term that counts": method(terms=lambda self, found: (*found, CountingTerm())),
    "a term with rows": method(terms=lambda self, found: (*found, RowLosses())),
    "two clients": method(init=lambda self, found, _: (found[0], {"kept": torch.zeros(2)})),
    "a metric that is a word": method(
        aggregate=lambda self, found, *_: replace(found, metrics={"quality": "good"})
    ),
    "a client twice": method(cohort=lambda self, *_: torch.tensor([0, 0, 1])),
    "an unknown client": method(cohort=lambda self, *_: torch.tensor([0, 99])),
    "a change in place": method(dispatch=in_place),
}


@pytest.mark.parametrize("kind", RETURNED.values(), ids=RETURNED)
def test_what_a_method_returns_is_checked_before_it_counts(tmp_path, kind):
    with pytest.raises(ConfigError):
        fl.run(kind, data="digits", **keys(tmp_path))


@dataclass(frozen=True)
class KeepsDimension:
    weight: float = 1.0

    def __call__(self, context):
        rows = context.out.logits.mean(1) * context.batch.mask
        return (rows / context.batch.mask.sum()).sum(0, keepdim=True)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_numbers_that_are_nan_and_tensors_of_one_number_are_accepted(tmp_path, engine):
    """The server has a number that is not known yet, and a term keeps a dimension."""
    kind = method(
        cohort=lambda self, found, *_: found.int(),
        init=lambda self, found, _: (found[0] | {"best": torch.tensor(torch.nan)}, found[1]),
        terms=lambda self, found: (*found, KeepsDimension()),
    )
    assert fl.run(kind, data="digits", **keys(tmp_path, engine)).digest
