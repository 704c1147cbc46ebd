"""CFL: clusters split in two where their clients pull apart (Sattler, Mueller, Samek, 2021)."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import updates
from flbench.algorithms.shared.splitting import bipartition, norms
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.tree import only, take, weighted_mean
from flbench.core.types import Dispatch, Message, Results, State, Tree, Update

EPS = {"absolute": (0.4, 1.6), "relative": (0.1, 0.5)}


class CflConfig(UniformConfig):
    """Keys of CFL. Thresholds depend on net, learning rate and epochs: look at the logged norms."""

    thresholds: Literal["absolute", "relative"] = Field(
        "absolute",
        description="eps1 and eps2 are norms, or shares of the cluster's largest mean norm so far",
    )
    eps1: float | None = Field(
        None, ge=0, description="split below this norm of the mean update (0.4; relative: 0.1)"
    )
    eps2: float | None = Field(
        None, ge=0, description="... and above this norm of the largest one (1.6; relative: 0.5)"
    )
    min_size: int = Field(2, ge=1, description="only clusters of more clients split")
    start_round: int = Field(20, ge=0, description="only rounds after this one (from 0) split")
    max_age: int = Field(10, ge=0, description="rounds after which an update no longer counts")
    coverage: float = Field(
        0.8, gt=0, le=1, description="share of a cluster that must have an update that counts"
    )


@ALGORITHMS.register("cfl")
class Cfl(Algorithm):
    """w_c <- w_c + mean over P_c of dW_i, with dW_i = w_i - w_c; a cluster that stalls is split.

    It stalls where ||mean dW_i|| < eps1 and max ||dW_i|| > eps2 over its participants P_c, and is
    split by complete linkage of cos(dW_i, dW_j); both parts go on from its model. Source: the
    paper's two criteria, and the clustering, defaults and guards of the authors' code.

    Deviations: w_i travels and not dW_i, which is as long, so that a federation that never splits
    is FedAvg to the bit. The authors train all clients every round; with absent ones the latest
    update of each counts for `max_age` rounds, and members without one follow the larger half.
    """

    Config: ClassVar[type[AlgorithmConfig]] = CflConfig
    config: CflConfig
    paper = Paper(
        "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under"
        " Privacy Constraints",
        "Sattler, Mueller, Samek",
        "IEEE TNNLS 2021",
        "10.1109/TNNLS.2020.3015958",
    )
    communication = Communication(down="w of the client's cluster", up="w", keeps="nothing")

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        shared, clients = super().init(start)
        n = self.setting.clients
        server = {name: value[None] for name, value in shared.items()}  # [clusters, ...] each
        server["cluster"] = torch.zeros(n, dtype=torch.int64)  # of each client
        server["peak"] = torch.zeros(1, dtype=torch.float64)  # largest mean norm of each cluster
        return server | updates.blank(start, self.setting.net.parameters, n), clients

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        if state.is_initial:
            return Dispatch()
        models = only(state.server, self.setting.net.names("all"))
        return Dispatch(rows=Message(take(models, state.server["cluster"][ids])))

    def aggregate(self, state: State, results: Results) -> Update:
        moved = results.steps > 0  # C5
        ids, weights = results.ids[moved], self.weights(results)[moved]
        if not len(ids):
            return Update()
        server, sent = dict(state.server), take(results.sent.values, moved)
        cluster, peak = server["cluster"], server["peak"].tolist()
        of, names = cluster[ids], self.setting.net.parameters
        delta = {name: sent[name] - server[name][of] for name in names}
        server |= updates.note(server, ids, delta, state.round)
        models = {name: list(server[name]) for name in sent}
        found = []
        for c in sorted(set(of.tolist())):
            for name, value in weighted_mean(sent, torch.where(of == c, weights, 0.0)).items():
                models[name][c] = value
            step, largest = norms(take(delta, of == c))
            found.append((step, largest))
            peak[c] = max(peak[c], step)
            if self.stalls(step, largest, peak[c], state.round):
                leaving = self.leaving(server, torch.nonzero(cluster == c)[:, 0], state.round)
                if len(leaving):
                    cluster = cluster.index_fill(0, leaving, len(peak))
                    peak.append(peak[c])
                    for rows in models.values():
                        rows.append(rows[c])
        server |= {name: torch.stack(rows) for name, rows in models.items()}
        server |= {"cluster": cluster, "peak": torch.tensor(peak, dtype=torch.float64)}
        step, largest = min(found)  # of the cluster that is nearest to a split
        metrics = {"clusters": float(len(peak)), "mean_norm": step, "max_norm": largest}
        return Update(server, metrics=metrics)

    def stalls(self, step: float, largest: float, peak: float, t: int) -> bool:
        """Return whether a cluster with these norms should be split after round t, from 0."""
        eps1, eps2 = EPS[self.config.thresholds]
        eps1 = eps1 if self.config.eps1 is None else self.config.eps1
        eps2 = eps2 if self.config.eps2 is None else self.config.eps2
        scale = peak if self.config.thresholds == "relative" else 1.0
        return t > self.config.start_round and step < scale * eps1 and largest > scale * eps2

    def leaving(self, server: Tree, members: Tensor, t: int) -> Tensor:
        """Return the ids of the members of a cluster that leave it; none if it cannot be split."""
        counts = updates.recent(server, members, t, self.config.max_age)
        known = members[counts]
        too_few = len(known) < self.config.coverage * len(members) - 1e-9
        if len(members) <= self.config.min_size or too_few:
            return members[:0]
        side = bipartition(updates.latest(server, known))
        if 2 * int(side.sum()) > len(known):
            return torch.cat([known[side], members[~counts]])
        return known[side]

    def notes(self) -> list[str]:
        c, share, said = self.config, self.setting.train.participation, []
        if c.eps1 == 0 or self.setting.rounds < c.start_round + 3:
            said.append(
                "CFL cannot split before the end (algorithm.eps1, algorithm.start_round): it is"
                f" FedAvg with algorithm.agg_weights={c.agg_weights}."
            )
        known = 1 - (1 - share) ** (c.max_age + 1)
        if known < c.coverage:
            said.append(
                f"CFL splits where {c.coverage:.0%} of a cluster have a recent update; with"
                f" train.participation={share} about {known:.0%} have: raise algorithm.max_age."
            )
        return said

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        return {"personal": Deployment(self.dispatch(state, ids))}
