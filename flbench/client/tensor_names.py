"""Errors for names of tensors that a local program reads or sends and that nothing writes."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from flbench.client.program import LocalProgram, Phase, Step
from flbench.core.errors import UnknownNameError, did_you_mean
from flbench.core.user_code_errors import user_line
from flbench.core.wording import listed


@contextmanager
def naming(
    step: Step, program: LocalProgram, leaves: Collection[str], ctx: Collection[str]
) -> Iterator[None]:
    """Return a context manager in which a step that reads what nothing wrote names the tensor.

    The exception alone tells which names exist, so a method may compute names in any way.

    Args:
        step: The step that runs.
        program: The local program.
        leaves: Names of the client's tensors in this step.
        ctx: Names of the entries of ctx in this step.
    """
    number = next((k for k, one in enumerate(program.steps, start=1) if one is step), 0)
    place = f"step {number} ({type(step).__name__})"
    try:
        yield
    except UnknownNameError as error:
        raise UnknownNameError(f"{place}: {error}") from error
    except KeyError as error:
        name = error.args[0] if len(error.args) == 1 else None
        if not isinstance(name, str) or (name in leaves and name in ctx):
            raise  # the key of another mapping
        raise UnknownNameError(
            f"{place} raised KeyError for `{name}`{user_line(error)}. Before this step ctx has"
            f" {_first(ctx)}, and the client has {_first(leaves)}."
            f"{did_you_mean(name, [*ctx, *leaves])}"
        ) from error


def untrained(phase: Phase, leaves: Collection[str]) -> UnknownNameError:
    """Return the error for a phase that trains nothing that the client has."""
    names = [phase.train] if isinstance(phase.train, str) else sorted(phase.train)
    hint = did_you_mean(names[0], leaves) if names else ""
    return UnknownNameError(
        f"`train` is {_first([f'`{name}`' for name in names])}, which names no parameter of the"
        f" client.{hint} The client has {_first(leaves)}."
    )


def check_ends(program: LocalProgram, leaves: Collection[str]) -> None:
    """Check that a client has all tensors that its local program keeps, sends and masks.

    Args:
        program: The local program.
        leaves: Names of the client's tensors after the last step.

    Raises:
        UnknownNameError: `keeps`, `sends` or `masks` name a tensor that the client does not have.
    """
    masks = [mask for _, mask in program.masks]
    for field, names in (("sends", program.sends), ("keeps", program.keeps), ("masks", masks)):
        if unknown := [f"`{name}`" for name in sorted(names) if name not in leaves]:
            raise UnknownNameError(
                f"`{field}` of the local program names {_first(unknown)}, which no client has after"
                f" its {len(program.steps)} steps.{did_you_mean(unknown[0].strip('`'), leaves)} The"
                f" client has {_first(leaves)}."
            )


def _first(names: Collection[str]) -> str:
    """Return the first six names, for a message."""
    return listed(names, 6) or "none"
