"""HFCD: class prototypes, hard negatives and distillation of class similarities (Xu, 2025)."""

from math import exp, log
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared import prototypes
from flbench.algorithms.shared.simplex import softmax_among
from flbench.losses import CrossEntropy
from flbench.losses.similarity import NEVER, class_sums, cosines, masked_mean, unit

P, PRESENT, S = "global.prototypes", "global.present", "global.similarity"
"""Names of the server's tables: P [C, D], the classes [C] bool that have one, and S [C, C].

`prototypes.table` sends all entries that begin with `global.`.
"""


@fl.ALGORITHMS.register("hfcd")
class Hfcd(fl.Algorithm):
    """Clients exchange class prototypes and class similarities; each trains a model of its own.

    A client sends the mean feature of each class that it holds (a prototype), its number of samples
    and the cosines between its prototypes. The server averages prototypes, with more weight on
    clients that have many samples and agree with the others, and cosines. Local training contrasts
    features with the global prototypes, with more weight on similar classes (hard negatives), and
    pulls the client's class similarities to the global ones. Each client is evaluated with its own
    model.

    Client i in round t of T, with features z, labels y, global prototypes P and similarities S:

        L      = CE + beta(t) (L_cont + lambda(t) L_KD)
        beta   = lambda0 (1 - exp(-t / T)),  lambda = lambda0 exp(-t / T)
        L_cont = -log(e_y / (e_y + gamma sum_{q in H(y)} e_q + sum_{r not in H(y), r != y} e_r))
        e_k    = exp(cos(z, P_k) / tau),  H(p) = {q != p: S_pq > alpha}
        L_KD   = sum over p of KL(softmax_q S_pq || softmax_q S^i_pq)

    Client i after training: c_k^i is the mean feature of class k, n_k^i its number of samples, and
    S^i_pq = cos(c_p^i, c_q^i). Within L_KD, c_p^i is the mean feature of the batch if the batch
    contains class p, and only then has a gradient.

    Server, with the last upload of every client, for the holders of a class (n_k^i > 0):

        a_k^i = (n_k^i / max_j n_k^j) mean_{j != i} cos(c_k^i, c_k^j)
        P_k   = sum_i softmax_i(a_k^i) c_k^i
        S_pq  = mean of S^i_pq over the holders of p and q; cos(P_p, P_q) where there are none

    The code is this reading of the paper. Weights stay with the clients, as its text says; its
    tables report accuracies that only models with averaged weights can reach (`share=full`, see
    docs/papers/hfcd.md). T is the number of training rounds, and the first round is t = 0, with
    cross entropy alone. The weight of L_KD grows until t = 0.69 T; the text describes one that
    decays (`loss_form=separate`). e_y is part of the denominator of L_cont, which is the mean over
    the samples whose class has a prototype. L_KD runs over the classes that both sides have, and is
    not divided by their number. The printed means over N clients run over the holders of a class:
    in a_k^i over the other holders (1 if there are none), in S_pq over those of both classes, which
    16 to 19 % of the pairs of table 2 have. H(y) has the classes above alpha (section 3.3); the
    introduction speaks of the top 10 %. KL has the global similarities first, as in the written-out
    sum; the printed arguments are reversed. A sentence says that the weight of a client that
    deviates rises; by the formula it falls. A client without an optimizer step uploads prototypes
    too.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of HFCD.

        The defaults are those of the paper's table 1 for CIFAR-100. For EMNIST the table has
        tau=0.15, alpha=0.6, gamma=1.2 and lambda0=0.7.
        """

        share: Literal["none", "full"] = Field(
            "none", description="weights that the server averages in addition: none, or all"
        )
        tau: float = Field(0.2, gt=0, description="temperature of the contrast L_cont")
        alpha: float = Field(
            0.7, ge=-1, le=1, description="similarity above which a class is a hard negative"
        )
        gamma: float = Field(1.3, gt=0, description="weight of hard negatives in L_cont")
        lambda0: float = Field(0.7, ge=0, description="factor of both schedules, beta and lambda")
        loss_form: Literal["nested", "separate"] = Field(
            "nested",
            description="how beta and lambda weight the loss: CE + beta (L_cont + lambda L_KD), or"
            " CE + beta L_cont + lambda L_KD",
        )

        # Ablations of table 2. Its A+C has two descriptions: section 5.3.1 says that the selection
        # of hard negatives is off, and section 5.3.3 that the contrast is.
        distillation: Literal["semantic", "ordinary"] = Field(
            "semantic",
            description="teacher of L_KD: global class similarities, or the softmax of the cosines"
            " of a sample with the global prototypes (A+B in table 2)",
        )
        hard_negatives: bool = Field(
            True,
            description="false: all negatives have weight 1 in L_cont (A+C in table 2, section"
            " 5.3.1)",
        )
        contrast: bool = Field(
            True, description="false: the loss has no L_cont (A+C in table 2, section 5.3.3)"
        )
        aggregation: Literal["dual", "mean"] = Field(
            "dual",
            description="weights of prototypes: by size and similarity, or equal (B+C in table 2)",
        )

    config: Config
    paper = fl.Paper(
        "Federated contrastive learning framework based on semantic similarity",
        "Xu Along",
        "Modeling and Simulation 14(5), 2025",
        "10.12677/mos.2025.145437",
    )
    communication = fl.Communication(
        down="C prototypes of D features, C flags, C x C class similarities",
        up="D features, a count and an id per held class, a cosine per pair of held classes",
        keeps="all weights w (share=none), prototypes, counts, similarities",
    )
    settles = 0.5  # beta has 62 % of its last value

    def personal(self) -> frozenset[str]:
        return super().personal() if self.config.share == "full" else self.setting.net.names("all")

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        table, bank = prototypes.empty(self.setting, start)
        similarity = torch.eye(self.setting.classes, dtype=table[P].dtype)
        bank["similarity"] = torch.zeros_like(similarity)
        return server | table | {S: similarity}, clients | fl.repeat(bank, self.setting.clients)

    # Client: local training, then prototypes, counts and similarities.

    def terms(self) -> tuple[fl.LossTerm, ...]:
        config = self.config
        gamma = config.gamma if config.hard_negatives else 1.0
        contrast = fl.Term("beta", fl.bind(contrast_loss, config.tau, config.alpha, gamma))
        weight = "beta_lambda" if config.loss_form == "nested" else "lambda"
        distillation = fl.Term(weight, similarity_loss)
        if config.distillation == "ordinary":
            distillation = fl.Term(weight, fl.bind(ordinary_distillation, config.tau))
        return (CrossEntropy(), *((contrast,) if config.contrast else ()), distillation)

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        train = self.phase(*self.terms())
        return fl.LocalProgram(
            (train, *prototypes.collect(self.setting), fl.Transform(write_similarity)),
            keeps | {"prototypes", "counts", "similarity"},
            sends | prototypes.LEAVES | {"similarity"},
            masks=(*prototypes.MASKS, ("similarity", "pairs")),
        )

    # Server: schedules and global tables down, aggregation of what the clients sent.

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        decay = exp(-state.round / self.setting.rounds)
        beta, lam = self.config.lambda0 * (1 - decay), self.config.lambda0 * decay
        numbers = {"beta": beta, "lambda": lam, "beta_lambda": beta * lam}  # not sent
        table = prototypes.table(state.server)
        weights = super().dispatch(state, ids).shared.values  # empty with share=none
        return fl.Dispatch(fl.Message(weights | table.values, table.mask), numbers=numbers)

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Compute P and S from the last uploads of all clients, absent ones included."""
        bank = state.clients["prototypes"].double()  # [N, C, D]
        counts = state.clients["counts"]  # [N, C]
        table = torch.einsum("nc,ncd->cd", self.holder_weights(bank, counts), bank)  # P
        similarity = mean_similarity(state.clients["similarity"].double(), counts > 0, table)

        present = (counts > 0).any(dim=0)  # [C]
        hard = hard_negatives(similarity, present, self.config.alpha)[present]
        dtype = state.server[P].dtype
        tables = {P: table.to(dtype), PRESENT: present, S: similarity.to(dtype)}
        metrics = {"hard_negatives_mean": float(hard.sum(dim=1).double().mean())}
        return fl.Update(self.mean(results) | tables, metrics=metrics)

    def holder_weights(self, bank: Tensor, counts: Tensor) -> Tensor:
        """Return softmax_i(a_k^i) [N, C] float64, which is 0 where a client does not hold a class.

        Args:
            bank: [N, C, D] float64 prototypes of all clients, zero where a class is not held.
            counts: [N, C] samples of each client and class.
        """
        held = counts > 0  # [N, C]
        if self.config.aggregation == "mean":
            return held / held.sum(dim=0).clamp_min(1).double()
        sizes = counts / counts.amax(dim=0).clamp_min(1).double()
        direction = unit(bank)  # [N, C, D]
        total = (direction * (direction.sum(dim=0) - direction)).sum(dim=2)  # of cosines, j != i
        others = held.sum(dim=0) - 1  # [C]
        agreement = torch.where(others > 0, total / others.clamp_min(1), 1.0)
        return softmax_among(sizes * agreement, held, dim=0)

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the class similarities S."""
        present = state.server[PRESENT]
        known = present[:, None] & present
        table = fl.LearnedTable(
            "class similarity",
            "Similarity S of every two classes: the mean cosine of their prototypes over the"
            " clients that hold both, or else the cosine of the global prototypes.",
            torch.where(known, state.server[S].double(), torch.nan),
            rows="class",
            columns="class",
        )
        return (table,)


# The local loss


def contrast_loss(context: fl.Context, tau: float, alpha: float, gamma: float) -> Tensor:
    """Return L_cont, in nats; 0 if no sample's class has a prototype."""
    y, table, present = context.batch.y, context.ctx[P], context.ctx[PRESENT]
    scores = cosines(context.out.features, table).to(table.dtype) / tau  # [B, C], log e_k
    hard = hard_negatives(context.ctx[S], present, alpha)[y]  # [B, C], q in H(y)
    weighted = torch.where(hard, scores + log(gamma), scores)
    below = torch.where(present, weighted, NEVER).logsumexp(dim=1)  # [B]
    own = scores.gather(1, y[:, None])[:, 0]
    return masked_mean(below - own, present[y] & context.batch.mask)


def hard_negatives(similarity: Tensor, present: Tensor, alpha: float) -> Tensor:
    """Return [C, C] bool: whether class q (column) with a prototype is in H(p) (row)."""
    classes = torch.arange(len(present), device=present.device)
    return present & (classes[:, None] != classes) & (similarity > alpha)


def similarity_loss(context: fl.Context) -> Tensor:
    """Return L_KD, in nats; 0 if the client and the server have fewer than two classes in common.

    S^i_pq has the mean features of the batch, and the client's last upload for other classes.
    """
    leaves, batch, ctx = context.leaves, context.batch, context.ctx
    bank, held = leaves["prototypes"].detach(), leaves["counts"] > 0
    sums, counts = class_sums(context.out.features, batch.y, len(bank), batch.mask)
    means = sums / counts.clamp_min(1.0)[:, None]  # [C, D]
    means = torch.where((counts > 0)[:, None], means, bank.to(sums.dtype))
    local = cosines(means, means).to(bank.dtype)  # [C, C], S^i

    inside = held & ctx[PRESENT]  # [C]
    pairs = inside[:, None] & inside  # [C, C]
    matrices = (torch.where(pairs, s.to(local.dtype), NEVER) for s in (ctx[S], local))
    teacher, student = (matrix.log_softmax(dim=1) for matrix in matrices)
    return torch.where(pairs, teacher.exp() * (teacher - student), 0.0).sum()


def ordinary_distillation(context: fl.Context, tau: float) -> Tensor:
    """Return the mean over the batch of KL(softmax_k cos(z, P_k) / tau || softmax of the logits).

    The teacher is a constant, and both are over the classes that have a prototype.
    """
    table, present = context.ctx[P], context.ctx[PRESENT]
    scores = cosines(context.out.features, table).to(table.dtype) / tau  # [B, C]
    rows = (torch.where(present, s, NEVER) for s in (scores.detach(), context.out.logits))
    teacher, student = (row.to(table.dtype).log_softmax(dim=1) for row in rows)
    divergence = torch.where(present, teacher.exp() * (teacher - student), 0.0)
    return masked_mean(divergence.sum(dim=1), context.batch.mask)


def write_similarity(context: fl.Context) -> fl.Tree:
    """Return S^i as `similarity` [C, C], and as `pairs` [C, C] which of it is sent.

    S^i is symmetric with a unit diagonal, so that only its strict upper triangle is stored and
    sent, for the classes that the client holds.
    """
    table, held = context.leaves["prototypes"], context.leaves["held"]
    pairs = (held[:, None] & held).triu(1)
    return {"similarity": torch.where(pairs, cosines(table, table), 0.0), "pairs": pairs}


# The server


def mean_similarity(upper: Tensor, held: Tensor, table: Tensor) -> Tensor:
    """Return the global class similarities S [C, C], symmetric with a unit diagonal.

    Args:
        upper: [N, C, C] `similarity` of the clients; see `write_similarity`.
        held: [N, C] bool: the classes that each client holds.
        table: [C, D] global prototypes, whose cosines stand where no client holds both classes.
    """
    joint = torch.einsum("np,nq->pq", held.double(), held.double())  # [C, C] holders of both
    total = upper.sum(dim=0)
    mean = (total + total.T) / joint.clamp_min(1)
    cosine = cosines(table, table)
    return torch.where(joint > 0, mean, (cosine + cosine.T) / 2).fill_diagonal_(1.0)
