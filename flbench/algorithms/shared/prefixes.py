"""Names with a prefix, for trees that hold a second value of each leaf.

>>> import torch
>>> tree = prefixed("mean.", {"head.bias": torch.zeros(2)})
>>> list(tree), list(stripped("mean.", tree))
(['mean.head.bias'], ['head.bias'])
"""

from flbench.core.types import Tree


def prefixed(prefix: str, tree: Tree) -> Tree:
    """Return the entries of a tree, each name with a prefix."""
    return {prefix + name: value for name, value in tree.items()}


def stripped(prefix: str, tree: Tree) -> Tree:
    """Return the entries whose names begin with a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): value for name, value in tree.items() if name.startswith(prefix)
    }
