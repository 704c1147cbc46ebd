"""What happens when a command cannot go on: one message per error, and an exit code."""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from flbench.cli.completion import key_like
from flbench.core import startup
from flbench.core.errors import RunError, UserError, shortened
from flbench.core.system_errors import as_flbench_errors
from flbench.core.text import printable
from flbench.reports.terminal import print_notes, told

# Typer has its own copy of Click, without a public name for the base of its errors.
USAGE_ERROR: Any = typer.BadParameter.__base__
MAX_MESSAGES: Final = 20  # messages about wrong input that are printed
MAX_LINE: Final = 800  # characters of a message; the cure, at its end, should not be cut
IMPORTS: Final = "importing PyTorch and other libraries"
"""What commands that train do first, for a line if that takes long."""


class Group(TyperGroup):
    """The commands; an error in one of them becomes a message and an exit code."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the options before the command."""
        with exit_codes():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Call the command that the user named."""
        with exit_codes():
            return super().invoke(ctx)


class Command(TyperCommand):
    """A command, in which an option that takes one value is given at most once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments. Typer would take the last of several values without a word."""
        for option in self.params:
            name = option.opts[0]
            count = sum(arg == name or arg.startswith(f"{name}=") for arg in args)
            takes_one = option.param_type_name == "option" and not getattr(option, "multiple", 0)
            if takes_one and not getattr(option, "is_flag", False) and count > 1:
                raise UserError(
                    f"{name} is given {count} times, but takes one value. Give it once."
                )
        return super().parse_args(ctx, args)


def _in_words(error: Any) -> str:
    """Return what is wrong with the arguments of a command."""
    option = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None
    parameters = error.ctx.command.params if option is not None else ()
    name = str(option).lstrip("-").lower().replace("-", "_")
    if any("key=value" in str(one.metavar) for one in parameters):
        meant = key_like(name)
        if meant and (meant.endswith(name) or not error.possibilities):
            return f"No such option: {option}. Did you mean {meant}=VALUE?"
    return shortened(printable(error.format_message()))


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print an expected error as a message, and exit without a traceback.

    Exit codes: 2 for an error in the user's input, 1 for an error during the run, 130 after Ctrl-C.
    If standard output is a pipe that nobody reads any more, such as that to `head`, the exit code
    is 1 and nothing is said.
    """
    try:
        with as_flbench_errors():
            try:
                yield
            except USAGE_ERROR as error:
                if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed
                    raise
                raise UserError(_in_words(error)) from None
            except BrokenPipeError:
                if not _is_output_closed():
                    raise
                # What Python would write when it ends would fail again.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(1) from None
    except UserError as error:
        print_error(error)
        raise typer.Exit(2) from None
    except RunError as error:
        print_error(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as error:
        if not error.args:  # a message was printed when it was raised; it says how to resume
            typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None


@contextmanager
def importing() -> Iterator[None]:
    """Context manager for imports of PyTorch, which tells the user if they take long.

    Every command that needs PyTorch imports the file that carries it out in this context.

    Ctrl-C ends the process at once: an exception in the middle of PyTorch's start would abort it
    with a message of its libraries, and nothing is there yet that could be saved.
    """
    ends = startup.is_own and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ends:
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        with told(IMPORTS, print_notes):
            startup.load_pytorch()
            yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_at_once(*_: object) -> None:
    """End this process as after Ctrl-C."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(130)


def _is_output_closed() -> bool:
    """Return whether standard output is a pipe whose reader has closed it."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # it is no file, or is closed here
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def print_error(error: object) -> None:
    """Print an error, one message per line; long messages are cut in the middle."""
    lines = printable(str(error)).splitlines()
    for line in lines[:MAX_MESSAGES]:
        typer.echo(f"error: {shortened(line, MAX_LINE)}", err=True)
    if len(lines) > MAX_MESSAGES:
        typer.echo(f"error: and {len(lines) - MAX_MESSAGES:,} more errors.", err=True)
