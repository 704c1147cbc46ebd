"""Data loaders of torch and LightningDataModules as data: each loader is read once, in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from flbench.core.errors import DataError
from flbench.core.rng import seeded
from flbench.core.user_code_errors import calling
from flbench.data.batch_form import PAIR, BatchForm

SEED: Final = 0  # of random transforms, which are drawn once


@dataclass(frozen=True)
class Read:
    """What loaders contain.

    Attributes:
        arrays: Samples and labels by the names of an NPZ file, with the client of each sample if
            there is a loader for each client.
        about: Fields of the data set beyond those of arrays: `form`, `extras`, `validation`.
    """

    arrays: dict[str, NDArray[Any]]
    about: dict[str, Any]


def are_loaders(value: Any) -> bool:
    """Return whether data are a DataLoader, a list or dict of them, or a LightningDataModule."""
    if isinstance(value, list | tuple | Mapping) and value:
        return all(isinstance(one, DataLoader) for one in _by_client(value).values())
    return isinstance(value, DataLoader) or _base(value) is not None


def read(value: Any, where: str) -> Read:
    """Return what loaders contain.

    Args:
        value: A DataLoader, a list or dict of DataLoaders with one for each client, or a
            LightningDataModule: its `train_dataloader` returns one of these, its `val_dataloader`,
            if it has one, the same for validation parts of the clients, and its `test_dataloader`,
            if it has one, a loader with the common test set.
        where: What the data are, for messages.

    Raises:
        DataError: The loaders cannot be read, or their batches have different forms.
    """
    found = {"train": value}
    if (base := _base(value)) is not None:
        names = {"train": "fit", "val": "fit", "test": "test"}
        with calling(where, "Correct the data module.", DataError):
            value.prepare_data()
            for part, stage in names.items():
                method = f"{part}_dataloader"
                if part == "train" or getattr(type(value), method) is not getattr(base, method):
                    value.setup(stage)
                    found[part] = getattr(value, method)()
    parts = {part: _by_client(loaders) for part, loaders in found.items()}
    for part, loaders in parts.items():
        is_loader = all(isinstance(loader, DataLoader) for loader in loaders.values())
        if not is_loader or (part == "val" and loaders.keys() != parts["train"].keys()):
            raise DataError(
                f"{where}: {part}_dataloader must return a torch.utils.data.DataLoader, or a list"
                " or dict of them with one for each client, and val_dataloader those of the same"
                " clients as train_dataloader."
            )
    form = BatchForm((), "", "", is_dict=False)
    arrays: dict[str, NDArray[Any]] = {}
    extras: dict[str | int, list[NDArray[Any]]] = {}
    for part, loaders in parts.items():
        columns = []
        for name, loader in loaders.items():
            form, values = _columns(loader, f"{where}, {part} loader {name}".rstrip(), form)
            columns.append(values)
        arrays[f"{part}_images"] = joined([one[form.sample] for one in columns], where)
        arrays[f"{part}_labels"] = joined([one[form.label] for one in columns], where)
        if not isinstance(found[part], DataLoader):
            sizes = [len(one[form.label]) for one in columns]
            arrays[f"{part}_groups"] = np.repeat(np.asarray(list(loaders)), sizes)
        for key in form.extras:
            extras.setdefault(key, []).extend(one[key] for one in columns)
    about = {
        "form": None if form == PAIR else form,
        "extras": {key: joined(extras[key], where) for key in extras},
        "validation": len(arrays.get("val_labels", ())),
    }
    return Read(arrays, about)


def _base(value: Any) -> type | None:
    """Return the class LightningDataModule, of `lightning` or `pytorch_lightning`, of a module."""
    kinds = type(value).__mro__
    return next((one for one in kinds if one.__name__ == "LightningDataModule"), None)


def _by_client(loaders: Any) -> dict[str, Any]:
    """Return loaders by the name of their client; those of a list have their position."""
    if isinstance(loaders, Mapping):
        return {str(name): loader for name, loader in loaders.items()}
    if not isinstance(loaders, list | tuple):
        return {"": loaders}
    width = len(str(len(loaders) - 1))  # the names are in the order of the list when sorted
    return {f"{k:0{width}d}": loader for k, loader in enumerate(loaders)}


def _columns(
    loader: DataLoader[Any], where: str, first: BatchForm
) -> tuple[BatchForm, dict[str | int, NDArray[Any]]]:
    """Return the form of a loader's batches, and its values by key in the order of its data set.

    Args:
        loader: The loader.
        where: What it is, for messages.
        first: The form of the batches that were read before; one without keys before any.
    """
    found: dict[str | int, list[NDArray[Any]]] = {}
    for batch in _batches(loader, where):
        form = BatchForm.of(batch, f"{where}: a batch")
        first = first if first.keys else form
        values = {key: _values(batch[key], f"{where}: `{key}` of a batch") for key in form.keys}
        sizes = [*map(len, values.values())]
        if form != first or len({*sizes}) > 1:
            raise DataError(
                f"{where}: a batch has the keys {list(form.keys)} with {sizes} values, and the"
                f" first one the keys {list(first.keys)}. Give all batches the same form, and one"
                " value for each sample."
            )
        for key, array in values.items():
            found.setdefault(key, []).append(array)
    if not found:
        raise DataError(f"{where} has no batch. Give each client at least one sample.")
    return first, {key: joined(values, f"{where}: `{key}`") for key, values in found.items()}


def _batches(loader: DataLoader[Any], where: str) -> Iterator[Any]:
    """Yield the batches of a loader without shuffling and without workers, drawn once."""
    if not isinstance(loader.dataset, IterableDataset):
        sampler: Any = loader.sampler if loader.batch_size is not None else loader.batch_sampler
        drawn = [int(k) for one in sampler or () for k in np.atleast_1d(one)]
        is_weighted = isinstance(getattr(sampler, "sampler", sampler), WeightedRandomSampler)
        if is_weighted or len(set(drawn)) < len(drawn):
            raise DataError(
                f"{where}: its sampler draws samples by weights or several times, and flbench reads"
                " each sample once and draws the batches itself, so that this would have no effect."
                " Give a loader without it; where classes are imbalanced, weight them in the loss."
            )
        if loader.batch_size is not None:
            loader = DataLoader(
                loader.dataset,
                loader.batch_size,
                sampler=sorted(drawn),
                collate_fn=loader.collate_fn,
            )
    with seeded(SEED), calling(where, "Correct the data set or the loader.", DataError):
        yield from loader


def _values(values: Any, what: str) -> NDArray[Any]:
    """Return one value for each sample as an array [n, ...]."""
    array = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
    if array.ndim == 0 or array.dtype.kind == "O":
        raise DataError(f"{what} is {type(values).__name__}, not a tensor or a list of texts.")
    return array


def joined(parts: Sequence[NDArray[Any]], where: str) -> NDArray[Any]:
    """Return arrays of several batches or loaders as one."""
    if shapes := {part.shape[1:] for part in parts if part.shape[1:] != parts[0].shape[1:]}:
        raise DataError(
            f"{where}: samples have the shapes {[list(s) for s in (parts[0].shape[1:], *shapes)]}."
            " Bring all to one shape."
        )
    return np.concatenate(parts)
