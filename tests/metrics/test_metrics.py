"""Metrics against scikit-learn and torchmetrics, and the rules for classes."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_f1_score,
)

from flbench.core.errors import ConfigError
from flbench.metrics.classes import confusable_classes, rare_classes, read_confusion
from flbench.metrics.classification import (
    per_class,
    per_client,
    personal_on_common,
    pooled,
    trained_class_share,
)
from flbench.metrics.confusion import ConfusionCounts, confusion

CLOSE = 1e-6  # torchmetrics computes in float32


def predictions(clients: int = 6, classes: int = 5, n: int = 40, seed: int = 0):
    """True and predicted classes [N, n].

    Each client sees three classes, and class 4 is never true at all.
    """
    rng = np.random.default_rng(seed)
    y = np.stack([rng.choice(rng.choice(classes - 1, 3, replace=False), n) for _ in range(clients)])
    guess = np.where(rng.random(y.shape) < 0.6, y, rng.integers(0, classes, y.shape))
    return y, guess


def counts_of(y: np.ndarray, guess: np.ndarray, classes: int = 5) -> ConfusionCounts:
    counts = ConfusionCounts.empty(len(y), classes)
    client = torch.arange(len(y)).repeat_interleave(y.shape[1])
    counts.add_(client, torch.from_numpy(y.ravel()), torch.from_numpy(guess.ravel()))
    return counts


def test_confusion_equals_scikit_learns():
    y, guess = predictions()

    expected = sk.confusion_matrix(y.ravel(), guess.ravel(), labels=range(5))
    assert np.array_equal(counts_of(y, guess).confusion.numpy(), expected)


def test_counts_of_predictions_equal_those_of_matrices():
    """Also in several calls, and for a model that several clients share."""
    y, guess = predictions()
    matrices = torch.stack(
        [confusion(torch.from_numpy(y[k]), torch.from_numpy(guess[k]), 5) for k in range(6)]
    )
    expected = ConfusionCounts.of_matrices(matrices)
    halves = ConfusionCounts.empty(6, 5)
    for some in (slice(0, 17), slice(17, None)):
        client = torch.arange(6).repeat_interleave(y[:, some].shape[1])
        true, predicted = (torch.from_numpy(a[:, some].ravel()) for a in (y, guess))
        halves.add_(client, true, predicted)
    repeated = ConfusionCounts.empty(6, 5)
    repeated.add_shared_(torch.arange(6), torch.from_numpy(y[0]), torch.from_numpy(guess[0]))

    for name in ("support", "predicted", "correct", "confusion"):
        assert torch.equal(getattr(halves, name), getattr(expected, name))
        assert torch.equal(
            getattr(repeated, name),
            getattr(ConfusionCounts.of_matrices(matrices[:1].expand(6, 5, 5)), name),
        )


@pytest.mark.parametrize("seed", range(2))
def test_pooled_metrics_equal_scikit_learns(seed):
    y, guess = predictions(seed=seed)

    metrics = pooled(counts_of(y, guess), rare=(0, 2), confusable=(1,))

    flat, guessed = y.ravel(), guess.ravel()
    recall = sk.recall_score(flat, guessed, labels=range(5), average=None, zero_division=0)
    precision = sk.precision_score(flat, guessed, labels=range(5), average=None, zero_division=0)
    f1 = sk.f1_score(flat, guessed, labels=range(5), average=None, zero_division=0)
    clients = (y == guess).mean(axis=1)
    expected = {
        "accuracy": sk.accuracy_score(flat, guessed),
        "accuracy_mean": clients.mean(),
        "balanced_accuracy": recall[:4].mean(),
        "macro_f1": sk.f1_score(flat, guessed, average="macro", zero_division=0),
        "rare_recall": recall[[0, 2]].mean(),
        "rare_precision": precision[[0, 2]].mean(),
        "rare_f1": f1[[0, 2]].mean(),
        "confusable_f1": f1[1],
        "worst10_accuracy": clients.min(),
        "client_std": clients.std(),
    }
    assert metrics == pytest.approx(expected, abs=1e-12)


def test_per_class_has_precision_recall_f1_and_support():
    y, guess = predictions()

    found = per_class(counts_of(y, guess).confusion)

    expected = sk.precision_recall_fscore_support(
        y.ravel(), guess.ravel(), labels=range(5), zero_division=0
    )
    for name, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        assert np.allclose(found[name].numpy(), values, rtol=0, atol=1e-12)


def test_per_class_without_samples_is_zero():
    found = per_class(torch.zeros(3, 3, dtype=torch.int64))

    assert all(found[name].tolist() == [0.0] * 3 for name in ("precision", "recall", "f1"))


def test_per_client_equals_torchmetrics_and_scikit_learn():
    y, guess = predictions()

    found = per_client(counts_of(y, guess))

    for client in range(len(y)):
        truth, said = torch.from_numpy(y[client]), torch.from_numpy(guess[client])
        accuracy = multiclass_accuracy(said, truth, num_classes=5, average="micro")
        f1 = multiclass_f1_score(said, truth, num_classes=5, average="macro")
        with np.errstate(all="ignore"):
            recall = sk.recall_score(
                y[client], guess[client], labels=np.unique(y[client]), average="macro"
            )
        assert float(found["accuracy"][client]) == pytest.approx(float(accuracy), abs=CLOSE)
        assert float(found["macro_f1"][client]) == pytest.approx(float(f1), abs=CLOSE)
        assert float(found["balanced_accuracy"][client]) == pytest.approx(recall, abs=CLOSE)


def test_clients_without_samples_are_left_out():
    y, guess = predictions(clients=2)
    confusion_counts = ConfusionCounts.empty(3, 5)
    whole = counts_of(y, guess)
    for name in ("support", "predicted", "correct"):
        getattr(confusion_counts, name)[:2] = getattr(whole, name)
    confusion_counts.confusion.copy_(whole.confusion)

    assert confusion_counts.evaluated.tolist() == [True, True, False]
    assert pooled(confusion_counts) == pytest.approx(pooled(whole))
    assert per_client(confusion_counts)["accuracy"][2].isnan()


def test_metrics_without_samples_are_none():
    assert set(pooled(ConfusionCounts.empty(3, 4), rare=(1,)).values()) == {None}


def test_worst_tenth_is_the_mean_of_the_worst_clients():
    confusion_counts = ConfusionCounts.empty(20, 2)
    for client in range(20):
        predicted = (torch.arange(20) >= client).long()  # right for the first `client` samples
        zeros = torch.zeros(20, dtype=torch.int64)
        confusion_counts.add_(zeros + client, zeros, predicted)

    assert pooled(confusion_counts)["worst10_accuracy"] == pytest.approx((0 / 20 + 1 / 20) / 2)


def test_personal_on_common_equals_its_definition():
    y, guess = predictions()
    counts = torch.randint(0, 3, (6, 5), generator=torch.Generator().manual_seed(1)) * 7
    counts[0] = torch.tensor([0, 0, 9, 0, 0])

    found = personal_on_common(counts_of(y, guess), counts)

    for client in range(6):
        held = [k for k in range(5) if counts[client, k] > 0]
        right = {k: int(((y[client] == k) & (guess[client] == k)).sum()) for k in range(5)}
        total = {k: int((y[client] == k).sum()) for k in range(5)}
        share = {k: float(counts[client, k]) / float(counts[client].sum()) for k in range(5)}
        if sum(total[k] for k in held):
            pm_v = sum(right[k] for k in held) / sum(total[k] for k in held)
            pm_l = sum(share[k] * right[k] for k in range(5)) / sum(
                share[k] * total[k] for k in range(5)
            )
            assert float(found["pm_v"][client]) == pytest.approx(pm_v)
            assert float(found["pm_l"][client]) == pytest.approx(pm_l)
        else:
            assert found["pm_v"][client].isnan()


def test_trained_class_share_is_the_accuracy_of_a_model_that_is_right_on_its_classes():
    """Client 2 is not evaluated."""
    rng = np.random.default_rng(0)
    train = torch.from_numpy(rng.integers(0, 2, (3, 5)) * rng.integers(1, 9, (3, 5)))
    y = torch.from_numpy(rng.integers(0, 5, 40))
    perfect = [[int(k) if train[i, k] else -1 for k in y] for i in range(2)]
    counts = ConfusionCounts.empty(3, 5)
    counts.add_(torch.arange(2).repeat_interleave(40), y.repeat(2), y.repeat(2))

    found = trained_class_share(counts, train)

    for i in range(2):
        right = [guess == int(k) for guess, k in zip(perfect[i], y, strict=True)]
        assert float(found[i]) == pytest.approx(sum(right) / len(right))
    assert 0 < float(found[0]) < 1
    assert found[2].isnan()


@pytest.mark.parametrize("seed", range(20))
def test_rare_classes_are_those_up_to_the_quantile_of_numpy(seed):
    """A class of as many samples as a rare one is rare, whatever its id."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, size=rng.integers(2, 30))
    limit = np.quantile(counts, 0.2, method="inverted_cdf")

    found, _ = rare_classes(torch.from_numpy(counts), "lowest")

    expected = {k for k, n in enumerate(counts) if n <= limit and n < counts.max()}
    assert found == sorted(expected)


def test_class_with_the_most_samples_is_never_rare():
    assert rare_classes(torch.tensor([9, 9, 9, 2, 9, 9]), "lowest")[0] == [3]
    assert rare_classes(torch.full((10,), 7), "lowest")[0] == []


def test_more_rare_classes_than_a_fifth_are_noted():
    ties = torch.tensor([50, 10, 30, 10, 10, 60, 70, 80, 90, 95])

    assert len(rare_classes(ties, "lowest")[1]) == 1
    assert rare_classes(ties + torch.arange(10), "lowest") == ([1, 3], [])


@pytest.mark.parametrize(
    ("counts", "found"),
    [([4, 96, 100], [0]), ([50, 50], []), ([1] * 100, []), ([1] * 99 + [2], list(range(100)))],
)
def test_rare_classes_by_share(counts, found):
    classes, notes = rare_classes(torch.tensor(counts), "share")

    assert classes == found
    assert bool(notes) == (len(found) in (0, 100))  # none and all are told


def test_confusable_classes_are_most_often_taken_for_others():
    matrix = torch.tensor([[9, 1, 0], [5, 5, 0], [0, 0, 0]])

    assert confusable_classes(matrix) == [1]


def test_confusion_of_a_reference_run_is_read_back(tmp_path):
    file = tmp_path / "confusion.csv"
    file.write_text("split,true,predicted,count\nvalidation,0,1,5\ntest,1,1,9\nvalidation,1,1,2\n")

    assert read_confusion(tmp_path, 2).tolist() == [[0, 5], [0, 2]]
    assert torch.equal(read_confusion(file, 2), read_confusion(tmp_path, 2))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "split,true,predicted,count\nvalidation,9,0,1\n",
        "split,true,predicted,count\ntest,0,0,1\n",
    ],
)
def test_damaged_confusion_is_refused(tmp_path, text):
    (tmp_path / "confusion.csv").write_text(text)

    with pytest.raises(ConfigError, match="confusable"):
        read_confusion(tmp_path, 2)


@pytest.mark.parametrize("rule", ["lowest", "share"])
def test_a_class_without_training_samples_is_rare_and_noted(rule):
    found, notes = rare_classes(torch.tensor([50, 0, 40, 60, 70]), rule)

    assert 1 in found
    assert notes
