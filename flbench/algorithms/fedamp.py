"""FedAMP: clients are pulled to mixtures of models like their own (Huang et al., AAAI 2021)."""

from dataclasses import dataclass
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
        pull, lr = self.config.pull, self.setting.train.optimizer.lr
        if self.is_sgd and lr * pull >= 2:
            return [
                f"algorithm.pull={pull:g} times train.optimizer.lr={lr:g} is 2 or more: each step"
                " overshoots the mixture by the distance to it or more, so that models do not come"
                f" nearer to it. Choose algorithm.pull below {2 / lr:g}."
            ]
        return super().requires()

    @property
    def is_sgd(self) -> bool:
        """Whether the pull of a step is the learning rate times its gradient."""
        return self.setting.train.optimizer.name == "sgd" and not self.setting.own_optimizer

    def decayed(self, completed: int) -> float:
        """Return alpha_t / alpha_1 in the round after so many completed rounds."""
        c, lr = self.config, self.setting.train.optimizer.lr
        return max(DECAY ** (completed // DECAY_EVERY), min(1.0, lr * c.pull))

    def notes(self) -> list[str]:
        c, lr = self.config, self.setting.train.optimizer.lr
        if self.is_sgd and lr * c.pull > 1:
            return [
                f"fedamp: algorithm.pull={c.pull:g} times train.optimizer.lr={lr:g} is above 1:"
                " each step overshoots the mixture."
            ]
        return []

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        clients = self.setting.clients
        server = {
            "xi": torch.eye(clients, dtype=torch.float64),  # [N, N]
            "known": torch.zeros(clients, dtype=torch.bool),  # [N], who has uploaded a model
        }
        keeps, sends = self.split()
        return server, fl.repeat(fl.only(start, keeps | sends), clients)

    def terms(self) -> tuple[fl.LossTerm, ...]:
        names = self.setting.net.parameters
        if self.config.start == "cloud":
            return (CrossEntropy(), Proximal(names, weight="pull"))
        return (CrossEntropy(), PullToCloud(names, weight="pull"))

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        return fl.LocalProgram((self.phase(*self.terms()),), keeps | sends, sends)

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
        names, c, n = self.setting.net.parameters, self.config, len(known)
        pairs = known[:, None] & known & ~torch.eye(n, dtype=torch.bool)  # [N, N]
        xi = torch.zeros(n, n, dtype=torch.float64)

        if c.similarity == "distance":
            distance = squared_distances(state.clients, names)  # [N, N]
            sigma = float(distance[pairs].mean()) if bool(pairs.any()) else 0.0
            if sigma > 0:
                alpha = self.decayed(state.round + 1) * c.share * sigma / max(1, n - 1)
                xi = torch.where(pairs, alpha * (-distance / sigma).exp() / sigma, 0.0)
            own = 1 - xi.sum(dim=1)
        else:
            weight = 1 / n if c.self_weight is None else c.self_weight
            own = torch.ones(n, dtype=torch.float64).masked_fill(pairs.any(dim=1), weight)
            scores = HEURISTIC_SIGMA * pairwise_cosines(state.clients, names)
            xi = (1 - own)[:, None] * softmax_among(scores, pairs, dim=1)

        metrics = {"self_weight_mean": float(own[known].mean())}
        return fl.Update({"xi": xi + own.diag(), "known": known}, metrics=metrics)

    def learned(self, state: fl.State) -> tuple[fl.Learned, ...]:
        """Return the weights of the mixtures; nothing before the first round."""
        known = state.server["known"]
        if not known.any():
            return ()
        table = fl.LearnedTable(
            "mixture weights",
            "Weight of each client's model (column) in the mixture that a client (row) receives;"
            " empty for clients that have not uploaded a model.",
            torch.where(known[:, None] & known, state.server["xi"], torch.nan),
            rows="client",
            columns="client",
            limits=(0.0, 1.0),
        )
        return (table,)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        cloud = fl.Dispatch(rows=fl.Message(self.clouds(state, ids)))
        return {"personal": fl.Deployment(fl.Dispatch()), "cloud": fl.Deployment(cloud)}


@dataclass(frozen=True)
class PullToCloud:
    """1/2 ||w - u||^2 over the parameters, with the received mixture u in ctx.

    A client that received none is pulled to its own model at the beginning of the round.

    Attributes:
        of_parameters: The term reads parameters alone, not what the net computes.
        names: Names of the parameters, in order.
        weight: Factor of the term: a number, or the name of a 0-dim ctx entry.
    """

    of_parameters: ClassVar[bool] = True

    names: tuple[str, ...]
    weight: float | str = 1.0

    def __call__(self, context: fl.Context) -> Tensor:
        """Return the term, 0-dim."""
        has_cloud = context.ctx[CLOUD + "known"]
        parts = []
        for name in self.names:
            cloud = torch.where(has_cloud, context.ctx[CLOUD + name], context.start[name])
            parts.append((context.leaves[name] - cloud).square().sum())
        return 0.5 * torch.stack(parts).sum()
