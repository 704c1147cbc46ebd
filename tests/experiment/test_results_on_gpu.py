"""Results that an engine leaves on its device, tried without a GPU.

`Far` tensors stand for those of a GPU: nothing but `cpu` makes a tensor of the host of them, and
PyTorch's functions refuse to mix both.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from flbench.algorithms.base import Joining
from flbench.client.program import LocalProgram
from flbench.core.registry import ALGORITHMS
from flbench.core.tree import only, weighted_mean
from flbench.core.types import Message, Update
from flbench.experiment.new_clients import NewClients
from flbench.experiment.rounds import SENT, SentView
from flbench.testing import after, build
from flbench.testing.setting import with_method


class Far(torch.Tensor):
    @staticmethod
    def __new__(cls, value):
        return torch.Tensor._make_subclass(cls, value)

    is_cpu = False

    def cpu(self):
        return self.as_subclass(torch.Tensor).clone()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        assert all(isinstance(one, Far) or not one.dim() for one in given), func
        return super().__torch_function__(func, types, args, kwargs or {})


def test_each_way_to_read_gives_a_tensor_of_the_host():
    def view():
        return SentView({name: Far(torch.ones(2, 3)) for name in "ab"}, "sent", SENT)

    for found in (
        {"a": view()["a"], "b": view().get("b")},
        {name: view().pop(name) for name in "ab"},
        dict(view().items()),
        dict(zip("ab", view().values(), strict=True)),
        dict(view()),
        {**view()},
        view() | {},
        {} | view(),
        view().copy(),
        only(view(), "ab"),
    ):
        assert list(found) == ["a", "b"]
        assert all(type(value) is torch.Tensor for value in found.values())
    assert view().get("c") is None
    assert "a" in view()


def test_a_mean_on_a_gpu_copies_no_model_of_a_client():
    rows = torch.randn(3, 4, dtype=torch.float64)
    shares = torch.tensor([1.0, 0.0, 2.0])
    copied = []

    class Counted(Far):
        def cpu(self):
            copied.append(self.shape)
            return super().cpu()

    mean = weighted_mean({"w": Counted(rows)}, shares)["w"]

    assert torch.equal(mean, weighted_mean({"w": rows}, shares)["w"])
    assert copied == [(4,)]


class FarEngine:
    """Leaves on the GPU what the vectorized engine leaves there."""

    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def run(self, work, ids):
        results = self.engine.run(work, ids)
        sent, here = results.sent, results.sent.mask.keys() | work.program.keeps
        far = {name: x if name in here else Far(x) for name, x in sent.values.items()}
        return replace(results, sent=Message(far, sent.mask))


def test_what_new_clients_send_is_read_on_the_host(monkeypatch):
    keys = ("algorithm=fedavg", "model.name=mlp", "partition.clients=7", "partition.new_clients=2")
    built = build(*keys, "engine.name=sequential")
    program = LocalProgram((), sends=built.algorithm.setting.net.names("all"))
    read = []

    def place(state, results):
        read.extend(map(type, results.sent.values.values()))
        return Update()

    joining = Joining(program=program, aggregate=place)
    monkeypatch.setattr(type(built.algorithm), "join", lambda *given: joining)
    clients = NewClients(built, print)
    clients.experiment = replace(clients.experiment, engine=FarEngine(clients.experiment.engine))
    clients._join(clients.grown(built.start()))

    assert set(read) == {torch.Tensor}


def test_a_method_averages_models_without_copies_of_them(monkeypatch):
    built = build("algorithm=fedavg", "model.name=mlp", "engine.name=sequential")
    ordinary = after(built, 1).server
    monkeypatch.setattr(SentView, "__getitem__", None)
    server = after(replace(built, engine=FarEngine(built.engine)), 1).server

    assert all(torch.equal(value, server[name]) for name, value in ordinary.items())


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(ALGORITHMS.load()))
def test_methods_compute_what_they_compute_of_results_on_the_host(method, monkeypatch):
    built = build(*with_method(method, "engine.name=sequential"))

    ordinary, state = after(built), after(replace(built, engine=FarEngine(built.engine)))

    for one, other in ((ordinary.server, state.server), (ordinary.clients, state.clients)):
        assert list(one) == list(other)
        for name, value in one.items():
            assert type(other[name]) is torch.Tensor, name
            assert torch.equal(value.nan_to_num(), other[name].nan_to_num()), name
