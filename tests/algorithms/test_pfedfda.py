"""pFedFDA: a plain loop, Bayes' rule beside scikit-learn, identities."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from flbench.algorithms.pfedfda import MU, SIGMA, Gaussians, bayes, square
from flbench.core.tree import only
from flbench.experiment.rounds import settings_of
from flbench.testing import after
from tests.algorithms.loops import (
    BACKBONE,
    CLASSES,
    EXACT,
    HEAD,
    KEYS,
    WIDTH,
    Clients,
    assert_equal,
    entropy,
    net,
    weighted_sum,
)
from tests.support import build

EPS = 1e-4


def slow_head(mu, sigma, shares):
    """Bayes' rule for Gaussian classes, by an inverse."""
    mixed = (1 - EPS) * sigma + EPS * np.trace(sigma) / WIDTH * np.eye(WIDTH)
    inverse = np.linalg.inv(mixed)
    weight = np.array([inverse @ row for row in mu])
    return weight, np.array([-0.5 * mu[k] @ weight[k] + np.log(shares[k]) for k in range(CLASSES)])


def slow_gaussians(z, y, mu, ridge, least=1):
    """Class means (the global ones for classes of too few samples) and covariance."""
    means = {k: z[y == k].mean(axis=0) for k in set(y.tolist())}
    scatter = np.zeros((WIDTH, WIDTH))
    for row, k in zip(z, y.tolist(), strict=True):
        scatter += np.outer(row - means[k], row - means[k])
    own = np.array([means[k] if (y == k).sum() >= least else mu[k] for k in range(CLASSES)])
    return own, scatter / max(len(y) - 1, 1) + ridge * np.eye(WIDTH)


def slow_beta(z, y, rows, mu, sigma, shares, keys):
    """The best pair of the two grids."""
    if keys["betas"] == "local":
        return 1.0, 1.0
    fold, used = np.zeros(len(y), int), np.zeros(len(y), bool)
    for k in range(CLASSES):
        mine = sorted(np.flatnonzero(y == k), key=lambda j: rows[j])
        fold[mine] = np.arange(len(mine)) % 2
        used[mine] = len(mine) > 1
    if not used.any():
        return 0.0, 0.0
    fits = [
        slow_gaussians(z[used & (fold != f)], y[used & (fold != f)], mu, keys["ridge"])
        for f in (0, 1)
    ]

    def loss(beta_mu, beta_sigma):
        total = 0.0
        for f, (means, scatter) in enumerate(fits):
            head = slow_head(
                beta_mu * means + (1 - beta_mu) * mu,
                beta_sigma * scatter + (1 - beta_sigma) * sigma,
                shares,
            )
            held = used & (fold == f)
            logits = z[held] @ head[0].T + head[1]
            top = logits.max(axis=1)
            log_sum = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
            total += (log_sum - logits[np.arange(len(logits)), y[held]]).mean()
        return total

    def best(mus, sigmas):
        pairs = [(a, b) for a in mus for b in sigmas]
        if keys["betas"] == "one":
            pairs = list(zip(mus, sigmas, strict=True))
        losses = {pair: loss(*pair) for pair in pairs}
        near = [pair for pair in pairs if losses[pair] <= min(losses.values()) + 1e-9]
        return min(near, key=lambda pair: (round(sum(pair), 6), pair[0]))

    coarse = np.linspace(0, 1, 21)
    a, b = best(coarse, coarse)
    steps = np.arange(-5, 6) / 100
    return best(np.clip(a + steps, 0, 1), np.clip(b + steps, 0, 1))


class Loop:
    """The clients, with the rows of their samples in the data set."""

    def __init__(self, keys):
        built = build("algorithm=pfedfda", *KEYS, *keys)
        self.clients = Clients(built)
        self.rows = built.federation.partition.parts["train"]
        server = built.start().server
        self.body = only(self.clients.start, BACKBONE)
        self.mu, self.sigma = server[MU].numpy(), square(server[SIGMA], WIDTH).numpy()
        self.head = only(self.clients.start, HEAD)

    def shares(self, i):
        counts = np.array([self.clients.count(i, k) for k in range(CLASSES)])
        shares = counts / counts.sum() + EPS
        return shares / shares.sum()

    def mixed(self, i, body, keys, least=1):
        """beta, and the Gaussians between global and local ones."""
        z = net(body | self.head, self.clients.x[i])[0].detach().numpy()
        y = np.array(self.clients.y[i])
        a, b = slow_beta(z, y, self.rows[i], self.mu, self.sigma, self.shares(i), keys)
        own, scatter = slow_gaussians(z, y, self.mu, keys["ridge"], least)
        return (a, b), a * own + (1 - a) * self.mu, b * scatter + (1 - b) * self.sigma

    def play(self, keys, rounds):
        clients, betas = self.clients, {}
        for t in range(rounds):
            ids, bodies, mus, sigmas = clients.cohort(t), [], [], []
            for i in ids:
                head = slow_head(self.mu, self.sigma, self.shares(i))
                here = self.body | dict(zip(HEAD, map(torch.from_numpy, head), strict=True))

                here = clients.descend(i, t, here, entropy, names=BACKBONE)
                bodies.append(only(here, BACKBONE))
                betas[i], mu, sigma = self.mixed(i, bodies[-1], keys)
                mus.append(mu)
                sigmas.append(sigma)
            n = np.array([clients.size(i) for i in ids], dtype=float)
            p = n / n.sum()
            self.body = weighted_sum(bodies, p.tolist())
            self.mu = sum(a * b for a, b in zip(p, mus, strict=True))
            self.sigma = sum(a * b for a, b in zip(p, sigmas, strict=True))
        return betas


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("keys", [{}, {"betas": "one", "ridge": 0.05}, {"betas": "local"}], ids=str)
def test_rounds_equal_a_loop(keys, engine):
    overrides = [f"algorithm.{key}={value}" for key, value in keys.items()]
    keys = {"betas": "two", "ridge": 1.0} | keys
    loop = Loop(overrides)
    built = build("algorithm=pfedfda", *KEYS, f"engine.name={engine}", *overrides)
    state = after(built, 3)

    betas = loop.play(keys, rounds=3)

    for name in BACKBONE:
        assert_equal(state.server[name], loop.body[name], name)
    size = float(np.abs(loop.mu).max())  # means of features, which are larger than 1
    assert_equal(state.server[MU], torch.from_numpy(loop.mu), "mu", tolerance=EXACT * size)
    assert_equal(square(state.server[SIGMA], WIDTH), torch.from_numpy(loop.sigma), "Sigma")
    for i, pair in betas.items():
        assert_equal(state.clients["beta"][i], torch.tensor(pair).double(), "beta")

    models = built.evaluator(print).deployed(state, settings_of(built.algorithm, state))
    for i, model in enumerate(models):  # of all clients, also of those that never took part
        _, mu, sigma = loop.mixed(i, loop.body, keys, least=3)
        for name, value in zip(HEAD, slow_head(mu, sigma, loop.shares(i)), strict=True):
            assert_equal(model[name], torch.from_numpy(value), (i, name), tolerance=1e-10)


def test_classifier_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    z = rng.normal(size=(60, 4)) + 2 * rng.normal(size=(3, 4))[y]
    shares = np.array([0.2, 0.3, 0.5])
    lda = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(z, y)
    known = Gaussians(torch.from_numpy(lda.means_), torch.from_numpy(lda.covariance_))

    weight, bias = bayes(known, torch.from_numpy(shares), 1e-12)
    difference = z @ weight.numpy().T + bias.numpy() - lda.decision_function(z)
    difference -= np.log(shares) - np.log(lda.priors_)  # the only other thing
    assert np.abs(difference).max() < 1e-8


@pytest.mark.slow
def test_client_with_one_sample_of_each_class_takes_the_global_gaussians():
    """There are no folds, so beta is 0; two samples of a class are enough for folds."""
    keys = (*KEYS, "algorithm=pfedfda", "partition.scheme=iid", "partition.min_samples=1")
    built = build(*keys, "partition.samples=24", "partition.clients=8")
    clients, state = Clients(built), after(built, 1)
    alone = [i for i in clients.cohort(0) if all(clients.count(i, k) < 2 for k in range(CLASSES))]

    assert alone
    assert not state.clients["beta"][alone].any()
