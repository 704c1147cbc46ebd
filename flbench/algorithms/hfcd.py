"""HFCD: class prototypes, hard negatives and distillation of class similarities (Xu, 2025)."""

from math import exp
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared import prototypes
from flbench.algorithms.shared.simplex import softmax_among
from flbench.losses import CrossEntropy, PrototypeContrast, PrototypeDistillation, SemanticKL
from flbench.losses.similarity import cosines, unit

Weights = tuple[float | str, float | str, str]
LOSS_FORMS: dict[str, Weights] = {
    "nested": (1.0, "beta", "beta_lambda"),  # CE + beta (L_cont + lambda L_KD)
    "flat": ("beta", 1.0, "lambda"),  # L_cont + lambda L_KD + beta CE
    "separate": (1.0, "beta", "lambda"),  # CE + beta L_cont + lambda L_KD
}
"""Weights of CE, L_cont and L_KD. A name stands for a number that `Hfcd.dispatch` computes."""


@fl.ALGORITHMS.register("hfcd")
class Hfcd(fl.Algorithm):
    """Clients exchange class prototypes and class similarities; each trains a model of its own.

    A prototype is the mean feature of a class. A client sends the prototypes of the classes that it
    holds, their sample counts, and the cosines between them. The server averages the prototypes,
    giving more weight to clients that have many samples and agree with the others, and averages the
    cosines into one matrix of class similarities. Local training contrasts features with the global
    prototypes, gives more weight to similar classes (hard negatives), and pulls the client's class
    similarities towards the global ones. Each client is evaluated with its own model.

    Client i in round t of T, with features z, labels y, global prototypes P and similarities S:

        L      = CE + beta(t) (L_cont + lambda(t) L_KD)
        beta   = lambda0 (1 - exp(-t / T)),  lambda = lambda0 exp(-t / T)
        L_cont = -log(e_y / (e_y + gamma sum_{q in H(y)} e_q + sum_{r not in H(y), r != y} e_r))
        e_k    = exp(cos(z, P_k) / tau),  H(p) = {q != p: S_pq > alpha}
        L_KD   = sum over p of KL(softmax_q S_pq || softmax_q S^i_pq)

    Client i after training: c_k^i is the mean feature of class k, n_k^i its number of samples, and
    S^i_pq = cos(c_p^i, c_q^i). Within L_KD, c_p^i is the mean feature of the batch if the batch
    contains class p.

    Server, with the last upload of every client, for the holders of a class (n_k^i > 0):

        a_k^i = (n_k^i / max_j n_k^j) mean_{j != i} cos(c_k^i, c_k^j)
        P_k   = sum_i softmax_i(a_k^i) c_k^i
        S_pq  = mean of S^i_pq over the holders of p and q; cos(P_p, P_q) where there are none

    Readings and deviations. Where the printed formulas are ambiguous, the code is the reading given
    here. The paper defines no averaging of weights, and its text leaves them with the clients; its
    tables, however, report accuracies on a common test set that models without averaging cannot
    reach, because each knows the classes of one client alone (`share`). The paper also says of the
    FedAvg baseline of its ablation that it averages parameters only. This supports `share=full` in
    that table: the other rows then average parameters too (see docs/papers/hfcd.md).

    T, the time constant of both schedules, is the number of training rounds, as in the paper's
    theorem 1. Rounds count from 0, so that the first round uses cross entropy alone. With the
    nested weights above, lambda_0^2 exp(-t/T) (1 - exp(-t/T)) weights L_KD, which grows from 0
    until t = 0.69 T; the text describes a weight that is strong at the start and decays
    (`loss_form=separate`).

    The positive class is part of the denominator of L_cont. L_KD runs over the classes
    that both the client and the server have. Its sum over p is not divided by the number of classes
    (`kd_reduction`). A class's local prototype comes from the batch if the batch contains the
    class, and otherwise from the client's last upload; only the former has a gradient.

    The printed means over N clients run over the holders of a class: in a_k^i, the cosines over the
    other holders of class k (1 if there are none), and in S_pq over the clients that hold both p
    and q. With few classes per client most pairs have no such client (in the
    setting of table 2, 16 to 19 % of the pairs have one); their S_pq comes from the global
    prototypes.

    A client that took no optimizer step still uploads its prototypes, which can be computed
    without a step.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of HFCD.

        The defaults are those of the paper's table 1 for CIFAR-100. For EMNIST the table has
        tau=0.15, alpha=0.6, gamma=1.2 and lambda0=0.7.
        """

        # Exchange
        share: Literal["none", "body", "full"] = Field(
            "none",
            description="weights that the server averages in addition: none, all but the head, or"
            " all",
        )

        # Local loss
        tau: float = Field(0.2, gt=0, description="temperature of the contrast L_cont")
        alpha: float = Field(
            0.7, ge=-1, le=1, description="similarity above which a class is a hard negative"
        )
        gamma: float = Field(1.3, gt=0, description="weight of hard negatives in L_cont")
        lambda0: float = Field(0.7, ge=0, description="factor of both schedules, beta and lambda")
        loss_form: Literal["nested", "flat", "separate"] = Field(
            "nested",
            description="how beta and lambda weight the loss: CE + beta (L_cont + lambda L_KD),"
            " L_cont + lambda L_KD + beta CE, or CE + beta L_cont + lambda L_KD",
        )
        kd_reduction: Literal["mean", "sum"] = Field(
            "sum", description="L_KD is the sum over classes, as printed, or the mean"
        )

        # Ablations of table 2. Its A+C has two descriptions: section 5.3.1 says that the selection
        # of hard negatives is off, and section 5.3.3 that the contrast is.
        aggregation: Literal["dual", "mean"] = Field(
            "dual",
            description="weights of prototypes: by size and similarity, or equal (B+C in table 2)",
        )
        contrast: bool = Field(
            True, description="false: the loss has no L_cont (A+C in table 2, section 5.3.3)"
        )
        hard_negatives: bool = Field(
            True,
            description="false: all negatives have weight 1 in L_cont (A+C in table 2, section"
            " 5.3.1)",
        )
        distillation: Literal["semantic", "ordinary"] = Field(
            "semantic",
            description="teacher of L_KD: global class similarities, or the softmax of the cosines"
            " of a sample with the global prototypes (A+B in table 2)",
        )

    config: Config
    paper = fl.Paper(
        "Hierarchical Federated Contrastive Distillation, based on semantic similarity",
        "Xu Along",
        "Modeling and Simulation 14(5), 2025",
        "10.12677/mos.2025.145437",
    )
    communication = fl.Communication(
        down="C prototypes of D features, C flags, C x C class similarities",
        up="D features, a count and an id per held class, a cosine per pair of held classes",
        keeps="all weights w (share=none), prototypes, counts, similarities",
    )

    def personal(self) -> frozenset[str]:
        net = self.setting.net
        match self.config.share:
            case "none":
                return net.names("all")
            case "body":
                return net.names("head")
            case "full":
                return frozenset()

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        keeps, sends = self.split()
        table, bank = prototypes.empty(self.setting, start)
        no_similarity = torch.eye(self.setting.classes, dtype=table["global.prototypes"].dtype)

        server = fl.only(start, sends) | table | {"global.similarity": no_similarity}
        client = fl.only(start, keeps) | bank | {"similarity": torch.zeros_like(no_similarity)}
        return server, fl.repeat(client, self.setting.clients)

    # Client: local training, then prototypes, counts and similarities.

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        train = self.phase(*self.terms())
        collect = prototypes.collect(self.setting)
        similarity = fl.Transform(write_similarity)
        return fl.LocalProgram(
            steps=(train, *collect, similarity),
            keeps=keeps | {"prototypes", "counts", "similarity"},
            sends=sends | prototypes.LEAVES | {"similarity"},
            masks=(*prototypes.MASKS, ("similarity", "pairs")),
        )

    def terms(self) -> tuple[fl.LossTerm, ...]:
        weight_of_ce, _, _ = LOSS_FORMS[self.config.loss_form]
        contrast = (self.contrast(),) if self.config.contrast else ()
        return (CrossEntropy(weight_of_ce), *contrast, self.distillation())

    def contrast(self) -> PrototypeContrast:
        """Return L_cont. Without hard negatives all negatives have weight 1."""
        config = self.config
        _, weight, _ = LOSS_FORMS[config.loss_form]
        if not config.hard_negatives:
            # gamma = 1 gives all negatives one weight; above a cosine of 1 no class counts as hard.
            return PrototypeContrast(weight, config.tau, threshold=1.0, gamma=1.0)
        return PrototypeContrast(weight, config.tau, config.alpha, config.gamma)

    def distillation(self) -> fl.LossTerm:
        """Return L_KD, or the ordinary distillation of the ablation A+B in table 2."""
        config = self.config
        _, _, weight = LOSS_FORMS[config.loss_form]
        if config.distillation == "ordinary":
            return PrototypeDistillation(weight, temperature=config.tau)
        return SemanticKL(weight, reduction=config.kd_reduction)

    # Server: schedules and global tables down, aggregation of what the clients sent.

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        """Send the global tables; both sides compute beta(t) and lambda(t) from the round."""
        decay = exp(-state.round / self.setting.rounds)
        beta = self.config.lambda0 * (1 - decay)
        lam = self.config.lambda0 * decay
        schedules = {"beta": beta, "lambda": lam, "beta_lambda": beta * lam}

        table = prototypes.table(state.server)
        shared_weights = super().dispatch(state, ids).shared.values  # empty with share=none
        return fl.Dispatch(fl.Message(shared_weights | table.values, table.mask), numbers=schedules)

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Compute P and S from the last uploads of all clients, absent ones included."""
        bank = state.clients["prototypes"].double()  # [N, C, D]
        counts = state.clients["counts"]  # [N, C]
        present = (counts > 0).any(dim=0)  # [C]

        # P_k = sum_i abar_k^i c_k^i
        table = torch.einsum("nc,ncd->cd", self.holder_weights(bank, counts), bank)
        similarity = mean_similarity(state.clients["similarity"].double(), counts > 0, table)

        metrics = {}
        if self.config.contrast:
            hard = self.contrast().hard_negatives(similarity, present)  # [C, C]
            hard_per_class = hard[present].sum(dim=1).double()
            metrics["hard_negatives_mean"] = float(hard_per_class.mean())
        dtype = state.server["global.prototypes"].dtype
        server = {
            "global.prototypes": table.to(dtype),
            "global.present": present,
            "global.similarity": similarity.to(dtype),
        }
        return fl.Update(self.mean(results) | server, metrics=metrics)

    def holder_weights(self, bank: Tensor, counts: Tensor) -> Tensor:
        """Return the weight abar_k^i of each client's prototypes in the global ones.

        Args:
            bank: [N, C, D] float64 prototypes of all clients, zero where a class is not held.
            counts: [N, C] samples of each client and class, 0 where the class is not held.

        Returns:
            [N, C] float64 in [0, 1]. The weights of a class sum to 1 over the clients that hold it,
            and are 0 for the others and for a class that no client holds.
        """
        held = counts > 0  # [N, C]
        if self.config.aggregation == "mean":
            return held / held.sum(dim=0).clamp_min(1).double()

        w_size = counts / counts.amax(dim=0).clamp_min(1).double()
        w_sim = mean_cosine_with_others(bank, held)
        a = w_size * w_sim  # [N, C] in [-1, 1]
        return softmax_among(a, held, dim=0)

    def learned(self, state: fl.State) -> tuple[fl.Learned, ...]:
        """Return the class similarities S and the prototypes."""
        present = state.server["global.present"]
        known = present[:, None] & present[None, :]
        similarity = fl.LearnedTable(
            "class similarity",
            "Similarity S of every two classes: the mean cosine of their prototypes over the"
            " clients that hold both, or else the cosine of the global prototypes.",
            torch.where(known, state.server["global.similarity"].double(), torch.nan),
            rows="class",
            columns="class",
        )
        return (similarity, *prototypes.learned(state))


def mean_cosine_with_others(bank: Tensor, held: Tensor) -> Tensor:
    """Return wsim_k^i, the mean cosine of a client's prototype with those of the other holders.

    Args:
        bank: [N, C, D] prototypes of all clients, zero where a class is not held.
        held: [N, C] bool: the classes that each client holds.

    Returns:
        [N, C] in [-1, 1]; 1 for a class that no other client holds.
    """
    direction = unit(bank)  # [N, C, D]
    sum_of_others = direction.sum(dim=0) - direction
    total = (direction * sum_of_others).sum(dim=2)  # [N, C]
    holders = held.sum(dim=0)  # [C]
    return torch.where(holders > 1, total / (holders - 1).clamp_min(1), 1.0)


def write_similarity(context: fl.Context) -> fl.Tree:
    """Return S^i_pq = cos(c_p^i, c_q^i) and the pairs of classes that are sent.

    S^i is symmetric with a unit diagonal. Therefore only its strict upper triangle is stored and
    sent, for the classes that the client holds.

    Args:
        context: Its leaves have `prototypes` [C, D] and `held` [C] bool.

    Returns:
        `similarity` [C, C], and `pairs` [C, C] bool.
    """
    leaves = context.leaves
    held = leaves["held"]
    pairs = (held[:, None] & held[None, :]).triu(1)  # [C, C]
    cosine = cosines(leaves["prototypes"], leaves["prototypes"])
    return {"similarity": torch.where(pairs, cosine, 0.0), "pairs": pairs}


def mean_similarity(upper: Tensor, held: Tensor, table: Tensor) -> Tensor:
    """Return the global class similarities S [C, C], symmetric with a unit diagonal.

    S_pq is the mean of the clients' S^i_pq over the clients that hold both classes. Where no client
    holds both, S_pq is the cosine of the global prototypes.

    Args:
        upper: [N, C, C] strict upper triangles of the clients' similarities, 0 for pairs that a
            client does not hold.
        held: [N, C] bool: the classes that each client holds.
        table: [C, D] global prototypes.
    """
    joint = torch.einsum("np,nq->pq", held.double(), held.double())  # [C, C] holders of both
    total = upper.sum(dim=0)
    mean = (total + total.T) / joint.clamp_min(1)

    cosine = cosines(table, table)
    similarity = torch.where(joint > 0, mean, (cosine + cosine.T) / 2)
    return similarity.fill_diagonal_(1.0)
