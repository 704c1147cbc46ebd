"""What a user may have meant by an option or a command that does not exist."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches


def for_option(
    option: str, options: Sequence[str], *, takes_keys: bool, elsewhere: Sequence[str] = ()
) -> str:
    """Return the sentence about an option that a command does not have, with what to type instead.

    Args:
        option: The unknown option, such as `--lr`.
        options: Options of the command.
        takes_keys: Whether the command takes overrides `key=value`.
        elsewhere: Other commands that have the option.

    >>> for_option("--lr", ["--algo", "--rounds"], takes_keys=True)
    'No such option: --lr. Did you mean train.optimizer.lr=VALUE?'
    >>> for_option("--round", ["--rounds"], takes_keys=True)
    'No such option: --round. Did you mean --rounds?'
    """
    begin = f"No such option: {option}."
    if elsewhere:
        return f"{begin} It is an option of flbench {' and '.join(elsewhere)}."
    name = option.lstrip("-").lower().replace("-", "_")
    meant = key_like(name) if takes_keys else None
    close = get_close_matches(option, options, n=1, cutoff=0.7)
    if close and (meant is None or not meant.endswith(name)):
        return f"{begin} Did you mean {close[0]}?"
    if meant is not None:
        return f"{begin} Did you mean {meant}=VALUE?"
    keys = "; every key of the configuration is set by key=value" if takes_keys else ""
    return f"{begin} --help lists the options{keys}."


def for_command(word: str, arguments: Sequence[str], commands: Sequence[str]) -> str:
    """Return the sentence about a command that does not exist, with what to type instead.

    Args:
        word: The unknown command.
        arguments: What follows it.
        commands: The commands.
    """
    from flbench.core.registry import ALGORITHMS

    begin = f"No such command: {word}."
    if word in ALGORITHMS.names() or "=" in word:
        return f"{begin} Did you mean flbench run {' '.join([word, *arguments])}?"
    if close := get_close_matches(word, commands, n=1):
        return f"{begin} Did you mean flbench {close[0]}?"
    return f"{begin} Commands: {', '.join(commands)}."


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
    from flbench.config.schema import Config
    from flbench.config.sources import leaves
    from flbench.core.registry import ALGORITHMS, MODELS

    found = {
        key: f"{section}.{key}"
        for section, registry in (("model", MODELS), ("algorithm", ALGORITHMS))
        for name in registry.load()
        for key in registry[name].Config.model_fields
    }
    keys = sorted(leaves(Config().tree()), key=lambda key: key.count("."), reverse=True)
    return found | {key.rpartition(".")[2]: key for key in keys if not key.endswith(".name")}
