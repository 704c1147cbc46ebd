"""FedCMD: one layer, elected by votes in a short first phase, is personal (Chen et al., 2024)."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.election import LayerElection
from flbench.algorithms.shared.layerwise import rounded
from flbench.algorithms.shared.mixing import likeness, mix
from flbench.algorithms.shared.simplex import softmax_among
from flbench.algorithms.shared.votes import BallotConfig, WriteVote, majority, majority_of_batches
from flbench.client.program import LocalProgram, Transform
from flbench.config.schema import AlgorithmConfig
from flbench.core.tree import only, repeat
from flbench.core.types import Dispatch, Message, Results, State, Tree, Update
from flbench.models.base import LayerSpec

Tie = Literal["second", "lower"]
Behind = Literal["softmax", "mean"]


class FedCmdConfig(BallotConfig):
    """Keys of FedCMD."""

    rho: float = Field(0.1, ge=0, le=1, description="share of the rounds in phase 1")
    tie: Tie = Field("second", description="of equals: the second layer (the code), or the lower")
    behind: Behind = Field("softmax", description="how layers behind the personal one are mixed")


@ALGORITHMS.register("fedcmd")
class FedCmd(LayerElection):
    """Phase 1 is FedAvg with votes for a layer l*; in phase 2 each client has its own l*.

    Then layers before l* are averaged; those behind it are mixed for client i with weights
    exp(cos_ij) / sum_j exp(cos_ij) of the layers l* (weight and bias, not their changes), over the
    round's participants, who get them right after aggregation; `behind=mean` averages them too.

    Decisions: a vote for each training batch, in eval mode on the weights before its step; a
    client's vote is the majority of its batches, l* that of all clients and rounds. Phase 2 starts
    with phase 1's model, l* included, which a client gets when it is first met there.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedCmdConfig
    config: FedCmdConfig
    second = "split"
    paper = Paper(
        "Towards Optimal Customized Architecture for Heterogeneous Federated Learning with"
        " Contrastive Cloud-Edge Model Decoupling",
        "Chen, Du, Wang, Gu, Zhao, Kou, Xu, Wu",
        "IEEE Transactions on Computers, 2024",
        "10.1109/TC.2024.3514302",
    )
    communication = Communication(
        "w; w - layer l*", "w, vote; w", "nothing; l* and the layers behind it"
    )

    @property
    def voting_rounds(self) -> int:
        return rounded(self.config.rho, self.setting.rounds) if self.config.rho else 0

    def notes(self) -> list[str]:
        all_votes = self.voting_rounds == self.setting.rounds
        return ["all rounds are votes (`algorithm.rho`): this is fedavg."] * all_votes

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        private, crossing = self.split()
        server = only(start, crossing) | {
            "votes": torch.zeros(len(self.layers), dtype=torch.int32),
            "met": torch.zeros(self.setting.clients, dtype=torch.bool),  # in phase 2
        }
        # Any candidate may become l*: rows for the first one and all that lies behind it.
        late = self._from(self.layers[0]) & crossing
        return server, repeat(only(start, private | late), self.setting.clients)

    def program(self, state: State) -> LocalProgram:
        private, crossing = self.split()
        train = self.phase(*self.terms())
        if not self.voting(state):
            kept = self._own(state) | self._behind(state)
            return LocalProgram((train,), private | kept, crossing)
        names, second = tuple(layer.name for layer in self.layers), self.config.tie == "second"
        train = replace(train, record=(majority_of_batches(names, self.setting.classes, second),))
        return LocalProgram(
            (train, Transform(WriteVote(scores=False))), private, crossing | {"vote"}
        )

    def personal_layer(self, state: State) -> LayerSpec:
        """Return l*, the layer with most votes; the classifier before there are any."""
        votes = state.server["votes"]
        chosen = int(majority(votes, second=self.config.tie == "second"))
        return self.layers[chosen if bool(votes.any()) else -1]

    def _from(self, layer: LayerSpec) -> frozenset[str]:
        """Return the leaves of this layer and of all behind it."""
        layers = self.setting.net.layers
        return frozenset(leaf for one in layers[layers.index(layer) :] for leaf in one.leaves)

    def _own(self, state: State) -> frozenset[str]:
        return frozenset(self.personal_layer(state).leaves) & self.split()[1]

    def _behind(self, state: State) -> frozenset[str]:
        """Return the leaves that are mixed for each client."""
        if self.config.behind == "mean":
            return frozenset()
        return (self._from(self.personal_layer(state)) & self.split()[1]) - self._own(state)

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        if self.voting(state) or state.is_initial:
            return super().dispatch(state, ids)
        kept = self._own(state) | self._behind(state)
        new = ~state.server["met"][ids]
        rows = {n: v.expand(len(ids), *v.shape) for n, v in only(state.server, kept).items()}
        shared = only(state.server, self.split()[1] - kept)
        return Dispatch(Message(shared), Message(rows, dict.fromkeys(rows, new)))

    def aggregate(self, state: State, results: Results) -> Update:
        sent, ids, trained = results.sent.values, results.ids, results.steps > 0
        if self.voting(state):
            cast = sent["vote"][trained].long()
            votes = state.server["votes"] + cast.bincount(minlength=len(self.layers)).int()
            mean = self.mean(results) | {"votes": votes}
            return Update(mean, metrics=self.by_layer("votes", cast))
        own, behind, mean = self._own(state), self._behind(state), self.mean(results)
        server = only(mean, mean.keys() - own - behind)
        server["met"] = state.server["met"].index_fill(0, ids, True)
        if not behind or not bool(trained.any()):
            return Update(server)
        cosines = likeness(sent, self.personal_layer(state).parameters)
        weights = softmax_among(cosines, trained.expand_as(cosines), dim=1)
        return Update(server, Message(mix(only(sent, behind), weights)))

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        if self.voting(state):
            return super().deploy(state, ids)
        return {"personal": Deployment(self.dispatch(state, ids))}
