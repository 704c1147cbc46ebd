"""Calls the hooks of several callbacks, and says which one failed."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flbench.callbacks.base import Callback
from flbench.config.schema import Config
from flbench.core.errors import CallbackError, ConfigError, RunError, UserError

if TYPE_CHECKING:
    from flbench.metrics.own import OwnMetric


class CallbackList:
    """The callbacks of a run. Hooks are called in the order of the callbacks.

    Raises:
        ConfigError: One of them is not an object of a subclass of `Callback`.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = _named(callbacks)
        self._deferred: UserError | RunError | None = None

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def prepare(self, config: Config, metrics: Sequence["OwnMetric"] = ()) -> None:
        """Put the callback of `train.early_stopping` first, and prepare all for a run.

        Raises:
            ConfigError: A callback cannot work in the run.
        """
        stop = config.train.early_stopping
        if stop.patience is not None:
            from flbench.callbacks.early_stopping import EarlyStopping

            asked: dict[str, Any] = stop.model_dump()
            self._callbacks = _named([EarlyStopping(**asked), *self._callbacks.values()])
        self.call("prepare", tuple(metrics))

    def call(self, hook: str, *arguments: object) -> None:
        """Call a hook of all callbacks; see `Callback`. Then raise the first error.

        Raises:
            CallbackError: The hook of a callback raised an exception, which is chained.
            UserError: A hook raised this error; so with a RunError.
        """
        first, self._deferred = self._deferred, None
        for name, callback in self._callbacks.items():
            try:
                _call(name, callback, hook, *arguments)
            except (UserError, RunError) as error:
                first = first or error
        if first is not None:
            raise first

    def on_note(self, text: str) -> None:
        """Call this hook of all callbacks; an error is raised when the next hook is called."""
        try:
            self.call("on_note", text)
        except (UserError, RunError) as failure:
            self._deferred = failure

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return what the callbacks remember, by name; those that remember nothing are left out.

        Raises:
            CallbackError: `state_dict` of a callback failed, or has values that are not JSON.
        """
        memory = {}
        for name, callback in self._callbacks.items():
            if state := _call(name, callback, "state_dict"):
                try:
                    memory[name] = json.loads(json.dumps(state))
                except (TypeError, ValueError) as error:
                    raise CallbackError(
                        f"what `state_dict` of the callback {name} returns cannot be saved"
                        f" ({error}). Return a dict of numbers, texts, lists and dicts."
                    ) from error
        return memory

    def load_state_dict(self, memory: Mapping[str, dict[str, Any]]) -> None:
        """Give the callbacks what they remembered at a checkpoint.

        A note names the callbacks of the checkpoint that this run does not have.
        """
        for name in memory.keys() & self._callbacks.keys():
            _call(name, self._callbacks[name], "load_state_dict", memory[name])
        if absent := [name for name in memory if name not in self._callbacks]:
            self.on_note(
                f"the run began with the callbacks {', '.join(absent)}, which this resume does not"
                " have: what they remember is lost."
            )


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Return callbacks by name; raise a ConfigError if one of them is not a callback."""
    named: dict[str, Callback] = {}
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"`callbacks` has {callback!r}, which is not an object of a subclass of"
                " flbench.callbacks.Callback. Loggers are given as `logger`."
            )
        name = type(callback).__name__
        number = 1 + sum(type(other).__name__ == name for other in named.values())
        named[name if number == 1 else f"{name}#{number}"] = callback
    return named


def _call(name: str, callback: Callback, hook: str, *arguments: object) -> Any:
    """Call a method of a callback; see `CallbackList.call`."""
    try:
        return getattr(callback, hook)(*arguments)
    except (UserError, RunError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise CallbackError(f"the callback {name} failed in `{hook}` ({what}).") from error
