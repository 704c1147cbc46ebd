"""A trace never keeps a number that changes: every way in which Python can read a tensor.

The server sends `mu`, which is the same in two rounds and then changes. A loss term reads it in one
of many ways. The results must be those of the step itself, in every round, on both engines.
"""

import copy
import ctypes
import io
import pickle
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flbench.client.module import ClientModule
from flbench.client.program import LocalProgram, Phase, Statistic
from flbench.config.schema import OptimizerConfig, TrainConfig
from flbench.core import ownership
from flbench.core.rng import Draw
from flbench.core.tree import digest
from flbench.core.types import Dispatch, Message, Samples
from flbench.engine import traced
from flbench.engine.base import RoundSettings
from flbench.losses import CrossEntropy
from tests.support import build

ENGINES = ("sequential", "vectorized")
ROUNDS = (2.0, 2.0, 3.0)
"""The value of `mu` in each round."""
CLIENTS = 2
SOME = Samples(limit=16)
TRAIN = TrainConfig(batch_size=16)


class Marked(Tensor):
    """A subclass of Tensor without any behaviour of its own."""


class Halved(torch.autograd.Function):
    """A function whose backward pass reads `mu`, where `Readers` are not asked."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x, mu):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mu = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mu.tolist(), None

    @staticmethod
    def vmap(info, in_dims, x, mu):
        return Halved.apply(x, mu), in_dims[0]


def saved(x):
    torch.save(x, file := io.BytesIO())
    file.seek(0)
    return torch.load(file)


NUMBERS = {
    "float": float,
    "int": int,
    "item": lambda x: x.item(),
    "format": lambda x: float(f"{x:.6f}"),
    "format of a vector": lambda x: float(f"{x.reshape(1)}"[8:-2]),
    "str": lambda x: float(str(x)[7:-1]),
    "repr": lambda x: float(repr(x)[7:-1]),
    "digits": lambda x: sum(map(int, filter(str.isdigit, str(x)))),
    "join": lambda x: float("".join(map(str, [x]))[7:-1]),
    "tolist": lambda x: x.tolist(),
    "tolist of integers": lambda x: x.long().tolist(),
    "numpy": lambda x: float(x.numpy()),
    "numpy.asarray": lambda x: float(np.asarray(x)),
    "numpy function": lambda x: float(np.square(x)),
    "numpy.from_dlpack": lambda x: float(np.from_dlpack(x)),
    "storage": lambda x: x.storage()[0],
    "untyped storage": lambda x: sum(x.untyped_storage()),
    "data_ptr": lambda x: ctypes.c_float.from_address(x.data_ptr()).value,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "if": lambda x: 1.0 if x > 2 else 5.0,
    "max": lambda x: max(x, 2.5),
    "range": lambda x: len(range(x.long())),
    "index of a list": lambda x: [1.0, 2.0, 3.0, 4.0, 5.0][x.long()],
    "slice": lambda x: torch.ones(9)[: x.long()].sum(),
    "shape": lambda x: torch.ones(x.long()).sum(),
    "fill": lambda x: torch.full((1,), x),
    "sizes": lambda x: torch.arange(9.0).tensor_split(x.long().reshape(1))[0].sum(),
    "sizes of a function": lambda x: torch.tensor_split(torch.ones(9), x.long().reshape(1))[
        0
    ].sum(),
    "TorchScript": lambda x: scripted(x),
}
"""Ways in which Python gets a number, or operations get one from Python."""
TENSORS = {
    "Parameter": nn.Parameter,
    "Parameter.data": lambda x: nn.Parameter(x).data,
    "Parameter of a copy": lambda x: nn.Parameter(x.clone()),
    "ParameterList": lambda x: nn.ParameterList([x])[0],
    "ParameterDict": lambda x: nn.ParameterDict({"mu": x})["mu"],
    "as_subclass": lambda x: x.as_subclass(Marked),
    "_make_subclass": partial(Tensor._make_subclass, Tensor),
    "torch.tensor": lambda x: torch.tensor([x]),
    "torch.as_tensor": lambda x: torch.as_tensor([x]),
    "torch.asarray": lambda x: torch.asarray([x]),
    "torch.Tensor": lambda x: torch.Tensor([x]),
    "torch.FloatTensor": lambda x: torch.FloatTensor([x]),
    "torch.tensor of a sequence": lambda x: torch.tensor(nn.ParameterList([x])),
    "new_tensor": lambda x: x.new_tensor([x]),
    "new": lambda x: x.new([x]),
    "sparse": lambda x: torch.sparse_coo_tensor([[0]], [x], (1,)).to_dense(),
    "from_numpy": lambda x: torch.from_numpy(x.numpy()),
    "from_dlpack": torch.from_dlpack,
    "to_dlpack": lambda x: torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
    "frombuffer": lambda x: torch.frombuffer(x.numpy().tobytes(), dtype=torch.float32),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "saved and loaded": saved,
    "set_": lambda x: torch.empty(0).set_(x.untyped_storage()),
}
"""Ways in which a tensor becomes another one without an operation."""
OPERATIONS = {
    "as it is": lambda x: x,
    "data": lambda x: x.data,
    "detach": lambda x: x.detach(),
    "torch.tensor of a tensor": lambda x: x.clone().detach(),
    "Variable": torch.autograd.Variable,
    "iterate": lambda x: next(iter(x.reshape(1))),
    "number as a tensor": lambda x: x * torch.tensor(0.5),
    "numbers as an index": lambda x: x * torch.arange(9.0)[[2, 1]].sum(),
    "deep copy of a number": lambda x: x * x.new_tensor([0.5, 1.0]).sum(),
}
"""The same by operations, which a trace repeats."""


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return torch.ones(1) * float(x)


@dataclass(frozen=True)
class Reading:
    """Half the squared norm of the leaves, times what a function makes of `mu`."""

    road: str
    weight: float = 0.01

    def __call__(self, context):
        leaves = [x for x in context.leaves.values() if x.is_floating_point()]
        norm = sum(x.square().sum() for x in leaves)
        if self.road == "backward":
            return Halved.apply(norm, context.ctx["mu"])
        return ({**NUMBERS, **TENSORS, **OPERATIONS}[self.road](context.ctx["mu"]) * norm).sum()


@dataclass(frozen=True)
class Observing:
    """The same in a Statistic."""

    road: str

    def __call__(self, context):
        with torch.no_grad():
            return {"loss": Reading(self.road)(context) * context.batch.mask.sum()}


@cache
def experiment(engine: str, *, trace: bool):
    keys = (f"partition.clients={CLIENTS}", "partition.scheme=iid", f"engine.name={engine}")
    return build(*keys, f"engine.trace={str(trace).lower()}")


def phase(road: str) -> Phase:
    optimizer = OptimizerConfig(name="sgd", lr=0.05, momentum=0.0)
    return Phase("*", (CrossEntropy(), Reading(road)), optimizer, steps=4)


def trained(built) -> frozenset[str]:
    return frozenset(name for name, _ in built.net.named_parameters())


def dispatch(mu: float, ids: Tensor, *, rows: bool) -> Dispatch:
    if rows:
        return Dispatch(rows=Message({"mu": mu + 0.5 * ids.float()}))
    return Dispatch(numbers={"mu": mu})


def played(engine: str, road: str, *, trace: bool, rows: bool = False) -> list[str]:
    """Return the digest of what the clients send and of what they observe, for each round."""
    built = experiment(engine, trace=trace)
    program = LocalProgram((phase(road),), sends=trained(built))
    found = []
    for number, mu in enumerate(ROUNDS):
        results = built.engine.run(
            program,
            torch.arange(CLIENTS),
            rows=lambda ids: {},
            dispatch=partial(dispatch, mu, rows=rows),
            settings=RoundSettings(TRAIN, Draw(0, (number,), CLIENTS)),
            observe=(Statistic("seen", Observing(road), samples=SOME),),
        )
        found.append(digest([results.sent.values, results.observed]))
    return found


def trusted(road: str, engine: str, *, rows: bool = False) -> list[bool | None]:
    """Return what became of the traces of the steps that read `mu` in this way."""
    known = experiment(engine, trace=True).engine._environment.traces._known
    steps = {phase(road), Statistic("seen", Observing(road), samples=SOME)}
    shape = (CLIENTS,) if rows else ()
    return [
        found.trusted
        for (kind, _, _), found in known.items()
        if kind._parts[0] in steps and any(x[0] == shape for x in kind._parts[3])
    ]


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    """Steps of these tests are traced, although flbench does not own them."""
    monkeypatch.setattr(ownership, "PACKAGES", (*ownership.PACKAGES, "tests"))


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Traces are made after the first look."""
    monkeypatch.setattr(traced, "LOOKS", 1)
    monkeypatch.setattr(traced, "PATIENCE", 0.0)
    monkeypatch.setattr(traced, "LONGEST", 60.0)


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("road", [*NUMBERS, *TENSORS])
@pytest.mark.filterwarnings("ignore:TypedStorage", "ignore:The given buffer", "ignore:Sparse")
@pytest.mark.slow
def test_a_number_that_leaves_the_tensors_is_not_traced(road, engine):
    expected = played(engine, road, trace=False)

    assert played(engine, road, trace=True) == expected
    assert expected[1] != expected[2]
    assert set(trusted(road, engine)) == {False}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("road", OPERATIONS)
@pytest.mark.slow
def test_a_number_that_stays_among_the_tensors_is_traced(road, engine):
    expected = played(engine, road, trace=False)

    assert played(engine, road, trace=True) == expected
    assert set(trusted(road, engine)) == {True}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reading_that_is_not_noticed_is_found_when_the_number_changes(engine):
    """A backward pass reads `mu`: the trace reproduces steps until the server sends another one."""
    expected = played(engine, "backward", trace=False)

    with pytest.warns(traced.TraceWarning, match="loss terms CrossEntropy, Reading"):
        assert played(engine, "backward", trace=True) == expected
    assert expected[1] != expected[2]
    assert False in trusted("backward", engine)


ROWS = {
    "digits": False,
    "Parameter": False,
    "Parameter of a copy": False,
    "ParameterList": False,
    "as_subclass": False,
    "_make_subclass": False,
    "as it is": True,
    "detach": True,
    "Variable": True,
    "iterate": True,
    "number as a tensor": True,
    "numbers as an index": True,
}
"""What `torch.vmap` allows where `mu` has a row for each client, and whether it is traced."""


@pytest.mark.parametrize("road", ROWS)
def test_a_number_for_each_client_is_never_kept(road):
    expected = played("vectorized", road, trace=False, rows=True)

    assert played("vectorized", road, trace=True, rows=True) == expected
    assert expected[1] != expected[2]
    assert set(trusted(road, "vectorized", rows=True)) == {ROWS[road]}


def test_another_learning_rate_is_noticed(monkeypatch):
    """A module may read its learning rate, which a schedule changes from round to round."""
    monkeypatch.setattr("flbench.engine.client_run.ClientModule", Decayed)

    expected = played_with_schedule(trace=False)

    with pytest.warns(traced.TraceWarning):
        assert played_with_schedule(trace=True) == expected


class Decayed(ClientModule):
    """A module that adds weight decay in proportion to the learning rate."""

    def training_step(self, batch, batch_idx=0):
        norm = sum(x.square().sum() for x in self.trained.values())
        return super().training_step(batch, batch_idx) + self.lr * norm


def played_with_schedule(*, trace: bool) -> str:
    """Return the digest of what the clients send in the first round with another learning rate."""
    built = build("algorithm=local", f"engine.trace={str(trace).lower()}")
    for number, factor in enumerate((1.0, 1.0, 0.5)):
        results = built.engine.run(
            LocalProgram((phase("as it is"),), sends=trained(built)),
            torch.arange(CLIENTS),
            rows=lambda ids: {},
            dispatch=partial(dispatch, 2.0, rows=False),
            settings=RoundSettings(TRAIN, Draw(0, (number,), CLIENTS), factor),
        )
    return digest([results.sent.values])
