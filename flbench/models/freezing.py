"""The key `model.freeze`: frozen parameters of a net, and modules that stay in eval mode.

Freezing sets what a user could set by hand: `requires_grad=False`, and the eval mode of frozen
normalization layers. Everything else follows from `flbench.models.fixed`.
"""

from collections.abc import Iterator, Sequence, Set
from fnmatch import fnmatchcase
from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from flbench.config.schema import ModelConfig
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.wording import listed
from flbench.models import fixed

NONE: Final = "none"
BACKBONE: Final = "backbone"
SHOWN: Final = 12  # names of modules that an error lists


def freeze(net: nn.Module, config: ModelConfig, head: str | None = "head") -> frozenset[str]:
    """Freeze the parameters of a net that `model.freeze` names; see `flbench.models.fixed`.

    A module all of whose parameters are frozen is put in eval mode with all that it contains, so
    that it is the same function in each step: BatchNorm uses its running statistics unchanged, and
    dropout is off. So is a normalization layer without parameters whose statistics are named.

    Args:
        net: The net; it is changed.
        config: Section `model`.
        head: Name of the submodule that is the head; None if it is not known.

    Returns:
        Names of the modules that were put in eval mode.

    Raises:
        ConfigError: A pattern matches nothing, no parameter is left to train, or the backbone is
            to be frozen and the head is not known.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    >>> sorted(freeze(net, ModelConfig(freeze=["0", "1.*"])))
    ['0', '1']
    >>> [name for name, one in net.named_parameters() if one.requires_grad]
    ['2.weight', '2.bias']
    """
    if config.freeze == NONE:
        return frozenset()
    names = _chosen(net, config, head)
    parameters = dict(net.named_parameters())
    for name, parameter in parameters.items():
        if name in names:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(
            f"{_key(config)} leaves no parameter of `model.name={config.name}` to train: all"
            f" {len(parameters)} are frozen. Freeze fewer of them, for example"
            " model.freeze=backbone, which trains the head."
        )
    found = set(stop_statistics(net, names))
    frozen = {id(parameter) for name, parameter in parameters.items() if name in names}
    for place, module in net.named_modules():
        own = [id(parameter) for parameter in module.parameters()]
        if own and frozen.issuperset(own):
            for name, part in module.named_modules(prefix=place):
                part.training = False
                found.add(name)
    return frozenset(found)


def stop_statistics(net: nn.Module, names: Set[str] = frozenset()) -> frozenset[str]:
    """Put the normalization layers of a net in eval mode all of whose parameters are frozen.

    Args:
        net: The net; it is changed.
        names: Names of parameters and buffers that count as frozen, besides the parameters with
            `requires_grad=False`. A layer without parameters is frozen if its buffers are.

    Returns:
        Names of these layers.
    """
    frozen = set()
    for place, module in net.named_modules():
        if not isinstance(module, _NormBase):
            continue
        parameters = [one for _, one in module.named_parameters(recurse=False)]
        buffers = [f"{place}.{name}" for name, _ in module.named_buffers(recurse=False)]
        is_named = bool(parameters or buffers) and (bool(parameters) or names >= {*buffers})
        if is_named and not any(one.requires_grad for one in parameters):
            module.eval()
            frozen.add(place)
    return frozenset(frozen)


def _chosen(net: nn.Module, config: ModelConfig, head: str | None) -> set[str]:
    """Return the names of the parameters and buffers that `model.freeze` names.

    Args:
        net: The net.
        config: Section `model`.
        head: See `freeze`.
    """
    leaves = [
        *(name for name, _ in net.named_parameters()),
        *(name for name, _ in net.named_buffers()),
    ]
    if config.freeze == BACKBONE:
        if head is None:
            raise ConfigError(
                f"{_key(config)} freezes all but the head, and a LightningModule does not tell"
                " which is its head. Set `model.head` (in Python head=...) to the submodule that"
                " computes the output, or set `model.freeze` to a list of patterns."
            )
        found = {name for name in leaves if not f"{name}.".startswith(f"{head}.")}
        if not found:
            raise ConfigError(
                f"{_key(config)}: `model.name={config.name}` has no parameters besides its head."
                " Leave `model.freeze` out, or take a net with a backbone, such as mlp."
            )
        return found
    patterns: Sequence[str] = (config.freeze,) if isinstance(config.freeze, str) else config.freeze
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in leaves if _matches(net, name, pattern)}
        if not found:
            known = list(dict.fromkeys([BACKBONE, NONE, *_places(net, leaves)]))
            raise ConfigError(
                f"{_key(config)}: `{pattern}` matches no parameter of `model.name={config.name}`."
                f"{did_you_mean(pattern.removesuffix('.*'), known)} A pattern is the name of a"
                " parameter or module, in which * stands for any characters. Modules:"
                f" {listed(known[2:], SHOWN)}."
            )
        chosen |= found
    return chosen


def _matches(net: nn.Module, name: str, pattern: str) -> bool:
    """Return whether a pattern names a parameter or buffer, or a module that contains it."""
    known = (name, in_net_of_user(net, name), name.removeprefix("backbone."))
    return any(fnmatchcase(one, pattern) or fnmatchcase(one, f"{pattern}.*") for one in known)


def in_net_of_user(net: nn.Module, name: str) -> str:
    """Return the name that a parameter, buffer or module has in the net that the user has given.

    Args:
        net: The net with a backbone and a head, or around a LightningModule.
        name: Name in this net, such as `backbone.conv1.weight`.

    Returns:
        A name such as `conv1.weight`; that of the head's begin with the name of the user's
        submodule, which an `OwnNet` has as its attribute `place`.
    """
    first, _, rest = name.partition(".")
    place = getattr(net, "place", None)
    if first == "module" or (first == "backbone" and isinstance(place, str)):
        return rest
    if first == "head" and isinstance(place, str):
        return ".".join(part for part in (place, rest) if part)
    return name


def _places(net: nn.Module, leaves: Sequence[str]) -> Iterator[str]:
    """Yield the names of the modules that have parameters or buffers of their own."""
    for name in leaves:
        shown = in_net_of_user(net, name).removeprefix("backbone.")
        yield shown.rpartition(".")[0] or shown


def _key(config: ModelConfig) -> str:
    """Return the key and its value, for messages."""
    value = config.freeze if isinstance(config.freeze, str) else f"[{fixed.listed(config.freeze)}]"
    return f"`model.freeze={value}`"
