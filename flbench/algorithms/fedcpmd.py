"""FedCPMD: clients elect a personal layer and form clusters by it (Du et al., 2025)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, log, pi
from typing import Final, Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.election import (
    BallotConfig,
    LayerElection,
    WriteVote,
    rounded,
    smallest,
)
from flbench.algorithms.shared.mixing import mix, pairwise_cosines
from flbench.algorithms.shared.shift import REDUCE, Distance, Gaussian, Shift, shift_scores

Layers = tuple[fl.LayerSpec, ...]

EPSILON = 1e-8  # added to the product of the norms in eq. 13; smallest sum of weights in eq. 12
VOTE_SAMPLES = 1000  # largest number of training samples for a vote
GRID_NODES = 2049  # of the grid of each Gaussian, which spans 8 standard deviations to each side


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

    d is a distance of scalar Gaussians, by default Jensen-Shannon (eq. 8).

    Phase 2, for clients i, j of a cluster; phi_i is the layer l*_i, omega_i all other layers:

        Phi_ij  = max(0, <phi_i, phi_j> / (||phi_i|| ||phi_j|| + 1e-8)), Phi_ii = 1    (eq. 13)
        omega_i = sum_j Phi_ij omega_j / sum_j Phi_ij                                  (eq. 12)

    Readings. The sums run over the clients of the round, with the layers that they have just
    trained; only these clients receive a reply. Outputs of layers are taken after their ReLU, and a
    vote reads at most 1,000 training samples. A share of the clients of each cluster takes part,
    and at least one. Ties between layers go to the smaller sum of scores, then to the lower layer.
    A client that never voted keeps the classifier. When a client first participates in phase 2, it
    receives the body of phase 1, except for its personal layer if it has voted. The paper does not
    describe clients that join later. Here such a client votes once, after training the body of
    phase 1 for a round. It receives the layers of its cluster as in eq. 12, mixed over the last
    uploads of all clients that trained in phase 2, and as its personal layer that of phase 1. In
    phase 1 the classifier stays with the client, as section 5.2 says; line 13 of Algorithm 2 keeps
    the layer that the client has voted for most often so far (`phase1_personal=majority`).

    Deviations. Before inputs, labels and outputs become Gaussians, they are scaled to [0, 1], so
    that tensors of different ranges are compared. The paper does not say so. Without scaling
    (`inputs=raw`) many clients elect another layer (see docs/papers/fedcpmd.md).
    Inputs are scaled by their own smallest and largest values, since a method does not know the
    range of pixels. Jensen-Shannon is integrated on a grid that no narrow Gaussian falls through.
    The paper says that the personal layer is never sent, but eq. 13 needs it at the server:
    its bytes are charged, and logged as `phi_bytes`. A client without an optimizer step votes, and
    has weight 0 for others.

    The second phase begins with a loss. In phase 1 the classifiers stay with the clients, so each
    is trained for the classes of its client alone; eq. 12 averages them for the first time in
    phase 2, in clusters with another personal layer. docs/papers/fedcpmd.md has the accuracies with
    and without this mixing, and with other parts switched off, which do not cause the loss.

    The accuracy in the paper's tables is that of the clients of the last five rounds right after
    local training, pooled within a cluster, as a mean over clusters. With `paper_evaluation` it is
    `accuracy_group_mean` under `personal@local`, beside the same before local training
    (`personal@before`) and after mixing (`personal@aggregated`). `accuracy` under `personal` is
    another statistic: all clients with what is deployed to them.
    """

    class Config(BallotConfig):
        """Keys of FedCPMD."""

        # The vote
        distance: Literal["js", "wasserstein", "hellinger", "bhattacharyya"] = Field(
            "js",
            description="distance d between scalar Gaussians in the score of a layer (eq. 7):"
            " Jensen-Shannon (eq. 8), 2-Wasserstein, Hellinger or Bhattacharyya",
        )
        inputs: Literal["channels", "given", "raw"] = Field(
            "channels",
            description="how inputs are scaled to [0, 1] in the score: by the smallest and largest"
            " value of each channel at the client (channels), or not at all, for"
            " data.normalize=unit (given); raw: inputs, outputs and labels, which are the numbers"
            " of the classes, are all unscaled",
        )
        coverage: bool = Field(
            True,
            description="towards the end of phase 1, clients that have not voted are drawn first",
        )

        # The two phases
        k_p: int | None = Field(
            None, ge=0, description="number of rounds of phase 1, K_p (default: 0.3 T, of T rounds)"
        )
        phase1_personal: Literal["classifier", "majority", "none"] = Field(
            "classifier",
            description="layer that stays local in phase 1: the classifier, the layer that the"
            " client has voted for most often so far, or none",
        )
        ablation: Literal["none", "only_cluster", "only_decouple"] = Field(
            "none",
            description="figure 5: only_cluster averages all layers within clusters, only_decouple"
            " has personal layers without clusters; both with the weights of eq. 5",
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
        notes = []
        if rounds == self.setting.rounds:
            notes.append(
                f"fedcpmd: all train.rounds={rounds} rounds are rounds of votes, so nothing is"
                " clustered. Set algorithm.k_p below train.rounds for a second phase."
            )
        if rounds * cohort < clients:
            notes.append(
                f"fedcpmd: {rounds} rounds of votes with {cohort} of {clients} clients each cannot"
                " ask all clients; a client without a vote keeps the classifier as its personal"
                " layer. Raise algorithm.k_p or train.participation."
            )
        # A cluster of m clients trains two of them if participation * m rounds to at least 2.
        fewest = ceil(1.5 / participation)
        if participation < 1 and fewest * len(self.layers) > clients:
            notes.append(
                f"fedcpmd: with train.participation={participation:g}, a cluster of fewer than"
                f" {fewest} clients trains one client per round, which then mixes with no other."
                " Raise train.participation."
            )
        return notes

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        local, shared = self.split()
        clients = self.setting.clients
        server = fl.only(start, self.shared_in_phase_1())
        server |= no_votes(clients, len(self.layers))
        server["participated"] = torch.zeros(clients, dtype=torch.bool)  # [N] in phase 2
        return server, fl.repeat(fl.only(start, local | shared), clients)

    def shared_in_phase_1(self) -> frozenset[str]:
        """Return the leaves that the server averages in phase 1."""
        _, shared = self.split()
        if self.config.phase1_personal == "classifier":
            return shared - self.setting.net.names("head")
        return shared

    def own(self, state: fl.State) -> Tensor:
        """Return the personal layer l*_i of each client by the votes so far, [N, L] bool."""
        own = elected(state.server)[:, None] == torch.arange(len(self.layers))
        if self.config.ablation == "only_cluster" and not self.voting(state):
            return torch.zeros_like(own)
        return own

    def clusters(self, state: fl.State) -> Tensor:
        """Return the cluster of each client, [N]: the number of its personal layer."""
        if self.config.ablation == "only_decouple":
            return torch.zeros_like(elected(state.server))
        return elected(state.server)

    def cohort(self, state: fl.State, draw: fl.Draw) -> Tensor:
        common = super().cohort(state, draw)
        if self.voting(state):
            waiting = ~state.server["votes"].any(dim=1) & self.config.coverage  # [N]
            left = self.voting_rounds - state.stage_round
            return cohort_that_covers(common, waiting, left, draw)

        if self.config.ablation == "only_decouple":
            return common
        return cohort_of_clusters(self.clusters(state), self.setting.train.participation, draw)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        local, shared = self.split()
        keeps = local | shared
        train = self.phase(*self.terms())
        if not self.voting(state):
            return fl.LocalProgram((train,), keeps, shared)  # l*_i too: eq. 13 needs it

        steps = (train, *self.vote_steps())
        sends = self.shared_in_phase_1() | {"vote", "scores"}
        if self.config.phase1_personal != "majority":
            return fl.LocalProgram(steps, keeps, sends)

        # Each client has another personal layer: copies are sent, with masks that say which.
        upload = UploadOthers(self.layers)
        copies = frozenset(name for name, _ in upload.masks)
        sends = (sends - layer_of_leaf(self.layers).keys()) | copies
        return fl.LocalProgram((*steps, fl.Transform(upload)), keeps, sends, upload.masks)

    def vote_steps(self) -> tuple[fl.Step, ...]:
        """Return the steps of a client's vote, which write the leaves `vote` and `scores`.

        The vote reads the training part in eval mode, after training. With train.batchnorm=drop the
        statistics are estimated first, as they are before an evaluation.
        """
        config = self.config
        names = tuple(layer.name for layer in self.layers)
        shift = Shift(names, self.setting.classes, config.inputs)
        score = ScoreLayers(shift, config.distance)
        samples = fl.Samples(limit=VOTE_SAMPLES)
        statistic = fl.Statistic("shift", shift, REDUCE, finish=score, samples=samples)
        return (*reestimate_batchnorm(self.setting), statistic, fl.Transform(WriteVote()))

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        body: fl.Tree = {} if state.is_initial else fl.only(state.server, self.shared_in_phase_1())
        if self.voting(state) and self.config.phase1_personal != "majority":
            return fl.Dispatch(fl.Message(body))

        rows = {name: value.expand(len(ids), *value.shape) for name, value in body.items()}
        own = self.own(state)[ids]  # [K, L]
        if self.voting(state):
            mask = all_but_own(rows, own, self.layers)
            return fl.Dispatch(rows=fl.Message(rows | {"personal": own}, mask))

        # Phase 2: what a client receives was the reply in its last round. A client that is new in
        # phase 2 receives the body of phase 1, except for its own layer if it has voted.
        voted = state.server["votes"][ids].any(dim=1)  # [K]
        new = ~state.server["participated"][ids]  # [K]
        mask = all_but_own(rows, own & voted[:, None], self.layers)
        return fl.Dispatch(
            rows=fl.Message(rows, {name: new & inside for name, inside in mask.items()})
        )

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        if self.voting(state):
            return self._aggregate_votes(state, results)
        return self._aggregate_clusters(state, results)

    def _aggregate_votes(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Phase 1: average the bodies and count the votes."""
        mean = mean_of_senders(results.sent, self.weights(results), state.server)
        votes = self.by_layer("votes", results.sent.values["vote"].long())
        return fl.Update(mean | count_votes(state.server, results), metrics=votes)

    def _aggregate_clusters(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Phase 2: mix omega_i over the clients of the round in the same cluster."""
        ids = results.ids
        participated = state.server["participated"].index_fill(0, ids, True)

        rows = fl.only(results.sent.values, self.split()[1])  # [K, ...] each
        own = self.own(state)  # [N, L]
        weights = self.cluster_weights(state, ids, rows, self.weights(results))
        reply = mix_others(rows, weights, own[ids], self.layers, torch.arange(len(ids)))

        chosen = elected(state.server)  # [N]
        metrics = self.by_layer("members", chosen) | self.by_layer("active", chosen[ids])
        metrics["phi_bytes"] = layer_bytes(rows, own[ids], self.layers)
        return fl.Update({"participated": participated}, reply, metrics)

    def cluster_weights(
        self, state: fl.State, ids: Tensor, rows: fl.Tree, samples: Tensor
    ) -> Tensor:
        """Return the weights of clients for one another, [M, M], before they are normalized.

        They are Phi of eq. 13, or the numbers of samples (eq. 5) in an ablation. Clients of
        different clusters have weight 0 for one another. So has a client without an optimizer step
        for all others.

        Args:
            state: State of the server.
            ids: [M] the clients.
            rows: Their uploaded leaves, [M, ...] each.
            samples: [M] >= 0, a client's samples or 1; 0 without an optimizer step.
        """
        clusters = self.clusters(state)[ids]  # [M], the numbers of the personal layers
        if self.config.ablation != "none":
            return (clusters[:, None] == clusters) * samples
        return (layer_cosines(rows, clusters, self.layers) * (samples > 0)).fill_diagonal_(1.0)

    # Clients that join later

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining | None:
        """Return how a new client finds its personal layer and its cluster, after phase 1."""
        if self.voting(state):
            return None
        body = fl.Dispatch(fl.Message(fl.only(state.server, self.shared_in_phase_1())))
        steps = (self.phase(*self.terms()), *self.vote_steps())
        program = fl.LocalProgram(steps, sends=self.split()[1] | {"vote", "scores"})
        return fl.Joining(body, program, aggregate=self._admit)

    def _admit(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Return the votes of new clients, and omega_i of their clusters as a reply."""
        ids, server = results.ids, state.server
        votes = count_votes(server, results)
        state = replace(state, server=server | votes)
        members = last_uploads(state, results)
        shared = self.split()[1]
        known, trained = (fl.only(one.sent.values, shared) for one in (members, results))
        rows = {name: torch.cat([known[name], trained[name]]) for name in known}

        # A new client gives nothing, and its training serves only to find its cluster.
        among = torch.cat([members.ids, ids])
        new = torch.arange(len(members.ids), len(among))
        own = self.own(state)
        samples = torch.cat([self.weights(members), torch.zeros(len(ids)).double()])
        weights = self.cluster_weights(state, among, rows, samples)
        weights[new, new] = 0.0
        body = fl.repeat(fl.only(server, self.shared_in_phase_1()), len(ids))
        start = fl.take(state.clients, ids) | body
        rows = {name: torch.cat([known[name], start[name]]) for name in known}
        reply = mix_others(rows, weights, own[among], self.layers, new)

        values, mask = dict(reply.values), dict(reply.mask)
        for name, value in body.items():  # the personal layer too, if the server has it
            is_mixed = mask.pop(name).reshape(-1, *(1,) * (value.ndim - 1))
            values[name] = torch.where(is_mixed, values[name], value)
        participated = server["participated"].index_fill(0, ids, True)
        return fl.Update(votes | {"participated": participated}, fl.Message(values, mask))

    # Evaluation: each client's model and, for the statistic of the paper, cohorts by cluster.

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        return {"personal": fl.Deployment(self.dispatch(state, ids))}

    def cohort_groups(self, state: fl.State) -> Tensor | None:
        if not self.config.paper_evaluation:
            return None
        if self.voting(state):  # there are no clusters yet
            return torch.zeros(self.setting.clients, dtype=torch.int64)
        return self.clusters(state)

    def learned(self, state: fl.State) -> tuple[fl.Learned, ...]:
        """Return the votes of the clients, by which their personal layers are chosen."""
        table = fl.LearnedTable(
            "votes",
            "Number of a client's votes for each layer. The layer with most votes is the client's"
            " personal layer, and clients with the same personal layer form a cluster.",
            state.server["votes"].double(),
            rows="client",
            columns="layer",
            labels=tuple(layer.name for layer in self.layers),
        )
        return (table,)


# Phase 1: scores and votes of clients (eq. 7 and 8).


@dataclass(frozen=True)
class ScoreLayers:
    """Finish of a Statistic: score each layer by eq. 7 and vote for the smallest score.

    Attributes:
        shift: The Statistic's function, which made the moments.
        distance: Name of the distance d, in `DISTANCES`.
    """

    shift: Shift
    distance: str

    def __call__(self, context: fl.Context, moments: fl.Tree) -> fl.Tree:
        """Return `scores` [L] float64 and `vote` [] of moments over all samples."""
        x, y, outputs = self.shift.gaussians(moments)
        scores = shift_scores(x, y, outputs, DISTANCES[self.distance])
        return {"scores": scores, "vote": smallest(scores).argmax()}


def wasserstein(p: Gaussian, q: Gaussian) -> Tensor:
    """Return the 2-Wasserstein distance sqrt((m_1 - m_2)^2 + (s_1 - s_2)^2)."""
    return ((p.mean - q.mean).square() + (p.std - q.std).square()).sqrt()


def hellinger(p: Gaussian, q: Gaussian) -> Tensor:
    """Return sqrt(1 - BC) in [0, 1], where BC is the Bhattacharyya coefficient."""
    return (1.0 - torch.exp(-bhattacharyya(p, q))).clamp_min(0.0).sqrt()


def bhattacharyya(p: Gaussian, q: Gaussian) -> Tensor:
    """Return -ln BC = (m_1 - m_2)^2 / (4 S) + ln(S / (2 s_1 s_2)) / 2 with S = s_1^2 + s_2^2."""
    both = p.std.square() + q.std.square()
    apart = (p.mean - q.mean).square() / (4.0 * both)
    return apart + 0.5 * torch.log(both / (2.0 * p.std * q.std)).clamp_min(0.0)


def jensen_shannon(p: Gaussian, q: Gaussian) -> Tensor:
    """Return (KL(p || r) + KL(q || r)) / 2 with r = (p + q) / 2, in [0, ln 2] nats (eq. 8).

    The integral is computed by the trapezoid rule over the nodes of both Gaussians' own grids. On
    one common grid of 2,049 nodes, a Gaussian of the least width would fall between two nodes.
    """
    grid = torch.linspace(-8.0, 8.0, GRID_NODES, dtype=p.mean.dtype, device=p.mean.device)
    zero = torch.zeros_like(p.mean + q.mean)  # of both shapes together
    m1, s1, m2, s2 = ((v + zero)[..., None] for v in (p.mean, p.std, q.mean, q.std))

    x = torch.cat([m1 + s1 * grid, m2 + s2 * grid], dim=-1).sort(dim=-1).values
    log_p, log_q = _log_density(x, m1, s1), _log_density(x, m2, s2)
    log_r = torch.logaddexp(log_p, log_q) - log(2.0)
    inside = log_p.exp() * (log_p - log_r) + log_q.exp() * (log_q - log_r)
    area = ((inside[..., 1:] + inside[..., :-1]) * (x[..., 1:] - x[..., :-1])).sum(dim=-1) / 2.0
    return (area / 2.0).clamp(0.0, log(2.0))


def _log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * log(2.0 * pi)


DISTANCES: Final[Mapping[str, Distance]] = {
    "js": jensen_shannon,
    "wasserstein": wasserstein,
    "hellinger": hellinger,
    "bhattacharyya": bhattacharyya,
}


# Phase 1: cohorts, and what the server knows of the votes.


def no_votes(clients: int, layers: int) -> fl.Tree:
    """Return the server's entries before the first vote.

    Args:
        clients: Number of clients N.
        layers: Number of candidate layers L.

    Returns:
        `votes` [N, L] int32, numbers of votes, and `score_sums` [N, L] float64, sums of scores.
    """
    return {
        "votes": torch.zeros(clients, layers, dtype=torch.int32),
        "score_sums": torch.zeros(clients, layers, dtype=torch.float64),
    }


def count_votes(server: fl.Tree, results: fl.Results) -> fl.Tree:
    """Return the server's `votes` and `score_sums` with those of a cohort added."""
    sent = results.sent.values
    votes, sums = server["votes"].clone(), server["score_sums"].clone()
    votes[results.ids, sent["vote"].long()] += 1
    sums[results.ids] += sent["scores"].double()
    return {"votes": votes, "score_sums": sums}


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


def cohort_that_covers(common: Tensor, waiting: Tensor, left: int, draw: fl.Draw) -> Tensor:
    """Return the cohort of a round of votes, [K] ascending ids.

    The last rounds take the clients without a vote first, as soon as the rounds that are left are
    just enough for all of them.

    Args:
        common: [K] cohort that all methods have in this round.
        waiting: [N] bool: clients without a vote.
        left: Number of rounds of votes that are left, this round included.
        draw: Random streams of the round.
    """
    needed = ceil(int(waiting.sum()) / len(common))
    if not needed or left > needed:
        return common
    order = torch.from_numpy(draw.method_generator(0).permutation(len(waiting)))
    order = order[(~waiting[order]).int().argsort(stable=True)]
    return order[: len(common)].sort().values


# Phase 1: means over clients that send different layers.


def layer_of_leaf(layers: Layers) -> dict[str, int]:
    """Return the number of the candidate layer of each of their leaves."""
    return {leaf: index for index, layer in enumerate(layers) for leaf in layer.leaves}


def all_but_own(names: Iterable[str], own: Tensor, layers: Layers) -> fl.Tree:
    """Return a mask [K] bool for every leaf: True for clients to which its layer is not personal.

    Args:
        names: Names of leaves.
        own: [K, L] bool: the personal layers of each client.
        layers: The L candidate layers. Leaves of other layers are personal to no client.
    """
    layer_of = layer_of_leaf(layers)
    none = torch.zeros(len(own), dtype=torch.bool)  # [K]
    return {name: ~(own[:, layer_of[name]] if name in layer_of else none) for name in names}


@dataclass(frozen=True)
class UploadOthers:
    """A Transform that copies the candidate layers for the upload and masks the personal one.

    The upload uses copies, because entries outside the mask of a message are set to zero, which
    must not happen to the client's own leaves.

    Attributes:
        layers: The L candidate layers.
    """

    layers: Layers

    @property
    def masks(self) -> tuple[tuple[str, str], ...]:
        """Pairs of the name of a copy and the name of its mask."""
        return tuple(
            (f"up.{leaf}", f"share.{layer.name}") for layer in self.layers for leaf in layer.leaves
        )

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the copies `up.LEAF` and the masks `share.LAYER` [] bool.

        Args:
            context: Its ctx has `personal` [L] bool, the client's personal layer.
        """
        own = context.ctx["personal"]
        copies = {
            f"up.{leaf}": context.leaves[leaf] for layer in self.layers for leaf in layer.leaves
        }
        masks = {f"share.{layer.name}": ~own[k] for k, layer in enumerate(self.layers)}
        return copies | masks


def mean_of_senders(sent: fl.Message, weights: Tensor, names: Iterable[str]) -> fl.Tree:
    """Return the weighted mean of each leaf over the clients that sent it.

    Args:
        sent: Leaves [K, ...] or their copies `up.LEAF`, with masks [K] for the copies.
        weights: [K] >= 0.
        names: Names of the leaves that are averaged.

    Returns:
        Leaves without the client axis, except those that no client sent.
    """
    mean: fl.Tree = {}
    for name, rows in sent.values.items():
        leaf = name.removeprefix("up.")
        if leaf in names:
            mean |= fl.weighted_mean({leaf: rows}, weights * sent.mask.get(name, 1))
    return mean


# Phase 2: cohorts and mixtures of clusters (eq. 5, 12 and 13).


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


def last_uploads(state: fl.State, results: fl.Results) -> fl.Results:
    """Return the last uploads of all clients that have participated in phase 2, as results."""
    ids = state.server["participated"].nonzero().flatten()
    sent, steps = fl.Message(fl.take(state.clients, ids)), torch.ones(len(ids), dtype=torch.int64)
    return replace(results, ids=ids, steps=steps, sent=sent)


def layer_cosines(rows: fl.Tree, chosen: Tensor, layers: Layers) -> Tensor:
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


def mix_others(
    rows: fl.Tree, weights: Tensor, own: Tensor, layers: Layers, receivers: Tensor
) -> fl.Message:
    """Return omega_i of eq. 12 for some clients: every layer mixed but the personal one.

    A leaf is mixed over the clients to which its layer is not personal either, as
    sum_j weights[i, j] rows[j] / sum_j weights[i, j]. Where the sum of the weights is not positive,
    the client keeps its own.

    Args:
        rows: Uploaded leaves, [M, ...] each.
        weights: [M, M], not normalized.
        own: [M, L] bool: the personal layers of each client.
        layers: The L candidate layers. Leaves of other layers are personal to no client.
        receivers: [K] positions of the receiving clients, in [0, M).

    Returns:
        Leaves [K, ...] each, with masks [K] that are False where the layer is personal.
    """
    layer_of = layer_of_leaf(layers)
    by_layer: dict[int | None, list[str]] = {}  # leaves of no candidate layer under None
    for name in rows:
        by_layer.setdefault(layer_of.get(name), []).append(name)

    alone = torch.eye(len(weights), dtype=weights.dtype)
    mixed: fl.Tree = {}
    for index, names in by_layer.items():
        shares = weights if index is None else weights * ~own[:, index]  # [M, M]
        total = shares.sum(dim=1, keepdim=True)
        shares = torch.where(total > EPSILON, shares / total.clamp_min(EPSILON), alone)
        mixed |= mix(fl.only(rows, names), shares[receivers])
    return fl.Message(mixed, all_but_own(mixed, own[receivers], layers))


def layer_bytes(rows: fl.Tree, own: Tensor, layers: Layers) -> float:
    """Return the bytes of the clients' personal layers.

    Args:
        rows: Leaves, with a leading axis each.
        own: [K, L] bool: the personal layers of each client.
        layers: The L candidate layers.
    """
    sizes = [fl.nbytes({leaf: rows[leaf][0] for leaf in layer.leaves}) for layer in layers]
    return float((own.double() @ torch.tensor(sizes, dtype=torch.float64)).sum())
