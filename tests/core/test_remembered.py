"""What functions remember from call to call is found, wherever Python keeps it."""

import collections
import functools
import itertools
import logging
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from flbench.core.remembered import changes, remembered

COUNT, LOG, CACHE = 0, [], {}
SECONDS, LAST, CALLS = 0.0, None, {"all": 0}
LOCK, KNOWN = threading.Lock(), weakref.WeakValueDictionary()
DRAW = torch.Generator()


def in_closure():
    n = 0

    def step():
        nonlocal n
        n += 1
        return n

    return step


def in_list():
    calls = [0]

    def step():
        calls[0] += 1
        return calls[0] > 5

    return step


def in_global():
    global COUNT
    COUNT += 1
    return COUNT > 5


def in_attribute():
    in_attribute.n = getattr(in_attribute, "n", 0) + 1


def in_default(*, calls=[]):  # noqa: B006 this is what is found
    calls.append(len(calls))


class Counter:
    def __init__(self):
        self.n = 0

    def __call__(self):
        self.n += 1
        return self.n


class OfClass:
    n = 0

    def __call__(self):
        type(self).n += 1
        return self.n


class Slots:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def __call__(self):
        self.n += 1
        return getattr(self, "n")  # noqa: B009


class Anneals(nn.Dropout):
    """The code of PyTorch reads what this code only writes to."""

    def forward(self, x):
        self.p *= 0.5
        return super().forward(x)


def of_iterator(made):
    kept = made()
    return lambda: next(kept)


def endless():
    n = 0
    while True:
        n += 1
        yield n


def of_generator(kept, draw):
    return lambda: draw(kept)


def average():
    mean = torch.zeros(2)
    return lambda: mean.add_(1)


def of_module():
    net = nn.BatchNorm1d(2)
    return lambda: net(torch.eye(2))


def of_layer(net):
    return lambda: net(torch.eye(2))


def alias():
    one = []
    other = one
    return lambda: one.append(1) or len(other)


def by_name():
    calls = 0

    def step():
        nonlocal calls
        calls += 1
        return locals()["calls"]

    return step


class Shown:
    """Counts its calls, and shows how many there were; a subclass also uses the number."""

    def __init__(self):
        self.history, self.calls = [], 0

    def __call__(self):
        self.history.append(1.0)
        self.calls += 1
        print(f"{self.calls} calls")  # noqa: T201 a call that shows
        logging.getLogger(__name__).info("%s: %s", len(self.history), self.history[-1])


class Used(Shown):
    def __call__(self):
        super().__call__()
        return self.history[-1:] if self.calls < 2 else None


FOUND = {
    "closure": in_closure(),
    "list": in_list(),
    "global": in_global,
    "attribute": in_attribute,
    "default": in_default,
    "object": Counter(),
    "class": OfClass(),
    "slots": Slots(),
    "method": Counter().__call__,
    "partial": functools.partial(in_list()),
    "decorated": functools.wraps(in_global)(functools.partial(in_closure())),
    "range": of_iterator(lambda: iter(range(99))),
    "count": of_iterator(itertools.count),
    "cycle": of_iterator(lambda: itertools.cycle([1, 2, 3, 4, 5])),
    "generator": of_iterator(endless),
    "torch": of_generator(DRAW, lambda kept: torch.rand(1, generator=kept)),
    "numpy": of_generator(np.random.default_rng(0), lambda kept: kept.random()),
    "tensor": average(),
    "module": of_module(),
    "layer": of_layer(Anneals()),
    "alias": alias(),
    "locals": by_name(),
    "shown": Used(),
}


def found(function):
    function()  # what is made in the first call may stay
    before = remembered({"`f`": function})
    function()
    return changes(before, remembered({"`f`": function}))


@pytest.mark.parametrize("kind", FOUND)
def test_what_changes_from_call_to_call_is_found(kind):
    assert found(FOUND[kind])


def test_the_place_is_named():
    assert found(in_closure()) == ["the variable `n` of `f`"]
    assert found(in_global) == ["the global variable `COUNT` of `f`"]


@functools.lru_cache
def cached(n):
    return torch.ones(n)


def kept_in_dict():
    if "ones" not in CACHE:
        CACHE["ones"] = torch.ones(3)
    return CACHE["ones"]


def lazy():
    ones = None

    def step():
        nonlocal ones
        ones = torch.ones(3) if ones is None else ones
        return ones

    return step


class Timer:
    def __init__(self):
        self.total, self.counts = 0, collections.Counter()


TIMER = Timer()


def profiled():
    """Writes to variables, attributes and entries that nothing reads."""
    global SECONDS, LAST
    begin = time.perf_counter()
    CALLS["all"] += 1
    LAST = begin
    TIMER.total += 1
    TIMER.counts["forward"] += 1
    SECONDS += time.perf_counter() - begin


def logged():
    logging.getLogger(__name__).debug("called")
    with LOCK:
        return KNOWN.get(1)


@pytest.mark.parametrize(
    "function",
    [
        *(lambda: cached(3), kept_in_dict, lazy(), lambda: LOG.append(1), lambda: torch.rand(1)),
        *(profiled, logged, Shown()),
    ],
    ids=["lru_cache", "dict", "lazy", "log", "global generator", "profiler", "logger", "shown"],
)
def test_caches_logs_and_seeded_generators_are_no_state(function):
    assert not found(function)


def test_large_values_are_not_read_in_full():
    table = [[float(k)] * 1000 for k in range(1000)]
    begin = time.process_time()
    remembered({"`f`": lambda: table})
    assert time.process_time() - begin < 2
