"""FedAMP: clients are pulled to mixtures of models like their own (Huang et al., AAAI 2021)."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.mixing import mix, pairwise_cosines, squared_distances
from flbench.algorithms.shared.prefixes import prefixed
from flbench.algorithms.shared.simplex import softmax_among
from flbench.losses import CrossEntropy, Proximal

CLOUD = "cloud."  # prefix of the received mixture with start=own
HEURISTIC_SIGMA = 25.0  # factor of the cosines
DECAY, DECAY_EVERY = 0.1, 30  # factor on alpha, and the rounds between two decays


@fl.ALGORITHMS.register("fedamp")
class FedAMP(fl.Algorithm):
    """Each client keeps a model w_i; the server mixes all models by similarity, for each client.

    Server, in round t, from the last uploads w_j of all clients that have uploaded a model:

        xi_ij = alpha_t A'(||w_i - w_j||^2)  for j != i,   A'(x) = exp(-x / sigma) / sigma
        xi_ii = 1 - sum_{j != i} xi_ij
        u_i   = sum_j xi_ij w_j

    With `similarity=cosine` (HeurFedAMP), xi_ii = `self_weight`, and the other weights are
    1 - xi_ii times the softmax of 25 cos(w_i, w_j) over j != i. Client: w_i ~ argmin CE(w) +
    lambda / (2 alpha_t) ||w - u_i||^2, by the epochs of `train.*`. Distances and cosines are over
    parameters; buffers are mixed with the same weights. A client is evaluated with w_i of its last
    participation, and as `cloud` with u_i. There is no global model.

    Keys. The paper's lambda, alpha and sigma appear as scale-free numbers: `pull` is lambda /
    alpha_1 and `share` is alpha_1 (N - 1) / sigma. Their defaults are the paper's values (lambda =
    1, alpha_1 = 1e4, sigma = 1e6, N = 100). The paper's sigma is far above the squared distances of
    small nets, whose mixtures would be uniform; sigma is therefore the mean squared distance of the
    last uploads, computed in each round. The mean of the first uploads, kept, would soon be too
    small: distances grow, and each client would be left alone after a few rounds. alpha_t = alpha_1
    0.1^floor(t / 30), as in other code. A step of SGD multiplies the distance to the mixture by 1 -
    `train.optimizer.lr` lambda / alpha_t. Because lambda / alpha_t grows without bound, alpha_t
    does not fall below `train.optimizer.lr` lambda, where one step moves the model to its mixture.
    With `pull` times the learning rate above 1, alpha_t is alpha_1 in all rounds, and each step
    overshoots the mixture; from 2 on the distance does not shrink, which is refused.

    Readings. Training starts at u_i: with the paper's values, 1000 steps from w_i would keep 99 %
    of w_i. Other code starts at w_i (`start=own`), or evaluates u_i. xi is used as printed, though
    the gradient of A(||w_i - w_j||^2) has a factor of 2. Deviation: the paper asks all clients in
    every round; here absent clients count with their last upload, and a client without an upload
    neither counts nor receives a mixture.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedAMP."""

        agg_weights: ClassVar[Literal["samples"]] = "samples"  # type: ignore[misc]  # no key: nothing is averaged

        similarity: Literal["distance", "cosine"] = Field(
            "distance",
            description="what the mixtures follow: squared distances of the models (FedAMP), or"
            " cosines (HeurFedAMP, which the paper recommends for deep nets)",
        )
        share: float = Field(
            0.99,
            ge=0,
            le=1,
            description="distance: largest total weight of the other clients in a mixture, alpha (N"
            " - 1) / sigma of the paper in the first rounds",
        )
        self_weight: float | None = Field(
            None,
            ge=0,
            le=1,
            description="cosine: weight of a client's own model in its mixture (default: 1 / N)",
        )
        pull: float = Field(
            1e-4,
            ge=0,
            description="factor of the pull of a client's model to its mixture, lambda / alpha of"
            " the paper in the first rounds",
        )
        start: Literal["cloud", "own"] = Field(
            "cloud",
            description="local training begins at the mixture, or at the client's own model",
        )

    config: Config
    by_client = (("xi", (0, 1)), ("known", (0,)))
    paper = fl.Paper(
        "Personalized Cross-Silo Federated Learning on Non-IID Data",
        "Huang, Chu, Zhou, Wang, Liu, Pei, Zhang",
        "AAAI 2021",
        "10.1609/aaai.v35i9.16960",
    )
    communication = fl.Communication(down="a mixture, as large as w", up="w", keeps="w")

    needs = (fl.PAIRS,)

    def requires(self) -> list[str]:
        pull, optimizer = self.config.pull, self.setting.train.optimizer
        is_sgd = optimizer.name == "sgd" and not self.setting.own_optimizer
        if is_sgd and optimizer.lr * pull >= 2:
            return [
                f"algorithm.pull={pull:g} times train.optimizer.lr={optimizer.lr:g} is 2 or more:"
                " each step overshoots the mixture by the distance to it or more, so that models do"
                f" not come nearer to it. Choose algorithm.pull below {2 / optimizer.lr:g}."
            ]
        return super().requires()

    def decayed(self, completed: int) -> float:
        """Return alpha_t / alpha_1 in the round after so many completed rounds."""
        least = min(1.0, self.setting.train.optimizer.lr * self.config.pull)
        return max(DECAY ** (completed // DECAY_EVERY), least)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        clients = self.setting.clients
        server = {
            "xi": torch.eye(clients, dtype=torch.float64),  # [N, N]
            "known": torch.zeros(clients, dtype=torch.bool),  # [N], who has uploaded a model
        }
        keeps, sends = self.split()
        return server, fl.repeat(fl.only(start, keeps | sends), clients)

    # Client

    def terms(self) -> tuple[fl.LossTerm, ...]:
        names = self.setting.net.parameters
        if self.config.start == "cloud":
            return (CrossEntropy(), Proximal(names, weight="pull"))
        pull = fl.Term("pull", fl.bind(distance_to_cloud, names), of_parameters=True)
        return (CrossEntropy(), pull)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        return fl.LocalProgram((self.phase(*self.terms()),), keeps | sends, sends)

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        rows = self.clouds(state, ids)
        if self.config.start == "own":
            rows = prefixed(CLOUD, fl.only(rows, self.setting.net.parameters))
            rows[CLOUD + "known"] = torch.ones(len(ids), dtype=torch.bool)
        mask = dict.fromkeys(rows, state.server["known"][ids])  # others have the seeded net
        numbers = {"pull": self.config.pull / self.decayed(state.round)}
        return fl.Dispatch(rows=fl.Message(rows, mask), numbers=numbers)

    def clouds(self, state: fl.State, ids: Tensor) -> fl.Tree:
        """Return the mixtures u_i of clients `ids` [K], [K, ...] per leaf."""
        rows = fl.only(state.clients, self.split()[1])
        weights = state.server["xi"][ids]  # [K, N]
        # One receiver at a time: its mixture is then the same to the bit for any set of receivers.
        mixed = [mix(rows, row[None]) for row in weights]
        return {name: torch.cat([one[name] for one in mixed]) for name in rows}

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        known = state.server["known"].index_fill(0, results.ids, True)
        pairs = known[:, None] & known & ~torch.eye(len(known), dtype=torch.bool)  # [N, N]
        others = self.others(state, pairs)
        own = 1 - others.sum(dim=1)
        metrics = {"self_weight_mean": float(own[known].mean())}
        return fl.Update({"xi": others + own.diag(), "known": known}, metrics=metrics)

    def others(self, state: fl.State, pairs: Tensor) -> Tensor:
        """Return xi_ij [N, N] for j != i, 0 except for pairs [N, N] of clients with a model."""
        c, names, n = self.config, self.setting.net.parameters, len(pairs)
        if c.similarity == "cosine":  # HeurFedAMP
            own = 1 / n if c.self_weight is None else c.self_weight
            scores = HEURISTIC_SIGMA * pairwise_cosines(state.clients, names)
            return (1 - own) * softmax_among(scores, pairs, dim=1)
        distance = squared_distances(state.clients, names)  # [N, N]
        sigma = float(distance[pairs].mean())
        if not sigma > 0:  # there is no pair, or all models are equal
            return torch.zeros_like(distance)
        alpha = self.decayed(state.round + 1) * c.share * sigma / max(1, n - 1)
        return torch.where(pairs, alpha * (-distance / sigma).exp() / sigma, 0.0)

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the weights of the mixtures; nothing before the first round."""
        known = state.server["known"]
        if not known.any():
            return ()
        table = fl.LearnedTable(
            "mixture weights",
            "Weight of each client's model (column) in the mixture that a client (row) receives;"
            " empty for clients that have not uploaded a model.",
            torch.where(known[:, None] & known, state.server["xi"], torch.nan),
        )
        return (table,)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        cloud = fl.Dispatch(rows=fl.Message(self.clouds(state, ids)))
        return {"personal": fl.Deployment(fl.Dispatch()), "cloud": fl.Deployment(cloud)}


def distance_to_cloud(context: fl.Context, names: tuple[str, ...]) -> Tensor:
    """Return 1/2 ||w - u||^2 over the parameters; without a mixture u, that to w at the start."""
    parts = []
    for name in names:
        has_cloud, cloud = context.ctx[CLOUD + "known"], context.ctx[CLOUD + name]
        far = context.leaves[name] - torch.where(has_cloud, cloud, context.start[name])
        parts.append(far.square().sum())
    return 0.5 * torch.stack(parts).sum()
