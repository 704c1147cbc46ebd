"""Label smoothing: cross entropy of labels that are mixed with the uniform distribution."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from flbench.config.schema import TermConfig
from flbench.core.registry import TERMS
from flbench.core.types import Context
from flbench.losses.similarity import full_precision, masked_mean, wide


class LabelSmoothingConfig(TermConfig):
    """Keys of the term `label_smoothing`."""

    epsilon: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of the uniform distribution in the label; 0 is cross entropy",
    )


@TERMS.register("label_smoothing")
@dataclass(frozen=True)
class LabelSmoothing:
    """Mean over the batch of -sum_k q_k log softmax(l)[k], in nats.

    l [B, C] are the logits, y [B] the labels, and q_k = (1 - epsilon) [k = y] + epsilon / C. With
    epsilon = 0 the term is cross entropy. It reads no class counts: a class of which the client has
    no sample has the share epsilon / C of every label, as all classes have. This keeps its logit
    from being lowered without bound.
    Source: label smoothing (Szegedy et al., CVPR 2016), section 7; deviations: none.

    Attributes:
        epsilon: Share of the uniform distribution, in [0, 1].
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    Config: ClassVar[type[TermConfig]] = LabelSmoothingConfig

    epsilon: float
    weight: float | str = 1.0

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        logits, batch = context.out.logits, context.batch
        with full_precision(logits):
            logarithms = logits.to(wide(logits)).log_softmax(dim=1)  # [B, C]
            label = logarithms.gather(1, batch.y[:, None])[:, 0]  # [B]
            mixed = (1 - self.epsilon) * label + self.epsilon * logarithms.mean(dim=1)
            return masked_mean(-mixed, batch.mask)
