"""FedCMD: clients elect one layer, which is personal afterwards (Chen et al., 2024)."""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.election import (
    LayerElection,
    layer_outputs,
    rounded,
    smallest,
)
from flbench.algorithms.shared.mixing import mix, pairwise_cosines
from flbench.algorithms.shared.simplex import softmax_among


@fl.ALGORITHMS.register("fedcmd")
class FedCmd(LayerElection):
    """Clients vote for one layer l*, the same for all, which is personal afterwards.

    Phase 1, the first rho T rounds, is FedAvg, in which clients also vote. For each training batch,
    a client scores every candidate layer by how far it shifts its input from the distribution of
    the inputs to that of the labels; the batch votes for the smallest score, and the client for the
    layer with most batches. The layer l* with most votes of all clients and rounds is personal in
    phase 2. There the server averages the layers before l*, and mixes the layers behind l* for each
    client, with more weight on clients with a similar l*. A client is evaluated with the averaged
    layers, its mixed layers and its own l*.

    Phase 1, for a batch with inputs x, labels y and outputs o_l of the candidate layers l = 1..L:

        d(a, b) = |mean(a) - mean(b)| of tensors scaled to [0, 1]
        s_l     = ||d(o_l, y) - d(o_{l-1}, y)| - |d(o_l, x) - d(o_{l-1}, x)||
        vote    = argmin_l s_l

    Phase 2, over the clients j of the round:

        layers before l*: mean of the uploads, weighted by samples
        layers behind l*: for client i, sum_j a_ij upload_j,
                          a_ij = exp(cos(l*_i, l*_j)) / sum_j exp(cos(l*_i, l*_j))

    Deviations and readings. Batches vote in eval mode, with the weights before the optimizer step.
    Among layers with equally many votes the second one wins, as in the authors' code, then the
    lowest. The paper and the authors' code differ on the means: here they run over the clients of
    the round, with cosines of the weights of l* (not of their changes); `behind=mean` averages all
    layers but l* alike. Only the clients of the round receive mixed layers, as the reply to their
    upload. Phase 2 starts with the model of phase 1, l* included, which a client receives when it
    first participates in phase 2.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedCMD."""

        rho: float = Field(0.1, ge=0, le=1, description="share of the rounds that are phase 1")
        behind: Literal["softmax", "mean"] = Field(
            "softmax",
            description="how the layers behind the personal one are averaged: with weights from the"
            " cosines of the personal layers, or as all others",
        )

    config: Config
    second = "split"
    by_client = (("participated", (0,)),)
    paper = fl.Paper(
        "Towards Optimal Customized Architecture for Heterogeneous Federated Learning with"
        " Contrastive Cloud-Edge Model Decoupling",
        "Chen, Du, Wang, Gu, Zhao, Kou, Xu, Wu",
        "IEEE Transactions on Computers, 2024",
        "10.1109/TC.2024.3514302",
    )
    communication = fl.Communication(
        down="phase 1: all weights w; phase 2: w without layer l*",
        up="phase 1: w and a vote; phase 2: w",
        keeps="phase 1: nothing; phase 2: l* and the layers behind it",
    )

    @property
    def voting_rounds(self) -> int:
        return rounded(self.config.rho, self.setting.rounds) if self.config.rho else 0

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        local, shared = self.split()
        server = fl.only(start, shared) | {
            "votes": torch.zeros(len(self.layers), dtype=torch.int32),  # [L]
            "participated": torch.zeros(self.setting.clients, dtype=torch.bool),  # [N] in phase 2
        }
        # Any candidate may become l*, so clients have room for the first one and all behind it.
        late = shared & leaves_from(self.layers[0], self.setting.net)
        return server, fl.repeat(fl.only(start, local | late), self.setting.clients)

    def personal_layer(self, state: fl.State) -> fl.LayerSpec:
        """Return l*, the layer with most votes; the classifier if there are no votes."""
        votes = state.server["votes"]
        if not bool(votes.any()):
            return self.layers[-1]
        return self.layers[int(majority(votes))]

    def parts(self, state: fl.State) -> tuple[frozenset[str], frozenset[str]]:
        """Return the leaves of l*, and those behind it that are mixed for each client."""
        _, shared = self.split()
        layer = self.personal_layer(state)
        own = shared & {*layer.leaves}
        behind = (shared & leaves_from(layer, self.setting.net)) - own
        return own, frozenset() if self.config.behind == "mean" else behind

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        local, shared = self.split()
        train = self.phase(*self.terms())
        if not self.voting(state):
            # l* is sent too: its cosines are the weights of the layers behind it.
            return fl.LocalProgram((train,), local.union(*self.parts(state)), shared)

        names = tuple(layer.name for layer in self.layers)
        votes = fl.Statistic("layer", fl.bind(batch_vote, names))
        train = replace(train, record=(votes,))
        return fl.LocalProgram((train, fl.Transform(write_vote)), local, shared | {"vote"})

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        sent = super().dispatch(state, ids)
        if self.voting(state):
            return sent

        # Phase 2: all layers before l*. A client that is new in phase 2 also receives the others.
        own, behind = self.parts(state)
        values = sent.shared.values
        rows = fl.repeat(fl.only(values, own | behind), len(ids))
        new = ~state.server["participated"][ids]  # [K]
        shared = fl.only(values, values.keys() - rows.keys())
        return fl.Dispatch(fl.Message(shared), fl.Message(rows, dict.fromkeys(rows, new)))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        sent, trained = results.sent.values, results.steps > 0
        mean = self.mean(results)
        if self.voting(state):
            cast = sent["vote"][trained].long()
            votes = state.server["votes"] + cast.bincount(minlength=len(self.layers)).int()
            return fl.Update(mean | {"votes": votes}, metrics=self.by_layer("votes", cast))

        own, behind = self.parts(state)
        server = fl.only(mean, mean.keys() - own - behind)
        server["participated"] = state.server["participated"].index_fill(0, results.ids, True)
        if not behind or not bool(trained.any()):
            return fl.Update(server)

        cosines = pairwise_cosines(sent, self.personal_layer(state).parameters)  # [K, K]
        a = softmax_among(cosines, trained.expand_as(cosines), dim=1)
        return fl.Update(server, fl.Message(mix(fl.only(sent, behind), a)))

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the votes by which the personal layer is chosen."""
        table = fl.LearnedTable(
            "votes",
            "Number of clients' votes for each layer, over the rounds of phase 1. The layer with"
            " most votes is the personal layer of all clients.",
            state.server["votes"].double()[None],  # [1, L]
            rows="election",
            columns="layer",
            labels=tuple(layer.name for layer in self.layers),
        )
        return (table,)


def leaves_from(layer: fl.LayerSpec, net: fl.NetSpec) -> frozenset[str]:
    """Return the leaves of a layer and of all layers behind it."""
    late = net.layers[net.layers.index(layer) :]
    return frozenset(leaf for one in late for leaf in one.leaves)


# Phase 1: the votes of a client's batches


def batch_vote(context: fl.Context, layers: tuple[str, ...]) -> fl.Tree:
    """Return `votes` [L] int32 of a batch: 1 for one layer, or all 0 for a batch of padding.

    Scores are often equal: s_l = 0 wherever o_{l-1} and o_l lie on the same side of x and y.
    """
    batch = context.batch
    x, y = unit_mean(batch.x, batch.mask), unit_mean(batch.y, batch.mask)
    outputs = [unit_mean(value, batch.mask) for value in layer_outputs(context, layers)]
    to_y, to_x = ((torch.stack(outputs) - one).abs() for one in (y, x))  # [L + 1], d(o_l, .)
    scores = ((to_y[1:] - to_y[:-1]).abs() - (to_x[1:] - to_x[:-1]).abs()).abs()  # s_l
    layer = torch.arange(len(scores), device=scores.device)
    vote = (layer == majority(smallest(scores))) & batch.mask.any()
    return {"votes": vote.to(torch.int32)}


def unit_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean [] of all real entries [B, ...], scaled to [0, 1]; 0.5 if all are equal."""
    values, real = values.double().reshape(len(values), -1), mask[:, None]
    low = torch.where(real, values, torch.inf).amin()
    width = torch.where(real, values, -torch.inf).amax() - low
    count = (mask.sum() * values.shape[1]).clamp_min(1)
    mean = torch.where(real, values, 0.0).sum() / count
    return torch.where(width > 0, (mean - low) / torch.where(width > 0, width, 1.0), 0.5)


def write_vote(context: fl.Context) -> fl.Tree:
    """Return the leaf `vote` [] int32: the layer that most batches voted for."""
    return {"vote": majority(context.ctx["layer.votes"]).to(torch.int32)}


def majority(votes: Tensor) -> Tensor:
    """Return the number [] of the layer with the most votes [L].

    Among layers with equally many votes, layer 1 comes first, then the lower ones.
    """
    layer = torch.arange(len(votes), device=votes.device)
    rank = torch.where(layer == 1, -1, layer)
    # Ranks are smaller than len(votes) + 2, so they decide only between equal numbers of votes.
    return (votes * (len(votes) + 2) - rank).argmax()
