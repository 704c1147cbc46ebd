"""Options that are short forms of configuration keys: `--rounds 10` is `train.rounds=10`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final

import typer

from flbench.cli import completion
from flbench.cli.parameters import declare, without

SHORT_FORM: Final = "alias_"  # beginning of the names of their parameters
PANEL: Final = "Short forms of configuration keys"


@dataclass(frozen=True)
class Alias:
    """An option that stands for a key of the configuration.

    Attributes:
        key: Dotted key.
        metavar: What its value is.
        about: Help text.
        complete: Function from the beginning of a value to the values that begin so.
    """

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

DATA: Final = ("dataset", "partition", "clients", "alpha", "seed")
"""Short forms for commands that show a partition and train nothing."""


def with_aliases(*names: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator that adds short forms to a command.

    The command has a parameter `aliases`, which gets the texts of those that the user gave, by the
    name of the option.

    Args:
        names: Names of `ALIASES`, in the order of the help text.
    """

    def add(command: Callable[..., Any]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            texts = {name: given.pop(_parameter(name)) for name in names}
            command(**given, aliases={key: text for key, text in texts.items() if text is not None})

        kept = without(command, "aliases")
        added = [
            Parameter(
                _parameter(name),
                Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[str | None, _option(name, ALIASES[name])],
            )
            for name in names
        ]
        declare(called, [*kept, *added])
        return called

    return add


def with_options_of(
    other: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator that adds the arguments and options of another command to a command.

    The command has a parameter `shared`, which gets their values by name. Short forms are not
    among them.

    Args:
        other: The other command.
    """
    added = [
        one for one in signature(other).parameters.values() if not one.name.startswith(SHORT_FORM)
    ]

    def add(command: Callable[..., Any]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            command(shared={one.name: given.pop(one.name) for one in added}, **given)

        # Python demands that arguments come before options.
        every = [*without(command, "shared"), *added]
        declare(called, sorted(every, key=lambda one: one.kind))
        return called

    return add


def origins(aliases: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (option, key, text of the value) of the short forms that the user gave.

    >>> origins({"rounds": "10"})
    [('--rounds', 'train.rounds', '10')]
    """
    return [(f"--{name}", ALIASES[name].key, text) for name, text in aliases.items()]


def _parameter(name: str) -> str:
    """Return the name of the parameter of a short form, which no other parameter has."""
    return f"{SHORT_FORM}{name}"


def _option(name: str, alias: Alias) -> Any:
    complete = alias.complete
    return typer.Option(
        f"--{name}",
        metavar=alias.metavar,
        help=f"Sets {alias.key}: {alias.about}.",
        rich_help_panel=PANEL,
        show_default=False,
        autocompletion=None if complete is None else (lambda incomplete: complete(incomplete)),
    )
