"""What a shell offers while a command is typed, and what a misspelt key may stand for.

Nothing here imports PyTorch.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import get_args


def names(kind: str) -> Sequence[str]:
    """Return all `methods`, `models`, `engines`, `schemes`, `data sets` or `keys` (with `=`)."""
    from flbench.config.schema import Config, EngineConfig, SchemeName
    from flbench.config.sources import leaves
    from flbench.core.registry import ALGORITHMS, MODELS
    from flbench.data.known_sets import known

    every: dict[str, Callable[[], Sequence[str]]] = {
        "methods": ALGORITHMS.names,
        "models": MODELS.names,
        "engines": lambda: get_args(EngineConfig.model_fields["name"].annotation),
        "schemes": lambda: get_args(SchemeName),
        "data sets": lambda: [*known()],
        "keys": lambda: [f"{key}=" for key in leaves(Config().tree())],
    }
    return every[kind]()


def completing(*kinds: str | Sequence[str]) -> Callable[[str], list[str]]:
    """Return a function that completes a word, or the last one of several between commas.

    >>> completing("methods", "keys")("fedpr")
    ['fedproto', 'fedprox']
    >>> completing("keys")("train.r"), completing(["a", "b"])("b,a")
    (['train.rounds='], ['b,a'])
    """

    def complete(incomplete: str) -> list[str]:  # Typer reads the name of the parameter
        before, comma, last = incomplete.rpartition(",")
        known = (one for kind in kinds for one in (names(kind) if isinstance(kind, str) else kind))
        return [f"{before}{comma}{name}" for name in known if name.startswith(last)]

    return complete


def key_like(name: str) -> str | None:
    """Return the key that a name may stand for: one that it is, ends with, or nearly ends with.

    Keys of all methods and nets are among them, but those of the other sections go first.

    >>> key_like("train.rounds"), key_like("lr"), key_like("batchsize"), key_like("nothing")
    ('train.rounds', 'train.optimizer.lr', 'train.batch_size', None)
    """
    known = _keys()
    if name in known.values():
        return name
    close = get_close_matches(name, known, n=1, cutoff=0.85)
    return known[close[0]] if close else None


def _keys() -> Mapping[str, str]:
    """Return the keys of the configuration by their last part; the shallowest key of each."""
    from flbench.core.registry import ALGORITHMS, MODELS

    found = {
        key: f"{section}.{key}"
        for section, registry in (("model", MODELS), ("algorithm", ALGORITHMS))
        for name in registry.load()
        for key in registry[name].Config.model_fields
    }
    keys = sorted((key[:-1] for key in names("keys")), key=lambda key: -key.count("."))
    return found | {key.rpartition(".")[2]: key for key in keys if not key.endswith(".name")}
