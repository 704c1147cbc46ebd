"""Hooks and attributes of a LightningModule that a client's training refuses, or does not read."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import nn

REFUSED_HOOKS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("backward", "on_before_backward", "on_after_batch_transfer"),
            *("on_before_batch_transfer", "transfer_batch_to_device"),
        ),
        "do its work in training_step",
    ),
    **dict.fromkeys(
        ("configure_gradient_clipping", "on_after_backward", "on_before_optimizer_step"),
        "clip gradients by train.clip, or change those of a parameter by a hook of it"
        " (register_hook in on_fit_start)",
    ),
    **dict.fromkeys(("configure_model", "configure_sharded_model"), "make layers in __init__"),
    **dict.fromkeys(
        ("lr_scheduler_step", "optimizer_step"),
        "change learning rates by a scheduler of configure_optimizers",
    ),
    **dict.fromkeys(
        ("on_before_zero_grad", "optimizer_zero_grad"), "do its work in on_train_batch_end"
    ),
}
"""Hooks that change what is computed, and that a Trainer alone calls: they are refused, and the
message says what to do instead."""

_EVALUATION: Final = "the models are evaluated by `forward`"
_DATA: Final = "the samples are those of `data`"
_CHECKPOINT: Final = "checkpoints hold parameters and buffers alone"

NO_EFFECT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("validation_step", "test_step", "predict_step"), _EVALUATION),
    **{
        f"on_{part}_{moment}": _EVALUATION
        for part in ("validation", "test", "predict")
        for moment in (
            *("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end"),
            "model_eval",
        )
    },
    **dict.fromkeys(
        ("on_validation_model_train", "on_test_model_train", "on_validation_model_zero_grad"),
        _EVALUATION,
    ),
    **dict.fromkeys(
        (
            *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader"),
            *("prepare_data", "prepare_data_per_node"),
            "allow_zero_length_dataloader_with_multiple_devices",
        ),
        _DATA,
    ),
    **dict.fromkeys(("on_save_checkpoint", "on_load_checkpoint", "strict_loading"), _CHECKPOINT),
    "configure_callbacks": "callbacks of Lightning are not called",
    "example_input_array": "no graph of the module is logged",
}
"""Hooks and attributes without effect, with the reason; a note names those that a module has."""


def base_of(kind: type) -> type | None:
    """Return the class LightningModule that a class is derived from; None for another class.

    The packages `lightning` and `pytorch_lightning` have one each.

    Args:
        kind: A class.
    """
    return next((one for one in kind.__mro__ if one.__name__ == "LightningModule"), None)


def overrides(module: nn.Module, name: str) -> bool:
    """Return whether a LightningModule has a method of its own: of its class, or of the object.

    Args:
        module: The module.
        name: Name of a method of LightningModule.
    """
    kind = type(module)
    if name in module.__dict__:
        return True
    return getattr(kind, name, None) is not getattr(base_of(kind), name, None)


def without_effect(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the hooks and attributes of a module that have no effect, with the reason.

    Args:
        module: A LightningModule.
    """
    for name, reason in NO_EFFECT.items():
        if overrides(module, name) if name not in _VALUES else _is_set(module, name):
            yield name, reason


_VALUES: Final[Mapping[str, Any]] = {
    "allow_zero_length_dataloader_with_multiple_devices": False,
    "prepare_data_per_node": True,
    "strict_loading": True,
    "example_input_array": None,
}
"""Attributes that are no hooks, with the value that a module has unless it sets another one."""


def _is_set(module: nn.Module, name: str) -> bool:
    """Return whether a module has another value of an attribute than a new one."""
    found, default = getattr(module, name, _VALUES[name]), _VALUES[name]
    return found is not default
