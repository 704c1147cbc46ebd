"""Maths on dicts of tensors: means over clients in float64, rows, sizes, digests."""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from flbench.core.types import Tree


def weighted_mean(rows: Tree, weights: Tensor) -> Tree:
    """Return the weighted mean over the client axis, leaf by leaf.

    mean = sum_k weights[k] rows[k] / sum_k weights[k], accumulated in float64 in cohort order with
    one cast at the end, so that neither threads nor the number of workers change the result. An
    integer leaf (BatchNorm's counter) takes the maximum over clients of positive weight.

    Args:
        rows: [K, ...] each.
        weights: [K], >= 0; rows of weight 0 take no part.
    Returns: the leaves without the client axis; empty when all weights are 0.
    """
    shares = weights.double().tolist()
    total = sum(shares)
    if total <= 0.0:
        return {}
    used = [k for k, share in enumerate(shares) if share > 0.0]
    mean: Tree = {}
    for name, value in rows.items():
        if not value.is_floating_point():
            mean[name] = value[used].amax(dim=0)
            continue
        sums = torch.zeros(value.shape[1:], dtype=torch.float64, device=value.device)
        for k in used:
            sums.add_(value[k].double(), alpha=shares[k] / total)
        mean[name] = sums.to(value.dtype)
    return mean


def take(tree: Tree, ids: Tensor) -> Tree:
    """Return rows `ids` [K] of every leaf [N, ...]; a copy."""
    return {name: value[ids.to(value.device)] for name, value in tree.items()}


def put_(tree: Tree, ids: Tensor, rows: Tree, mask: Tree | None = None) -> None:
    """Write rows [K, ...] at `ids` of the leaves [N, ...], in place, inside the mask if given."""
    for name, value in rows.items():
        target = tree[name]
        value = value.to(target.device, target.dtype)
        if mask is not None and name in mask:
            value = where_masked(mask[name], value, target[ids])
        target[ids] = value


def broadcast(mask: Tensor, value: Tensor) -> Tensor:
    """Return a mask over the first axes of a value, with trailing axes of length one."""
    return mask.reshape((*mask.shape, *(1,) * (value.dim() - mask.dim())))


def where_masked(mask: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """Return a value where a mask over its first axes is True, and the other elsewhere."""
    return torch.where(broadcast(mask, value), value, other)


def repeat(tree: Tree, clients: int) -> Tree:
    """Return every leaf repeated along a new leading axis N: views, not copies."""
    return {name: value.expand(clients, *value.shape) for name, value in tree.items()}


def copied(tree: Tree) -> Tree:
    """Return copies of all leaves, without their gradients' history."""
    dense = torch.contiguous_format  # a view of one row may have a stride of 0, and would keep it
    return {name: value.detach().clone(memory_format=dense) for name, value in tree.items()}


def only(tree: Tree, names: Iterable[str]) -> Tree:
    """Return the leaves of these names, in the tree's own order (a set has none)."""
    wanted = set(names)
    return {name: value for name, value in tree.items() if name in wanted}


def nbytes(tree: Tree) -> int:
    """Return the bytes of all leaves."""
    return sum(value.numel() * value.element_size() for value in tree.values())


def is_finite(tree: Tree) -> bool:
    """Return whether every floating-point entry is finite; one host synchronisation."""
    floats = [value for value in tree.values() if value.is_floating_point() and value.numel()]
    if not floats:
        return True
    # A sum of absolute values is finite where all its parts are: one pass, nothing stored.
    return bool(
        torch.stack([value.abs().sum(dtype=torch.float64) for value in floats]).isfinite().all()
    )


def digest(leaves: Iterable[Mapping[str, Tensor]]) -> str:
    """Return the SHA-256 (hex) over the tensors of one tree after the other, in their order."""
    sha = hashlib.sha256()
    for tree in leaves:
        for name, value in tree.items():
            sha.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
            flat = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
            sha.update(flat.view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
