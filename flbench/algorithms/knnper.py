"""kNN-Per: FedAvg, mixed with each client's nearest neighbours (Marfoq et al., ICML 2022)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.simplex import softmax_among

SHARE = "knn_share"  # lambda [], a leaf that a program writes before an evaluation
STORE, CHOICE = "store", "choice"  # Statistics: the datastore, and the samples that lambda fits
GRID = 10  # lambda is a multiple of 1 / GRID
WITHOUT = 0.5  # lambda without a validation part


@fl.ALGORITHMS.register("knnper")
class KNNPer(fl.Algorithm):
    """FedAvg, whose predictions each client mixes with the vote of its own nearest samples.

    Training: FedAvg without a change. Deployment (`personal`): the client's datastore are features
    z_j (of D numbers, in eval mode) and labels y_j of its training samples. For a query with
    features z and N(z), its k nearest of them,

        s_j      = exp(-||z - z_j||^2 / (D sigma))
        p_knn(c) = sum_{j in N(z), y_j = c} s_j / sum_{j in N(z)} s_j
        p        = lambda p_knn + (1 - lambda) softmax(logits)

    lambda is chosen for each client on its validation part: the multiple of 0.1 of the largest
    accuracy, of equal ones that nearest to 0.5, then the smaller; 0.5 without a validation part.
    The validation part is not in the datastore; the accuracy of `personal` on it is too good by
    what this choice gains. Beside it, `knn` has lambda = 1, and `noknn` and `gm` are the global
    model. Nothing but FedAvg's models is sent, and a client that never took part is served in the
    same way, without training.

    Readings. The squared distance over D sigma is that of the authors' code; the paper writes
    exp(-distance). Their evaluation prints all values of lambda on test samples, and as shipped
    mixes probabilities of neighbours with logits; here both are probabilities, and no choice sees a
    test sample. Of equally near samples the first ones of the data set count. A client with fewer
    than k samples takes all; one without samples has lambda = 0.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of kNN-Per."""

        neighbours: int = Field(
            10, ge=1, description="number of neighbours k", json_schema_extra={"unit": "samples"}
        )
        sigma: float = Field(
            1.0, gt=0, description="scale of distances in the weights of the neighbours"
        )

    config: Config
    paper = fl.Paper(
        "Personalized Federated Learning through Local Memorization",
        "Marfoq, Neglia, Kameni, Vidal",
        "ICML 2022 (arXiv 2111.09360)",
    )
    communication = fl.Communication(down="w", up="w", keeps="nothing")

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining:
        """Return that a new client has a model in closed form, which no epoch changes."""
        return fl.Joining(adapts=False)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        plain = models.pop("personal")
        scores = Mixture(self.config.neighbours, self.config.sigma)
        store = fl.Statistic(STORE, labelled_features, reduce="rows")
        begin = (*reestimate_batchnorm(self.setting), store)
        count = fl.bind(correct_by_share, scores)
        part = fl.Samples("validation")
        correct = fl.Statistic(CHOICE, count, finish=best_share, samples=part)
        choose = (*begin, correct, fl.Transform(write_best_share))
        mixed = replace(plain, program=fl.LocalProgram(choose), predict=scores)
        votes = replace(mixed, program=fl.LocalProgram((*begin, fl.Transform(write_votes_alone))))
        return {"personal": mixed, "knn": votes, "noknn": plain, **models}


def labelled_features(context: fl.Context) -> fl.Tree:
    """Return features [B, D], and for each sample its label and 1 (0 for padding), [B] float64."""
    y, mask = context.batch.y, context.batch.mask
    return {"z": context.out.features.double(), "y": y.double(), "real": mask.double()}


@dataclass(frozen=True)
class Mixture:
    """Probabilities lambda p_k + (1 - lambda) softmax(logits), with lambda among the leaves.

    Attributes:
        scores: What the scores are, for people; they are not logits.
        neighbours: Number of neighbours k.
        sigma: Scale of distances.
    """

    scores: ClassVar[str] = "probabilities"

    neighbours: int
    sigma: float

    def __call__(self, context: fl.Context) -> Tensor:
        """Return the probabilities [B, C] float64; the net's without a datastore.

        There is none where clients' models are evaluated right after local training.
        """
        own = context.out.logits.double().softmax(dim=1)
        if f"{STORE}.real" not in context.ctx:
            return own
        is_empty = ~(context.ctx[f"{STORE}.real"] == 1).any()
        share = torch.where(is_empty, 0.0, context.leaves[SHARE].double())
        return share * self.votes(context) + (1 - share) * own

    def votes(self, context: fl.Context) -> Tensor:
        """Return p_k [B, C] float64, 0 without samples."""
        real = context.ctx[f"{STORE}.real"] == 1  # [R], False for rows of padding
        keys = torch.where(real[:, None], context.ctx[f"{STORE}.z"], 0.0)  # [R, D]
        labels = torch.where(real, context.ctx[f"{STORE}.y"], -1.0)
        queries, logits = context.out.features.double(), context.out.logits

        distance = torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist")
        distance = torch.where(real, distance, torch.inf)  # [B, R]
        neighbours = min(self.neighbours, len(keys))
        chosen = fl.largest(-distance, neighbours, context.out.features.dtype)
        nearest, index = torch.where(chosen, distance, torch.inf).sort(dim=1, stable=True)
        nearest, index = nearest[:, :neighbours], index[:, :neighbours]  # [B, k]
        nearest = nearest.square() / queries.shape[1]
        weights = softmax_among(-nearest / self.sigma, nearest.isfinite(), dim=1)
        classes = torch.arange(logits.shape[1], device=logits.device)
        members = labels[index][:, :, None] == classes  # [B, k, C]
        return torch.where(members, weights[:, :, None], 0.0).sum(dim=1)


def correct_by_share(context: fl.Context, mixture: Mixture) -> fl.Tree:
    """Return the numbers `correct` [11] of a batch for lambda in 0, 0.1, ..., 1, and `count`."""
    votes, own = mixture.votes(context), context.out.logits.double().softmax(dim=1)
    batch, correct = context.batch, []
    for step in range(GRID + 1):
        share = step / GRID
        predicted = (share * votes + (1 - share) * own).argmax(dim=1)
        correct.append(((predicted == batch.y) & batch.mask).sum())
    return {"correct": torch.stack(correct).double(), "count": batch.mask.sum()}


def best_share(context: fl.Context, sums: fl.Tree) -> fl.Tree:
    """Return `share` [], the multiple of 0.1 with the most correct predictions.

    Of equal ones it is that nearest to 0.5, then the smaller; 0.5 without samples.
    """
    correct = sums["correct"]
    steps = torch.arange(GRID + 1, dtype=torch.int64, device=correct.device)
    rank = 2 * (2 * steps - GRID).abs() + (2 * steps > GRID)  # 0 for lambda = 0.5
    at = torch.where(correct == correct.amax(), rank, 4 * GRID).argmin()
    return {"share": torch.where(sums["count"] > 0, at.double() / GRID, WITHOUT)}


def write_best_share(context: fl.Context) -> fl.Tree:
    """Write lambda [] float64 of the validation part."""
    return {SHARE: context.ctx[f"{CHOICE}.share"]}


def write_votes_alone(context: fl.Context) -> fl.Tree:
    """Write lambda = 1 [] float64."""
    return {SHARE: torch.ones_like(context.info.lr, dtype=torch.float64)}
