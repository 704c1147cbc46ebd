"""A second tree under the names of the first: `gm.backbone.fc1.weight`."""

from flbench.core.types import Tree


def prefixed(prefix: str, tree: Tree) -> Tree:
    """Return the tree with a prefix before every name."""
    return {prefix + name: value for name, value in tree.items()}


def stripped(prefix: str, tree: Tree) -> Tree:
    """Return the entries whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value for name, value in tree.items() if name.startswith(prefix)
    }
