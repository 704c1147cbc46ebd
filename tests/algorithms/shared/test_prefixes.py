import torch

from flbench.algorithms.shared.prefixes import prefixed, stripped


def test_prefixes_come_and_go():
    tree = {"a": torch.zeros(1), "b.a": torch.ones(1)}

    both = tree | prefixed("b.", tree)

    assert set(both) == {"a", "b.a", "b.b.a"}
    assert both["b.a"] is tree["a"]
    assert stripped("b.", both) == {"a": tree["a"], "b.a": tree["b.a"]}
