"""DisPFL+HP: DisPFL on weights that a hypernetwork generates (Li et al., IJCAI 2025)."""

from typing import ClassVar

from pydantic import Field

from flbench.algorithms.base import Communication
from flbench.algorithms.dfedhp import DFedHP, DFedHPConfig
from flbench.algorithms.dispfl import DisPFL, DisPFLConfig
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.sparse import Masked
from flbench.config.schema import AlgorithmConfig

MATRICES = ("hyper.in.weight", "hyper.out.weight")


class DisPFLHPConfig(DFedHPConfig, DisPFLConfig):
    """Keys of DisPFL+HP."""

    mask_phi: bool = Field(
        False,
        description="masks are on the two matrices of phi, which are mixed as DisPFL mixes weights,"
        " instead of private ones on the generated weights",
    )


@ALGORITHMS.register("dispfl-hp")
class DisPFLHP(DisPFL):
    """theta_i = m_i h(phi_i, z_i): training as in DFedHP, masks as in DisPFL.

    Only (phi, z) are exchanged, by plain averages: phi is dense. Masks stay with the client; prune
    and regrow look at |theta| and at the gradient with respect to theta. What comes in has the
    value that h gives it, and the new mask counts at once, for the models before mixing
    (`personal@local`) too. The head has no mask.

    `mask_phi`: theta_i = h(m_i phi_i, z_i); phi is pruned, sent and averaged where masks
    overlap, with z and biases dense, as DisPFL does with weights.

    Source: the paper's "DisPFL+HP", of which the text at hand says no more; all of this is our
    reading. It is DisPFL with `hypernetwork=true`, with the keys of both.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DisPFLHPConfig
    config: DisPFLHPConfig
    paper = DFedHP.paper
    communication = Communication(
        down="phi, z of each neighbour", up="phi, z to each neighbour", keeps="phi, z, head, masks"
    )

    def masked(self) -> tuple[str, ...]:
        return MATRICES if self.config.mask_phi else super().masked()

    def called(self) -> Masked:
        called = super().called()
        return Masked(MATRICES, outer=called.inner) if self.config.mask_phi else called
