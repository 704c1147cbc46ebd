"""Data loaders of torch and LightningDataModules as data: each loader is read once, in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from flbench.core.errors import DataError
from flbench.core.rng import seeded
from flbench.core.user_code_errors import calling, user_line
from flbench.data.batch_form import PAIR, BatchForm
from flbench.data.dataset import Dataset

SEED: Final = 0  # of random transforms, which are drawn once


@dataclass(frozen=True)
class Read:
    """What loaders contain.

    Attributes:
        arrays: Samples and labels by the names of an NPZ file, with the client of each sample if
            there is a loader for each client.
        form: The form of their batches.
        extras: Further values of each sample, by their key: the train part, the validation part,
            then the test part.
    """

    arrays: dict[str, Any]
    form: BatchForm
    extras: dict[str | int, NDArray[Any]]

    def added_to(self, dataset: Dataset) -> Dataset:
        """Return a data set of the arrays with the form of the batches and the further values."""
        form = None if self.form == PAIR else self.form
        validation = len(self.arrays.get("val_labels", ()))
        return replace(dataset, form=form, extras=dict(self.extras), validation=validation)


def are_for_clients(value: Any) -> bool:
    """Return whether data are a list or dict of loaders, one for each client."""
    values = value.values() if isinstance(value, Mapping) else value
    return (
        isinstance(value, list | tuple | Mapping)
        and len(value) > 0
        and all(isinstance(one, DataLoader) for one in values)
    )


def is_data_module(value: Any) -> bool:
    """Return whether data are a LightningDataModule, of `lightning` or `pytorch_lightning`."""
    return any(one.__name__ == "LightningDataModule" for one in type(value).__mro__)


def read(value: Any, where: str) -> Read | None:
    """Return what loaders contain; None for other data.

    Args:
        value: A DataLoader, a list or dict of DataLoaders with one for each client, or a
            LightningDataModule: its `train_dataloader` returns one of these, its `val_dataloader`,
            if it has one, the same for validation parts of the clients, and its `test_dataloader`,
            if it has one, a loader with the common test set.
        where: What the data are, for messages.

    Raises:
        DataError: The loaders cannot be read, or their batches have different forms.
    """
    if is_data_module(value):
        return _of_module(value, where)
    if not (isinstance(value, DataLoader) or are_for_clients(value)):
        return None
    return _joined(value, None, None, where)


def _of_module(module: Any, where: str) -> Read:
    """Return what a LightningDataModule contains."""
    _call(module, "prepare_data", where)
    _call(module, "setup", where, "fit")
    train = _call(module, "train_dataloader", where)
    if not (isinstance(train, DataLoader) or are_for_clients(train)):
        raise DataError(
            f"{where}: train_dataloader returned {type(train).__name__}. It must return a"
            " torch.utils.data.DataLoader, or a list or dict of them with one for each client."
        )
    validation = test = None
    if _defines(module, "val_dataloader"):
        validation = _call(module, "val_dataloader", where)
        _check_validation(train, validation, f"{where}: val_dataloader")
    if _defines(module, "test_dataloader"):
        _call(module, "setup", where, "test")
        test = _call(module, "test_dataloader", where)
        if not isinstance(test, DataLoader):
            raise DataError(
                f"{where}: test_dataloader returned {type(test).__name__}. It must return one"
                " DataLoader, with the common test set of all clients."
            )
    return _joined(train, validation, test, where)


def _defines(module: Any, name: str) -> bool:
    """Return whether a LightningDataModule has a method that is not that of the base class."""
    base = next(one for one in type(module).__mro__ if one.__name__ == "LightningDataModule")
    return getattr(type(module), name) is not getattr(base, name, None)


def _check_validation(train: Any, validation: Any, what: str) -> None:
    """Raise a DataError if loaders of validation parts do not fit those of the train part.

    Args:
        train: What `train_dataloader` returned.
        validation: What `val_dataloader` returned.
        what: What the latter is, for messages.
    """
    if isinstance(train, DataLoader):
        if not isinstance(validation, DataLoader):
            raise DataError(
                f"{what} returned {type(validation).__name__}, and train_dataloader a DataLoader."
                " It must return one DataLoader too, whose samples are distributed to the clients."
            )
        return
    if not are_for_clients(validation) or isinstance(validation, Mapping) != isinstance(
        train, Mapping
    ):
        kind = "dict" if isinstance(train, Mapping) else "list"
        raise DataError(
            f"{what} returned {type(validation).__name__}, and train_dataloader a {kind}. It must"
            f" return a {kind} of DataLoaders too, with one for each client."
        )
    if unknown := {*_named(validation)} ^ {*_named(train)}:
        name = min(unknown)
        have, lack = ("val", "train") if name in _named(validation) else ("train", "val")
        raise DataError(
            f"{what}: the client `{name}` has a loader in {have}_dataloader and none in"
            f" {lack}_dataloader. Return one for each client in both."
        )


def _call(module: Any, name: str, where: str, *arguments: str) -> Any:
    """Return what a method of a LightningDataModule returns."""
    with calling(f"{where}: {name}", "Correct the data module.", DataError):
        return getattr(module, name)(*arguments)


def _joined(train: Any, validation: Any, test: Any, where: str) -> Read:
    """Return the content of the loaders of the train, the validation and the test part."""
    forms: list[BatchForm] = []
    arrays: dict[str, Any] = {}
    extras: dict[str | int, list[NDArray[Any]]] = {}
    for part, given in (("train", train), ("val", validation), ("test", test)):
        if given is None:
            continue
        place = where if part == "train" else f"{where}, {part}_dataloader"
        loaders = {"": given} if isinstance(given, DataLoader) else _named(given)
        found = {
            name: _columns(loader, f"{place}, loader {name}".removesuffix(", loader "), forms)
            for name, loader in loaders.items()
        }
        form = forms[0]
        columns = {key: [one[key] for one in found.values()] for key in form.keys}
        arrays[f"{part}_images"] = _concatenated(columns[form.sample], place)
        arrays[f"{part}_labels"] = _concatenated(columns[form.label], place)
        if not isinstance(given, DataLoader):
            sizes = [len(one[form.label]) for one in found.values()]
            arrays[f"{part}_groups"] = np.repeat(np.asarray(list(found)), sizes)
        for key in form.extras:
            extras.setdefault(key, []).extend(columns[key])
    if arrays["train_images"].ndim == 4:
        arrays["layout"] = "channels_first"
    return Read(arrays, form, {key: _concatenated(extras[key], where) for key in extras})


def _named(loaders: Any) -> dict[str, Any]:
    """Return loaders by the name of their client; those of a list have their position."""
    if isinstance(loaders, Mapping):
        return {str(name): loader for name, loader in loaders.items()}
    width = len(str(len(loaders) - 1))  # the names are in the order of the list when sorted
    return {f"{k:0{width}d}": loader for k, loader in enumerate(loaders)}


def _columns(
    loader: DataLoader[Any], where: str, forms: list[BatchForm]
) -> dict[str | int, NDArray[Any]]:
    """Return the values of a loader by key, in the order of its data set.

    Args:
        loader: The loader.
        where: What it is, for messages.
        forms: The form of the batches that were read before; the first one is added to it.
    """
    found: dict[str | int, list[NDArray[Any]]] = {}
    for batch in _batches(loader, where):
        form = BatchForm.of(batch, f"{where}: a batch")
        forms += [] if forms else [form]
        if form != forms[0]:
            raise DataError(
                f"{where}: a batch has the keys {list(form.keys)}, and others"
                f" {list(forms[0].keys)}. Give all batches the same form."
            )
        rows = None
        for key in form.keys:
            values = _values(batch[key], f"{where}: `{key}` of a batch")
            rows = len(values) if rows is None else rows
            if len(values) != rows:
                raise DataError(
                    f"{where}: `{key}` of a batch has {len(values)} values, and"
                    f" `{form.keys[0]}` {rows}. Give one value for each sample."
                )
            found.setdefault(key, []).append(values)
    if not found:
        raise DataError(f"{where} has no batch. Give each client at least one sample.")
    return {key: _concatenated(values, f"{where}: `{key}`") for key, values in found.items()}


def _batches(loader: DataLoader[Any], where: str) -> Iterator[Any]:
    """Yield the batches of a loader without shuffling and without workers, drawn once."""
    try:
        with seeded(SEED):
            if isinstance(loader.dataset, IterableDataset):
                yield from loader
                return
            if loader.batch_size is None:
                if loader.batch_sampler is not None:
                    drawn = [int(k) for batch in loader.batch_sampler for k in batch]
                    _check_drawn(drawn, getattr(loader.batch_sampler, "sampler", None), where)
                yield from loader
                return
            drawn = [int(k) for k in loader.sampler]
            _check_drawn(drawn, loader.sampler, where)
            yield from DataLoader(
                loader.dataset,
                batch_size=loader.batch_size,
                sampler=sorted(drawn),
                collate_fn=loader.collate_fn,
            )
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{where} cannot be read: {type(error).__name__}: {error}{user_line(error)}. Correct"
            " the data set or the loader."
        ) from error


def _check_drawn(drawn: Sequence[int], sampler: Any, where: str) -> None:
    """Raise a DataError if a sampler weights samples, or draws some of them several times."""
    if isinstance(sampler, WeightedRandomSampler) or len(set(drawn)) < len(drawn):
        name = "its batch sampler" if sampler is None else type(sampler).__name__
        raise DataError(
            f"{where}: {name} draws samples by weights or several times, and flbench reads each"
            " sample once and draws the batches itself, so that this would have no effect. Give a"
            " loader without it; where classes are imbalanced, weight them in the loss."
        )


def _values(values: Any, what: str) -> NDArray[Any]:
    """Return one value for each sample as an array [n, ...]."""
    found = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    array = np.asarray(found)
    if array.ndim == 0 or array.dtype == object:
        raise DataError(
            f"{what} is of type {type(values).__name__}. It must be a tensor, or a list of texts,"
            " with one value for each sample."
        )
    return array


def _concatenated(parts: Sequence[NDArray[Any]], where: str) -> NDArray[Any]:
    """Return arrays of several batches or loaders as one."""
    if shapes := {part.shape[1:] for part in parts if part.shape[1:] != parts[0].shape[1:]}:
        raise DataError(
            f"{where}: samples have the shapes {[list(s) for s in (parts[0].shape[1:], *shapes)]}."
            " Bring all to one shape."
        )
    return np.concatenate(parts)
