"""A job: one training of a comparison or of a paper, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from flbench.config.schema import Config
from flbench.config.sources import Layer


@dataclass(frozen=True)
class Job:
    """One training of a campaign, which has an ordinary run folder.

    Attributes:
        name: Name that no other job of the campaign has.
        method: Label of the method, such as `hfcd`, or `hfcd tau=1`.
        data: Label of the data set; "" for the only one.
        setting: Label of the setting, such as `alpha=0.1`; "" for the only one.
        repetition: Number of the repetition, from 0.
        config: Its configuration.
        origins: Origin of each value by its dotted key.
    """

    name: str
    method: str
    data: str
    setting: str
    repetition: int
    config: Config
    origins: Mapping[str, str]

    @property
    def place(self) -> str:
        """Label of data set and setting."""
        return ", ".join(filter(None, (self.data or self.config.data.title, self.setting)))

    @property
    def title(self) -> str:
        """The job in words, for messages."""
        return f"{self.method}, {self.which}"

    @property
    def which(self) -> str:
        """Which of the jobs of its method it is, in words."""
        return f"{self.place}, repetition {self.repetition + 1}"

    @property
    def layer(self) -> Layer:
        """The whole configuration as one layer, without the origins of defaults.

        The class of a configuration depends on method and net, so that another process gets the
        layer instead.
        """
        return Layer(self.config.tree(), self.origins)


@dataclass(frozen=True)
class Task:
    """What the process that trains a job gets, besides the samples.

    Attributes:
        path: Run folder of the job, which need not exist; None for a new one below `output.dir`.
        layer: The whole configuration.
        changed: New values of keys that may change when a job is resumed.
        how_to_resume: What the user calls to resume the campaign; None for the command that resumes
            the run folder.
    """

    path: Path | None
    layer: Layer
    changed: Layer = field(default_factory=Layer)
    how_to_resume: str | None = None


@dataclass(frozen=True)
class Outcome:
    """How the training of a job ended.

    Attributes:
        reason: Why it failed; None if it is finished.
        notes: Sentences for the user.
        seconds: Seconds that it took.
        is_input: Whether the user's input is the reason, such as a key or a file.
    """

    reason: str | None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    is_input: bool = False

    @classmethod
    def refused(cls, error: Exception) -> Self:
        """Return the outcome of a job whose configuration or data cannot be used."""
        return cls(" ".join(str(error).split()), is_input=True)
