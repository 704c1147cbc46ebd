"""Stacked clients draw random numbers of their own, which are those of each client alone."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from flbench.core.errors import ConfigError
from flbench.engine.client_draws import ClientDraws, ConstantDraws, Stackable

ROWS, WIDTH = 4, 8
ATTENTION = nn.MultiheadAttention(WIDTH, 2, dropout=0.3, batch_first=True)
SAMPLES_FIRST = {
    "dropout": lambda x: functional.dropout(x, 0.4),
    "dropout in place": lambda x: functional.dropout(x * 1, 0.4, inplace=True),
    "dropout of channels": lambda x: functional.dropout1d(x[..., None], 0.4)[..., 0],
    "alpha dropout": lambda x: functional.alpha_dropout(x, 0.4, training=True),
    "attention": lambda x: ATTENTION(*[x[:, None]] * 3)[0][:, 0],
    "rand": lambda x: x + torch.rand(len(x), WIDTH),
    "randn_like": lambda x: x + torch.randn_like(x),
    "new_empty": lambda x: x * x.new_empty(len(x), 1).bernoulli_(0.5),
    "empty": lambda x: x * torch.empty(len(x), 1).bernoulli_(0.5),
    "bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x)),
    "randint": lambda x: x * torch.randint(1, 5, (len(x), 1)),
    "gumbel": lambda x: functional.gumbel_softmax(x),
    "two": lambda x: functional.dropout(functional.dropout(x, 0.2) + torch.randn_like(x), 0.4),
}
"""Code that draws random numbers whose first axis is that of the samples [B, WIDTH]."""
OTHERS = {
    "weights": lambda x: x @ torch.randn(WIDTH, WIDTH),
    "order": lambda x: x[torch.randperm(ROWS)],
    "number": lambda x: x * torch.rand(()),
    "choice": lambda x: x[torch.multinomial(torch.ones(ROWS), 2)],
}


def seed(client, *part):
    return 100 + client + 1000 * len(part)


def stacked(code, x, ids, fill):
    """Return what code computes for clients [K] with x [K, ROWS, WIDTH] at once."""

    def one(index, x):
        with Stackable(index):
            return code(x)

    draws = ClientDraws()
    draws.begin(seed)
    with draws.of(np.array(ids), np.array(fill), ROWS):
        return torch.vmap(one, randomness="different")(torch.arange(len(ids)), x)


def alone(code, x, client):
    """Return what code computes for a client whose generators have just been seeded."""
    torch.manual_seed(seed(client))
    return code(x)


@pytest.mark.parametrize("name", [*SAMPLES_FIRST, *OTHERS])
def test_a_client_of_a_full_stack_draws_what_it_draws_alone(name):
    code, ids = (SAMPLES_FIRST | OTHERS)[name], [7, 2, 5]
    x = torch.randn(3, ROWS, WIDTH)
    for order in (ids, ids[::-1]):
        found = stacked(code, x, order, [ROWS] * 3)
        for k, client in enumerate(order):
            torch.testing.assert_close(found[k], alone(code, x[k], client))


@pytest.mark.parametrize("name", SAMPLES_FIRST)
def test_padding_changes_nothing_that_samples_draw(name):
    code, x = SAMPLES_FIRST[name], torch.randn(2, ROWS, WIDTH)
    found = stacked(code, x, [0, 1], [ROWS, 2])

    torch.testing.assert_close(found[0], alone(code, x[0], 0))
    torch.testing.assert_close(found[1, :2], alone(code, x[1, :2], 1))
    assert found.isfinite().all()


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_drawn_by_sample_is_drawn_for_padded_batches_too(name):
    found = stacked(OTHERS[name], torch.randn(2, ROWS, WIDTH), [0, 1], [3, 2])
    assert found.isfinite().all()


def test_rrelu_has_pytorchs_distribution_and_other_slopes_for_each_client():
    """PyTorch draws a slope for negative inputs only, so that the numbers are other ones."""
    x = -torch.ones(50, ROWS, 50)
    ours = -stacked(lambda x: functional.rrelu(x, 0.2, 0.7, training=True), x, range(50), [3] * 50)
    theirs = -functional.rrelu(-torch.ones(10_000), 0.2, 0.7, training=True)

    assert stats.ks_2samp(ours.flatten().numpy(), theirs.numpy()).pvalue > 0.01
    between = np.corrcoef(ours.flatten(1).numpy())  # [clients, clients]
    assert np.abs(between[~np.eye(50, dtype=bool)]).max() < 0.5
    mean = stacked(lambda x: functional.rrelu(x, 0.2, 0.7), x, range(50), [3] * 50)
    assert torch.allclose(mean, x * 0.45)


def test_rows_that_do_not_belong_to_clients_are_refused():
    draws = ClientDraws()
    with draws.of(np.arange(3), np.array([4, 4, 4]), 4), pytest.raises(ConfigError, match="6"):
        torch.rand(6)


def test_constants_take_the_place_of_all_random_numbers():
    x = torch.randn(3, 5, requires_grad=True)
    with ConstantDraws():
        found = [functional.rrelu(x, training=True), functional.dropout(x, 0.5), torch.rand(2)]
        (gradient,) = torch.autograd.grad(found[0].sum(), x)

    assert torch.allclose(found[0], torch.where(x > 0, x, x / 2))
    assert torch.allclose(gradient, torch.where(x > 0, 1.0, 0.5))
    assert torch.allclose(found[1], 2 * x)
    assert torch.equal(found[2], torch.full((2,), 0.5))
