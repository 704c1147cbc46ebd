"""Checks of what a method's hooks return, for the smoke round and for clients that join later."""

import copy
from typing import Any

from torch import Tensor

from flbench.algorithms.base import Algorithm, Deployment
from flbench.client.program import LocalProgram
from flbench.core.errors import ConfigError, UnknownNameError, did_you_mean
from flbench.core.names import check_metric
from flbench.core.tree import write_counts
from flbench.core.types import Dispatch, Message, State, Update
from flbench.experiment.communication import apply_mask


def checked(algorithm: Algorithm, start: State) -> Algorithm:
    """Return a method whose hooks check what they return.

    Args:
        algorithm: The method.
        start: State before the first round; it has the names and shapes of the clients' rows.
    """
    found: Any = copy.copy(algorithm)

    def checked_cohort(*given: Any) -> Any:
        cohort(algorithm, ids := algorithm.cohort(*given))
        return ids

    def checked_dispatch(state: State, ids: Tensor) -> Any:
        dispatch(algorithm, "dispatch", sent := algorithm.dispatch(state, ids), len(ids))
        return sent

    def checked_models(state: State, ids: Tensor) -> Any:
        deployed(algorithm, models := algorithm.deployed(state, ids), len(ids))
        return models

    def checked_aggregate(state: State, results: Any) -> Any:
        before = write_counts(state.clients)
        made = algorithm.aggregate(state, results)
        update(algorithm, made, start, len(results.ids))
        unwritten(algorithm, state, before)
        return made

    found.cohort, found.dispatch = checked_cohort, checked_dispatch
    found.deployed, found.aggregate = checked_models, checked_aggregate
    return found  # type: ignore[no-any-return]


def cohort(algorithm: Algorithm, ids: Any) -> None:
    """Raise a ConfigError if a cohort is no tensor of different ids of clients."""
    count = algorithm.setting.clients
    found = ids.tolist() if isinstance(ids, Tensor) and not ids.is_floating_point() else None
    is_list = isinstance(found, list) and ids.ndim == 1 and len(set(found)) == len(found)
    if not is_list or not all(0 <= one < count for one in found or ()):
        raise ConfigError(
            f"{_hook(algorithm, 'cohort')} returned {ids!r}. It must return a tensor of int64 with"
            f" ids of the {count} clients, 0 to {count - 1}, each once."
        )


def dispatch(algorithm: Algorithm, hook: str, found: Any, clients: int) -> None:
    """Raise a ConfigError if a dispatch does not have a row for each client.

    Args:
        algorithm: The method.
        hook: The hook that has returned the dispatch, or the model with it.
        found: The dispatch.
        clients: Number of the clients.
    """
    if not isinstance(found, Dispatch) or not isinstance(found.rows, Message):
        raise ConfigError(
            f"{_hook(algorithm, hook)} returned {found!r}. It must return a Dispatch, whose `rows`"
            " are a Message."
        )
    for name, value in found.rows.values.items():
        if value.ndim == 0 or len(value) != clients:
            raise ConfigError(
                f"{_hook(algorithm, hook)} returned `rows` in which `{name}` has the shape"
                f" {list(value.shape)}. For {clients} clients it must be [{clients}, ...]: a row"
                " for each client of `ids`, in their order, such as `tensor[ids]`."
            )


def deployed(algorithm: Algorithm, models: Any, clients: int) -> None:
    """Raise a ConfigError if `deploy` has not returned models by name for some clients."""
    is_dict = isinstance(models, dict) and next(iter(models), None) == "personal"
    if not is_dict or not all(isinstance(one, Deployment) for one in models.values()):
        raise ConfigError(
            f"{_hook(algorithm, 'deploy')} returned {models!r}. It must return a dict of"
            " Deployments, of which the first is called `personal`."
        )
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
        UnknownNameError: There are no rows for a tensor of the reply, or a mask belongs to none.
        ConfigError: It is no Update, or a tensor or metric of it is not what it should be.
    """
    who = _hook(algorithm, "aggregate")
    if not isinstance(found, Update):
        raise ConfigError(
            f"{who} returned {type(found).__name__}. It must return an Update, whose `server` has"
            " the entries that change."
        )
    of_net = algorithm.setting.net.names("all") & state.server.keys()
    for name, value in found.server.items():
        # Methods with several models, which may become more, have them in rows.
        wanted = f"[*, {str(list(state.server[name].shape[1:]))[1:]}" if name in of_net else None
        is_like = isinstance(value, Tensor) and (
            wanted is None
            or (value.ndim, value.shape[1:])
            == (state.server[name].ndim, state.server[name].shape[1:])
        )
        if not is_like:
            raise ConfigError(
                f"{who} returned `{name}` as {type(value).__name__} of the shape"
                f" {list(getattr(value, 'shape', ()))}. It must be a tensor"
                f"{f' of the shape {wanted}' if wanted else ''}."
            )
    for name, metric in found.metrics.items():
        check_metric(name, f"{who} gives a metric")
        try:
            float(metric)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{who} gives the metric {name!r} a value of type {type(metric).__name__}. Give one"
                " number."
            ) from error
    for name, value in (apply_mask(found.reply).values if found.reply else {}).items():
        rows = state.clients.get(name)
        if rows is None:
            raise UnknownNameError(
                f"the reply names `{name}`, for which `init` returned no rows."
                f"{did_you_mean(name, state.clients)} A reply has names of the clients' tree."
            )
        if list(value.shape) != [clients, *rows.shape[1:]]:
            raise ConfigError(
                f"`{name}` of the reply has the shape {list(value.shape)}. A reply to {clients}"
                f" clients must have the shape {[clients, *rows.shape[1:]]}: a row for each client"
                " of `results.ids`."
            )


def unwritten(algorithm: Algorithm, state: State, before: list[int]) -> None:
    """Raise a ConfigError if a hook has written to the clients' leaves in place.

    Args:
        algorithm: The method.
        state: The complete state.
        before: `write_counts` of the clients' leaves before the hook was called.
    """
    if write_counts(state.clients) != before:
        raise ConfigError(
            f"{_hook(algorithm, 'aggregate')} has written to `state.clients`. Return the rows as"
            " `reply` of the Update, or write to a copy."
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


def _hook(algorithm: Algorithm, hook: str) -> str:
    """Return method, class and hook, as the beginning of a sentence."""
    name = getattr(algorithm, "name", type(algorithm).__name__)
    return f"`algorithm.name={name}`: {type(algorithm).__name__}.{hook}"
