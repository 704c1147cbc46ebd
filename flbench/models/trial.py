"""Trials of a net before the first round, and what it does beside computing.

A net may remember what it wants in its parameters and buffers. Other attributes are not set back
between clients; `experiment/smoke.py` refuses a net whose results depend on them.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final

import torch
from torch import Tensor, nn

from flbench.core.errors import ConfigError
from flbench.core.known_code import is_known
from flbench.core.rng import seeded
from flbench.core.types import Outputs
from flbench.models import freezing

TOLERANCE: Final = 1e-3  # of scores in batches of another composition, relative to the largest
MIXES: Final = "mixes_samples"  # attribute of a net that `check` writes; copies have it too
POOLS: Final = (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
"""Layers of PyTorch that draw random numbers in eval mode too."""


def mixes(net: nn.Module) -> bool:
    """Return whether scores in eval mode depend on the other samples of the batch."""
    return bool(net.__dict__.get(MIXES, False))


def notes(net: nn.Module) -> list[str]:
    """Return a note on a net whose scores depend on the batch; an empty list for others."""
    if not mixes(net):
        return []
    return [
        "model: in eval mode the score of a sample depends on the other samples of its batch"
        " (BatchNorm with track_running_stats=False does so), so that metrics depend on how"
        " test samples are put together, and a prediction on what is predicted with it."
    ]


@contextmanager
def tried(net: nn.Module) -> Iterator[None]:
    """Return a context manager in which calls of a net change neither its tensors nor attributes.

    Random numbers begin at one seed in each such block, and warnings are left to the training.

    Raises:
        ConfigError: The net has made a parameter, or a layer with parameters.
    """
    parameters = dict(net.named_parameters())
    attributes = [
        (module, vars(module) | {"_buffers": dict(module._buffers)}) for module in net.modules()
    ]
    values = [(leaf, leaf.detach().clone()) for leaf in (*net.parameters(), *net.buffers())]
    try:
        with seeded(0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for module, before in attributes:
            vars(module).clear()
            vars(module).update(before)
        with torch.no_grad():
            for leaf, value in values:
                if not torch.equal(leaf, value):
                    leaf.copy_(value)
    for name, parameter in net.named_parameters():
        if parameters.get(name) is not parameter:
            raise ConfigError(
                f"the net's code makes the parameter `{name}` when it is called, which no optimizer"
                " trains. Make it in `__init__`, and change its values within torch.no_grad()."
            )


def called(net: nn.Module, x: Tensor, what: str, *, train: bool = False) -> Any:
    """Return what a net returns for samples [B, ...] in training or eval mode.

    Raises:
        ConfigError: The net fails; the message begins with `what`.
    """
    try:
        with freezing.mode(net, train=train), tried(net):
            return net(x)
    except ConfigError:
        raise
    except Exception as error:
        images = (
            " (images: model.channels repeats a grey channel, data.resize changes the size)"
            if x.ndim == 4
            else ""
        )
        raise ConfigError(
            f"{what} fails for {len(x)} samples of the shape {list(x.shape[1:])} in"
            f" {'training' if train else 'eval'} mode: {type(error).__name__}: {error}. Change the"
            f" net or the data{images}."
        ) from error


def logits(
    net: nn.Module, x: Tensor, classes: int | None, what: str, *, train: bool = False
) -> Tensor:
    """Return the logits [B, C] of a net for samples [B, ...], or outputs [B, ...] without classes.

    Raises:
        ConfigError: The net fails, or returns something else.
    """
    found = called(net, x, what, train=train)
    found = found.logits if isinstance(found, Outputs) else found
    shape = [len(x), "..."] if classes is None else [len(x), classes]
    if isinstance(found, Tensor) and found.is_floating_point() and found.ndim:
        if [len(found), "..."] == shape or list(found.shape) == shape:
            return found
        got = f"{list(found.shape)}"
    else:
        got = str(found.dtype) if isinstance(found, Tensor) else type(found).__name__
    raise ConfigError(
        f"{what} returns {got} for {len(x)} samples in {'training' if train else 'eval'} mode, and"
        f" must return one tensor {shape} of floating point, in both modes and for any number of"
        " samples. If the labels are targets of a regression, give fl.Data(x, y, targets=True)."
    )


def check(net: nn.Module, x: Tensor, classes: int | None, what: str) -> None:
    """Try a net in eval mode on one sample and on batches of others, and write whether it mixes.

    Args:
        net: The net as clients train it.
        x: Two samples [2, ...].
        classes: Number of classes C; None for targets that are not classes.
        what: The key and its value, for messages.

    Raises:
        ConfigError: The net does not return logits [B, C] for a batch of any size.
    """
    logits(net, x[:1], classes, what)
    # Batches of the same size, because rounding depends on the size.
    first, second = (logits(net, torch.stack([x[0], one]), classes, what)[0] for one in x)
    bound = TOLERANCE * first.abs().max() if first.numel() else 0.0
    net.__dict__[MIXES] = bool(((first - second).abs() > bound).any())


def check_copies(net: nn.Module, x: Tensor, classes: int | None, what: str) -> None:
    """Try whether a copy of a net computes with its own tensors, as the clients' copies must.

    Python copies no function: a lambda with `self`, for example, goes on to use the tensors of the
    original. The net and a copy get the same new values, one after the other, and must agree.

    Args:
        net: The net as the user has made it.
        x: Samples [B, ...].
        classes: Number of classes C; None for targets that are not classes.
        what: The key and its value, for messages.

    Raises:
        ConfigError: The net cannot be copied, has hooks of parameters, does not return logits
            [B, C], or its copy differs.
    """
    if hooked := [name for name, one in net.named_parameters() if one._backward_hooks]:
        raise ConfigError(
            f"{what}: the parameter `{hooked[0]}` has a hook (register_hook), which copies of the"
            " net lose, so the clients would train without it. Register it in on_fit_start."
        )
    try:
        copy = deepcopy(net)
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be copied: {type(error).__name__}: {error}. Clients train copies of the"
            " net: tensors that it stores must be parameters, buffers or made in `forward`"
            " (torch.nn.utils.weight_norm has a successor in torch.nn.utils.parametrizations)."
        ) from error
    found, x = [], x.to(next(net.parameters()).device)
    for one in (net, copy):
        with torch.no_grad(), tried(one):
            for leaf in (*one.parameters(), *one.buffers()):
                if leaf.is_floating_point():
                    leaf.add_(0.1 * torch.rand_like(leaf))
            found.append(logits(one, x, classes, what))
    if not torch.allclose(found[0], found[1], equal_nan=True):
        raise ConfigError(
            f"{what}: a copy of the net with the same tensors returns something else, and each"
            " client trains a copy. A hook or an attribute may be a function with a reference to"
            " the net, such as a lambda with `self`: make it a method and give self.NAME. Or the"
            " net depends on a clock or on a random generator of its own."
        )


def random_layers(net: nn.Module) -> list[str]:
    """Return descriptions of PyTorch's layers in a net that draw random numbers.

    >>> random_layers(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
    ['`1` (Dropout)']
    """
    return [
        f"`{name}` ({type(module).__name__})"
        for name, module in net.named_modules()
        if _is_random(module)
    ]


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


def may_draw(net: nn.Module) -> bool:
    """Return whether a net may draw random numbers in training."""
    return bool(random_layers(net)) or not is_known(net)


def may_draw_in_eval(net: nn.Module) -> bool:
    """Return whether a net may draw random numbers in eval mode, unlike dropout.

    >>> may_draw_in_eval(nn.Dropout(0.1)), may_draw_in_eval(nn.FractionalMaxPool2d(2, 1))
    (False, True)
    """
    return not is_known(net) or any(isinstance(module, POOLS) for module in net.modules())


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
