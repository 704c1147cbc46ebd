"""Errors for names of tensors that a local program reads or sends and that nothing writes."""

from collections.abc import Collection, Iterable, Mapping

from flbench.client.program import LocalProgram, Phase, Statistic, Step
from flbench.core import wording
from flbench.core.errors import UnknownNameError, did_you_mean
from flbench.core.user_code_errors import user_line

LISTED = 6  # names that a message lists


def place_of(step: Step, steps: Collection[Step]) -> str:
    """Return a step as the beginning of a sentence: its number, its kind and its name.

    >>> count = Statistic("before", dict)
    >>> place_of(count, (count,))
    'step 1 (Statistic `before`)'
    """
    number = next((k for k, one in enumerate(steps, start=1) if one is step), None)
    begin = "a step" if number is None else f"step {number}"
    if isinstance(step, Statistic):
        return f"{begin} (Statistic `{step.name}`)"
    if isinstance(step, Phase):
        return f"{begin} (Phase)"
    name = getattr(step.fn, "__qualname__", type(step.fn).__qualname__).rpartition(".")[2]
    return f"{begin} (Transform `{name}`)"


def unknown_read(
    error: KeyError | UnknownNameError,
    step: Step,
    steps: Collection[Step],
    leaves: Collection[str],
    ctx: Collection[str],
) -> UnknownNameError | None:
    """Return the error for a step that has read a tensor although nothing wrote it.

    The exception alone tells which names exist, so a method may compute names in any way.

    Args:
        error: What the step raised.
        step: The step.
        steps: All steps of the local program.
        leaves: Names of the client's tensors in this step.
        ctx: Names of the entries of ctx in this step.

    Returns:
        The error, or None if the exception has another cause: its key is no text, or it is a name
        that ctx and the client's tensors both have.
    """
    if isinstance(error, UnknownNameError):
        return UnknownNameError(f"{place_of(step, steps)}: {error}")
    name = error.args[0] if len(error.args) == 1 else None
    if not isinstance(name, str) or (name in leaves and name in ctx):
        return None
    begin = f"{place_of(step, steps)} raised KeyError for `{name}`{user_line(error)}."
    if name in leaves:
        return UnknownNameError(
            f"{begin} The client has a tensor of this name, which `leaves` contains. ctx does not"
            " contain it, and `start` contains only what the client has before the first step."
        )
    if name in ctx:
        return UnknownNameError(
            f"{begin} ctx has an entry of this name, and the client has no such tensor."
        )
    return UnknownNameError(
        f"{begin} Neither ctx ({listed(ctx)}) nor the client ({listed(leaves)}) has a tensor of"
        f" this name.{did_you_mean(name, [*ctx, *leaves])} ctx has what `dispatch` sends, and"
        " `NAME.KEY` for each key that a Statistic NAME before the step returns. The client has the"
        " net's tensors, the clients' tree of `init`, and what Transforms before the step return."
    )


def untrained(phase: Phase, leaves: Collection[str]) -> UnknownNameError:
    """Return the error for a phase that trains nothing that the client has.

    Args:
        phase: The phase.
        leaves: Names of the client's tensors.
    """
    names = [phase.train] if isinstance(phase.train, str) else sorted(phase.train)
    hint = did_you_mean(names[0], leaves) if names else ""
    return UnknownNameError(
        f"`train` is {listed([f'`{name}`' for name in names])}, which names no parameter of the"
        f" client.{hint} The client has {listed(leaves)}."
    )


def check_ends(program: LocalProgram, leaves: Collection[str]) -> None:
    """Check that a client has all tensors that its local program keeps, sends and masks.

    Args:
        program: The local program.
        leaves: Names of the client's tensors after the last step.

    Raises:
        UnknownNameError: `keeps`, `sends` or `masks` name a tensor that the client does not have.
    """
    wanted: Mapping[str, Iterable[str]] = {
        "sends": program.sends,
        "keeps": program.keeps,
        "masks": [mask for _, mask in program.masks],
    }
    for field, names in wanted.items():
        if unknown := sorted(name for name in names if name not in leaves):
            others = f" (and {len(unknown) - 1} others)" if len(unknown) > 1 else ""
            raise UnknownNameError(
                f"`{field}` of the local program names `{unknown[0]}`{others}, which no client has"
                f" after its {len(program.steps)} steps.{did_you_mean(unknown[0], leaves)} A client"
                " has the net's tensors, the clients' tree of `init`, and what a Transform returns."
            )


def listed(names: Collection[str]) -> str:
    """Return the first names, for a message.

    >>> listed(["loss", "w"]), listed([])
    ('loss, w', 'none')
    """
    return wording.listed(names, LISTED) or "none"
