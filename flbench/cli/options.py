"""Options of commands: arguments of verbs, and short forms of configuration keys.

Name, type, default and description of an option are those of the argument, see
`flbench.api.settings`.
"""

import re
from collections.abc import Callable, Collection, Sequence
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

import typer

from flbench.api.settings import Argument, arguments, descriptions
from flbench.cli.completion import completing

METAVARS: Final = {
    "address": "HOST:PORT|auto",
    "baseline": "METHOD",
    "config": "FILE",
    "gpus_per_trial": "SHARE",
    "grid": "KEY=VALUE,VALUE",
    "long": "FILE",
    "keys": "KEY[,KEY ...]",
    "out": "DIR",
    "target": "VALUE,...",
    "tuned": "STUDY_DIR",
    "values": "KEY=VALUE,VALUE",
}
"""What stands for the value of an option in the help text; for others it follows from the type."""
TYPES: Final = {Path: "PATH", int: "N", float: "X", str: "NAME"}
SEVERAL: Final = ("grid", "values")
"""Options that can be given several times."""
COMPLETED: Final = {"baseline": "methods", "grid": "keys", "values": "keys"}
PYTHON_ONLY: Final = ("algorithm", "engine", "progress", "seed", "trust")
"""Arguments that the command line takes as words, short forms or `--run-code`, or not at all."""


class Alias(NamedTuple):
    """An option that stands for a key of the configuration: `--rounds 10` is `train.rounds=10`."""

    key: str
    metavar: str
    about: str
    names: str | None = None


ALIASES: Final = {
    "dataset": Alias("data.name", "NAME", "data set", "data sets"),
    "partition": Alias("partition.scheme", "SCHEME", "how samples go to clients", "schemes"),
    "clients": Alias("partition.clients", "N", "number of clients"),
    "alpha": Alias("partition.alpha", "ALPHA", "concentration of the partition"),
    "model": Alias("model.name", "NAME", "net", "models"),
    "rounds": Alias("train.rounds", "N", "communication rounds"),
    "participation": Alias("train.participation", "SHARE", "share of the clients in each round"),
    "engine": Alias("engine.name", "NAME", "what trains the clients", "engines"),
    "device": Alias("engine.device", "DEVICE", "cpu, cuda or cuda:N"),
    "seed": Alias("seed", "N", "seed of all randomness"),
}
"""All short forms by the name of the option without its hyphens."""


def option(
    name: str, metavar: str | None, about: str, complete: str | Sequence[str] = "", **more: Any
) -> Any:
    """Return an option of Typer; its default, if there is one, is named by the description."""
    more = {"show_default": False, **more}
    if complete:
        more["autocompletion"] = completing(complete)
    return typer.Option(name, metavar=metavar or " ", help=about, **more)  # otherwise `<bool>`


def of_verbs(declared: Sequence[Any], own: Sequence[str]) -> dict[str, Parameter]:
    """Return the options of verbs and of classes of settings, by the names of their arguments."""
    found = {
        name: argument
        for one in declared
        for name, argument in arguments(one).items()
        if name not in PYTHON_ONLY and _type(argument) is not None
    }
    names = [_hyphened(name) for name in (*found, *own)]
    return {name: _parameter(name, one.default, _option(one, names)) for name, one in found.items()}


def of_function(function: Callable[..., None]) -> list[Parameter]:
    """Return the parameters of a command; those that its docstring describes become options.

    `as_json` is `--json`. The second argument of `Annotated` stands for the value in the help text.
    """
    about = descriptions(cleandoc(function.__doc__ or ""), "Options")
    found = []
    for one in signature(function).parameters.values():
        if one.name in about:
            kind, metavar = one.annotation, None
            if get_origin(kind) is Annotated:
                kind, metavar = get_args(kind)
            name = _hyphened(one.name.removeprefix("as_"))
            made = option(f"--{name}", metavar, " ".join(about[one.name].split()))
            one = one.replace(annotation=Annotated[kind, made])
        found.append(one)
    return found


def short_forms(names: Sequence[str]) -> dict[str, Parameter]:
    """Return the options that stand for keys, by the names of `ALIASES`."""
    panel = "Short forms of configuration keys"
    found = {}
    for name, one in ((name, ALIASES[name]) for name in names):
        about = f"Sets {one.key}: {one.about}."
        made = option(f"--{name}", one.metavar, about, one.names or "", rich_help_panel=panel)
        found[name] = _parameter(f"alias_{name}", None, Annotated[str | None, made])
    return found


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
    """Return the annotation of which Typer makes an option."""
    name, kind = f"--{_hyphened(argument.name)}", _type(argument)
    about = for_command(argument.about, options)
    if kind is bool:
        return Annotated[bool, typer.Option(name, metavar=" ", help=about)]
    several = argument.name in SEVERAL
    values = re.findall(r"'(\w+)'", str(argument.kind)) if "Literal" in str(argument.kind) else []
    taken: Any = list[kind] if several else kind  # type: ignore[valid-type]
    made = option(
        name,
        METAVARS.get(argument.name) or "|".join(values) or TYPES[kind or str],
        f"{about} Can be given several times." if several else about,
        values or COMPLETED.get(argument.name, ""),
        show_default=bool(argument.default),
    )
    return Annotated[taken | None, made]


def _hyphened(name: str) -> str:
    """Return the name of an option without its hyphens in front, such as `gpus-per-trial`."""
    return name.replace("_", "-")


def for_command(about: str, options: Collection[str]) -> str:
    """Return the description of an argument as the help text of an option.

    Names of arguments become names of options, and dicts are written as the command line takes
    them.

    >>> for_command('Whether to use `grid`, such as `{"seed": [0, 1]}`.', ["grid"])
    'Use --grid, such as seed=0,1.'
    """

    def written(found: re.Match[str]) -> str:
        name = _hyphened(found[1])
        if name in options:
            return f"--{name}"
        pair = re.fullmatch(r'\{"(.+)": \[(.+)\]\}', found[1])
        return f"{pair[1]}={pair[2].replace(' ', '')}" if pair else found[1]

    text = re.sub(r"`([^`]+)`", written, " ".join(about.split()))
    rest = text.removeprefix("Whether to ")
    return text if rest == text else rest[:1].upper() + rest[1:]
