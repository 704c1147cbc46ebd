"""FedCPMD: clients elect their personal layer; who has the same is a cluster (Du et al., 2025)."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import election, layerwise
from flbench.algorithms.shared.votes import VoteConfig, vote_steps
from flbench.client.program import LocalProgram, Transform
from flbench.config.schema import AlgorithmConfig
from flbench.core.rng import Draw
from flbench.core.tree import only, repeat
from flbench.core.types import Dispatch, Message, Results, State, Tree, Update


class FedCpmdConfig(VoteConfig):
    """Keys of FedCPMD; the ablations of figure 5 average by eq. 5, whatever `mixing` says."""

    k_p: int | None = Field(None, ge=0, description="K_p, rounds of votes (default 0.3 T)")
    phase1_personal: layerwise.Phase1 = Field(
        "classifier", description="local in phase 1; majority: the client's most voted so far"
    )
    mixing: layerwise.Mixing = Field("similarity", description="eq. 12; raw: not cut; mean: eq. 5")
    absent: bool = Field(False, description="last bodies of absent members are mixed too")
    min_per_cluster: int = Field(1, ge=1, description="fewest clients that a cluster trains")
    ablation: layerwise.Ablation = Field("none", description="one half alone: clusters, own layers")
    paper_evaluation: bool = Field(
        False, description="evaluate the next cohort besides, by cluster"
    )


@ALGORITHMS.register("fedcpmd")
class FedCpmd(election.LayerElection):
    """Phase 1: body averaged, votes by eq. 7. Phase 2: omega_i mixed in clusters (eq. 12-13).

    Means run over the round's participants and bodies just trained; they alone are answered. First
    met in phase 2, a client gets phase 1's body, but for its own layer if it has voted. The paper's
    figure: accuracy of `paper.LAYER`, mean over layers and 5 rounds (evaluation.every=1).
    Deviations: JS on a grid that no narrow Gaussian slips through; inputs scaled by their extent,
    as a method does not know the pixels' range; bytes of the own layer, which eq. 13 needs, are
    charged and logged (`phi_bytes`). Without a step a client votes, and weighs 0 for others.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedCpmdConfig
    config: FedCpmdConfig
    second = "cluster"
    paper = Paper(
        "Clustered Federated Learning with Cloud-Edge Personalized Model Decoupling",
        "Du Tian, Chen Xing-Yan, Kou Gang, Zhao Yu, Xu Chang-Qiao",
        "Chinese Journal of Computers, 2025",
        "10.11897/SP.J.1016.2025.00407",
    )
    communication = Communication(
        "body; w - own layer", "body, vote, L scores; w", "classifier; own layer"
    )

    @property
    def voting_rounds(self) -> int:
        rounds, asked = self.setting.rounds, self.config.k_p
        return min(rounds, layerwise.rounded(0.3, rounds) if asked is None else asked)

    def notes(self) -> list[str]:
        layers, least = len(self.layers), self.config.min_per_cluster
        return layerwise.few_per_cluster(self.setting, self.voting_rounds, layers, least)

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        private, crossing = self.split()
        met = {"met": torch.zeros(self.setting.clients, dtype=torch.bool)}  # in phase 2
        votes = election.no_votes(self.setting.clients, len(self.layers))
        clients = repeat(only(start, private | crossing), self.setting.clients)
        return only(start, self.shared_first()) | votes | met, clients

    def shared_first(self) -> frozenset[str]:
        """Return the leaves that the server averages in phase 1."""
        kept = self.config.phase1_personal == "classifier"
        return self.split()[1] - (self.setting.net.names("head") if kept else frozenset())

    def own(self, state: State) -> Tensor:
        """Return [N, L] bool: l*_i, the personal layer of each client by the votes so far."""
        own = election.elected(state.server)[:, None] == torch.arange(len(self.layers))
        return own & (self.config.ablation != "only_cluster" or self.voting(state))

    def clusters(self, state: State) -> Tensor:
        """Return the cluster [N] of each client: its personal layer's number."""
        return election.elected(state.server) * (self.config.ablation != "only_decouple")

    def cohort(self, state: State, draw: Draw) -> Tensor:
        common = super().cohort(state, draw)
        if self.voting(state):
            waiting = ~state.server["votes"].any(dim=1) & self.config.coverage
            return election.covering(common, waiting, self.voting_rounds - state.stage_round, draw)
        if self.config.ablation == "only_decouple":
            return common
        share, least = self.setting.train.participation, self.config.min_per_cluster
        return layerwise.of_each(self.clusters(state), share, least, draw)

    def program(self, state: State) -> LocalProgram:
        private, crossing = self.split()
        train, kept = self.phase(*self.terms()), private | crossing
        if not self.voting(state):
            return LocalProgram((train,), kept, crossing)  # eq. 13 needs l*_i at the server
        steps = (train, *vote_steps(self.setting, self.layers, self.config))
        sends = self.shared_first() | {"vote", "scores"}
        if self.config.phase1_personal != "majority":
            return LocalProgram(steps, kept, sends)
        up = layerwise.UploadOthers(self.layers)
        sends = sends - layerwise.owners(self.layers).keys() | dict(up.masks).keys()
        return LocalProgram((*steps, Transform(up)), kept, sends, up.masks)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        body: Tree = {} if state.is_initial else only(state.server, self.shared_first())
        if self.voting(state) and self.config.phase1_personal != "majority":
            return Dispatch(Message(body))
        rows = {name: value.expand(len(ids), *value.shape) for name, value in body.items()}
        own = self.own(state)[ids]
        if self.voting(state):
            mask = layerwise.each_but_own(rows, own, self.layers)
            return Dispatch(rows=Message(rows | {"personal": own}, mask))
        # First contact in phase 2: phase 1's body, but for the own layer of who has voted.
        voted, new = state.server["votes"][ids].any(dim=1), ~state.server["met"][ids]
        mask = layerwise.each_but_own(rows, own & voted[:, None], self.layers)
        return Dispatch(rows=Message(rows, {name: new & inside for name, inside in mask.items()}))

    def aggregate(self, state: State, results: Results) -> Update:
        ids, chosen = results.ids, election.elected(state.server)
        if self.voting(state):
            mean = layerwise.mean_of_sharers(results.sent, self.weights(results), state.server)
            votes = self.by_layer("votes", results.sent.values["vote"].long())
            return Update(mean | election.counted(state.server, results), metrics=votes)
        met = state.server["met"].index_fill(0, ids, True)
        every = layerwise.with_absent(state, results, met) if self.config.absent else results
        here, rows = every.ids, only(every.sent.values, self.split()[1])
        how = self.config.mixing if self.config.ablation == "none" else "mean"
        clusters, own = self.clusters(state), self.own(state)
        phi = layerwise.within(rows, self.weights(every), clusters[here], self.layers, how)
        reply = layerwise.mix_shared(rows, phi, own[here], self.layers, layerwise.places(ids, here))
        figures = self.by_layer("members", chosen) | self.by_layer("active", chosen[ids])
        figures["phi_bytes"] = layerwise.layer_bytes(rows, own[ids], self.layers)
        return Update({"met": met}, reply, figures)

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        model = Deployment(self.dispatch(state, ids))
        if not self.config.paper_evaluation:
            return {"personal": model}
        cohort = self.cohort(state, Draw(self.setting.seed, (state.round,), self.setting.clients))
        clusters = self.clusters(state)
        names = [f"paper.{election.short(layer)}" for layer in self.layers]
        if self.voting(state) or self.config.ablation == "only_decouple":
            clusters, names = torch.zeros_like(clusters), ["paper"]
        return {"personal": model} | layerwise.judged_by_cluster(model, cohort, clusters, names)
