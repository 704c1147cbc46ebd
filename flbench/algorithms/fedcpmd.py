"""FedCPMD: clients elect a personal layer and form clusters by it (Du et al., 2025)."""

from collections.abc import Iterable
from math import ceil
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.election import (
    LayerElection,
    rounded,
    smallest,
)
from flbench.algorithms.shared.mixing import mix, pairwise_cosines
from flbench.algorithms.shared.shift import REDUCE, moments, shift_scores
from flbench.algorithms.shared.simplex import simplex

EPSILON = 1e-8  # added to the product of the norms in eq. 13
VOTE_SAMPLES = 1000  # largest number of training samples for a vote


@fl.ALGORITHMS.register("fedcpmd")
class FedCpmd(LayerElection):
    """Clients vote for a personal layer; clients with the same layer form a cluster.

    In phase 1, the server averages all layers but the classifier. After its training, a client
    scores each candidate layer by how far the layer shifts its input from the distribution of the
    inputs to that of the labels, and votes for the layer that shifts least. The layer with most of
    a client's votes becomes its personal layer, and clients with the same personal layer form a
    cluster. In phase 2, the personal layers stay with the clients. In each cluster, the server
    mixes the other layers for every client of the round, with weights from the cosines of the
    personal layers. A client is evaluated with its mixed layers and its personal layer.

    Phase 1, rounds 1 to K_p, for layers l = 1..L with outputs o_l, inputs x and labels y:

        body  = mean of the clients' bodies, weighted by samples
        s_l   = |(d(o_l, y) - d(o_l, x)) - (d(o_{l-1}, y) - d(o_{l-1}, x))|    (eq. 7)
        vote  = argmin_l s_l
        l*_i  = the layer that client i voted for most often

    d is a distance of scalar Gaussians, by default Jensen-Shannon (eq. 8). Distances, scaling and
    s_l are in `shared/shift.py`, the outputs o_l in `shared/election.py`.

    Phase 2, for clients i, j of a cluster; phi_i is the layer l*_i, omega_i all other layers:

        Phi_ij  = max(0, <phi_i, phi_j> / (||phi_i|| ||phi_j|| + 1e-8)), Phi_ii = 1    (eq. 13)
        omega_i = sum_j Phi_ij omega_j / sum_j Phi_ij                                  (eq. 12)

    Readings. The sums run over the clients of the round, with the layers that they have just
    trained; only these clients receive a reply. Outputs of layers are taken after their ReLU, and a
    vote reads at most 1,000 training samples. Inputs, labels and outputs are scaled to [0, 1]
    before they become Gaussians, inputs by their own smallest and largest values (`inputs`). Ties
    between layers go to the smaller sum of scores, then to the lower layer. A client that never
    voted keeps the classifier. A share of the clients of each cluster takes part in a round, and at
    least one. When a client first participates in phase 2, it receives the body of phase 1, except
    for its personal layer. In phase 1 the classifier stays with the client, as section 5.2 says;
    line 13 of Algorithm 2 has the layer with most votes so far (`phase1_personal=majority`). The
    paper does not give the dimension of the Gaussians: each is over all entries of its tensor.
    Candidates are linear layers, as in section 4.1; the text says all layers.
    Eq. 12 has the weights of section 6.2; eq. 5 weights by samples. Negative cosines count as 0 in
    eq. 13, because the paper says that Phi lies in [0, 1].

    The paper says that the personal layer is never sent, but eq. 13 needs it at the server: its
    bytes are charged, and logged as `phi_bytes`. (With `phase1_personal=majority` it is sent in
    phase 1 too, where the server leaves it out of the mean.) A client without an optimizer step
    votes, and has weight 0 for others. Accuracy falls at the beginning of phase 2, where eq. 12
    averages classifiers for the first time. docs/papers/fedcpmd.md has the accuracies of these
    readings.

    The accuracy in the paper's tables is that of the clients of the last five rounds right after
    local training, pooled within a cluster, as a mean over clusters. With `paper_evaluation` it is
    `accuracy_group_mean` under `personal@local`, beside the same before local training
    (`personal@before`) and after mixing (`personal@aggregated`). `accuracy` under `personal` is
    another statistic: all clients with what is deployed to them.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedCPMD."""

        # The vote
        distance: Literal["js", "wasserstein", "hellinger", "bhattacharyya"] = Field(
            "js",
            description="distance d between scalar Gaussians in the score of a layer (eq. 7):"
            " Jensen-Shannon (eq. 8), 2-Wasserstein, Hellinger or Bhattacharyya",
        )
        inputs: Literal["channels", "raw"] = Field(
            "channels",
            description="channels: inputs are scaled to [0, 1] by the smallest and largest value of"
            " each channel at the client, outputs by their own, and labels by the number of"
            " classes; raw: inputs, outputs and labels, the numbers of the classes, are unscaled",
        )

        # The two phases
        k_p: int | None = Field(
            None, ge=0, description="number of rounds of phase 1, K_p (default: 0.3 T, of T rounds)"
        )
        phase1_personal: Literal["classifier", "majority"] = Field(
            "classifier",
            description="layer that stays local in phase 1: the classifier, or the layer that the"
            " client has voted for most often so far",
        )
        ablation: Literal["none", "only_cluster"] = Field(
            "none",
            description="figure 5: only_cluster averages all layers within clusters, with the"
            " weights of eq. 5",
        )
        paper_evaluation: bool = Field(
            False,
            description="report the statistic of the paper's tables too: the accuracy of each"
            " round's clients before and after local training and after mixing, as a mean over"
            " clusters",
        )

    config: Config
    second = "cluster"
    by_client = (("votes", (0,)), ("score_sums", (0,)), ("participated", (0,)))
    paper = fl.Paper(
        "Clustered Federated Learning with Cloud-Edge Personalized Model Decoupling",
        "Du Tian, Chen Xing-Yan, Kou Gang, Zhao Yu, Xu Chang-Qiao",
        "Chinese Journal of Computers, 2025",
        "10.11897/SP.J.1016.2025.00407",
    )
    communication = fl.Communication(
        down="phase 1: w without the classifier; phase 2: w without the personal layer",
        up="phase 1: w without the classifier, a vote, a score per layer; phase 2: w",
        keeps="phase 1: classifier; phase 2: all weights w",
    )

    @property
    def voting_rounds(self) -> int:
        rounds, k_p = self.setting.rounds, self.config.k_p
        return min(rounds, rounded(0.3, rounds) if k_p is None else k_p)

    def notes(self) -> list[str]:
        participation, clients = self.setting.train.participation, self.setting.clients
        rounds, cohort = self.voting_rounds, rounded(participation, clients)
        if rounds * cohort >= clients:
            return []
        return [
            f"fedcpmd: {rounds} rounds of votes with {cohort} of {clients} clients each cannot ask"
            " all clients; a client without a vote keeps the classifier as its personal layer."
            " Raise algorithm.k_p or train.participation."
        ]

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        local, shared = self.split()
        clients, layers = self.setting.clients, len(self.layers)
        server = fl.only(start, self.body()) | {
            "votes": torch.zeros(clients, layers, dtype=torch.int32),  # [N, L]
            "score_sums": torch.zeros(clients, layers, dtype=torch.float64),  # [N, L]
            "participated": torch.zeros(clients, dtype=torch.bool),  # [N] in phase 2
        }
        return server, fl.repeat(fl.only(start, local | shared), clients)

    def body(self) -> frozenset[str]:
        """Return the leaves that clients send in phase 1."""
        _, shared = self.split()
        is_classifier = self.config.phase1_personal == "classifier"
        return shared - self.setting.net.names("head") if is_classifier else shared

    def shares(self, state: fl.State, ids: Tensor, names: Iterable[str]) -> fl.Tree:
        """Return for each leaf whether its layer is not personal to clients `ids`, [K] bool."""
        chosen = elected(state.server)[ids]  # [K]
        if self.config.ablation == "only_cluster" and not self.voting(state):
            chosen = torch.full_like(chosen, -1)
        layer_of = {leaf: k for k, layer in enumerate(self.layers) for leaf in layer.leaves}
        return {name: chosen != layer_of.get(name, len(self.layers)) for name in names}

    def cohort(self, state: fl.State, draw: fl.Draw) -> Tensor:
        share = self.setting.train.participation
        if not self.voting(state):
            return cohort_of_clusters(elected(state.server), share, draw)
        common = super().cohort(state, draw)
        waiting = ~state.server["votes"].any(dim=1)  # [N]
        left = self.voting_rounds - state.stage_round
        needed = ceil(int(waiting.sum()) / len(common))
        if not needed or left > needed:
            return common
        # The rounds that are left are just enough for the clients without a vote.
        order = torch.from_numpy(draw.method_generator(0).permutation(len(waiting)))
        order = order[(~waiting[order]).int().argsort(stable=True)]
        return order[: len(common)].sort().values

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        local, shared = self.split()
        keeps = local | shared
        train = self.phase(*self.terms())
        if not self.voting(state):
            return fl.LocalProgram((train,), keeps, shared)  # l*_i too: eq. 13 needs it

        config, names = self.config, tuple(layer.name for layer in self.layers)
        given = config.distance, config.inputs == "raw", self.setting.classes, names
        samples = fl.Samples(limit=VOTE_SAMPLES)
        score = fl.bind(shift_scores, *given)  # eq. 7 and 8
        vote = fl.Statistic("shift", fl.bind(moments, names), REDUCE, score, samples)
        steps = (train, *reestimate_batchnorm(self.setting), vote, fl.Transform(write_vote))
        return fl.LocalProgram(steps, keeps, self.body() | {"vote", "scores"})

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        """Send the body of phase 1; in phase 2 a client had omega_i as the reply to its upload."""
        sent = super().dispatch(state, ids)
        if self.voting(state) and self.config.phase1_personal == "classifier":
            return sent
        rows = fl.repeat(sent.shared.values, len(ids))
        new = ~state.server["participated"][ids]  # [K]
        mask = {name: new & shared for name, shared in self.shares(state, ids, rows).items()}
        return fl.Dispatch(rows=fl.Message(rows, mask))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        if self.voting(state):
            return self._aggregate_votes(state, results)
        return self._aggregate_clusters(state, results)

    def _aggregate_votes(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Phase 1: average the bodies and count the votes."""
        server, sent, ids = state.server, results.sent.values, results.ids
        mean = self.mean(results, self.body())
        if self.config.phase1_personal == "majority":  # over clients to which it is not personal
            weights, mean = self.weights(results), {}
            for name, shared in self.shares(state, ids, self.body()).items():
                mean |= fl.weighted_mean({name: sent[name]}, weights * shared)

        vote = sent["vote"].long()
        votes, sums = server["votes"].clone(), server["score_sums"].clone()
        votes[ids, vote] += 1
        sums[ids] += sent["scores"].double()
        update = mean | {"votes": votes, "score_sums": sums}
        return fl.Update(update, metrics=self.by_layer("votes", vote))

    def _aggregate_clusters(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Phase 2: mix omega_i over the clients of the round in the same cluster."""
        ids, samples = results.ids, self.weights(results)
        rows = fl.only(results.sent.values, self.split()[1])  # [K, ...] each
        chosen = elected(state.server)  # [N]
        if self.config.ablation == "only_cluster":
            weights = (chosen[ids][:, None] == chosen[ids]) * samples  # eq. 5
        else:
            phi = layer_cosines(rows, chosen[ids], self.layers)  # eq. 13
            weights = (phi * (samples > 0)).fill_diagonal_(1.0)
        omega = mix(rows, simplex(weights, torch.eye(len(ids)), dim=1))  # eq. 12

        shares = self.shares(state, ids, omega)
        metrics = self.by_layer("members", chosen) | self.by_layer("active", chosen[ids])
        own = {name: rows[name][~shared] for name, shared in shares.items()}
        metrics["phi_bytes"] = float(fl.nbytes(own))
        participated = state.server["participated"].index_fill(0, ids, True)
        return fl.Update({"participated": participated}, fl.Message(omega, shares), metrics)

    # Evaluation: each client's model and, for the statistic of the paper, cohorts by cluster.

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        return {"personal": fl.Deployment(self.dispatch(state, ids))}

    def cohort_groups(self, state: fl.State) -> Tensor | None:
        if not self.config.paper_evaluation:
            return None
        chosen = elected(state.server)
        return torch.zeros_like(chosen) if self.voting(state) else chosen

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the votes of the clients, by which their personal layers are chosen."""
        table = fl.LearnedTable(
            "votes",
            "Number of a client's votes for each layer. The layer with most votes is the client's"
            " personal layer, and clients with the same personal layer form a cluster.",
            state.server["votes"].double(),
            columns="layer",
            labels=tuple(layer.name for layer in self.layers),
        )
        return (table,)


def write_vote(context: fl.Context) -> fl.Tree:
    """Return the leaves `vote` [] int32 and `scores` [L] in the dtype of the weights."""
    scores = context.ctx["shift.scores"]
    vote = smallest(scores).argmax().to(torch.int32)
    return {"vote": vote, "scores": scores.to(context.info.lr.dtype)}


def elected(server: fl.Tree) -> Tensor:
    """Return the number of the layer l*_i that each client voted for most often, [N] int64.

    Ties go to the smaller sum of scores, then to the lower layer. A client without a vote has the
    last layer, the classifier.

    Args:
        server: Entries `votes` [N, L] and `score_sums` [N, L] of the server.
    """
    votes, scores = server["votes"], server["score_sums"]
    most = votes == votes.amax(dim=1, keepdim=True)  # [N, L]
    best = fl.smallest_index(torch.where(most, scores, torch.inf), torch.float32)  # [N]
    classifier = votes.shape[1] - 1
    return torch.where(votes.any(dim=1), best, classifier)


def cohort_of_clusters(clusters: Tensor, share: float, draw: fl.Draw) -> Tensor:
    """Return a cohort with a share of each cluster, [K] ascending ids.

    Args:
        clusters: [N] number of each client's cluster.
        share: Share of a cluster's clients in (0, 1]; it is rounded, and at least one client.
        draw: Random streams of the round.
    """
    drawn = []
    for cluster in range(int(clusters.max()) + 1):
        members = (clusters == cluster).nonzero().flatten()
        size = rounded(share, len(members))
        order = torch.from_numpy(draw.method_generator(1, cluster).permutation(len(members)))
        drawn.append(members[order[:size]])
    return torch.cat(drawn).sort().values


def layer_cosines(rows: fl.Tree, chosen: Tensor, layers: tuple[fl.LayerSpec, ...]) -> Tensor:
    """Return Phi of eq. 13: cosines of the personal layers of clients, [M, M] float64.

    Negative cosines are 0, as those of clients with different personal layers. The diagonal is 1.

    Args:
        rows: Uploaded leaves, [M, ...] each.
        chosen: [M] number of each client's personal layer.
        layers: The L candidate layers.
    """
    phi = torch.zeros(len(chosen), len(chosen), dtype=torch.float64)
    for index, layer in enumerate(layers):
        members = (chosen == index).nonzero().flatten()
        if len(members):
            cosines = pairwise_cosines(fl.take(rows, members), layer.parameters, added=EPSILON)
            phi[members[:, None], members] = cosines
    return phi.clamp_min(0.0).fill_diagonal_(1.0)
