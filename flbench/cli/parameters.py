"""Parameters that a command gets from elsewhere than its own signature."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any


def without(command: Callable[..., Any], name: str) -> list[Parameter]:
    """Return the parameters of a command, but one."""
    return [one for one in signature(command).parameters.values() if one.name != name]


def declare(command: Any, parameters: list[Parameter]) -> None:
    """Give a command the parameters that Typer makes options of. Typer reads both places."""
    command.__signature__ = signature(command).replace(parameters=parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
