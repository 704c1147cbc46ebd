"""Low-rank adapters (LoRA, Hu et al., ICLR 2022) in any net, by the package PEFT.

The weight W of a layer becomes W + alpha / rank * B A, with A [rank, inputs] drawn at random and
B [outputs, rank] zero, so that the net begins as the function that it was. A and B of the adapted
layers and the head are trained; all else is frozen. A rank above that of W, which would add nothing
but numbers, is cut to it: the smaller of the numbers of inputs and outputs.
"""

import re
import sys
from dataclasses import dataclass
from typing import Final

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from flbench.config.schema import ModelConfig
from flbench.core.errors import ConfigError
from flbench.models import freezing

NAME: Final = "default"  # of the adapter, for PEFT, which could add several to a layer


@dataclass(frozen=True)
class Adapter:
    """The low-rank adapter of one layer: W + alpha / rank * B A in place of its weight W.

    Attributes:
        layer: Name of the layer, such as `backbone.fc1`.
        a: Name of A [rank, inputs] in the net; [rank, channels, height, width] of a convolution,
            [rank, tokens] of an embedding.
        b: Name of B [outputs, rank]; [channels, rank, 1, 1] of a convolution.
        begins_with_zero_a: Whether A is zero and B random before the training, instead of the other
            way round. PEFT begins embeddings in this way.
    """

    layer: str
    a: str
    b: str
    begins_with_zero_a: bool = False


def adapters(net: nn.Module) -> tuple[Adapter, ...]:
    """Return the adapters of a net in the net's order; none if nothing has imported PEFT."""
    layers = sys.modules.get("peft.tuners.lora.layer")
    if layers is None:
        return ()
    found = []
    for name, module in net.named_modules():
        if not isinstance(module, layers.LoraLayer):
            continue
        if NAME in module.lora_A:
            a, b = (f"{name}.lora_{factor}.{NAME}.weight" for factor in "AB")
            found.append(Adapter(name, a, b))
        elif NAME in module.lora_embedding_A:
            a, b = (f"{name}.lora_embedding_{factor}.{NAME}" for factor in "AB")
            found.append(Adapter(name, a, b, begins_with_zero_a=True))
    return tuple(found)


def inject(net: nn.Module, config: ModelConfig, head: str | None = "head") -> None:
    """Add adapters to the layers that `model.lora.targets` names, and freeze all but the head.

    The first values of the adapters are drawn from PyTorch's global generator.

    Args:
        net: The net; it is changed.
        config: Section `model`, with `lora.rank`.
        head: Name of the submodule that is the head; None if it is not known. Then the adapters
            alone are trained.

    Raises:
        ConfigError: `model.freeze` is set too, PEFT is not installed, or a target matches no layer
            that can have an adapter.
    """
    if config.freeze != freezing.NONE:
        raise ConfigError(
            f"`model.lora.rank={config.lora.rank}` and `model.freeze` are both set. With adapters"
            " all but the adapters and the head is frozen: leave `model.freeze` out."
        )
    for name, parameter in net.named_parameters():
        if head is None or not name.startswith(f"{head}."):
            parameter.requires_grad_(False)
    freezing.stop_statistics(net)
    names = _targets(net, config, head)
    try:
        from peft import LoraConfig, inject_adapter_in_model  # it imports transformers: seconds
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`model.lora.rank={config.lora.rank}` needs the package `peft`, and `{error.name}` is"
            ' not installed: pip install "flbench[lora]"'
        ) from error
    trained = [name for name, one in net.named_parameters() if one.requires_grad]
    rank, ranks = config.lora.rank or 1, _full_ranks(net, names)
    added = LoraConfig(
        r=rank,
        # PEFT matches these patterns with the ends of names.
        rank_pattern={rf"\A{re.escape(name)}": full for name, full in ranks.items() if full < rank},
        lora_alpha=config.lora.alpha,  # type: ignore[arg-type] # any number
        lora_dropout=config.lora.dropout,
        target_modules="|".join(map(re.escape, names)),
    )
    try:
        inject_adapter_in_model(added, net, NAME)
    except Exception as error:  # PEFT constructs layers of the same classes, which may be a user's
        raise ConfigError(
            f"`model.lora.rank={config.lora.rank}` cannot be used with the layers"
            f" {', '.join(freezing.in_net_of_user(net, name) for name in names[:3])}:"
            f" {type(error).__name__}: {error}. Choose another rank or other `model.lora.targets`,"
            " such as linear layers."
        ) from error
    # PEFT freezes all but the adapters.
    for name, parameter in net.named_parameters():
        if name in trained:
            parameter.requires_grad_(True)


def _targets(net: nn.Module, config: ModelConfig, head: str | None) -> list[str]:
    """Return the names of the layers that get an adapter."""
    known = {
        name: module
        for name, module in net.named_modules()
        if _can_have_adapter(module) and name != head and not name.startswith(f"{head}.")
    }
    if not config.lora.targets:
        linear = [name for name, module in known.items() if isinstance(module, nn.Linear)]
        if not known:
            raise ConfigError(
                f"`model.lora.rank={config.lora.rank}`: `model.name={config.name}` has no layer"
                " below its head that could have an adapter. Leave `model.lora` out."
            )
        return linear or list(known)
    key, forms = "`model.lora.targets`", ("{}", "{}.*", "*.{}")
    return freezing.matching(net, list(known), config.lora.targets, key, forms)


def _full_ranks(net: nn.Module, names: list[str]) -> dict[str, int]:
    """Return the largest rank that the weight of each layer, as a matrix, can have."""
    weights = {name: net.get_parameter(f"{name}.weight") for name in names}
    return {name: min(len(one), one[0].numel()) for name, one in weights.items()}


def _can_have_adapter(module: nn.Module) -> bool:
    """Return whether PEFT can add an adapter to a layer, which calls of the net then use.

    PyTorch's attention reads the weight of its output layer without calling the layer.
    """
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return False
    return isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d | nn.Conv3d)
