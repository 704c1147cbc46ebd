"""What the methods for low-rank adapters (LoRA) have in common: their need of adapters, the head.

The weight W of a layer becomes W + alpha / rank * B A (`model.lora`, see `flbench.models.lora`). W
is frozen, so a method sees A, B and the head alone.
"""

from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from flbench.algorithms import ADAPTERS, Algorithm, AlgorithmConfig, LossTerm, Phase

Head = Literal["shared", "personal", "frozen"]
HEAD: Final = (
    "the head is trained and averaged, trained and kept by the client, or keeps its first values"
)
"""Description of the key `head`."""


class AdapterConfig(AlgorithmConfig):
    """Keys of methods for adapters."""

    head: Head = Field("shared", description=HEAD)


class AdapterMethod(Algorithm):
    """A method that trains low-rank adapters and the head; its defaults are FedAvg on both.

    A subclass names in `personal` what clients keep, and in `frozen` what nobody trains.
    """

    Config: ClassVar[type[AlgorithmConfig]] = AdapterConfig
    config: AdapterConfig
    needs = (ADAPTERS,)

    def personal(self) -> frozenset[str]:
        return self.head("personal")

    def frozen(self) -> frozenset[str]:
        """Return the names of the leaves that are neither trained nor kept nor sent."""
        return self.head("frozen")

    def head(self, role: Head) -> frozenset[str]:
        """Return the names of the head's leaves if the head has this role, otherwise none."""
        return self.setting.net.names("head") if self.config.head == role else frozenset()

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        return keeps - self.frozen(), sends - self.frozen()

    def phase(
        self,
        *terms: LossTerm,
        train: str | frozenset[str] | None = None,
        epochs: int | None = None,
        **others: Any,
    ) -> Phase:
        if train is None:
            train = frozenset(self.setting.net.parameters) - self.frozen()
        return super().phase(*terms, train=train, epochs=epochs, **others)
