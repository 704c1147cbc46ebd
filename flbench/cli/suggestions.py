"""What a user may have meant by an option or a command that does not exist."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from flbench.cli import aliases

OTHER_NAMES: Final = {
    "algorithm": "--algo",
    "algorithms": "--algo",
    "algos": "--algo",
    "method": "--algo",
    "methods": "--algo",
    "strategy": "--algo",
    "arch": "model.name",
    "net": "model.name",
    "network": "model.name",
    "nn": "model.name",
    "batch": "train.batch_size",
    "batchsize": "train.batch_size",
    "beta": "partition.alpha",
    "client-fraction": "train.participation",
    "comm-rounds": "train.rounds",
    "communication-rounds": "train.rounds",
    "config-file": "--config",
    "cfg": "--config",
    "cuda": "engine.device",
    "data": "data.name",
    "data-dir": "data.root",
    "data-root": "data.root",
    "dir-alpha": "partition.alpha",
    "dirichlet": "partition.alpha",
    "epoch": "train.local_epochs",
    "epochs": "train.local_epochs",
    "eval-every": "evaluation.every",
    "fraction": "train.participation",
    "global-rounds": "train.rounds",
    "gpu": "engine.device",
    "join-ratio": "train.participation",
    "learning-rate": "train.optimizer.lr",
    "local-ep": "train.local_epochs",
    "log-dir": "output.dir",
    "n-clients": "partition.clients",
    "num-clients": "partition.clients",
    "num-rounds": "train.rounds",
    "num-workers": "engine.workers",
    "optim": "train.optimizer.name",
    "optimizer": "train.optimizer.name",
    "output": "output.dir",
    "output-dir": "output.dir",
    "random-seed": "seed",
    "sample-rate": "train.participation",
    "save-dir": "output.dir",
    "scheme": "partition.scheme",
    "wd": "train.optimizer.weight_decay",
}
"""Keys and options by the names that other programs have for them, without the hyphens."""

COMMANDS: Final = {
    "benchmark": "bench",
    "create": "new-method",
    "evaluate": "show",
    "fit": "run",
    "init": "new-method",
    "list": "algos",
    "methods": "algos",
    "new": "new-method",
    "optimize": "tune",
    "paper": "reproduce",
    "plot": "show",
    "results": "show",
    "search": "tune",
    "start": "run",
    "sweep": "tune",
    "test": "show",
    "train": "run",
}
"""Commands by the names that other programs have for them."""


def for_option(
    option: str,
    arguments: Sequence[str],
    options: Iterable[str],
    *,
    takes_keys: bool,
    elsewhere: Sequence[str] = (),
) -> str:
    """Return the sentence about an option that a command does not have, with what to type instead.

    Args:
        option: The unknown option, such as `--lr`.
        arguments: Arguments of the command, among them the option with its value.
        options: Options of the command.
        takes_keys: Whether the command takes overrides `key=value`.
        elsewhere: Other commands that have the option.

    >>> for_option("--lr", ["--lr", "0.1"], ["--rounds"], takes_keys=True)
    'No such option: --lr. Did you mean train.optimizer.lr=0.1?'
    >>> for_option("--num-rounds", ["--num-rounds=5"], ["--rounds"], takes_keys=True)
    'No such option: --num-rounds. Did you mean --rounds 5 (train.rounds=5)?'
    """
    name = option.lstrip("-").lower().replace("_", "-")
    known = set(options)
    value = _value(option, arguments)
    begin = f"No such option: {option}."
    if elsewhere:
        *first, last = elsewhere
        others = f"{', '.join(first)} and {last}" if first else last
        alike = get_close_matches(option, sorted(known), n=1, cutoff=0.9)
        hint = f" Did you mean {alike[0]}?" if alike else ""
        return f"{begin} It is an option of flbench {others}.{hint}"
    meant = OTHER_NAMES.get(name)
    if meant is None and takes_keys:
        meant = key_like(name)
    if meant is None and takes_keys and name.startswith("no-"):
        meant, value = key_like(name.removeprefix("no-")), "false"
    if meant is None:
        close = get_close_matches(f"--{name}", sorted(known), n=1)
        if not close and takes_keys:
            close = get_close_matches(name, [*OTHER_NAMES, *_last_parts()], n=1, cutoff=0.75)
            meant = (OTHER_NAMES.get(close[0]) or key_like(close[0])) if close else None
        else:
            meant = close[0] if close else None
    if meant is None:
        return f"{begin} --help lists the options" + (
            "; every key of the configuration is set by key=value, for example train.rounds=100."
            if takes_keys
            else "."
        )
    if meant.startswith("--"):
        if meant not in known and meant == "--algo" and takes_keys:
            return f"{begin} Did you mean algorithm.name={value or 'NAME'}?"
        if meant not in known:
            return f"{begin} --help lists the options."
        return f"{begin} Did you mean {meant}{'' if value is None else f' {value}'}?"
    if not takes_keys:
        return f"{begin} --help lists the options."
    shown = _device(name, value) if meant == "engine.device" else value or "VALUE"
    short = next((alias for alias in sorted(known) if aliases.key_of(alias) == meant), None)
    override = f"{meant}={shown}"
    return f"{begin} Did you mean {override if short is None else f'{short} {shown} ({override})'}?"


def for_command(word: str, arguments: Sequence[str], commands: Sequence[str]) -> str:
    """Return the sentence about a command that does not exist, with what to type instead.

    Args:
        word: The unknown command.
        arguments: What follows it.
        commands: The commands.
    """
    from flbench.core.registry import ALGORITHMS

    rest = "".join(f" {argument}" for argument in arguments)
    begin = f"No such command: {word}."
    if word == "help":
        return f"{begin} Did you mean flbench --help or flbench COMMAND --help?"
    if word in ALGORITHMS.names():
        return f"{begin} `{word}` is a method. Did you mean flbench run {word}{rest}?"
    if "=" in word:
        return f"{begin} Did you mean flbench run {word}{rest}?"
    close = get_close_matches(word, commands, n=1)
    meant = COMMANDS.get(word.lower()) or (close[0] if close else None)
    if meant is None:
        return f"{begin} Commands: {', '.join(commands)}."
    return f"{begin} Did you mean flbench {meant}?"


def _value(option: str, arguments: Sequence[str]) -> str | None:
    """Return the value that the user gave to an option; None if there is none."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
        if argument == option and index + 1 < len(arguments):
            following = arguments[index + 1]
            is_value = not following.startswith("-") or following[1:2].isdigit()
            return following if is_value and "=" not in following else None
    return None


def _device(name: str, value: str | None) -> str:
    """Return the device that `--gpu 0`, `--cuda` or `--device cpu` stands for."""
    if value is None:
        return "cuda"
    return f"cuda:{value}" if value.isdigit() else value


def key_like(name: str) -> str | None:
    """Return the key that a short name such as `lr` may stand for; None if there is none.

    It is the key whose last part has this name. Keys of all methods and nets are among them, but
    those of the other sections go first.

    >>> key_like("batch-size"), key_like("lr"), key_like("nothing")
    ('train.batch_size', 'train.optimizer.lr', None)
    """
    from flbench.core.registry import ALGORITHMS, MODELS

    part = name.replace("-", "_")
    if (key := _last_parts().get(part)) is not None:
        return key
    for section, registry in (("algorithm", ALGORITHMS), ("model", MODELS)):
        for known in registry.load():
            if part in registry[known].Config.model_fields:
                return f"{section}.{part}"
    return None


def _last_parts() -> Mapping[str, str]:
    """Return the keys of the configuration by their last part; the shallowest key of each."""
    from flbench.config.schema import Config
    from flbench.config.sources import leaves

    keys = sorted(leaves(Config().tree()), key=lambda key: key.count("."), reverse=True)
    return {key.rpartition(".")[2]: key for key in keys if not key.endswith((".name", ".path"))}
