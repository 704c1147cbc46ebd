"""SLAPFL: every layer is averaged with weights from its own cosines (Li et al., 2025)."""

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.mixing import mix, pairwise_cosines
from flbench.algorithms.shared.simplex import simplex


@fl.ALGORITHMS.register("slapfl")
class Slapfl(fl.Algorithm):
    """The server mixes every shared layer for every client; linear layers stay with the clients.

    A client trains its full model and uploads the base, which is every layer that is not linear.
    For each layer of the base, the server computes the cosines between the uploads of all clients.
    It then sends each client a layer of its own: a mean of all uploads, in which an upload weighs
    more the larger its cosine with the client's upload is. Each client is evaluated with its mixed
    base and its own linear layers.

    Client i: E epochs of cross entropy on all weights, giving M_i; upload of the base.

    Server, for each base layer k and its uploads M_jk:

        s_ij^k = cos(M_ik, M_jk), s_ii^k = 1                        (eq. 2)
        a_ij^k = max(0, s_ij^k) / sum_j max(0, s_ij^k)              (eq. 3)
        M'_ik  = sum_j a_ij^k M_jk                                  (eq. 3)
        M'_i   = the layers M'_ik together                          (eq. 4)

    Readings. Eq. 3 is printed without a layer index, while text and algorithm say that it applies
    per layer. "The fully connected layer" is every linear layer (`last_only`). The weight and the
    bias of a layer form one vector. BatchNorm is a layer of its own; its statistics are mixed with
    the weights a of its scale and shift.

    By the paper's names for the models, its accuracies are those of M_i, the model that a client
    has just trained. Here a client is evaluated with its mixed base M'_i and its own linear layers,
    which it has at the end of a round. The accuracy of M_i is reported as `personal@local`.
    `flbench reproduce slapfl` prints both (see docs/papers/slapfl.md).

    Deviations. A negative cosine counts as 0, since a mean needs weights that are not negative. The
    paper has no absent clients: here j runs over the clients of the round, and an absent client
    keeps its last mixture. A client that took no optimizer step enters no mixture but its own.

    From a common start the cosines stay near 1 and the weights near 1/N, so that the method is
    close to FedPer. The metric `cosine_mean` reports the mean cosine between two clients.
    """

    class Config(fl.UniformConfig):
        """Keys of SLAPFL. The defaults follow the paper to the letter."""

        last_only: bool = Field(
            False,
            description="only the last linear layer stays local, instead of all linear layers",
        )

    config: Config
    paper = fl.Paper(
        "Hierarchical aggregation personalized federated learning based on cosine similarity",
        "Li Jingyu, Li Xinyu, Huang Ruijun, Jiang Xinwei, Lin Yujun, Ren Huihui",
        "Intelligent Computer and Applications 15(9), 2025",
        "10.20169/j.issn.2095-2163.250928",
    )
    communication = fl.Communication(
        down="the client's mixed base (all layers but the linear ones)",
        up="base",
        keeps="all weights w",
    )

    def personal(self) -> frozenset[str]:
        net = self.setting.net
        return net.names("head" if self.config.last_only else "linear")

    def requires(self) -> list[str]:
        if not self.base().isdisjoint(self.setting.net.parameters):
            return []
        return [
            "slapfl: all parameters of the net (`model.name`) are in linear layers, which stay with"
            " the clients, so no client would learn from another. Choose a net with convolutions,"
            " such as model.name=lenet5, or, for a net with hidden linear layers, set"
            " algorithm.last_only=true."
        ]

    def base(self) -> frozenset[str]:
        """Return the leaves that the server mixes, by their names in the net."""
        _, base = super().split()
        return base

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        local, base = super().split()
        return local | base, base

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        keeps, _ = self.split()
        return {}, fl.repeat(fl.only(start, keeps), self.setting.clients)

    # Client: cross entropy on all weights, as the base class has it. Nothing is sent down: a client
    # receives its mixed base as the reply to its upload.

    # Server

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Mix each layer of the base for each client of the round."""
        sent, mixed, cosines = results.sent.values, fl.Message(), []
        for layer, names in self.layers():
            # Statistics are compared only in a layer that has no parameters.
            compared = names or [n for n in layer if sent[n].is_floating_point()]
            cosine = pairwise_cosines(sent, compared).fill_diagonal_(1.0)  # eq. 2, [K, K]
            mixed.values.update(mix(fl.only(sent, layer), self.shares(cosine, results)))  # eq. 3-4
            cosines.append(cosine)

        between = torch.stack(cosines)[:, ~torch.eye(len(results.ids), dtype=torch.bool)]
        metrics = {"cosine_mean": float(between.mean())} if between.numel() else {}
        return fl.Update(reply=mixed, metrics=metrics)

    def layers(self) -> list[tuple[list[str], list[str]]]:
        """Return the leaves of each base layer, and those of them that are parameters."""
        base, parameters = self.base(), self.setting.net.parameters
        layers = [[n for n in layer.leaves if n in base] for layer in self.setting.net.layers]
        return [(layer, [n for n in layer if n in parameters]) for layer in layers if layer]

    def shares(self, cosine: Tensor, results: fl.Results) -> Tensor:
        """Return the weights a_ij of eq. 3.

        Args:
            cosine: [K, K] float64 with a unit diagonal.
            results: Results of the round; a client without an optimizer step has no weight for
                others.

        Returns:
            [K, K] float64 in [0, 1]. Every row sums to 1, since a client's cosine with itself is 1.
        """
        itself = torch.eye(len(cosine), dtype=torch.bool)
        takes_part = itself | (results.steps > 0)  # [K, K]

        scores = cosine
        if self.config.agg_weights == "samples":
            scores = scores * self.setting.sizes[results.ids]
        return simplex(torch.where(takes_part, scores, 0.0), itself.double(), dim=1)

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return how similar the clients are in each layer of the base."""
        means = {}
        for _, names in self.layers():
            if names:
                cosine = pairwise_cosines(state.clients, names).fill_diagonal_(0.0)  # [N, N]
                means[names[0].rpartition(".")[0]] = cosine.sum(dim=1) / max(1, len(cosine) - 1)
        table = fl.LearnedTable(
            "cosines by layer",
            "Mean cosine of each client's layer with that layer of the other clients, after the"
            " last mixing.",
            torch.stack([*means.values()], dim=1),
            columns="layer",
            labels=tuple(means),
        )
        return (table,)
