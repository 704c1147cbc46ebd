"""What callbacks see of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor

from flbench.config.schema import Config
from flbench.core.tree import copied
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
        notes: Notes that callbacks have added to the run, each once.
        stop: The request to stop the run; None if there is none.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    callbacks: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    stop: Stop | None = None

    def tree(self) -> dict[str, Any]:
        """Return the fields that are not empty, as JSON values."""
        return self.model_dump(exclude_defaults=True)


@dataclass(frozen=True, eq=False, repr=False)
class RunView:
    """The argument `run` of a callback's hooks: the run as it is when the hook is called.

    What a callback writes to tensors that it gets does not change the run.

    Attributes:
        config: The complete configuration of the run; it is immutable.
        path: The run folder.
        clients: Number of clients N.
        client_names: Names of the N clients, such as those of their files; empty without names.
        class_names: Names of the C classes.
        module: What a LightningModule of the user trains by; empty for other nets. `optimizer` has
            the class (`name`) and the arguments of its optimizer, `hyperparameters` what its
            `save_hyperparameters` has saved.
        loss: Mean training loss of the cohort in the last round in which a client took a step; NaN
            before it.
        rows: All rows of metrics.csv so far, of a resumed run also those from before.
        metrics: The newest value of each metric by name, such as `validation/personal/accuracy`.
        summary: Content of summary.json; None before the run is finished.
        state: State of the run, for this class alone.
        memory: Where `stop` and `note` are stored, for this class alone.
        seconds: Seconds spent so far by purpose: `train`, `evaluate`, `write`, and `total`.
        tell: Function that shows a note to the user, for this class alone.
        deployed: Function that returns the weights of a client's model, for `weights`.
    """

    config: Config
    path: Path
    clients: int
    client_names: tuple[str, ...]
    class_names: tuple[str, ...]
    module: Mapping[str, Any]
    loss: float
    rows: tuple[Row, ...]
    metrics: Mapping[str, float]
    summary: dict[str, Any] | None
    state: State
    memory: Memory
    seconds: Mapping[str, float]
    tell: Callable[[str], None]
    deployed: Callable[[State, int], Tree]

    @property
    def round(self) -> int:
        """Number of rounds completed."""
        return self.state.round

    @property
    def rounds(self) -> int:
        """Number of rounds of the run, `train.rounds`; it may be stopped earlier."""
        return self.config.train.rounds

    def history(self, metric: str) -> dict[int, float]:
        """Return all values of a metric by round; empty if there is no such metric.

        Args:
            metric: Name of the metric, such as `train/loss`.
        """
        return {row.round: row.value for row in self.rows if row.full_name == metric}

    @property
    def server(self) -> Mapping[str, Tensor]:
        """Copies of the tensors that the server stores."""
        return MappingProxyType(copied(self.state.server))

    @property
    def participation_count(self) -> Tensor:
        """[N] int64, number of trainings that each client has completed; a copy."""
        return self.state.participation_count.clone()

    def client(self, client: int) -> Tree:
        """Return copies of the tensors that a client keeps between rounds.

        Args:
            client: Id of the client in [0, N).

        Raises:
            IndexError: There is no such client.
        """
        client = range(self.clients)[client]
        return copied({name: value[client] for name, value in self.state.clients.items()})

    def weights(self, client: int) -> Tree:
        """Return the parameters and buffers of the model that a client is evaluated with.

        They are computed when this is called, for one client. `net.load_state_dict` accepts them.

        Args:
            client: Id of the client in [0, N).

        Raises:
            IndexError: There is no such client.
        """
        return copied(self.deployed(self.state, range(self.clients)[client]))

    @property
    def stopped(self) -> str | None:
        """The reason for which a callback has stopped the run; None if none has."""
        return None if self.memory.stop is None else self.memory.stop.reason

    def stop(self, reason: str) -> None:
        """End the run after the current round.

        The models are evaluated a last time, and all files are written as at the end of an
        ordinary run. `stopped` in summary.json gives the round and the reason. A round of a set-up
        stage is followed by further rounds until one that counts is completed.

        Args:
            reason: Why, in words; of several requests, the first one counts.
        """
        self.memory.stop = self.memory.stop or Stop(reason=reason)

    def note(self, text: str) -> None:
        """Show a note to the user, and add it to `notes` in summary.json, where it stands once.

        Args:
            text: One sentence.
        """
        if text not in self.memory.notes:
            self.memory.notes.append(text)
        self.tell(text)
