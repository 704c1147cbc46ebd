"""What is frozen in a net: parameters that nobody trains, and modules that stay in eval mode.

The user freezes parameters by hand (`requires_grad=False`, `eval()`) or by the key `model.freeze`,
which does the same. A frozen tensor is the same for all clients in all rounds. Methods do not see
it: it is not among the leaves of a `NetSpec`, so nothing trains, mixes, sends or keeps it, and the
net is called with its first value.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from flbench.config.schema import ModelConfig
from flbench.core import wording
from flbench.core.errors import ConfigError, did_you_mean

NONE: Final = "none"
BACKBONE: Final = "backbone"
SHOWN: Final = 12  # names of modules that an error lists
ATTRIBUTE: Final = "frozen_part"  # of the net; copies of the net have it too


@dataclass(frozen=True)
class Frozen:
    """What is frozen in a net.

    Attributes:
        parameters: Names of the parameters with `requires_grad=False`.
        modules: Names of the modules that are in eval mode while the net is trained.
        statistics: Names of the running statistics of normalization layers in eval mode.
    """

    parameters: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    statistics: frozenset[str] = frozenset()

    @property
    def leaves(self) -> frozenset[str]:
        """Names of the tensors that do not change."""
        return self.parameters | self.statistics

    def __str__(self) -> str:
        parts = {"frozen parameters": self.parameters, "modules in eval mode": self.modules}
        return ", ".join(f"{what}: {len(names)}" for what, names in parts.items() if names)


def record(net: nn.Module, what: str = "the net") -> None:
    """Find what is frozen in a net, and store it in the net.

    Modules that the net's own `train()` puts in eval mode are among it. The modes of the net do
    not change.

    Raises:
        ConfigError: All parameters of `what` are frozen.
    """
    before = [(name, module, module.training) for name, module in net.named_modules()]
    net.train()
    modules = {name for name, module, was in before if not (was and module.training)}
    for _, module, was in before:
        module.training = was
    statistics = {
        f"{name}.{leaf}" if name else leaf
        for name, module, _ in before
        if name in modules and isinstance(module, _NormBase)
        for leaf, _ in module.named_buffers(recurse=False)
    }
    parameters = {name for name, one in net.named_parameters() if not one.requires_grad}
    if len(parameters) == sum(1 for _ in net.parameters()):
        raise ConfigError(
            f"{what}: all of its parameters are frozen (`model.freeze`, or requires_grad=False)."
            " Freeze fewer of them: model.freeze=backbone trains the head."
        )
    found = Frozen(frozenset(parameters), frozenset(modules), frozenset(statistics))
    net.__dict__[ATTRIBUTE] = found


def of(net: nn.Module) -> Frozen:
    """Return what is stored as frozen in a net."""
    found: Frozen = net.__dict__.get(ATTRIBUTE, Frozen())
    return found


def values(net: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a net that are stored as frozen in it, by name in the net's order."""
    known = of(net).leaves
    every = (*net.named_parameters(), *net.named_buffers())
    return {name: tensor for name, tensor in every if name in known}


def trains_batchnorm(net: nn.Module) -> bool:
    """Return whether a net has BatchNorm that reads the statistics of the batch in training."""
    in_eval = of(net).modules
    return any(
        isinstance(module, _BatchNorm) and name not in in_eval
        for name, module in net.named_modules()
    )


def notes(net: nn.Module) -> list[str]:
    """Return notes on what is frozen in a net; an empty list if nothing is."""
    found, sentences = of(net), []
    if found.parameters:
        total = sum(1 for _ in net.parameters())
        sentences.append(
            f"model: {len(found.parameters)} of {total} parameters are frozen"
            f" (requires_grad=False or model.freeze; {listed(found.parameters)}). They are not"
            " trained, and neither sent, kept nor counted by any method; layers without other"
            " tensors are no layers of the net to a method."
        )
    if found.modules:
        sentences.append(
            f"model: {len(found.modules)} of the net's modules stay in eval mode"
            f" ({listed(found.modules)}) while the net is trained: BatchNorm uses its running"
            " statistics unchanged there."
        )
    return sentences


def listed(names: Iterable[str]) -> str:
    """Return the first three of some names in alphabetical order."""
    return wording.listed(sorted(names), 3)


def keep_modes(net: nn.Module) -> None:
    """Put the modules of a net in eval mode that stay so while the net is trained."""
    for name in of(net).modules:
        net.get_submodule(name).training = False


@contextmanager
def mode(net: nn.Module, *, train: bool) -> Iterator[None]:
    """Set the mode of all modules of a net within a `with` block, and restore it afterwards.

    Modules that stay in eval mode do so in training.
    """
    before = [(module, module.training) for module in net.modules()]
    net.train(train)
    if train:
        keep_modes(net)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def freeze(net: nn.Module, config: ModelConfig, head: str | None = "head") -> None:
    """Freeze the parameters of a net that `model.freeze` names.

    A module all of whose parameters are frozen is put in eval mode with all that it contains, so
    that it is the same function in each step: BatchNorm uses its running statistics unchanged, and
    dropout is off. So is a normalization layer without parameters whose statistics are named.

    Args:
        net: The net; it is changed.
        config: Section `model`.
        head: Name of the submodule that is the head; None if it is not known.

    Raises:
        ConfigError: A pattern matches nothing, or the backbone is to be frozen and the head is not
            known.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    >>> freeze(net, ModelConfig(freeze=["0", "1.*"]))
    >>> [module.training for module in net], net[0].weight.requires_grad
    ([False, False, True], False)
    """
    if config.freeze == NONE:
        return
    names = _chosen(net, config, head)
    for name, parameter in net.named_parameters():
        if name in names:
            parameter.requires_grad_(False)
    stop_statistics(net, names)
    frozen = {id(one) for name, one in net.named_parameters() if name in names}
    for module in net.modules():
        own = [id(one) for one in module.parameters()]
        if own and frozen.issuperset(own):
            for part in module.modules():
                part.training = False


def stop_statistics(net: nn.Module, names: Set[str] = frozenset()) -> None:
    """Put the normalization layers of a net in eval mode all of whose parameters are frozen.

    Args:
        net: The net; it is changed.
        names: Names of buffers that count as frozen: a layer without parameters is frozen if its
            buffers are.
    """
    for place, module in net.named_modules():
        if not isinstance(module, _NormBase):
            continue
        parameters = [*module.parameters(recurse=False)]
        buffers = {f"{place}.{name}" for name, _ in module.named_buffers(recurse=False)}
        if parameters:
            is_frozen = not any(one.requires_grad for one in parameters)
        else:
            is_frozen = bool(buffers) and names >= buffers
        if is_frozen:
            module.training = False


def _chosen(net: nn.Module, config: ModelConfig, head: str | None) -> set[str]:
    """Return the names of the parameters and buffers that `model.freeze` names."""
    leaves = [name for name, _ in (*net.named_parameters(), *net.named_buffers())]
    if config.freeze == BACKBONE:
        found = {name for name in leaves if not f"{name}.".startswith(f"{head}.")}
        if head is None or not found:
            raise ConfigError(
                f"{_key(config)} freezes all but the head, and `model.name={config.name}` has no"
                " parameters besides its head, or a head that is not known (`model.head`)."
            )
        return found
    patterns = (config.freeze,) if isinstance(config.freeze, str) else config.freeze
    return set(matching(net, leaves, patterns, _key(config)))


def matching(
    net: nn.Module,
    names: Sequence[str],
    patterns: Sequence[str],
    key: str,
    forms: Sequence[str] = ("{}", "{}.*"),
) -> list[str]:
    """Return those of some names in a net that patterns name, in the order of the patterns.

    Args:
        net: The net.
        names: Names in the net; a pattern may also be that of the user's net, or lack `backbone.`.
        patterns: The patterns, in which * stands for any characters.
        key: The key that has the patterns, for messages.
        forms: What each pattern stands for, with {} in place of it.

    Raises:
        ConfigError: A pattern matches nothing.
    """
    known = {
        name: (name, in_net_of_user(net, name), name.removeprefix("backbone.")) for name in names
    }
    chosen: dict[str, None] = {}
    for pattern in patterns:
        wanted = [form.format(pattern) for form in forms]
        found = [
            name
            for name, same in known.items()
            if any(fnmatchcase(one, form) for one in same for form in wanted)
        ]
        if not found:
            places = [in_net_of_user(net, name).removeprefix("backbone.") for name in names]
            modules = list(dict.fromkeys(one.rpartition(".")[0] or one for one in places))
            hint = did_you_mean(pattern.removesuffix(".*"), [BACKBONE, NONE, *modules, *places])
            raise ConfigError(
                f"{key}: `{pattern}` matches none of {wording.listed(modules, SHOWN)}.{hint}"
            )
        chosen |= dict.fromkeys(found)
    return list(chosen)


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


def _key(config: ModelConfig) -> str:
    """Return the key and its value, for messages."""
    value = config.freeze if isinstance(config.freeze, str) else f"[{listed(config.freeze)}]"
    return f"`model.freeze={value}`"
