"""DisPFL+HP: DisPFL on weights that a hypernetwork generates (Li et al., IJCAI 2025)."""

from collections.abc import Callable

import flbench.algorithms as fl
from flbench.algorithms.dfedhp import DFedHP
from flbench.algorithms.dispfl import DisPFL
from flbench.algorithms.shared import sparse
from flbench.algorithms.shared.second import Second
from flbench.algorithms.shared.sparse import MASK


@fl.ALGORITHMS.register("dispfl-hp")
class DisPFLHP(DFedHP):
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

    Deviations. The available text of the paper does not describe "DisPFL+HP" any further; all of
    this is flbench's reading. A weight that is regrown has the value that h generates. The new mask
    applies at once, also to the models before mixing (`personal@local`).
    """

    class Config(DFedHP.Config, DisPFL.Config):
        """Keys of DisPFL+HP: those of DFedHP and of DisPFL."""

    config: Config
    communication = fl.Communication(
        down="phi and z of the hypernetwork of each neighbour",
        up="phi and z of its hypernetwork to each neighbour",
        keeps="phi, z, head and masks",
    )
    needs = DisPFL.needs

    def masked(self) -> tuple[str, ...]:
        """Return the names of the generated weights that have masks."""
        return tuple(n for n in sparse.maskable(self.setting.net) if n in self.h.theta)

    def called(self) -> Callable[[fl.Context], fl.Tree]:
        return fl.bind(sparse.inside, self.masked(), self.h)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        weights, c = fl.only(start, self.masked()), self.config
        masks = sparse.start_masks(weights, c.density, self.setting.seed, self.setting.clients)
        return server, clients | Second(MASK, self.masked()).start(masks)

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        return keeps | Second(MASK, self.masked()).leaves, sends

    def steps(self) -> tuple[fl.Step, ...]:
        search = sparse.search(self.masked(), self.called(), self.config.drop_rate, self.setting)
        return (*super().steps(), *search)
