"""Operations on trees, dicts of named tensors: weighted means, rows of clients, sizes, digests.

`largest` and `smallest_index` choose among scores so that rounding decides nothing.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from flbench.core.errors import ConfigError
from flbench.core.types import Tree


def weighted_mean(rows: Tree, weights: Tensor) -> Tree:
    """Return the weighted mean over the client axis, leaf by leaf.

    mean = sum_k weights[k] rows[k] / sum_k weights[k]. Sums are accumulated in float64 in cohort
    order and cast once at the end, so that neither threads nor the number of workers change the
    result. For a leaf of integers (BatchNorm's `num_batches_tracked`) the result is the maximum
    over the clients of positive weight.

    Args:
        rows: Leaves [K, ...] of K clients, on any device.
        weights: Weights [K] >= 0. Rows of weight 0 are ignored, even if they are not finite.

    Returns:
        The leaves without the client axis, on the CPU; an empty tree if all weights are 0.

    Raises:
        ConfigError: The weights are not K finite numbers >= 0.

    >>> rows = {"w": torch.tensor([[1.0, 2.0], [3.0, 6.0]])}
    >>> weighted_mean(rows, torch.tensor([3, 1]))
    {'w': tensor([1.5000, 3.0000])}
    """
    shares = torch.as_tensor(weights, dtype=torch.float64).reshape(-1).tolist()
    count = len(next(iter(rows.values()), shares))
    if len(shares) != count or not all(0.0 <= share < math.inf for share in shares):
        raise ConfigError(
            f"a mean over {count} clients has the weights {shares[:10]}. Give one finite number"
            " >= 0 for each client that sent something. The server does not see training losses:"
            " there they are NaN."
        )
    total = sum(shares)
    if total <= 0.0:
        return {}
    used = [k for k, share in enumerate(shares) if share > 0.0]
    mean: Tree = {}
    for name, value in rows.items():
        if not value.is_floating_point():
            mean[name] = value[used].amax(dim=0).cpu()  # [K, ...] -> [...]
            continue
        sums = value.new_zeros(value.shape[1:], dtype=torch.float64)
        for k in used:
            sums.add_(value[k], alpha=shares[k] / total)
        mean[name] = sums.to(value.dtype).cpu()
    return mean


def take(tree: Tree, ids: Tensor) -> Tree:
    """Return copies of rows `ids` of every leaf.

    Args:
        tree: Leaves [N, ...].
        ids: Row numbers [K] int64.

    Returns:
        Leaves [K, ...].

    >>> take({"w": torch.tensor([10, 20, 30])}, torch.tensor([2, 0]))
    {'w': tensor([30, 10])}
    """
    return {name: value[ids.to(value.device)] for name, value in tree.items()}


def put_(tree: Tree, ids: Tensor, rows: Tree, mask: Tree | None = None) -> None:
    """Write rows into the leaves of a tree, in place.

    Args:
        tree: Leaves [N, ...] to write to.
        ids: Row numbers [K] int64.
        rows: New values [K, ...] for some of the leaves.
        mask: Boolean tensors for some of the leaves, over the first axes of the new values
            (`[K]`, `[K, C]`, ...). Entries where the mask is False stay as they are.

    Raises:
        KeyError: `rows` has a name that `tree` lacks.

    >>> tree = {"w": torch.tensor([10, 20, 30])}
    >>> put_(tree, torch.tensor([2, 0]), {"w": torch.tensor([3, 1])})
    >>> tree
    {'w': tensor([ 1, 20,  3])}
    """
    for name, value in rows.items():
        target = tree[name]
        value = value.to(target.device, target.dtype)
        if mask is not None and name in mask:
            value = where_masked(mask[name], value, target[ids])
        target[ids] = value


def broadcast(mask: Tensor, value: Tensor) -> Tensor:
    """Append axes of length one to a mask so that it broadcasts against a value.

    Args:
        mask: Tensor whose axes are the first axes of `value`.
        value: Tensor with at least as many axes as `mask`.
    """
    return mask.reshape((*mask.shape, *(1,) * (value.dim() - mask.dim())))


def where_masked(mask: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """Return `value` where the mask is True and `other` elsewhere.

    Args:
        mask: Boolean tensor whose axes are the first axes of `value`.
        value: Tensor to read where the mask is True.
        other: Tensor of the shape of `value`.
    """
    return torch.where(broadcast(mask, value), value, other)


def repeat(tree: Tree, clients: int) -> Tree:
    """Repeat every leaf [...] along a new leading axis: views [N, ...] that share its memory."""
    return {name: value.expand(clients, *value.shape) for name, value in tree.items()}


def copied(tree: Tree) -> Tree:
    """Return contiguous copies of all leaves, detached from the autograd graph."""
    # `clone` alone would keep the strides of an expanded view, which has a stride of 0.
    dense = torch.contiguous_format
    return {name: value.detach().clone(memory_format=dense) for name, value in tree.items()}


def only(tree: Tree, names: Iterable[str]) -> Tree:
    """Return the leaves with the given names, in the order of the tree.

    Args:
        tree: The leaves.
        names: Names to select; names that the tree lacks are ignored.

    >>> list(only({"b": torch.ones(1), "a": torch.ones(1)}, {"a", "b", "c"}))
    ['b', 'a']
    """
    wanted = set(names)
    return {name: tree[name] for name in tree if name in wanted}


def nbytes(tree: Tree) -> int:
    """Return the total size of all leaves in bytes."""
    return sum(value.numel() * value.element_size() for value in tree.values())


def write_counts(tree: Tree) -> list[int]:
    """Return how often each leaf has been written to in place, as PyTorch counts it."""
    return [value._version for value in tree.values()]


def is_finite(tree: Tree) -> bool:
    """Return whether all floating-point entries are finite. Synchronizes with the device once."""
    floats = [value for value in tree.values() if value.is_floating_point() and value.numel()]
    if not floats:
        return True
    # NaN is both the smallest and the largest value of a leaf that has one. Unlike
    # `isfinite().all()`, this stores nothing of the leaf's size.
    ends = [end.to(torch.float64) for value in floats for end in value.aminmax()]
    return bool(torch.stack(ends).isfinite().all())


def digest(trees: Iterable[Mapping[str, Tensor]]) -> str:
    """Return the SHA-256 (hex) over names, types, shapes and bytes of the tensors of trees.

    Args:
        trees: The trees; their order and the order of their leaves matter.
    """
    sha = hashlib.sha256()
    for name, value in (item for tree in trees for item in tree.items()):
        sha.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        if flat.stride() != (1,):  # PyTorch takes a single expanded element for contiguous
            flat = flat.clone(memory_format=torch.contiguous_format)
        sha.update(flat.view(torch.uint8).numpy().data)
    return sha.hexdigest()


def digest_of_models(models: Iterable[Mapping[str, Tensor]]) -> str:
    """Return the SHA-256 (hex) over the digests of models, in their order.

    A model that several clients have one after the other is hashed once.
    """
    sha, last, own = hashlib.sha256(), None, b""
    for model in models:
        if model is not last:
            last, own = model, digest([model]).encode()
        sha.update(own)
    return sha.hexdigest()


EQUAL = 256
"""Scores are equal whose relative difference is at most so many machine epsilons."""


def largest(scores: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return which scores are the largest, as a mask of the scores' shape.

    Sums in another order (another processor, another engine) change the last bits of a score.
    Scores that differ by rounding alone from the last one that is chosen are therefore equal to it,
    and of equal ones the first positions are chosen.

    Args:
        scores: Scores [..., n], without NaN.
        count: How many are chosen along the last axis, in 1..n.
        dtype: Type in which the scores were computed, if they were converted to a wider one since.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 2.0 + 1e-6]), 2)
    tensor([False,  True,  True, False])
    """
    least = scores.topk(count, dim=-1).values[..., -1:]
    rounding = EQUAL * torch.finfo(dtype or scores.dtype).eps * least.abs()
    rounding = torch.where(least.isfinite(), rounding, 0.0)
    above = scores > least + rounding
    equal = (scores >= least - rounding) & ~above
    return above | equal & (equal.cumsum(dim=-1) <= count - above.sum(dim=-1, keepdim=True))


def smallest_index(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the index of the smallest value along the last axis, of equal ones the first.

    Args:
        values: Values [..., n], without NaN.
        dtype: See `largest`.

    >>> smallest_index(torch.tensor([0.3, 0.1 + 1e-8, 0.1]))
    tensor(1)
    """
    return largest(-values, 1, dtype).int().argmax(dim=-1)
