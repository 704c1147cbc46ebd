"""DFedAvg: local SGD, then a mean over neighbours' models (Sun, Li, Wang, TPAMI 2023)."""

import flbench.algorithms as fl
from flbench.algorithms.shared.gossip import Gossip


@fl.ALGORITHMS.register("dfedavg")
class DFedAvg(Gossip):
    """Clients run SGD and then average their models with those of neighbours.

    Local (Algorithm 1): y^{k+1} = y^k - eta g(y^k), from y^0 = x_i. Then x_i <- sum_l w_il y_l over
    the neighbours l and i itself. Models are evaluated after mixing, and before it as
    `personal@local`.

    Deviations: the paper's quantized variant is not part of the method. The paper requires a
    connected undirected network and weights that keep the mean, for example `topology=ring
    mixing=metropolis`; the default is random neighbours in each round, as in the experiments of
    later papers.
    """

    paper = fl.Paper(
        "Decentralized Federated Averaging",
        "Sun, Li, Wang",
        "IEEE TPAMI 45(4), 2023",
        "10.1109/TPAMI.2022.3196503",
    )
    communication = fl.Communication(
        down="w of each neighbour", up="w to each neighbour", keeps="w"
    )
