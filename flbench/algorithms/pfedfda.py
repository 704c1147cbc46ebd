"""pFedFDA: Gaussian classifiers between local and global ones (Mclaughlin, Su, NeurIPS 2024)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.algorithms.shared.linear_head import LinearHead
from flbench.algorithms.shared.prototypes import CountClasses
from flbench.losses.similarity import class_sums

MU, SIGMA = "gauss.mu", "gauss.sigma"  # [C, D], and the lower triangle [D (D + 1) / 2] of [D, D]
BETA = "beta"  # [2], (beta_mu, beta_S) of the last training
EQUAL = 1e-9  # cross entropies this close are equal, so that no rounding error decides

Betas = Literal["two", "one", "local"]


@fl.ALGORITHMS.register("pfedfda")
class PFedFDA(fl.Algorithm):
    """Classifiers follow from Gaussians of the features; only the body is trained.

    Features z of class c are N(mu_c, Sigma). The classifier is Bayes' rule, with class shares pi:

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

        betas: Betas = Field(
            "two",
            description="factors between global and local Gaussians: one for means and one for the"
            " covariance, one for both, or 1 for both (local)",
        )
        ridge: float = Field(
            1.0, ge=0, description="added to the diagonal of a covariance that a client estimates"
        )
        eps: float = Field(
            1e-4,
            gt=0,
            lt=1,
            description="weight of a multiple of the identity in the covariance of a classifier,"
            " and added to class shares",
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
        if not unmet and len(self.head.names) < 2:
            unmet = ["the head of the net must have a bias. Choose another net (`model.name`)."]
        return unmet

    @property
    def head(self) -> LinearHead:
        """The head of the net."""
        return LinearHead.of(self.setting.net)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        c, d = self.setting.classes, self.setting.net.features
        like = start[self.setting.net.parameters[0]]
        mu = fl.generator(self.setting.seed, "method").uniform(size=(c, d))
        gauss = {
            MU: torch.from_numpy(mu).to(like.dtype),
            SIGMA: triangle(torch.eye(d, dtype=like.dtype)),
        }
        beta = {BETA: torch.zeros(2, dtype=torch.float64)}
        return server | gauss, clients | fl.repeat(beta, self.setting.clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        body = frozenset(self.setting.net.parameters) - self.personal()
        steps = (
            fl.Statistic("held", CountClasses(self.setting.classes)),
            fl.Transform(WriteHead(self.head, self.config.eps)),
            self.phase(*self.terms(), train=body),
            *self.features(),
            fl.Transform(Interpolate(self.config.betas, self.config.ridge, self.config.eps)),
        )
        return fl.LocalProgram(steps, keeps | {BETA}, sends | {MU, SIGMA})

    def features(self) -> tuple[fl.Step, ...]:
        """Return the steps that collect the features of all training samples in eval mode."""
        rows = fl.Statistic("all", feature_rows, reduce="rows")
        return (*reestimate_batchnorm(self.setting), rows)

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        if state.is_initial:
            return fl.Dispatch(
                fl.Message(fl.only(state.server, {MU, SIGMA}))
            )  # clients have the seeded net
        return fl.Dispatch(fl.Message(fl.only(state.server, self.program(state).sends)))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        shared = self.program(state).sends
        return fl.Update(
            fl.weighted_mean(fl.only(results.sent.values, shared), self.weights(results))
        )

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining:
        """Return that a new client has a model in closed form, which no epoch changes."""
        return fl.Joining(adapts=False)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        dispatch, c = self.dispatch(state, ids), self.config
        steps = (
            fl.Statistic("held", CountClasses(self.setting.classes)),
            *self.features(),
            fl.Transform(WritePersonalHead(c.betas, c.ridge, c.eps, self.head)),
        )
        models = {"personal": fl.Deployment(dispatch, fl.LocalProgram(steps))}
        if self.split()[0] <= self.personal():  # else BatchNorm statistics have no common value
            models["gm"] = fl.Deployment(dispatch, weights=CommonHead(self.head, c.eps))
        return models


def triangle(matrix: Tensor) -> Tensor:
    """Return the lower triangle [D (D + 1) / 2] of a symmetric matrix [D, D].

    >>> square(triangle(torch.tensor([[1.0, 2.0], [2.0, 3.0]])), 2)
    tensor([[1., 2.],
            [2., 3.]])
    """
    rows, columns = torch.tril_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]


def square(entries: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix [D, D] of its lower triangle [D (D + 1) / 2].

    Args:
        entries: What `triangle` returns.
        size: The number D.
    """
    rows, columns = torch.tril_indices(size, size, device=entries.device)
    place = torch.zeros(size, size, dtype=torch.int64, device=entries.device)
    place[rows, columns] = torch.arange(len(rows), device=entries.device)
    place[columns, rows] = place[rows, columns]
    return entries[place]


class Gaussians(NamedTuple):
    """Means mu [C, D] and the common covariance Sigma [D, D] of features, float64."""

    mu: Tensor
    sigma: Tensor

    def towards(self, other: "Gaussians", beta_mu: Tensor, beta_sigma: Tensor) -> "Gaussians":
        """Return beta other + (1 - beta) self, with the 0-dim factors of means and covariance."""
        return Gaussians(
            beta_mu * other.mu + (1 - beta_mu) * self.mu,
            beta_sigma * other.sigma + (1 - beta_sigma) * self.sigma,
        )


def received(ctx: fl.Tree) -> Gaussians:
    """Return the Gaussians of the server, from ctx."""
    mu = ctx[MU].double()
    return Gaussians(mu, square(ctx[SIGMA].double(), mu.shape[1]))


def bayes(gauss: Gaussians, shares: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the weight [C, D] and the bias [C] of Bayes' rule for Gaussian classes, float64.

    Args:
        gauss: Means and covariance.
        shares: [C] class shares pi > 0.
        eps: Weight of (tr Sigma / D) I in the covariance.
    """
    weight = precision(gauss.sigma, eps, gauss.mu)
    return weight, -0.5 * (gauss.mu * weight).sum(dim=1) + shares.log()


def precision(sigma: Tensor, eps: float, rows: Tensor) -> Tensor:
    """Return rows [M, D] times the inverse of (1 - eps) Sigma + eps (tr Sigma / D) I."""
    identity = torch.eye(len(sigma), dtype=sigma.dtype, device=sigma.device)
    mixed = (1 - eps) * sigma + eps * sigma.diagonal().mean() * identity
    factor = torch.linalg.cholesky_ex(mixed).L  # does not raise if training has diverged
    return torch.cholesky_solve(rows.T, factor).T


def class_shares(counts: Tensor, eps: float) -> Tensor:
    """Return pi [C] ~ n_c / n + eps of numbers of samples [C] float64."""
    shares = counts / counts.sum().clamp_min(1.0) + eps
    return shares / shares.sum()


def feature_rows(context: fl.Context) -> fl.Tree:
    """Return features [B, D], label, row of the data set and 1 for each sample, [B] float64 each.

    The last is 0 for padding.
    """
    batch = context.batch
    labels = {"y": batch.y.double(), "row": batch.key.double(), "real": batch.mask.double()}
    return {"z": context.out.features.double(), **labels}


class Sample(NamedTuple):
    """Features z [R, D] and labels y [R] of a client; rows where `real` [R] is False are padding.

    `fold` [R] is 0 or 1, by turns among the rows of a class.
    """

    z: Tensor
    y: Tensor
    real: Tensor
    fold: Tensor

    @classmethod
    def of(cls, ctx: fl.Tree) -> "Sample":
        """Return what the Statistic `all` has collected."""
        real = ctx["all.real"] == 1  # NaN and 0 for padding
        z = torch.where(real[:, None], ctx["all.z"], 0.0)
        y = torch.where(real, ctx["all.y"], 0.0).long()
        row = torch.where(real, ctx["all.row"], torch.inf)

        # Number of the row in its class, by the order of rows in the data set.
        order = row.argsort()
        classes = torch.arange(int(ctx[MU].shape[0]), device=y.device)
        members = (y[order][:, None] == classes) & real[order][:, None]  # [R, C]
        turn = members.long().cumsum(dim=0).gather(1, y[order][:, None])[:, 0]
        fold = torch.zeros_like(y).scatter(0, order, (turn - 1) % 2)
        return cls(z, y, real, fold)


def estimate(sample: Sample, among: Tensor, old: Gaussians, ridge: float, least: int) -> Gaussians:
    """Return class means and the covariance around them.

    Args:
        sample: The client's samples.
        among: [R] bool, the rows that count.
        old: The global Gaussians; a class with fewer than `least` samples has their mean.
        ridge: Added to the diagonal of the covariance.
        least: Number of samples from which on a class has its own mean.
    """
    z, y, classes = sample.z, sample.y, len(old.mu)
    sums, counts = class_sums(z, y, classes, among)  # [C, D], [C]
    means = sums / counts.clamp_min(1.0)[:, None]
    residuals = torch.where(among[:, None], z - means[y], 0.0)
    scatter = residuals.T @ residuals / (counts.sum() - 1).clamp_min(1.0)
    identity = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    mu = torch.where((counts >= least)[:, None], means, old.mu)
    return Gaussians(mu, scatter + ridge * identity)


def best_betas(
    sample: Sample, old: Gaussians, shares: Tensor, betas: Betas, ridge: float, eps: float
) -> Tensor:
    """Return (beta_mu, beta_S) [2] float64, by two-fold cross-validation on a grid.

    Args:
        sample: The client's samples.
        old: The global Gaussians.
        shares: [C] class shares of the client.
        betas: Which factors are free.
        ridge: Added to the diagonal of a covariance.
        eps: Weight of the identity in the covariance of a classifier.
    """
    one = sample.z.new_ones(2)
    if betas == "local":
        return one
    _, counts = class_sums(sample.z, sample.y, len(old.mu), sample.real)
    used = sample.real & (counts[sample.y] >= 2)
    folds = []
    for k in (0, 1):
        fitted = estimate(sample, used & (sample.fold != k), old, ridge, least=1)
        folds.append((fitted, used & (sample.fold == k)))

    def cross_validation(beta_mu: Tensor, beta_sigma: Tensor) -> Tensor:
        """Return the sum of both folds' cross entropies, [G] for factors [G] of the means."""
        one, other = (
            _fold_losses(sample, *fold, old, beta_mu, beta_sigma, shares, eps) for fold in folds
        )
        return one + other

    def search(grid: Tensor) -> Tensor:
        """Return the best of the factors of means grid[0] and of covariances grid[1]."""
        means = [grid[0] if betas == "two" else beta[None] for beta in grid[0]]
        losses = [cross_validation(row, beta) for row, beta in zip(means, grid[1], strict=True)]
        beta_mu = torch.stack(means)  # [G, G], or [G, 1] with one factor
        points = torch.stack([beta_mu, grid[1][:, None].expand_as(beta_mu)]).flatten(1)
        return _least(points, torch.stack(losses).flatten())

    coarse = search(torch.linspace(0, 1, 21, dtype=one.dtype, device=one.device).expand(2, -1))
    around = torch.arange(-5, 6, dtype=one.dtype, device=one.device) / 100
    return search((coarse[:, None] + around).clamp(0.0, 1.0))


def _fold_losses(
    sample: Sample,
    fitted: Gaussians,
    held_out: Tensor,
    old: Gaussians,
    beta_mu: Tensor,
    beta_sigma: Tensor,
    shares: Tensor,
    eps: float,
) -> Tensor:
    """Return the mean cross entropy of held-out samples for each factor of the means, [G].

    Args:
        sample: The client's samples.
        fitted: Gaussians of the other fold.
        held_out: [R] bool, the samples that are predicted.
        old: The global Gaussians.
        beta_mu: [G], factors of the means.
        beta_sigma: [], factor of the covariance.
        shares: [C] class shares.
        eps: Weight of the identity in the covariance.
    """
    c = len(shares)
    sigma = beta_sigma * fitted.sigma + (1 - beta_sigma) * old.sigma
    both = torch.cat([fitted.mu, old.mu])  # [2 C, D]
    solved = precision(sigma, eps, both)
    new, before = solved[:c], solved[c:]
    b = beta_mu[:, None]
    square_norm = (  # of the mixed means, [G, C]
        b.square() * (fitted.mu * new).sum(dim=1)
        + 2 * b * (1 - b) * (fitted.mu * before).sum(dim=1)
        + (1 - b).square() * (old.mu * before).sum(dim=1)
    )
    bias = -0.5 * square_norm + shares.log()
    linear = b[:, None] * (sample.z @ new.T) + (1 - b[:, None]) * (sample.z @ before.T)
    logarithms = (linear + bias[:, None]).log_softmax(dim=2)  # [G, R, C]
    labels = sample.y[None, :, None].expand(len(beta_mu), -1, 1)
    losses = -logarithms.gather(2, labels)[:, :, 0]  # [G, R]
    return torch.where(held_out, losses, 0.0).sum(dim=1) / held_out.sum().clamp_min(1)


def _least(points: Tensor, losses: Tensor) -> Tensor:
    """Return the point [2] of the least loss, of equal ones that of the smallest sum, then mu.

    Args:
        points: [2, P], in [0, 1] and multiples of 0.01.
        losses: [P]; differences of at most 1e-9 are none.
    """
    near = losses <= losses.amin() + EQUAL
    rank = torch.where(near, 1000 * points.sum(dim=0) + points[0], torch.inf)
    return points.index_select(1, rank.argmin()[None])[:, 0]


@dataclass(frozen=True)
class WriteHead:
    """Function of a Transform: writes the classifier of the received Gaussians.

    Attributes:
        head: The head of the net.
        eps: Key of the method.
    """

    head: LinearHead
    eps: float

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return weight and bias of the head."""
        shares = class_shares(context.ctx["held.counts"], self.eps)
        return written(self.head, context.leaves, received(context.ctx), shares, self.eps)


@dataclass(frozen=True)
class CommonHead:
    """The net with the classifier of the global Gaussians, as context -> leaves of the net.

    Attributes:
        head: The head of the net.
        eps: Key of the method.
    """

    head: LinearHead
    eps: float

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the leaves with another head; all classes have equal shares."""
        leaves, ctx = context.leaves, context.ctx
        classes = len(ctx[MU])
        shares = torch.full_like(ctx[MU][:, 0].double(), 1 / classes)
        others = {name: value for name, value in leaves.items() if name != BETA}
        return others | written(self.head, leaves, received(ctx), shares, self.eps)


def written(
    head: LinearHead, leaves: fl.Tree, gauss: Gaussians, shares: Tensor, eps: float
) -> fl.Tree:
    """Return Bayes' rule under the names of the head, in the type of its leaves."""
    values = zip(head.names, bayes(gauss, shares, eps), strict=True)
    return {name: value.to(leaves[name].dtype) for name, value in values}


@dataclass(frozen=True)
class Interpolate:
    """Function of a Transform after training: the Gaussians that a client uploads.

    Attributes:
        betas: Key of the method.
        ridge: Key of the method.
        eps: Key of the method.
    """

    betas: Betas
    ridge: float
    eps: float
    least: ClassVar[int] = 1

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the leaves mu' [C, D], the triangle of Sigma', and beta [2]."""
        gauss, beta = self.mixed(context.ctx)
        dtype = context.ctx[MU].dtype
        return {MU: gauss.mu.to(dtype), SIGMA: triangle(gauss.sigma).to(dtype), BETA: beta}

    def mixed(self, ctx: fl.Tree) -> tuple[Gaussians, Tensor]:
        """Return the Gaussians between global and local ones, and beta [2]."""
        old, sample = received(ctx), Sample.of(ctx)
        shares = class_shares(ctx["held.counts"], self.eps)
        beta = best_betas(sample, old, shares, self.betas, self.ridge, self.eps)
        local = estimate(sample, sample.real, old, self.ridge, self.least)
        return old.towards(local, beta[0], beta[1]), beta


@dataclass(frozen=True)
class WritePersonalHead(Interpolate):
    """Function of a Transform before an evaluation: the classifier of the client's Gaussians.

    Attributes:
        head: The head of the net.
    """

    head: LinearHead
    least: ClassVar[int] = 3

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return weight and bias of the head."""
        shares = class_shares(context.ctx["held.counts"], self.eps)
        return written(self.head, context.leaves, self.mixed(context.ctx)[0], shares, self.eps)
