"""Trials of a user's net before the first round: both modes, single samples, composed batches.

They run copies of the net, because a forward pass may change buffers and Python attributes.
"""

from copy import deepcopy
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flbench.core.errors import ConfigError
from flbench.core.shapes import examples
from flbench.core.types import Outputs
from flbench.models import fixed
from flbench.models.module_state import MIXES, NEEDS_TWO, tried

# Attributes of the net that trials write; copies of the net have them too.
TOLD: Final = "given_in_eval_mode"
CURE: Final = (
    "The net may draw from a random generator of its own, read a clock, or remember earlier calls."
    " Draw from PyTorch's, NumPy's or Python's global generator, which flbench seeds for each"
    " client and round."
)
TOLERANCE: Final = 1e-3  # of scores in batches of another composition, relative to the largest


def copied(net: nn.Module, what: str) -> nn.Module:
    """Return a copy of a net.

    Args:
        net: The net.
        what: The key and its value, for messages.

    Raises:
        ConfigError: The net cannot be copied.
    """
    try:
        return deepcopy(net)
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be copied: {type(error).__name__}: {error}. Clients train copies of the"
            " net: tensors that it stores must be parameters, buffers or made in `forward`"
            " (torch.nn.utils.weight_norm and spectral_norm have successors in"
            " torch.nn.utils.parametrizations)."
        ) from error


def check(
    whole: nn.Module,
    net: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    what: str,
    *,
    given_in_eval_mode: bool = False,
) -> None:
    """Try a net in training mode and with one sample, and write what is found into the net.

    Args:
        whole: A copy of the user's net; it is changed.
        net: The net that is divided into backbone and head. It has passed a trial of two samples in
            eval mode, and is not changed.
        shape: Shape of one sample.
        classes: Number of classes C.
        what: The key and its value, for messages.
        given_in_eval_mode: Whether the user's net as a whole was in eval mode.

    Raises:
        ConfigError: The net does not return logits [B, C] in training mode, or for one sample, or
            they do not depend on a parameter that is trained.
    """
    x = _samples(net, shape)
    divided = deepcopy(net)
    with torch.no_grad():
        one = deepcopy(net).eval()
        _logits(one, x[:1], classes, f"{what}, for a batch of one sample in eval mode,")
    if fixed.of(net) != fixed.NOTHING:
        fixed.write(whole, fixed.find(whole))
    found = []
    for one in (whole, divided):
        one.train()
        fixed.keep_modes(one)
        found.append(_logits(one, x, classes, f"{what}, in training mode,"))
    if not torch.allclose(found[0], found[1], rtol=0.0, atol=0.0, equal_nan=True):
        again = _logits(whole, x, classes, f"{what}, in training mode,")
        if not torch.allclose(found[0], again, rtol=0.0, atol=0.0, equal_nan=True):
            raise _other(what)
        raise ConfigError(
            f"{what}, in training mode, returns something else than its head applied to the"
            " features, for example a softmax that eval mode does not have. The loss is computed"
            " from the logits of the head: return them in both modes, or set `model.head`."
        )
    if not all(logits.requires_grad for logits in found):
        raise ConfigError(
            f"{what}, in training mode, returns logits without a gradient. Compute them from"
            " parameters with requires_grad=True, without detach() and torch.no_grad()."
        )
    if not fixed.trains_batchnorm(net):
        net.__dict__[NEEDS_TWO] = _fails_for_one(divided, found[1], x)
    compare_batches(net, shape)
    has_modes = any(isinstance(module, _NormBase) for module in net.modules())
    net.__dict__[TOLD] = given_in_eval_mode and has_modes


def compare_batches(net: nn.Module, shape: tuple[int, ...]) -> None:
    """Write into a net whether scores in eval mode depend on the other samples of the batch."""
    x = _samples(net, shape)
    found = []
    for other in x:
        one = deepcopy(net).eval()
        with torch.no_grad(), tried(one):  # random numbers are the same for both batches
            # Batches of the same size, because rounding depends on the size.
            found.append(one(torch.stack([x[0], other])).logits[0])
    first, second = found
    largest = float(first.abs().max()) if first.numel() else 0.0
    net.__dict__[MIXES] = bool(((first - second).abs() > TOLERANCE * largest).any())


def check_repeats(net: nn.Module, shape: tuple[int, ...], what: str) -> None:
    """Call a net twice in training mode with the same samples and seeds.

    Args:
        net: The net; it is not changed.
        shape: Shape of one sample.
        what: The key and its value, for messages.

    Raises:
        ConfigError: The outputs differ.
    """
    x, one = _samples(net, shape), deepcopy(net).train()
    fixed.keep_modes(one)
    found = []
    for _ in range(2):
        try:
            with torch.no_grad(), tried(one):
                found.append(one(x).logits.nan_to_num())
        except Exception:  # noqa: BLE001 a trial of the training step says what is wrong
            return
    if not torch.equal(*found):
        raise _other(what)


def _other(what: str) -> ConfigError:
    """Return the error for a net that gives other outputs in a second call."""
    return ConfigError(
        f"{what}: two calls in training mode with the same samples and seeds differ. {CURE}"
    )


def notes(net: nn.Module) -> list[str]:
    """Return notes on what trials have found; an empty list for a net of flbench."""
    sentences = {
        NEEDS_TWO: "model: the net fails in training mode for a batch of one sample, so such"
        " batches are left out, as for BatchNorm. Use train.last_batch=wrap or drop to avoid them.",
        MIXES: "model: in eval mode the score of a sample depends on the other samples of its"
        " batch (BatchNorm with track_running_stats=False does so), so that metrics depend on how"
        " test samples are put together, and a prediction on what is predicted with it.",
        TOLD: "model: the net was given in eval mode as a whole and is trained in training mode,"
        " BatchNorm included. To keep single layers in eval mode, call net.train() first and then"
        " eval() of these layers.",
    }
    return [sentence for name, sentence in sentences.items() if net.__dict__.get(name, False)]


def _samples(net: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return two samples [2, ...] in the type of the net."""
    return examples(shape, 2, next(net.parameters()).dtype)


def _logits(net: nn.Module, x: Tensor, classes: int, what: str) -> Tensor:
    """Return the logits [B, C] of a net for samples [B, ...].

    Random numbers of the forward pass are the same in each call.

    Raises:
        ConfigError: The net fails, or returns something else; the message begins with `what`.
    """
    try:
        with tried(net):
            found: Any = net(x)
    except Exception as error:
        raise ConfigError(
            f"{what} fails with {type(error).__name__}: {error}. Change the net: it is trained in"
            " training mode and evaluated in eval mode, and evaluations have batches of any size."
        ) from error
    logits = found.logits if isinstance(found, Outputs) else found
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"{what} returns {type(logits).__name__}. A net must return logits [B, C], one tensor,"
            " in training mode and in eval mode (torchvision: model.args.aux_logits=false)."
        )
    if logits.shape != (len(x), classes) or not logits.is_floating_point():
        raise ConfigError(
            f"{what} returns {list(logits.shape)} of {logits.dtype} for {len(x)} samples, and must"
            f" return logits [{len(x)}, {classes}] of floating point. Do not use squeeze() without"
            " an axis, and return logits in both modes."
        )
    return logits


def _fails_for_one(net: nn.Module, of_two: Tensor, x: Tensor) -> bool:
    """Return whether a net in training mode fails for one sample, but not for two samples."""
    try:
        with tried(net):
            of_one = net(x[:1])
    except Exception:  # noqa: BLE001 (it is the code of the user)
        return True
    logits = of_one.logits if isinstance(of_one, Outputs) else of_one
    return bool(of_two.isfinite().all()) and not bool(logits.isfinite().all())
