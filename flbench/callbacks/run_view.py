"""What callbacks see of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

from pydantic import BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor

from flbench.config.schema import Config
from flbench.core.types import State, Tree
from flbench.results.metrics_file import Row


class Stop(BaseModel):
    """A callback's request to stop the run.

    Attributes:
        reason: Why, as a sentence without a full stop.
        round: Round after which the run stopped; None as long as it has not.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    reason: str
    round: NonNegativeInt | None = None


class Memory(BaseModel):
    """What a checkpoint stores for callbacks.

    Attributes:
        callbacks: What each callback remembers, by the callback's name.
        notes: Notes that callbacks have added to the run.
        stop: The request to stop the run; None if there is none.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    callbacks: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    stop: Stop | None = None

    def tree(self) -> dict[str, Any]:
        """Return the fields that are not empty, as JSON values."""
        return self.model_dump(exclude_defaults=True)


@dataclass
class Progress:
    """How far a run is. The loop changes it, and callbacks see it through a `RunView`.

    Attributes:
        rows: Rows of metrics.csv written so far; the list grows.
        tell: Function that shows a note to the user.
        state: State after the last round; set before the first hook is called.
        loss: Mean training loss of the cohort in the last round; NaN if no client took a step.
        notes: Notes that callbacks have added, each once.
        stop: The request to stop the run.
        summary: Content of summary.json; None before the run is finished.
    """

    rows: list[Row]
    tell: Callable[[str], None]
    state: State = field(init=False)
    loss: float = float("nan")
    notes: list[str] = field(default_factory=list)
    stop: Stop | None = None
    summary: dict[str, Any] | None = None


class Copies(Mapping[str, Tensor]):
    """A mapping of tensors that returns a copy of each tensor that is asked for.

    Args:
        tree: The tensors.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def __getitem__(self, name: str) -> Tensor:
        return self._tree[name].detach().clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)


class Rows(Sequence[Row]):
    """A list of rows that cannot be changed, and that is not copied as a whole.

    Args:
        rows: The rows; the list may grow.
    """

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)


class RunView:
    """A read-only view of a run, the argument `run` of a callback's hooks.

    Tensors are copied when they are asked for, one at a time. A copy may be written to; that does
    not change the run.

    Args:
        progress: How far the run is.
        config: The complete configuration.
        path: The run folder.
        class_names: Names of the C classes.
        clients: Number of clients N.
        client_names: Names of the N clients; empty for clients without names.
        weights: Function that returns the weights of a client's model, for `weights`.
        module: Optimizer and hyper-parameters of a LightningModule of the user; None for others.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        config: Config,
        path: Path,
        class_names: Sequence[str],
        clients: int,
        client_names: Sequence[str] = (),
        weights: Callable[[State, int], Tree],
        module: Mapping[str, Any] | None = None,
    ) -> None:
        self._module = MappingProxyType(dict(module or {}))
        self._progress, self._weights = progress, weights
        self._config, self._path = config, path
        self._class_names, self._clients = tuple(class_names), clients
        self._client_names = tuple(client_names)
        self._newest: dict[str, float] = {}
        self._read = 0  # rows whose values `_newest` has

    @property
    def config(self) -> Config:
        """The complete configuration of the run; it is immutable."""
        return self._config

    @property
    def module(self) -> Mapping[str, Any]:
        """What a LightningModule of the user trains by; empty for other nets.

        `optimizer` has the class (`name`) and the arguments of its optimizer, `hyperparameters`
        what its `save_hyperparameters` has saved.
        """
        return self._module

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._path

    @property
    def round(self) -> int:
        """Number of rounds completed."""
        return self._progress.state.round

    @property
    def rounds(self) -> int:
        """Number of rounds of the run, `train.rounds`; it may be stopped earlier."""
        return self._config.train.rounds

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self._class_names

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return self._clients

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the N clients, such as those of their files; empty for clients without names."""
        return self._client_names

    @property
    def loss(self) -> float:
        """Mean training loss of the cohort in the last round; NaN if no client took a step."""
        return self._progress.loss

    @property
    def rows(self) -> Sequence[Row]:
        """All rows of metrics.csv so far, of a resumed run also those from before."""
        return Rows(self._progress.rows)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest value of each metric by name, such as `validation/personal/accuracy`."""
        for row in self._progress.rows[self._read :]:
            self._newest[row.full_name] = row.value
        self._read = len(self._progress.rows)
        return MappingProxyType(self._newest)

    def history(self, metric: str) -> dict[int, float]:
        """Return all values of a metric by round; empty if there is no such metric.

        Args:
            metric: Name of the metric, such as `train/loss`.
        """
        return {row.round: row.value for row in self._progress.rows if row.full_name == metric}

    @property
    def server(self) -> Mapping[str, Tensor]:
        """The tensors that the server stores; each access copies one tensor."""
        return Copies(self._progress.state.server)

    @property
    def participation_count(self) -> Tensor:
        """[N] int64, number of trainings that each client has completed; a copy."""
        return self._progress.state.participation_count.clone()

    def client(self, client: int) -> Tree:
        """Return copies of the tensors that a client keeps between rounds.

        Args:
            client: Id of the client in [0, N).

        Raises:
            IndexError: There is no such client.
        """
        rows = self._progress.state.clients
        client = self._checked(client)
        return {name: value[client].detach().clone() for name, value in rows.items()}

    def weights(self, client: int) -> Tree:
        """Return the parameters and buffers of the model that a client is evaluated with.

        They are computed when this is called, for one client. `net.load_state_dict` accepts them.

        Args:
            client: Id of the client in [0, N).

        Raises:
            IndexError: There is no such client.
        """
        weights = self._weights(self._progress.state, self._checked(client))
        return {name: value.detach().clone() for name, value in weights.items()}

    @property
    def summary(self) -> dict[str, Any] | None:
        """Content of summary.json, a copy; None before the run is finished."""
        return deepcopy(self._progress.summary)

    @property
    def stopped(self) -> str | None:
        """The reason for which a callback has stopped the run; None if none has."""
        stop = self._progress.stop
        return None if stop is None else stop.reason

    def stop(self, reason: str) -> None:
        """End the run after the current round.

        The models are evaluated a last time, and all files are written as at the end of an
        ordinary run. `stopped` in summary.json gives the round and the reason. A round of a set-up
        stage is followed by further rounds until one that counts is completed.

        Args:
            reason: Why, in words; of several requests, the first one counts.
        """
        if self._progress.stop is None:
            self._progress.stop = Stop(reason=reason)

    def note(self, text: str) -> None:
        """Show a note to the user, and add it to `notes` in summary.json, where it stands once.

        Args:
            text: One sentence.
        """
        if text not in self._progress.notes:
            self._progress.notes.append(text)
        self._progress.tell(text)

    def _checked(self, client: int) -> int:
        if not 0 <= client < self._clients:
            raise IndexError(f"there is no client {client}: ids are 0 to {self._clients - 1}")
        return client
