"""pFedFDA: Gaussian classifiers between local and global ones (Mclaughlin, Su, NeurIPS 2024)."""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.prototypes import CountClasses
from flbench.losses.similarity import class_sums

MU, SIGMA = "gauss.mu", "gauss.sigma"  # [C, D], and the lower triangle [D (D + 1) / 2] of [D, D]
BETA = "beta"  # [2], (beta_mu, beta_S) of the last training
EPS = 1e-4  # weight of the identity in the covariance of a classifier, added to class shares
EQUAL = 1e-9  # cross entropies this close are equal, so that no rounding error decides


@fl.ALGORITHMS.register("pfedfda")
class PFedFDA(fl.Algorithm):
    """Classifiers follow from Gaussians of the features; only the body is trained.

    Features z of class c are N(mu_c, Sigma). The classifier is Bayes' rule, with class shares
    pi and eps = 1e-4:

        S'    = (1 - eps) Sigma + eps (tr Sigma / D) I
        W_c   = S'^-1 mu_c,   b_c = -1/2 <mu_c, W_c> + log pi_c

    Client i, with the received body, mu and Sigma, and its own pi_c ~ n_c / n + eps:

        1. head <- (mu, Sigma, pi), frozen; the body: the epochs of `train.*` on cross entropy
        2. mu^i_c    = class mean with the trained body, mu_c for a class without samples
           Sigma^i   = R^T R / (n - 1) + ridge I, R: features minus their class means    eval mode
        3. beta      = argmin over [0, 1]^2 of the cross entropy of two-fold cross-validation with
                       mu' = beta_mu mu^fold + (1 - beta_mu) mu and
                       Sigma' = beta_S Sigma^fold + (1 - beta_S) Sigma
        4. upload body, mu' and Sigma' with the Gaussians of all samples

    Server: body, mu, Sigma <- sum_i p_i of them for all classes, p_i = n_i / sum_j n_j. A client
    without class c thus votes for the old mu_c. Evaluated: `personal` repeats steps 2 and 3 with
    the newest body and Gaussians, and takes its own class means for classes of more than two
    samples alone; a client that never took part does the same. `gm` has mu, Sigma and equal
    shares. At first mu is uniform in [0, 1] and Sigma = I.

    Readings. The authors collect features during all local epochs, so that copies of a sample are
    in both folds and beta is too large; here they are those of the trained body, once, as the paper
    describes. They, too, mean to replace class means of at most two samples in an evaluation, but
    the test in their code is always true, so that each class that a client holds has its own mean.
    Their solver (L-BFGS, ten iterations) can stop where clipping has no gradient; here beta is the
    best point of a grid of step 0.05 and then of one of step 0.01 around it by the sum of both
    folds' mean cross entropies, of equal ones (to 1e-9) that with the smallest sum, then that with
    the smaller beta_mu. The folds are drawn by turns in each class; classes of one sample are left
    out of them. In a fold, a class without samples has the global mu. Without folds beta = 0, the
    global Gaussians. Their covariance has 1e-4 added to every entry; here it has not. The two
    factors are those of their commands; the paper presents one (`betas=one`) as a cheaper variant.
    A covariance is charged as its lower triangle.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of pFedFDA."""

        betas: Literal["two", "one", "local"] = Field(
            "two",
            description="factors between global and local Gaussians: one for means and one for the"
            " covariance, one for both, or 1 for both (local)",
        )
        ridge: float = Field(
            1.0, ge=0, description="added to the diagonal of a covariance that a client estimates"
        )

    config: Config
    paper = fl.Paper(
        "Personalized Federated Learning via Feature Distribution Adaptation",
        "Mclaughlin, Su",
        "NeurIPS 2024 (arXiv 2411.00329)",
    )
    communication = fl.Communication(
        down="body, C means, 1 covariance of D features",
        up="body, C means, 1 covariance of D features",
        keeps="head, 2 numbers",
    )
    needs = (fl.LINEAR_HEAD, fl.BODY)

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head")

    def requires(self) -> list[str]:
        unmet = super().requires()
        if not unmet and len(self.linear_head.names) < 2:
            unmet = ["the head of the net must have a bias. Choose another net (`model.name`)."]
        return unmet

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        c, d = self.setting.classes, self.setting.net.features
        mu = torch.from_numpy(fl.generator(self.setting.seed, "method").uniform(size=(c, d)))
        gauss = leaves_of(Gaussians(mu, torch.eye(d)), like=start[self.linear_head.weight])
        beta = {BETA: torch.zeros(2, dtype=torch.float64)}
        return server | gauss, clients | fl.repeat(beta, self.setting.clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        body = frozenset(self.setting.net.parameters) - self.personal()
        steps = (
            fl.Statistic("held", CountClasses(self.setting.classes)),
            fl.Transform(fl.bind(write_head, self.linear_head)),
            self.phase(*self.terms(), train=body),
            *self.features(),
            fl.Transform(fl.bind(write_gaussians, self.config)),
        )
        return fl.LocalProgram(steps, keeps | {BETA}, sends | {MU, SIGMA})

    def features(self) -> tuple[fl.Step, ...]:
        """Return the steps that collect the features of all training samples in eval mode."""
        rows = fl.Statistic("all", feature_rows, reduce="rows")
        return (*reestimate_batchnorm(self.setting), rows)

    # Server: the weighted mean of what was sent

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining:
        """Return that a new client has a model in closed form, which no epoch changes."""
        return fl.Joining(adapts=False)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        dispatch = self.dispatch(state, ids)
        steps = (
            fl.Statistic("held", CountClasses(self.setting.classes)),
            *self.features(),
            fl.Transform(fl.bind(write_personal_head, self.linear_head, self.config)),
        )
        models = {"personal": fl.Deployment(dispatch, fl.LocalProgram(steps))}
        if self.split()[0] <= self.personal():  # else BatchNorm statistics have no common value
            models["gm"] = fl.Deployment(dispatch, weights=fl.bind(common_head, self.linear_head))
        return models


class Gaussians(NamedTuple):
    """Means mu [C, D] and the common covariance Sigma [D, D] of features, float64."""

    mu: Tensor
    sigma: Tensor


def triangle(matrix: Tensor) -> Tensor:
    """Return the lower triangle [D (D + 1) / 2] of a symmetric matrix [D, D].

    >>> square(triangle(torch.tensor([[1.0, 2.0], [2.0, 3.0]])), 2)
    tensor([[1., 2.],
            [2., 3.]])
    """
    rows, columns = torch.tril_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]


def square(entries: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix [D, D] with a lower triangle [D (D + 1) / 2]; size is D."""
    rows, columns = torch.tril_indices(size, size, device=entries.device)
    place = torch.zeros(size, size, dtype=torch.int64, device=entries.device)
    place[rows, columns] = torch.arange(len(rows), device=entries.device)
    place[columns, rows] = place[rows, columns]
    return entries[place]


def leaves_of(gauss: Gaussians, like: Tensor) -> fl.Tree:
    """Return the leaves that hold Gaussians, in the type of a tensor."""
    return {MU: gauss.mu.to(like.dtype), SIGMA: triangle(gauss.sigma).to(like.dtype)}


def received(leaves: fl.Tree) -> Gaussians:
    """Return the Gaussians that a client has received."""
    mu = leaves[MU].double()
    return Gaussians(mu, square(leaves[SIGMA].double(), mu.shape[1]))


# Step 1: the classifier of the received Gaussians


def bayes(gauss: Gaussians, shares: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """Return the weight [C, D] and the bias [C] of Bayes' rule for class shares pi [C] > 0."""
    weight = precision(gauss.sigma, gauss.mu, eps)
    return weight, -0.5 * (gauss.mu * weight).sum(dim=1) + shares.log()


def precision(sigma: Tensor, rows: Tensor, eps: float = EPS) -> Tensor:
    """Return rows [M, D] times the inverse of S' = (1 - eps) Sigma + eps (tr Sigma / D) I."""
    identity = torch.eye(len(sigma), dtype=sigma.dtype, device=sigma.device)
    mixed = (1 - eps) * sigma + eps * sigma.diagonal().mean() * identity
    factor = torch.linalg.cholesky_ex(mixed).L  # does not raise if training has diverged
    return torch.cholesky_solve(rows.T, factor).T


def class_shares(context: fl.Context) -> Tensor:
    """Return pi [C] ~ n_c / n + eps of the client's samples, float64."""
    counts = context.ctx["held.counts"]
    shares = counts / counts.sum().clamp_min(1.0) + EPS
    return shares / shares.sum()


def written(context: fl.Context, gauss: Gaussians, shares: Tensor, head: fl.LinearHead) -> fl.Tree:
    """Return Bayes' rule under the names of the head, in the type of its leaves."""
    values = zip(head.names, bayes(gauss, shares), strict=True)
    return {name: value.to(context.leaves[name].dtype) for name, value in values}


def write_head(context: fl.Context, head: fl.LinearHead) -> fl.Tree:
    """Return the head of the received Gaussians and the client's class shares."""
    return written(context, received(context.leaves), class_shares(context), head)


def common_head(context: fl.Context, head: fl.LinearHead) -> fl.Tree:
    """Return the head of the received Gaussians and equal class shares."""
    gauss = received(context.leaves)
    shares = torch.full_like(gauss.mu[:, 0], 1 / len(gauss.mu))
    return written(context, gauss, shares, head)


# Step 2: the client's own Gaussians


def feature_rows(context: fl.Context) -> fl.Tree:
    """Return features [B, D], label, row of the data set and 1 for each sample, [B] float64 each.

    The last is 0 for padding.
    """
    batch = context.batch
    labels = {"y": batch.y.double(), "row": batch.key.double(), "real": batch.mask.double()}
    return {"z": context.out.features.double(), **labels}


class Client(NamedTuple):
    """What a client knows: its samples, the Gaussians that it has received, and its class shares.

    `z` [R, D] and `y` [R] are features and labels; rows where `real` [R] is False are padding.
    `fold` [R] is 0 or 1, by turns among the rows of a class. `shares` [C] are pi.
    """

    z: Tensor
    y: Tensor
    real: Tensor
    fold: Tensor
    old: Gaussians
    shares: Tensor


def known(context: fl.Context) -> Client:
    """Return what the Statistics `held` and `all` have collected, and the received Gaussians."""
    ctx, old = context.ctx, received(context.leaves)
    real = ctx["all.real"] == 1  # NaN and 0 for padding
    z = torch.where(real[:, None], ctx["all.z"], 0.0)
    y = torch.where(real, ctx["all.y"], 0.0).long()
    row = torch.where(real, ctx["all.row"], torch.inf)

    # Number of the row in its class, by the order of rows in the data set.
    order = row.argsort()
    classes = torch.arange(len(old.mu), device=y.device)
    members = (y[order][:, None] == classes) & real[order][:, None]  # [R, C]
    turn = members.long().cumsum(dim=0).gather(1, y[order][:, None])[:, 0]
    fold = torch.zeros_like(y).scatter(0, order, (turn - 1) % 2)
    return Client(z, y, real, fold, old, class_shares(context))


def estimate(client: Client, among: Tensor, ridge: float, least: int = 1) -> Gaussians:
    """Return class means and the covariance around them.

    Args:
        client: The client.
        among: [R] bool, the rows that count.
        ridge: Added to the diagonal of the covariance.
        least: Number of samples from which on a class has its own mean instead of the global one.
    """
    z, y, old = client.z, client.y, client.old
    sums, counts = class_sums(z, y, len(old.mu), among)  # [C, D], [C]
    means = sums / counts.clamp_min(1.0)[:, None]
    residuals = torch.where(among[:, None], z - means[y], 0.0)
    scatter = residuals.T @ residuals / (counts.sum() - 1).clamp_min(1.0)
    identity = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    mu = torch.where((counts >= least)[:, None], means, old.mu)
    return Gaussians(mu, scatter + ridge * identity)


# Step 3: beta by two-fold cross-validation


def best_betas(client: Client, c: PFedFDA.Config) -> Tensor:
    """Return (beta_mu, beta_S) [2] float64 with the least sum of both folds' cross entropies."""
    one = client.z.new_ones(2)
    if c.betas == "local":
        return one
    _, counts = class_sums(client.z, client.y, len(client.shares), client.real)
    used = client.real & (counts[client.y] >= 2)
    parts = [(used & (client.fold != k), used & (client.fold == k)) for k in (0, 1)]
    folds = [(estimate(client, rest, c.ridge), held_out) for rest, held_out in parts]

    def search(grid: Tensor) -> Tensor:
        """Return the best of the factors of means grid[0] and of covariances grid[1], [2, G]."""
        points, losses = [], []
        for i, beta_sigma in enumerate(grid[1]):
            beta_mu = grid[0] if c.betas == "two" else grid[0, i : i + 1]  # [M]
            first, second = (fold_losses(client, *fold, beta_mu, beta_sigma) for fold in folds)
            points.append(torch.stack([beta_mu, beta_sigma.expand_as(beta_mu)]))
            losses.append(first + second)
        return least(torch.cat(points, dim=1), torch.cat(losses))

    coarse = search(torch.linspace(0, 1, 21, dtype=one.dtype, device=one.device).expand(2, -1))
    around = torch.arange(-5, 6, dtype=one.dtype, device=one.device) / 100
    return search((coarse[:, None] + around).clamp(0.0, 1.0))


def fold_losses(
    client: Client, fitted: Gaussians, held_out: Tensor, beta_mu: Tensor, beta_sigma: Tensor
) -> Tensor:
    """Return the mean cross entropy of held-out samples for each factor of the means, [M].

    Args:
        client: The client.
        fitted: Gaussians of the other fold.
        held_out: [R] bool, the samples that are predicted.
        beta_mu: [M], factors of the means.
        beta_sigma: [], factor of the covariance.
    """
    old, shares = client.old, client.shares
    sigma = beta_sigma * fitted.sigma + (1 - beta_sigma) * old.sigma
    new, before = precision(sigma, torch.cat([fitted.mu, old.mu])).chunk(2)  # [C, D] each
    b = beta_mu[:, None]
    square_norm = (  # of the mixed means, [M, C]
        b.square() * (fitted.mu * new).sum(dim=1)
        + 2 * b * (1 - b) * (fitted.mu * before).sum(dim=1)
        + (1 - b).square() * (old.mu * before).sum(dim=1)
    )
    bias = -0.5 * square_norm + shares.log()
    linear = b[:, None] * (client.z @ new.T) + (1 - b[:, None]) * (client.z @ before.T)
    logarithms = (linear + bias[:, None]).log_softmax(dim=2)  # [M, R, C]
    labels = client.y[None, :, None].expand(len(beta_mu), -1, 1)
    losses = -logarithms.gather(2, labels)[:, :, 0]  # [M, R]
    return torch.where(held_out, losses, 0.0).sum(dim=1) / held_out.sum().clamp_min(1)


def least(points: Tensor, losses: Tensor) -> Tensor:
    """Return the point [2] of the least loss, of equal ones that of the smallest sum, then mu.

    Points [2, P] are multiples of 0.01. Differences of losses [P] of at most 1e-9 are none.
    """
    near = losses <= losses.amin() + EQUAL
    rank = torch.where(near, 1000 * points.sum(dim=0) + points[0], torch.inf)
    return points.index_select(1, rank.argmin()[None])[:, 0]


# Step 4: what a client uploads, and its own classifier


def interpolated(context: fl.Context, c: PFedFDA.Config, least: int) -> tuple[Gaussians, Tensor]:
    """Return the Gaussians between global and local ones, and beta [2]."""
    client = known(context)
    beta, old = best_betas(client, c), client.old
    local = estimate(client, client.real, c.ridge, least)
    mu = beta[0] * local.mu + (1 - beta[0]) * old.mu
    return Gaussians(mu, beta[1] * local.sigma + (1 - beta[1]) * old.sigma), beta


def write_gaussians(context: fl.Context, c: PFedFDA.Config) -> fl.Tree:
    """Return the leaves mu' [C, D], the triangle of Sigma', and beta [2]."""
    gauss, beta = interpolated(context, c, least=1)
    return leaves_of(gauss, like=context.leaves[MU]) | {BETA: beta}


def write_personal_head(context: fl.Context, head: fl.LinearHead, c: PFedFDA.Config) -> fl.Tree:
    """Return the head of the client's Gaussians; means are its own from three samples on."""
    gauss, _ = interpolated(context, c, least=3)
    return written(context, gauss, class_shares(context), head)
