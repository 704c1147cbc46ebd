"""Metrics of the ranking of samples, against scikit-learn and torchmetrics."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from flbench.metrics import ranking
from flbench.metrics.ranking import Margins


def drawn(seed: int, *, ties: bool, clients: int = 5, n: int = 200) -> Margins:
    rng = np.random.default_rng(seed)
    value = rng.normal(size=n)
    value = np.round(value, 1) if ties else value
    positive = rng.random(n) < 0.3
    owner = rng.integers(0, clients, n)
    return Margins(torch.from_numpy(value), torch.from_numpy(positive), torch.from_numpy(owner))


def some(margins: Margins, chosen) -> tuple[np.ndarray, np.ndarray]:
    return margins.positive[chosen].numpy(), margins.value[chosen].numpy()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_pooled_and_client_metrics_equal_scikit_learns(seed, ties):
    margins = drawn(seed, ties=ties)
    everything = some(margins, slice(None))

    found, clients = ranking.pooled(margins), ranking.per_client(margins, 5)

    assert found["auroc"] == pytest.approx(roc_auc_score(*everything), abs=1e-12)
    assert found["average_precision"] == pytest.approx(
        average_precision_score(*everything), abs=1e-12
    )
    for name, reference in (
        ("auroc", roc_auc_score),
        ("average_precision", average_precision_score),
    ):
        expected = [reference(*some(margins, margins.client == client)) for client in range(5)]
        assert clients[name] == pytest.approx(expected, abs=1e-12)
        assert found[f"{name}_mean"] == pytest.approx(np.mean(expected), abs=1e-12)


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    margins = drawn(3, ties=True, n=60)
    value, positive = margins.value, margins.positive
    pairs = value[positive][:, None] - value[~positive][None]

    share = (pairs > 0).double().mean() + (pairs == 0).double().mean() / 2

    assert ranking.pooled(margins)["auroc"] == pytest.approx(float(share), abs=1e-12)


def test_clients_with_one_class_or_no_samples_are_left_out():
    margins = Margins(
        torch.tensor([1.0, 0.0, 5.0, 6.0]),
        torch.tensor([True, False, True, True]),
        torch.tensor([0, 0, 2, 2]),
    )

    clients = ranking.per_client(margins, 4)

    for values in clients.values():
        assert values[0] == 1
        assert np.isnan(values[1:]).all()
    assert ranking.pooled(margins)["auroc_mean"] == 1
    assert ranking.pooled(margins)["auroc"] == 1


@pytest.mark.parametrize(
    ("value", "positive"), [([], []), ([1.0, 2.0], [True, True]), ([1.0, 2.0], [False, False])]
)
def test_metrics_of_one_class_are_none(value, positive):
    margins = Margins(
        torch.tensor(value),
        torch.tensor(positive, dtype=torch.bool),
        torch.zeros(len(value), dtype=torch.int64),
    )

    assert set(ranking.pooled(margins).values()) == {None}


def test_margins_without_order_have_no_metrics_and_infinite_ones_are_ties():
    inf, nan = float("inf"), float("nan")
    positive, client = torch.tensor([True, False, True, False]), torch.zeros(4, dtype=torch.int64)

    assert ranking.pooled(Margins(torch.tensor([1, 0, nan, 2]), positive, client))["auroc"] is None
    ties = Margins(torch.tensor([inf, inf, 0, -inf]), positive, client)
    assert ranking.pooled(ties)["auroc"] == pytest.approx((0.5 + 1 + 0 + 1) / 4)
