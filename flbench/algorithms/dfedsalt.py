"""DFedSalt: DFedAlt with sharpness-aware steps on the body (Shi et al., 2023)."""

from pydantic import Field

import flbench.algorithms as fl
from flbench.algorithms.dfedalt import DFedAlt


@fl.ALGORITHMS.register("dfedsalt")
class DFedSalt(DFedAlt):
    """DFedAlt whose steps on the body u use the gradient at u + rho g / ||g||, g the gradient at u.

    The paper's text was not available; rho = 0.7 could not be checked against it.
    """

    class Config(DFedAlt.Config):
        """Keys of DFedSalt."""

        rho: float = Field(
            0.7, ge=0, description="radius of sharpness-aware steps on the body; 0 is DFedAlt"
        )

    config: Config
