"""pFedSim: bodies are mixed by the similarity of the clients' classifiers (Tan et al., 2023)."""

from math import log
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.mixing import latest, mix_latest
from flbench.algorithms.shared.prototypes import CountClasses
from flbench.losses.similarity import unit

LEAST = 1e-4  # smallest value of 1 - similarity: -ln(1 - similarity) has no limit


@fl.ALGORITHMS.register("pfedsim")
class PFedSim(fl.Algorithm):
    """After some rounds of FedAvg, clients mix bodies by the similarity of their classifiers.

    The first int(rho T) rounds are FedAvg. Then clients keep their classifiers, and client i
    receives body_i <- sum_j u_ij body_j / sum_j u_ij over all clients, with u_ij = -ln(1 - sim_ij)
    and u_ii = -ln(1e-4). sim_ij is the mean cosine of the rows of two classifiers' weights, between
    0 and 1 - 1e-4. It is computed in a round in which both clients take part, and is 0 before. A
    client sends the whole model, because the server compares classifiers. Its first download after
    the warm-up is the whole model too.

    Source: the code of the paper's first author in FL-bench; the paper's text was not available.
    Deviation from the other methods: a client that made no step still replaces its body on the
    server, because the body that it sends is its mixture.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of pFedSim."""

        rho: float = Field(
            0.5, ge=0, le=1, description="share of the rounds that are FedAvg, at the beginning"
        )
        classes: Literal["all", "union"] = Field(
            "all",
            description="rows of the classifiers that are compared: all, or those of classes of"
            " which one of the two clients has training samples",
        )
        evaluated: Literal["mixture", "stored"] = Field(
            "mixture",
            description="the model that is tuned and reported as `personal`: `mixture`, the next"
            " mixture of bodies with the client's own classifier, or `stored`, the model that it"
            " trained last; the other one is evaluated beside it",
        )

    config: Config
    by_client = (("similarity", (0, 1)), ("known", (0,)))
    paper = fl.Paper(
        "pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning",
        "Tan, Zhou, Liu, Wang, Zhou",
        "arXiv 2305.15706, 2023",
    )
    communication = fl.Communication(down="w, later the body", up="w", keeps="w, after the warm-up")
    settles = 0.5  # rho: the warm-up is FedAvg
    needs = (fl.LINEAR_HEAD, fl.PAIRS)

    @property
    def classifier(self) -> tuple[str, ...]:
        """Names of the head's weight [C, D] and bias, which stay with the client in the end."""
        return self.linear_head.names

    def stages(self) -> tuple[fl.Stage, ...]:
        warm = int(self.config.rho * self.setting.rounds + 1e-9)
        return self.two_stages("warmup", warm, "similar")

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        keeps, sends = self.split()
        clients = self.setting.clients
        server = {
            "similarity": torch.zeros(clients, clients, dtype=torch.float64),
            "known": torch.zeros(clients, dtype=torch.bool),
        }
        own = fl.only(start, keeps | sends)
        if self.config.classes == "union":
            own["held"] = torch.zeros(self.setting.classes, dtype=torch.bool)
        return fl.only(start, sends) | server, fl.repeat(own, clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        if self.stage(state).name == "warmup":
            return super().program(state)
        keeps, sends = self.split()
        steps: tuple[fl.Step, ...] = (self.phase(*self.terms()),)
        if self.config.classes == "union":
            count = fl.Statistic("held", CountClasses(self.setting.classes))
            steps += (count, fl.Transform(write_held_classes))
            sends |= {"held"}
        return fl.LocalProgram(steps, keeps | sends, sends)

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        known = state.server["known"]
        if self.stage(state).name == "warmup" or (state.is_initial and not bool(known.any())):
            return super().dispatch(state, ids)
        # A client without an upload since the warm-up has no classifier of its own yet.
        new = ~known[ids] & (not state.is_initial)
        classifiers = fl.repeat(fl.only(state.server, self.classifier), len(ids))
        rows = self.mixture(state, ids) | classifiers
        return fl.Dispatch(rows=fl.Message(rows, dict.fromkeys(classifiers, new)))

    def mixture(self, state: fl.State, ids: Tensor) -> fl.Tree:
        """Return the mixed bodies of clients `ids` [K], [K, ...] each."""
        u = -torch.log1p(-state.server["similarity"][ids].clamp_max(1 - LEAST))  # [K, N]
        u[torch.arange(len(ids)), ids] = -log(LEAST)
        weights = u / u.sum(dim=1, keepdim=True)
        bodies = fl.only(state.clients, self.split()[1] - set(self.classifier))
        # A client without an upload since the warm-up counts with the model of the warm-up.
        return mix_latest(bodies, weights, known=state.server["known"], common=state.server)

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        if self.stage(state).name == "warmup":
            return super().aggregate(state, results)
        ids, sent = results.ids, results.sent.values

        # sim_ij = max(0, mean over classes c of cos(W_i[c], W_j[c]))
        rows = unit(sent[self.classifier[0]].double())  # [K, C, D]
        cosine = torch.einsum("icd,jcd->ijc", rows, rows)  # [K, K, C]
        compared = torch.ones_like(cosine, dtype=torch.bool)
        if self.config.classes == "union":
            compared = sent["held"][:, None] | sent["held"]
        mean = torch.where(compared, cosine, 0.0).sum(dim=2) / compared.sum(dim=2).clamp_min(1)
        fresh = (mean + mean.T).clamp_min(0.0) / 2  # [K, K]

        # Only pairs of clients that both made a step get a new value.
        moved = results.steps > 0
        both = (moved[:, None] & moved).fill_diagonal_(False)
        similarity = state.server["similarity"].clone()
        first, second = both.nonzero(as_tuple=True)
        similarity[ids[first], ids[second]] = fresh[both]
        known = state.server["known"].index_fill(0, ids, True)
        metrics = {"similarity_mean": float(fresh[both].mean())} if bool(both.any()) else {}
        return fl.Update({"similarity": similarity, "known": known}, metrics=metrics)

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the similarities of the clients; nothing before the end of the warm-up."""
        if not state.server["known"].any():
            return ()
        similarity = state.server["similarity"]  # [N, N], 0 for a pair that was never compared
        table = fl.LearnedTable(
            "client similarity",
            "Similarity of the classifiers of every two clients, by which their bodies are mixed;"
            " empty where it is 0 or was never computed.",
            torch.where(similarity > 0, similarity, torch.nan),
        )
        return (table,)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        if self.stage(state).name == "warmup":
            return super().deploy(state, ids)
        uploads = fl.only(state.clients, self.split()[1])
        stored = latest(uploads, ids, known=state.server["known"], common=state.server)
        models = {"mixture": stored | self.mixture(state, ids), "stored": stored}
        deployments = {
            n: fl.Deployment(fl.Dispatch(rows=fl.Message(rows))) for n, rows in models.items()
        }
        return {"personal": deployments.pop(self.config.evaluated)} | deployments


def write_held_classes(context: fl.Context) -> fl.Tree:
    """Write `held` [C] bool: the classes of which the client has training samples."""
    return {"held": context.ctx["held.counts"] > 0}
