import pytest
import torch
from torch import nn

from flbench.algorithms.fedcpmd import elected
from flbench.testing import after, build


def names(*keys: str) -> list[str]:
    """Return the ends of the names of the candidate layers, as in metrics."""
    algorithm = build("algorithm.name=fedcmd", *keys).algorithm
    counts = algorithm.by_layer("votes", torch.tensor([1, 1]))
    assert list(counts.values()) == [0.0, 2.0, *[0.0] * (len(counts) - 2)]
    return [name.removeprefix("votes_") for name in counts]


class Attention(nn.Module):
    """A net whose forward pass reads the parameters of one linear layer without calling it."""

    def __init__(self, shape, classes):
        super().__init__()
        self.inputs = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        x = self.inputs(x.reshape(len(x), 8, 8))
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(dim=1))


@pytest.mark.parametrize("method", ["fedcmd", "fedcpmd"])
def test_layers_that_the_forward_pass_does_not_call_are_no_candidates(method):
    name = "tests.algorithms.shared.test_election:Attention"
    built = build(f"algorithm.name={method}", f"model.name={name}", "train.rounds=1")

    assert [layer.name.split(".")[-1] for layer in built.algorithm.layers] == ["inputs", "head"]
    assert after(built, 1).round == 1


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("lenet5",), ["fc1", "fc2", "head"]),
        (("lenet5", "model.hidden=1"), ["fc1", "head"]),
        (("vgg11",), ["fc1", "fc2", "head"]),
        (("mlp",), ["fc1", "fc2", "head"]),
        (("mlp", "model.hidden=[16]"), ["fc1", "head"]),
    ],
)
def test_candidates_are_the_linear_layers_behind_the_last_convolution(keys, expected):
    assert names(f"model.name={keys[0]}", *keys[1:]) == expected


def test_most_votes_win_then_smaller_scores_then_the_lower_layer_and_without_votes_the_classifier():
    votes = torch.tensor([[1, 3, 0], [2, 2, 1], [0, 2, 2], [1, 1, 1], [0, 0, 0]])
    scores = torch.tensor([[0.0, 9, 9], [5, 4, 0], [0, 3, 3], [2, 2, 1], [1, 0, 2]])

    assert elected({"votes": votes, "score_sums": scores}).tolist() == [1, 1, 1, 2, 2]
