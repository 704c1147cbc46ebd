import pytest
import torch

from flbench.algorithms.shared.candidates import Mix
from flbench.core.types import Info


def mixed(losses, own_loss, count=10, asked=(True, True), models=None):
    leaves = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(4)}
    others = torch.tensor([[3.0, 2.0], [1.0, 9.0]]) if models is None else models
    ctx = {
        "model.w": others,
        "model.n": torch.tensor([9, 7]),
        "asked": torch.tensor(asked),
        "validation.sent": torch.tensor(losses, dtype=torch.float64),
        "validation.own": torch.tensor(own_loss, dtype=torch.float64),
        "validation.count": torch.tensor(count),
    }
    zero = torch.zeros(())
    return leaves, Mix(("w", "n"), ("w",))(leaves, leaves, ctx, Info(zero, zero, zero, zero))


def test_equal_losses_change_nothing():
    """T21."""
    leaves, found = mixed([5.0, 5.0], 5.0)

    assert torch.equal(found["w"], leaves["w"])
    assert int(found["n"]) == 4
    assert found["raw"].tolist() == [0, 0]


def test_worse_models_change_nothing_but_lower_the_preference():
    leaves, found = mixed([6.0, 7.0], 5.0)

    assert torch.equal(found["w"], leaves["w"])
    assert (found["raw"] < 0).all()


def test_single_better_model_is_taken_over():
    _, found = mixed([2.0, 7.0], 5.0)

    assert torch.allclose(found["w"], torch.tensor([3.0, 2.0]))
    assert int(found["n"]) == 9
    assert float(found["raw"][0]) == pytest.approx(0.3 / (2 + 1e-5))


@pytest.mark.parametrize(
    "how",
    [
        {"count": 0, "losses": [0.0, 0.0], "own_loss": 0.0},  # no validation sample
        {"asked": (False, False), "losses": [1.0, 1.0], "own_loss": 5.0},
        {"losses": [float("inf"), float("nan")], "own_loss": 5.0},
        {"losses": [4.0, 5.0], "own_loss": 4.0, "models": torch.tensor([[1.0, 2.0]] * 2)},
    ],
)
def test_nothing_to_gain_changes_nothing(how):
    leaves, found = mixed(**how)

    assert torch.equal(found["w"], leaves["w"])
    assert found["raw"].isfinite().all()
    assert (found["raw"] <= 0).all()
