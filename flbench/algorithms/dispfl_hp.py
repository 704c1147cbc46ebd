"""DisPFL+HP: DisPFL on weights that a hypernetwork generates (Li et al., IJCAI 2025)."""

from typing import ClassVar

from pydantic import Field

from flbench.algorithms import ALGORITHMS, AlgorithmConfig, Communication
from flbench.algorithms.dfedhp import DFedHP, DFedHPConfig
from flbench.algorithms.dispfl import DisPFL, DisPFLConfig
from flbench.algorithms.shared.sparse import Masked

MATRICES = ("hyper.in.weight", "hyper.out.weight")
"""The two matrices of phi, which are masked with `mask_phi`."""


class DisPFLHPConfig(DFedHPConfig, DisPFLConfig):
    """Keys of DisPFL+HP: those of DFedHP and of DisPFL."""

    mask_phi: bool = Field(
        False,
        description="masks are on the two matrices of phi, which are mixed as DisPFL mixes weights,"
        " instead of on the generated weights",
    )


@ALGORITHMS.register("dispfl-hp")
class DisPFLHP(DisPFL):
    """Clients train hypernetworks as in DFedHP and mask the generated weights as in DisPFL.

    A client generates its weights with a hypernetwork h from phi and z, and multiplies them with a
    mask of its own. It trains its head, phi and z one after the other, as in DFedHP. Then it prunes
    and regrows its mask as in DisPFL. It sends phi and z to its neighbours, which are mixed by
    plain means, because they are dense; the mask stays with the client. A client is evaluated with
    the masked weights that its mixed phi and z generate, and its own head, which has no mask.

    Client i in each round:

        theta_i = m_i h(phi_i, z_i)
        v_i, phi_i, z_i are trained as in DFedHP
        m_i is pruned by |theta_i| and regrown by the gradient with respect to theta_i
        phi_i <- sum_l w_il phi_l, z_i <- sum_l w_il z_l

    With `mask_phi`, theta_i = h(m_i phi_i, z_i): the matrices of phi are pruned, sent with the
    masks under which they were trained, and averaged where these overlap, as DisPFL does with
    weights; z and the biases of phi are dense.

    Deviations. The available text of the paper does not describe "DisPFL+HP" any further; all of
    this is flbench's reading. A weight that is regrown has the value that h generates. The new mask
    applies at once, also to the models before mixing (`personal@local`). The method equals DisPFL
    with `hypernetwork=true`, with the keys of both methods.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DisPFLHPConfig
    config: DisPFLHPConfig
    paper = DFedHP.paper
    communication = Communication(
        down="phi and z of the hypernetwork of each neighbour",
        up="phi and z of its hypernetwork to each neighbour",
        keeps="phi, z, head and masks",
    )

    def masked(self) -> tuple[str, ...]:
        return MATRICES if self.config.mask_phi else super().masked()

    def called(self) -> Masked:
        called = super().called()
        if not self.config.mask_phi:
            return called  # masks on what h generates
        return Masked(MATRICES, outer=called.inner)  # masks on what h is called with
