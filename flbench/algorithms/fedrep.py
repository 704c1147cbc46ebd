"""FedRep: the head is trained first, then the body; the body is shared (Collins et al., 2021)."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from flbench.algorithms.base import Paper
from flbench.algorithms.fedper import FedPer, FedPerConfig
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.moments import estimated
from flbench.client.program import LocalProgram, Phase
from flbench.config.schema import AlgorithmConfig, epochs
from flbench.core.types import State


class FedRepConfig(FedPerConfig):
    """Keys of FedRep."""

    head_epochs: int | None = epochs(
        None, "of the head in a round (default: train.local_epochs - body_epochs)"
    )
    body_epochs: int = epochs(1, "of the body in a round, after the head's")
    head_batchnorm: Literal["eval", "train"] = Field(
        "eval",
        description="BatchNorm while the head is trained: frozen as the body is, or its statistics"
        " move",
    )
    finetune_epochs: int = epochs(
        0,
        "of the head at every client before it is evaluated, discarded afterwards (the paper's after"
        " the last round); the result stands beside it as `ft`",
        ge=0,
    )


@ALGORITHMS.register("fedrep")
class FedRep(FedPer):
    """Client: head epochs under a frozen body, then body epochs under a frozen head.

    Source: Algorithm 1. Each phase has an optimiser of its own, where the authors' code has one for
    both and momentum leaks from one to the other. `gm` is FedPer's.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedRepConfig
    config: FedRepConfig
    paper = Paper(
        "Exploiting Shared Representations for Personalized Federated Learning",
        "Collins, Hassani, Mokhtari, Shakkottai",
        "ICML 2021",
    )

    def head_epochs(self) -> int:
        """Return the epochs of the head in a round."""
        said, rest = self.config.head_epochs, self.setting.train.local_epochs
        return rest - self.config.body_epochs if said is None else said

    def requires(self) -> list[str]:
        said = super().requires()
        if self.head_epochs() < 1:
            said.append(
                "`train.local_epochs` must be larger than `algorithm.body_epochs`="
                f"{self.config.body_epochs}, got {self.setting.train.local_epochs}: the head is"
                " trained in the epochs that are left. Raise it, or set `algorithm.head_epochs`."
            )
        personal = self.personal() & set(self.setting.net.parameters)
        if not personal or len(personal) == len(self.setting.net.parameters):
            said.append(
                "there must be personal layers and shared ones, each trained in a phase of its own,"
                f" got {len(personal)} personal parameters of {len(self.setting.net.parameters)}."
                " Change `algorithm.layers` or `model.name`."
            )
        return said

    def notes(self) -> list[str]:
        head, body = self.head_epochs(), self.config.body_epochs
        if head + body == self.setting.train.local_epochs:
            return []
        return [
            f"fedrep: a client trains {head} + {body} epochs in a round, with other methods"
            f" train.local_epochs={self.setting.train.local_epochs}."
        ]

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        shared = frozenset(self.setting.net.parameters) - self.personal()
        head = self.head_phase(self.head_epochs())
        body = self.phase(*self.terms(), train=shared, epochs=self.config.body_epochs)
        # Where statistics are dropped the seeded ones would be used, which fit no weights.
        fresh = estimated(self.setting) if self.config.head_batchnorm == "eval" else ()
        return LocalProgram((*fresh, head, body), keeps, sends)

    def tuning(self) -> Phase:
        return self.head_phase(self.config.finetune_epochs)

    def head_phase(self, epochs: int) -> Phase:
        """Return epochs of the personal layers alone."""
        phase = self.phase(*self.terms(), train=self.personal(), epochs=epochs)
        return replace(phase, batchnorm=self.config.head_batchnorm)
