"""Outputs of the frozen part of a net, computed once for all samples (`model.cache`).

What is frozen maps a sample to the same values in every step of every client. An engine that gets
these values as its samples, and the rest of the net as its net, computes what it would compute with
the whole net, up to rounding.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from flbench.config.schema import EngineConfig, ModelConfig
from flbench.core.errors import ConfigError
from flbench.core.rng import seeded
from flbench.core.tree import digest
from flbench.data.federation import Federation
from flbench.engine import memory
from flbench.engine.base import dtype_of, open_device
from flbench.models import freezing
from flbench.models.base import Net, net_leaves
from flbench.models.own import OwnNet
from flbench.models.trial import mixes, random_layers

BATCH: Final = 256  # samples of one forward pass
SHARE: Final = 0.25  # largest share of the free memory that the outputs may take
EXACT: Final = ("32-true", "64-true")  # precisions in which a pass is repeated exactly
TOLERANCE: Final = 1e-4  # of outputs in training mode and eval mode, relative to the largest

last: dict[str, Tensor] = {}
"""The outputs that were computed last in this process, by the digest of what they depend on. The
trials of a study and the methods of a comparison have the same; see `forget`."""


@dataclass(frozen=True)
class Cached:
    """What an engine gets in place of a net and its samples.

    Attributes:
        net: The rest of the net: the frozen part is replaced by identities.
        federation: The federation, whose samples are the outputs of the frozen part.
        held: Values of the frozen tensors that `net` does not have, by name.
    """

    net: nn.Module
    federation: Federation
    held: dict[str, Tensor]


def forget() -> None:
    """Free the outputs that are kept for the next run of this process."""
    last.clear()


def cached(
    config: ModelConfig, net: nn.Module, federation: Federation, engine: EngineConfig
) -> tuple[Cached | None, str | None]:
    """Compute the outputs of the frozen part of a net for all samples.

    Args:
        config: Section `model`.
        net: The net.
        federation: The samples.
        engine: Section `engine` as it is used.

    Returns:
        What the engine gets, None for the whole net; and a note, None if `model.cache` is off,
        nothing is frozen by `model.freeze`, or the net is a LightningModule, whose training step
        calls the whole module.
    """
    if config.cache == "off" or not isinstance(net, Net | OwnNet):
        return None, None
    part = _first(net)
    if config.freeze == freezing.NONE:
        if config.lora.rank is not None or not part:
            return None, None
        return None, (
            "model: the frozen layers are computed in each step. With model.freeze=backbone their"
            " outputs are computed once."
        )
    outputs = _unfit(net, part, federation, engine) or _outputs(net, federation, engine)
    if isinstance(outputs, str):
        return None, (
            f"model: the frozen layers are computed in each step (model.cache), because {outputs}."
        )
    rest = deepcopy(net, {id(module): nn.Identity() for module in part})
    freezing.record(rest)
    left = net_leaves(rest)
    dtype = dtype_of(engine)
    held = {
        name: leaf.detach().to(dtype) if leaf.is_floating_point() else leaf.detach()
        for name, leaf in freezing.values(net).items()
        if name not in left
    }
    samples = replace(
        federation,
        dataset=replace(federation.dataset, x=np.empty((0, 1), np.float32)),  # tokens are integers
        x=outputs,
        offset=torch.zeros(()),
        scale=torch.ones(()),
        owner=None,
        augment=(),
    )
    what = "backbone" if part[0] is net.backbone else "frozen first layers"
    note = (
        f"model: the outputs of the {what}, {outputs[0].numel():,} numbers for each of"
        f" {len(_used(federation)):,} samples, are computed once (model.cache=auto)."
    )
    return Cached(rest, samples, held), note


def _first(net: nn.Module) -> list[nn.Module]:
    """Return the frozen part of a net at its beginning, as modules that are called in turn.

    It is the backbone, or the first layers of one that is an `nn.Sequential`. The list is empty if
    the first layer with parameters or buffers is trained, or another class than `Net` or `OwnNet`
    may call its parts in another order.
    """
    if type(net).forward not in (Net.forward, OwnNet.forward):
        return []
    known = freezing.of(net).leaves
    backbone: nn.Module = net.get_submodule("backbone")

    def is_fixed(prefix: str, module: nn.Module) -> bool:
        leaves = (*module.named_parameters(), *module.named_buffers())
        return all(f"{prefix}.{name}" in known for name, _ in leaves)

    first: list[nn.Module] = []
    if is_fixed("backbone", backbone):
        first = [backbone]
    elif type(backbone) is nn.Sequential:
        for name, module in backbone.named_children():
            if not is_fixed(f"backbone.{name}", module):
                break
            first.append(module)
    return first if any(True for one in first for _ in one.parameters()) else []


def _unfit(
    net: nn.Module, part: list[nn.Module], federation: Federation, engine: EngineConfig
) -> str | None:
    """Return why the outputs of a frozen part cannot be computed once; None if they can."""
    if not part:
        return "they are not the first ones of the net, or have buffers that are not frozen"
    if federation.augment:
        return "data.augment changes the samples in each step"
    if engine.precision not in EXACT:
        return f"engine.precision={engine.precision} rounds them anew in each step"
    if mixes(net):
        return "they mix the samples of a batch"
    inside = {module for whole in part for module in whole.modules()}
    frozen = {id(one) for module in part for one in module.parameters()}
    others = (one for one in net.modules() if one not in inside)
    if any(id(one) in frozen for other in others for one in other.parameters(recurse=False)):
        return "a layer behind them has the same weights"
    for place, module in net.named_modules():
        is_random = any(layer.startswith("``") for layer in random_layers(module))  # itself
        if module in inside and is_random and place not in freezing.of(net).modules:
            return f"`{freezing.in_net_of_user(net, place)}` among them draws random numbers"
    return None


def _outputs(net: nn.Module, federation: Federation, engine: EngineConfig) -> Tensor | str:
    """Return the outputs [n, ...] of the frozen part for all samples, or why there are none."""
    dtype, device = dtype_of(engine), open_device(engine)
    whole = deepcopy(net).to(device, dtype).requires_grad_(False)
    part, samples, used = _first(whole), federation.to(device, dtype), _used(federation)

    def called(rows: Tensor, seed: int) -> Tensor:
        x = samples.inputs(rows, dtype)
        try:
            with torch.no_grad(), seeded(seed):
                for module in part:
                    x = module(x)
        except Exception as error:
            raise ConfigError(
                "`model.freeze`: the frozen layers cannot be called without the rest of the net:"
                f" {type(error).__name__}: {error}. Set model.cache=off."
            ) from error
        return x

    few = torch.arange(min(8, len(samples.x)))
    whole.train()
    freezing.keep_modes(whole)
    first, again = called(few, 1), called(few, 2)
    whole.eval()
    in_eval_mode = called(few, 1)
    if not all(isinstance(one, Tensor) and one.is_floating_point() for one in (first, again)):
        return f"they return {type(first).__name__}, and not a tensor of floating point"
    if not torch.equal(first, again):
        return "their outputs differ from call to call"
    bound = TOLERANCE * float(first.abs().max())
    if not torch.allclose(first, in_eval_mode, rtol=0.0, atol=bound):
        return "their outputs differ between training mode and eval mode"
    needed = len(samples.x) * first[0].numel() * first.element_size()
    if needed > SHARE * memory.free(torch.device("cpu")):
        return f"their outputs would take {needed / 2**30:.1f} GiB"
    # Two nets with equal tensors may compute different things; then `few` differs.
    tensors = {"x": samples.x, "rows": used, "few": in_eval_mode}
    tensors |= {"offset": samples.offset, "scale": samples.scale}
    tensors |= {} if samples.owner is None else {"owner": samples.owner}
    how = f"{engine.device} {engine.precision} {torch.get_num_threads()}"
    key = f"{digest([tensors, *(module.state_dict() for module in part)])} {how}"
    if key not in last:
        outputs = torch.zeros(len(samples.x), *first.shape[1:], dtype=dtype)
        for rows in torch.split(used, BATCH):
            outputs[rows] = called(rows, 0).cpu()
        forget()
        last[key] = outputs
    return last[key]


def _used(federation: Federation) -> Tensor:
    """Return the ascending rows of the samples that clients or the common test set have."""
    parts = (rows for of_part in federation.partition.parts.values() for rows in of_part)
    return torch.from_numpy(np.unique(np.concatenate([*parts, federation.common])))
