from types import SimpleNamespace

import pytest
import torch
from torch import nn

from flbench.algorithms.fedcpmd import elected
from flbench.algorithms.shared.election import LayerElection, candidates, short_names, unmet
from flbench.config.schema import ModelConfig
from flbench.models import MODELS
from flbench.models.base import build, describe
from flbench.testing import after
from flbench.testing import build as run_build


def spec(name: str, shape=(3, 32, 32), **options):
    config = MODELS.find(name).Config(name=name, **options)
    assert isinstance(config, ModelConfig)
    return describe(build(config, shape, 10, 0), shape)


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
    built = run_build(f"algorithm.name={method}", f"model.name={name}", "train.rounds=1")

    assert short_names(built.algorithm.layers) == ["inputs", "head"]
    assert after(built, 1).round == 1


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (("lenet5", {}), ["fc1", "fc2", "head"]),
        (("lenet5", {"hidden": 1}), ["fc1", "head"]),
        (("vgg11", {}), ["fc1", "fc2", "head"]),
        (("mlp", {}), ["fc1", "fc2", "head"]),
        (("mlp", {"hidden": (16,)}), ["fc1", "head"]),
    ],
)
def test_candidates_are_the_linear_layers_behind_the_last_convolution(net, expected):
    found = spec(net[0], **net[1])

    layers = candidates(found)

    assert short_names(layers) == expected
    assert unmet(layers, found) == []


@pytest.mark.parametrize("name", ["resnet18", "logistic"])
def test_net_with_one_linear_layer_is_refused(name):
    net = spec(name)

    [sentence] = unmet(candidates(net), net)

    assert "only 1 to choose from" in sentence
    assert "algorithm.candidates=all" in sentence


def test_all_layers_are_convolutions_and_linear_ones():
    names = short_names(candidates(spec("lenet5"), "all"))

    assert names == ["conv1", "conv2", "fc1", "fc2", "head"]
    assert unmet(candidates(spec("resnet18"), "all"), spec("resnet18")) == []


def test_layers_of_the_same_name_in_several_blocks_have_different_short_names():
    layers = candidates(spec("resnet18"), "all")

    names = short_names(layers)

    assert len(set(names)) == len(layers) == 21  # 17 of the blocks and the stem, 3 shortcuts, head
    assert {"conv", "head", "stage1_block1.conv1", "stage4_block1.shortcut.0"} <= set(names)
    for name, layer in zip(names, layers, strict=True):
        assert layer.name.endswith(name)


def test_counts_by_layer_keep_layers_of_the_same_name_apart():
    layers = candidates(spec("resnet18"), "all")
    method = SimpleNamespace(layers=layers)

    counts = LayerElection.by_layer(method, "votes", torch.tensor([1, 1, 3]))

    assert len(counts) == len(layers)
    assert sum(counts.values()) == 3
    assert counts["votes_stage1_block1.conv1"] == 2


def test_most_votes_win_then_smaller_scores_then_the_lower_layer_and_without_votes_the_classifier():
    votes = torch.tensor([[1, 3, 0], [2, 2, 1], [0, 2, 2], [1, 1, 1], [0, 0, 0]])
    scores = torch.tensor([[0.0, 9, 9], [5, 4, 0], [0, 3, 3], [2, 2, 1], [1, 0, 2]])

    assert elected({"votes": votes, "score_sums": scores}).tolist() == [1, 1, 1, 2, 2]
