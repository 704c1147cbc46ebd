"""What a net remembers beside its parameters and buffers, and how it is set back.

PyTorch lets the code of a net assign anything to its modules while it runs: counters, caches,
hooks, another tensor in place of a buffer. All clients train one after the other with one net. So
that no client sees what another one left behind, the net's modules begin as the same objects in
each step of a client's program, and only parameters and buffers pass from one step to the next.
"""

import copy
import pickle
import random
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from flbench.core.errors import ConfigError
from flbench.core.ownership import HOOKS, is_known
from flbench.core.rng import seeded

LEAVES: Final = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold its parameters, buffers and submodules."""
EXCLUDED: Final = frozenset({*vars(nn.Module()), "_trainer", "_fabric", "_hparams", "log"})
"""Attributes that are not set back: the mode, and what engines themselves set."""
FIXED: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    type(len),
    type(lambda: None),
    torch.dtype,
    torch.device,
    torch.Size,
)
"""Types of values that cannot change."""


USED: Final = (
    *(np.ndarray, deque, Iterator, torch.Generator, random.Random),
    *(np.random.Generator, np.random.BitGenerator, np.random.RandomState),
)
"""Types of arrays, queues, iterators and random generators."""


POOLS: Final = (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
"""Layers of PyTorch that draw random numbers in eval mode too."""


class ModuleState:
    """The modules of a net as they were when this object was made.

    Args:
        net: The net. Its parameters and buffers stay those tensors; their values may change.

    Attributes:
        changes: The attributes that `restore` had to set back, as `changed` returns them; None does
            not record them.
    """

    def __init__(self, net: nn.Module) -> None:
        self.changes: dict[str, bool] | None = None
        self._modules = [(name, module) for name, module in net.named_modules()]
        own: list[Any] = [*net.modules(), *net.parameters(), *net.buffers()]
        # A second name of a submodule or parameter, such as in a list, stays that very object.
        self._same = {id(one): one for one in own}
        self._metrics = [module for _, module in self._modules if _is_metric(module)]
        self._leaves = [
            {kind: dict(vars(module)[kind]) for kind in LEAVES} for _, module in self._modules
        ]
        self._hooks = [
            {kind: dict(value) for kind in HOOKS if (value := vars(module).get(kind)) is not None}
            for _, module in self._modules
        ]
        self._first = [
            {} if _is_metric(module) else {k: v for k, v in vars(module).items() if _is_state(k)}
            for _, module in self._modules
        ]
        tensors = [
            value for first in self._first for value in first.values() if isinstance(value, Tensor)
        ]
        self._tensors = {
            id(one): (one, one._version, one.detach().clone())
            for one in tensors
            if id(one) not in self._same
        }
        self._pristine = self._copied(
            {
                (k, key): value
                for k, first in enumerate(self._first)
                for key, value in first.items()
                if not self._is_kept(value)
            }
        )

    def restore(self) -> None:
        """Set all modules back. Values of parameters and buffers stay as they are."""
        if self.changes is not None:
            self.changes |= self.changed()
        for (_, module), leaves, hooks, first in zip(
            self._modules, self._leaves, self._hooks, self._first, strict=True
        ):
            attributes = vars(module)
            for kind, before in (*leaves.items(), *hooks.items()):
                if not _are_same(attributes[kind], before):
                    attributes[kind].clear()  # handles of hooks refer to this very dict
                    attributes[kind].update(before)
            if not _is_metric(module):
                for key in [key for key in attributes if _is_state(key) and key not in first]:
                    del attributes[key]
                attributes.update(first)
        for key, (tensor, version, value) in self._tensors.items():
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(value)
                self._tensors[key] = tensor, tensor._version, value
        if self._pristine:
            for (k, key), value in self._copied(self._pristine).items():
                vars(self._modules[k][1])[key] = value
        for metric in self._metrics:
            reset: Any = metric.reset
            reset()

    def write_back(self) -> None:
        """Copy buffers that the net's code has assigned anew into the tensors that they replace.

        Raises:
            ConfigError: The code has removed a buffer or changed its shape, has put another
                parameter in the place of one, or has made a parameter or a layer with parameters.
        """
        for (name, module), leaves in zip(self._modules, self._leaves, strict=True):
            for kind in ("_buffers", "_parameters"):
                before, now = leaves[kind], vars(module)[kind]
                if _are_same(now, before):
                    continue
                for key, leaf in before.items():
                    if (value := now.get(key)) is leaf or leaf is None:
                        continue
                    path = f"{name}.{key}" if name else key
                    if kind == "_parameters":
                        raise ConfigError(
                            f"the net's code puts another tensor in the place of the parameter"
                            f" `{path}` while it trains, which the optimizer does not train. Change"
                            " its values instead, within torch.no_grad()."
                        )
                    write_back(path, leaf, value)
                    now[key] = leaf
            made = [
                f"{name}.{key}" if name else key
                for kind in ("_parameters", "_modules")
                for key, value in vars(module)[kind].items()
                if key not in leaves[kind] and _is_trained(value)
            ]
            if made:
                raise ConfigError(
                    f"the net's code makes `{made[0]}` while it trains. The optimizer would not"
                    " train it, and it would begin anew in each step. Make it in `__init__`."
                )

    def changed(self) -> dict[str, bool]:
        """Return the attributes that have changed: numbers, collections, tensors, generators.

        Buffers that the code has made are among them. Other objects are not compared, nor are
        tensors and arrays that are new.

        Returns:
            Names as `module.attribute`, and whether the attribute is a tensor.
        """
        found: dict[str, bool] = {}
        for k, ((name, module), first) in enumerate(zip(self._modules, self._first, strict=True)):
            leaves = self._leaves[k]["_buffers"]
            made = [
                key
                for key, value in module._buffers.items()
                if value is not None and leaves.get(key) is None
            ]
            found |= {f"{name}.{key}" if name else key: True for key in made}
            for key, value in vars(module).items():
                if not _is_state(key) or _is_metric(module):
                    continue
                before: Any = self._pristine.get((k, key), first.get(key))
                path = f"{name}.{key}" if name else key
                if isinstance(value, USED) and type(value) is type(before):
                    if _content(value) != _content(before):
                        found[path] = False
                elif isinstance(value, Tensor):
                    if isinstance(before, Tensor) and not self._is_unchanged(before, value):
                        found[path] = True
                elif _simple(value) is not None and _simple(value) != _simple(before):
                    found[path] = False
        return found

    def _is_unchanged(self, before: Tensor, now: Tensor) -> bool:
        """Return whether a tensor is still the same, with the same values."""
        known = self._tensors.get(id(now))
        return now is before and (known is None or now._version == known[1])

    def _is_kept(self, value: object) -> bool:
        """Return whether a value is set back by assigning that very object."""
        return isinstance(value, FIXED) or id(value) in self._same or id(value) in self._tensors

    def _copied(self, values: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a copy of values in which the net's modules and tensors stay the same."""
        known: dict[int, Any] = {**self._same, **{key: x[0] for key, x in self._tensors.items()}}
        try:
            return copy.deepcopy(dict(values), known)
        except Exception:  # noqa: BLE001 an object that cannot be copied stays as it is
            return {key: _copied_alone(value, known) for key, value in values.items()}


def random_layers(net: nn.Module) -> list[str]:
    """Return descriptions of PyTorch's layers in a net that draw random numbers.

    Args:
        net: The net.

    >>> random_layers(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
    ['`1` (Dropout)']
    """
    return [
        f"`{name}` ({type(module).__name__})"
        for name, module in net.named_modules()
        if _is_random(module)
    ]


def _is_trained(value: object) -> bool:
    """Return whether a parameter, or a layer with parameters, asks for gradients."""
    leaves = value.parameters() if isinstance(value, nn.Module) else [value]
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)


def _is_random(module: nn.Module) -> bool:
    """Return whether a layer of PyTorch draws random numbers in training."""
    match module:
        case nn.modules.dropout._DropoutNd():
            return bool(module.p > 0)
        case nn.RNNBase():
            return bool(module.dropout > 0 and module.num_layers > 1)
        case nn.MultiheadAttention():
            return bool(module.dropout > 0)
        case nn.RReLU():
            return bool(module.lower != module.upper)
    return isinstance(module, POOLS)


def needs_isolation(net: nn.Module) -> bool:
    """Return whether a net may draw random numbers or remember more than parameters and buffers.

    Args:
        net: The net.
    """
    return bool(random_layers(net)) or not is_known(net)


def may_draw_in_eval(net: nn.Module) -> bool:
    """Return whether a net may draw random numbers in eval mode, unlike dropout.

    Args:
        net: The net.

    >>> may_draw_in_eval(nn.Dropout(0.1)), may_draw_in_eval(nn.FractionalMaxPool2d(2, 1))
    (False, True)
    """
    return not is_known(net) or any(isinstance(module, POOLS) for module in net.modules())


@contextmanager
def isolated(net: nn.Module) -> Iterator[None]:
    """Return a context manager in which calls of a net leave no trace in it.

    Its modules and the values of its buffers are set back afterwards, and random numbers begin at
    one seed in each such block.

    Args:
        net: The net.
    """
    state = ModuleState(net)
    values = [(buffer, buffer.detach().clone()) for buffer in net.buffers()]
    try:
        with seeded(0):
            yield
    finally:
        state.restore()
        with torch.no_grad():
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


@contextmanager
def tried(net: nn.Module) -> Iterator[None]:
    """Return a context manager for calls that try a net: `isolated`, and without warnings.

    The training repeats the warnings, and says at which client they were issued.

    Args:
        net: The net.
    """
    with isolated(net), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_back(name: str, leaf: Tensor, value: Tensor | None) -> None:
    """Copy the new value of a buffer into the tensor that it replaces.

    Args:
        name: Name of the buffer.
        leaf: The tensor.
        value: The new value; None if the buffer was removed.

    Raises:
        ConfigError: The value has another shape, or there is none.
    """
    if value is None or value.shape != leaf.shape:
        now = "is removed" if value is None else f"gets the shape {list(value.shape)}"
        raise ConfigError(
            f"the buffer `{name}` has the shape {list(leaf.shape)} before training and {now} when"
            " the net runs. A buffer must keep its shape: it is sent and averaged with the"
            " parameters."
        )
    with torch.no_grad():
        leaf.copy_(value)


def _are_same(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether two dicts have the same objects."""
    return len(now) == len(before) and all(now.get(k, before) is v for k, v in before.items())


def _is_state(name: str) -> bool:
    """Return whether an attribute is set back."""
    return name not in EXCLUDED


def _is_metric(module: nn.Module) -> bool:
    """Return whether a module is a metric of torchmetrics, which sets itself back."""
    return any(
        kind.__module__.partition(".")[0] == "torchmetrics" and kind.__name__ == "Metric"
        for kind in type(module).__mro__
    )


def _copied_alone(value: Any, known: Mapping[int, Any]) -> Any:
    """Return a copy of a value, or the value itself if it cannot be copied."""
    try:
        return copy.deepcopy(value, dict(known))
    except Exception:  # noqa: BLE001 any class may refuse to be copied
        return value


def _content(value: object) -> bytes:
    """Return what an array, a queue, an iterator or a generator consists of; nothing if unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python no longer likes copies of its iterators
        try:
            return pickle.dumps(value)
        except Exception:  # noqa: BLE001 any class may refuse to be copied
            return b""


def _simple(value: object) -> object:
    """Return what to compare of a number, a text, or a collection of them; None for the rest."""
    if isinstance(value, bool | int | float | str | bytes | np.number):
        return type(value).__name__, repr(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, [_simple(one) for one in value]
    if isinstance(value, Mapping):
        return type(value).__name__, [(repr(key), _simple(one)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(repr, value))
    return None
