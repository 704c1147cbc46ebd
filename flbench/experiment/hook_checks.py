"""Checks of what a method's hooks return, where a mistake would give wrong numbers in silence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from flbench.algorithms.base import Algorithm, Deployment
from flbench.client.program import LocalProgram
from flbench.core.errors import ConfigError, UnknownNameError, did_you_mean
from flbench.core.own_names import check_metric
from flbench.core.tree import write_counts
from flbench.core.types import Dispatch, State, Tree, Update


def cohort(algorithm: Algorithm, ids: Any) -> None:
    """Raise a ConfigError if a cohort is no tensor of different ids of clients."""
    count = algorithm.setting.clients
    is_list = isinstance(ids, Tensor) and ids.ndim == 1 and not ids.is_floating_point()
    found = ids.tolist() if is_list else []
    if not is_list or len(set(found)) < len(found) or not all(0 <= one < count for one in found):
        raise _wrong(
            algorithm,
            "cohort",
            repr(ids),
            f"a tensor with ids of the {count} clients, 0 to {count - 1}, each once",
        )


def dispatch(algorithm: Algorithm, hook: str, found: Any, clients: int) -> None:
    """Raise a ConfigError if a dispatch does not have a row for each client.

    Args:
        algorithm: The method.
        hook: The hook that has returned the dispatch, or the model with it.
        found: The dispatch.
        clients: Number of the clients.
    """
    if not isinstance(found, Dispatch):
        raise _wrong(algorithm, hook, repr(found), "a Dispatch")
    for name, value in found.rows.values.items():
        if value.ndim == 0 or len(value) != clients:
            raise _wrong(
                algorithm,
                hook,
                f"`rows` in which `{name}` has the shape {list(value.shape)}",
                f"[{clients}, ...]: a row for each client of `ids`, such as `tensor[ids]`",
            )


def deployed(algorithm: Algorithm, models: Any, clients: int) -> None:
    """Raise a ConfigError if `deploy` has not returned models by name for some clients."""
    is_dict = isinstance(models, dict) and next(iter(models), None) == "personal"
    if not is_dict or not all(isinstance(one, Deployment) for one in models.values()):
        wanted = "a dict of Deployments, of which the first is called `personal`"
        raise _wrong(algorithm, "deploy", repr(models), wanted)
    for name, model in models.items():
        check_metric(name, f"{_hook(algorithm, 'deploy')} gives a model")
        dispatch(algorithm, "deploy", model.dispatch, clients)


def update(algorithm: Algorithm, found: Any, state: State, clients: int) -> None:
    """Check an update of the server: its tensors, its metrics, and rows of the cohort in its reply.

    Args:
        algorithm: The method.
        found: Result of `aggregate`.
        state: The complete state.
        clients: Number of clients K of the cohort that have finished.

    Raises:
        UnknownNameError: There are no rows for a tensor of the reply.
        ConfigError: It is no Update, or a tensor of it has another shape than it must have.
    """
    hook = "aggregate"
    if not isinstance(found, Update):
        raise _wrong(algorithm, hook, type(found).__name__, "an Update")
    of_net = algorithm.setting.net.names("all") & state.server.keys()
    for name, value in found.server.items():
        got = list(value.shape) if isinstance(value, Tensor) else None
        # Methods with several models, which may become more, have them in rows.
        wanted = list(state.server[name].shape) if name in of_net else got
        if got is None or wanted is None or (len(got), got[1:]) != (len(wanted), wanted[1:]):
            kind = type(value).__name__
            shape = f" of the shape {wanted}" if wanted else ""
            raise _wrong(algorithm, hook, f"`{name}` as {kind} {got or ''}", f"a tensor{shape}")
    for name, metric in found.metrics.items():
        check_metric(name, f"{_hook(algorithm, hook)} gives a metric")
        try:
            float(metric)
        except (TypeError, ValueError, RuntimeError) as error:
            kind = type(metric).__name__
            raise _wrong(algorithm, hook, f"the metric {name!r} as {kind}", "a number") from error
    for name, value in (found.reply.values if found.reply else {}).items():
        rows = state.clients.get(name)
        if rows is None:
            raise UnknownNameError(
                f"the reply names `{name}`, for which `init` returned no rows."
                f"{did_you_mean(name, state.clients)} A reply has names of the clients' tree."
            )
        if list(value.shape) != [clients, *rows.shape[1:]]:
            raise _wrong(
                algorithm,
                hook,
                f"a reply in which `{name}` has the shape {list(value.shape)}",
                f"{[clients, *rows.shape[1:]]}: a row for each client of `results.ids`",
            )


@contextmanager
def unwritten(algorithm: Algorithm, hook: str, what: str, tree: Tree) -> Iterator[None]:
    """Return a context manager in which a hook must not write to a tree of the state in place.

    Args:
        algorithm: The method.
        hook: The hook that is called.
        what: `server` or `clients`.
        tree: The tree.
    """
    before = write_counts(tree)
    yield
    if write_counts(tree) != before:
        raise ConfigError(
            f"{_hook(algorithm, hook)} has written to `state.{what}` in place. Return new values,"
            " and write to copies."
        )


def kept(program: LocalProgram, state: State) -> None:
    """Check that there are rows for all leaves that a program keeps.

    Args:
        program: The local program.
        state: A state of the run; `init` decides which rows there are.

    Raises:
        UnknownNameError: There are no rows for one of them.
    """
    if strange := sorted(program.keeps - state.clients.keys()):
        raise UnknownNameError(
            f"`keeps` of the local program names `{strange[0]}`, for which `init` returned no rows."
            f"{did_you_mean(strange[0], state.clients)} The clients' tree that `init` returns needs"
            " a tensor [N, ...] of this name."
        )


def _wrong(algorithm: Algorithm, hook: str, got: str, wanted: str) -> ConfigError:
    """Return the error of a hook that has returned something else than it must."""
    return ConfigError(f"{_hook(algorithm, hook)} returned {got}. It must return {wanted}.")


def _hook(algorithm: Algorithm, hook: str) -> str:
    """Return method, class and hook, as the beginning of a sentence."""
    name = getattr(algorithm, "name", type(algorithm).__name__)
    return f"`algorithm.name={name}`: {type(algorithm).__name__}.{hook}"
