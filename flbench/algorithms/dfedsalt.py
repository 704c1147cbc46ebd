"""DFedSalt: DFedAlt with sharpness-aware steps on the body (Shi et al., 2023)."""

from typing import ClassVar

from pydantic import Field

from flbench.algorithms.dfedalt import DFedAlt, DFedAltConfig
from flbench.algorithms.registry import ALGORITHMS
from flbench.config.schema import AlgorithmConfig


class DFedSaltConfig(DFedAltConfig):
    """Keys of DFedSalt."""

    rho: float = Field(
        0.7, ge=0, description="radius of the sharpness-aware body step; 0 is DFedAlt"
    )


@ALGORITHMS.register("dfedsalt")
class DFedSalt(DFedAlt):
    """DFedAlt whose body steps along the gradient at u + rho g / ||g||.

    rho = 0.7 is from general knowledge of the paper, whose text was not at hand.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DFedSaltConfig
    config: DFedSaltConfig
