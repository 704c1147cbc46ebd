"""Options of commands: arguments of verbs, and short forms of configuration keys.

Name, type, default and description of an option are those of the argument, see
`flbench.api.settings`.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from flbench.api.settings import Argument, arguments
from flbench.cli import completion

METAVARS: Final = {
    "address": "HOST:PORT|auto",
    "baseline": "METHOD",
    "config": "FILE",
    "format": "FORMAT",
    "gpus_per_trial": "SHARE",
    "grid": "KEY=VALUE,VALUE",
    "long": "FILE",
    "keys": "KEY[,KEY ...]",
    "normalize_by": "FILE",
    "out": "DIR",
    "reuse": "DIR",
    "target": "VALUE,...",
    "tuned": "STUDY_DIR",
    "values": "KEY=VALUE,VALUE",
}
"""What stands for the value of an option in the help text; for others it follows from the type."""
TYPES: Final = {Path: "PATH", int: "N", float: "X", str: "NAME"}
SEVERAL: Final = ("grid", "reuse", "values")
"""Options that can be given several times."""
COMPLETIONS: Final = {"baseline": completion.methods, "grid": completion.keys}
COMPLETIONS.update(values=completion.keys)
PYTHON_ONLY: Final = ("algorithm", "engine", "progress", "seed", "trust")
"""Arguments that the command line takes as words, short forms or `--run-code`, or not at all."""
ALIAS: Final = "alias_"
"""Beginning of the names of parameters that are short forms."""


class Alias(NamedTuple):
    """An option that stands for a key of the configuration: `--rounds 10` is `train.rounds=10`."""

    key: str
    metavar: str
    about: str
    complete: Callable[[str], list[str]] | None = None


ALIASES: Final = {
    "dataset": Alias("data.name", "NAME", "data set", completion.data_sets),
    "partition": Alias(
        "partition.scheme", "SCHEME", "how samples go to clients", completion.schemes
    ),
    "clients": Alias("partition.clients", "N", "number of clients"),
    "alpha": Alias("partition.alpha", "ALPHA", "concentration of the partition"),
    "model": Alias("model.name", "NAME", "net", completion.models),
    "rounds": Alias("train.rounds", "N", "communication rounds"),
    "participation": Alias("train.participation", "SHARE", "share of the clients in each round"),
    "engine": Alias("engine.name", "NAME", "what trains the clients", completion.engines),
    "device": Alias("engine.device", "DEVICE", "cpu, cuda or cuda:N"),
    "seed": Alias("seed", "N", "seed of all randomness"),
}
"""All short forms by the name of the option without its hyphens."""


def options(
    *declared: Any, aliases: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator that makes options of a command.

    The command has a parameter `asked`, which gets the values by the names of the arguments, and
    with short forms a parameter `aliases`, which gets the texts of those that the user gave.

    Args:
        declared: Verbs and classes of settings, whose arguments become options.
        aliases: Short forms, by the names of `ALIASES`.
    """
    found = {
        name: argument
        for one in declared
        for name, argument in arguments(one).items()
        if name not in PYTHON_ONLY and _type(argument) is not None
    }

    def add(command: Callable[..., Any]) -> Callable[..., None]:
        own = [p for p in signature(command).parameters.values() if p.name not in LATER]
        first = next((k for k, p in enumerate(own) if p.kind is Parameter.KEYWORD_ONLY), len(own))
        names = [_hyphened(name) for name in (*found, *(p.name for p in own))]
        asked = [_parameter(name, one.default, _option(one, names)) for name, one in found.items()]
        short = [_parameter(f"{ALIAS}{name}", None, _short_form(name)) for name in aliases]
        every = [*own[:first], *asked, *own[first:], *short]

        @wraps(command)
        def called(**values: Any) -> None:
            given = {name: values.pop(f"{ALIAS}{name}") for name in aliases}
            if found:
                values["asked"] = {name: values.pop(name) for name in found}
            if given:
                values["aliases"] = {k: text for k, text in given.items() if text is not None}
            command(**values)

        # Typer reads both places.
        vars(called)["__signature__"] = Signature(every)
        called.__annotations__ = {p.name: p.annotation for p in every}
        return called

    return add


LATER: Final = ("asked", "aliases")


def origins(aliases: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (option, key, text of the value) of the short forms that the user gave.

    >>> origins({"rounds": "10"})
    [('--rounds', 'train.rounds', '10')]
    """
    return [(f"--{name}", ALIASES[name].key, text) for name, text in aliases.items()]


def _parameter(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default or None, annotation=annotation)


def _type(argument: Argument) -> type | None:
    """Return the type of an option; None for an argument that the command line does not have.

    >>> _type(Argument("space", "str | PathLike[str] | None", None, ""))
    <class 'pathlib.Path'>
    """
    text = str(argument.kind)
    if "Mapping" in text and argument.name not in SEVERAL:
        return None
    if "Path" in text:
        return Path
    if "Literal" in text:
        return str
    kinds = (str, bool, int, float)
    return next((kind for kind in kinds if re.search(rf"\b{kind.__name__}\b", text)), None)


def _option(argument: Argument, options: Collection[str]) -> Any:
    """Return the annotation of which Typer makes an option.

    Args:
        argument: The argument.
        options: Names of all options of the command, such as `tuned`.
    """
    name, kind = f"--{_hyphened(argument.name)}", _type(argument)
    about = for_command(argument.about, options)
    if kind is bool:
        return Annotated[bool, typer.Option(name, help=about)]
    several = argument.name in SEVERAL
    values = re.findall(r"'(\w+)'", str(argument.kind)) if "Literal" in str(argument.kind) else []
    complete = COMPLETIONS.get(argument.name)
    if values:
        complete = partial(completion.beginning, names=values)
    option = typer.Option(
        name,
        metavar=METAVARS.get(argument.name) or "|".join(values) or TYPES[kind or str],
        help=f"{about} Can be given several times." if several else about,
        show_default=bool(argument.default),
        autocompletion=_completion(complete),
    )
    taken: Any = list[kind] if several else kind  # type: ignore[valid-type]
    return Annotated[taken | None, option]


def _short_form(name: str) -> Any:
    """Return the annotation of which Typer makes a short form."""
    alias = ALIASES[name]
    option = typer.Option(
        f"--{name}",
        metavar=alias.metavar,
        help=f"Sets {alias.key}: {alias.about}.",
        rich_help_panel="Short forms of configuration keys",
        show_default=False,
        autocompletion=_completion(alias.complete),
    )
    return Annotated[str | None, option]


def _completion(complete: Callable[[str], list[str]] | None) -> Any:
    """Return a function as Typer takes it, which reads the names of its parameters."""
    return None if complete is None else (lambda incomplete: complete(incomplete))


def _hyphened(name: str) -> str:
    """Return the name of an option without its hyphens in front, such as `gpus-per-trial`."""
    return name.replace("_", "-")


def for_command(about: str, options: Collection[str]) -> str:
    """Return the description of an argument as the help text of an option.

    Names of arguments become names of options, and values of Python are written as the command
    line takes them.

    Args:
        about: The description.
        options: Names of the options of the command, such as `tuned`.

    >>> for_command("Whether to use `grid`, such as `{'seed': [0, 1]}` or `None`.", ["grid"])
    'Use --grid, such as seed=0,1 or null.'
    """

    def written(found: re.Match[str]) -> str:
        name = _hyphened(found[1])
        return f"--{name}" if name in options else _value(found[1])

    text = re.sub(r"`([^`]+)`", written, " ".join(about.split()))
    rest = text.removeprefix("Whether to ")
    return text if rest == text else rest[:1].upper() + rest[1:]


def _value(text: str) -> str:
    """Return a value of Python as the command line takes it; another text as it is."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    if isinstance(value, dict):
        return " ".join(f"{key}={','.join(map(str, some))}" for key, some in value.items())
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)
