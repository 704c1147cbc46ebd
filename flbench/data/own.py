"""Data given as objects: arrays, tensors, tables of pandas, data sets of torch and Hugging Face.

All of them become the arrays of an NPZ file, or the tables of pandas, and are read as those are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from flbench.core.errors import DataError, did_you_mean, shortened
from flbench.core.user_code_errors import calling
from flbench.data import images, loaders, npz_files, pixels, tables, tokens
from flbench.data import labels as labels_of
from flbench.data.batch_form import LABEL_NAMES, SAMPLE_NAMES
from flbench.data.dataset import Dataset
from flbench.data.targets import NAMES as NO_CLASSES
from flbench.data.targets import take as take_targets

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, Any]
KEYS: Final = (
    *(f"{part}_{kind}" for part in ("train", "val", "test") for kind in ("images", "labels")),
    *("train_groups", "val_groups", "test_groups", "class_names", "vocabulary"),
)
LAYOUTS: Final = ("auto", "channels_first", "channels_last")
KINDS: Final = ("auto", "images", "series", "table", "tokens")
SEQUENCES: Final = (list, tuple, np.ndarray)
BLOCK: Final = 256  # rows of a Hugging Face data set that are decoded at once


class Data:
    """A data set of your own, for `fl.run(data=...)`.

    `Data(x, y)` calls, by the type of `x`, `from_arrays`, `from_frame`, `from_loaders`,
    `from_dataset` or `from_hugging_face`, each with its own arguments. Data that come by client are
    read by `from_clients`.

    Args:
        x: The data.
        y: Labels or targets, if `x` are samples as arrays.
        **arguments: Arguments of the function that is called.

    Attributes:
        dataset: The data set as flbench uses it.
        by_client: Whether they were given client by client. Then the scheme `natural` is the
            default.

    Raises:
        DataError: The data cannot be used. The message says why.

    >>> data = Data(np.zeros((4, 8, 8), dtype=np.uint8), ["cat", "dog", "dog", "cat"])
    >>> data.dataset.classes, data.dataset.y
    (('cat', 'dog'), array([0, 1, 1, 0]))
    >>> Data(np.zeros((4, 2)), np.array([0.1, 0.2, 0.3, 0.4]), name="prices")
    <Data `prices`: 4 samples [2] float32, targets [] float64, 0 common test samples>
    """

    dataset: Dataset
    by_client: bool = False

    def __init__(self, x: Any, y: Any = None, **arguments: Any) -> None:
        make, more = (self._by_type(x), {}) if y is None else (self.from_arrays, {"y": y})
        try:
            made = make(x, **more, **arguments)
        except TypeError as error:
            if not str(error).startswith("Data.from_"):
                raise
            raise DataError(f"`data` of the type {type(x).__name__}: {error}.") from error
        vars(self).update(vars(made))

    @classmethod
    def _by_type(cls, x: Any) -> "Callable[..., Data]":
        """Return the function that reads data of a type."""
        import pandas as pd

        if isinstance(x, pd.DataFrame):
            return cls.from_frame
        if loaders.are_loaders(x):
            return cls.from_loaders
        if any(map(_is_hugging_face, x.values() if isinstance(x, Mapping) else [x])):
            return cls.from_hugging_face
        is_pair = isinstance(x, tuple | list) and len(x) == 2
        if is_pair or isinstance(x, Mapping | np.ndarray | torch.Tensor):
            return cls.from_arrays
        return cls.from_dataset

    @classmethod
    def _of(cls, dataset: Dataset, *, by_client: bool = False) -> "Data":
        made = object.__new__(cls)
        made.dataset, made.by_client = dataset, by_client
        return made

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any = None,
        *,
        test: Any = None,
        clients: Any = None,
        group: Any = None,
        classes: Sequence[str] | Mapping[Any, Any] | None = None,
        layout: str = "auto",
        kind: str = "auto",
        padding: int | None = None,
        vocabulary: int | Sequence[str] | None = None,
        targets: bool | None = None,
        name: str = "data",
    ) -> "Data":
        """Return the data of arrays, tensors or lists.

        Args:
            x: Samples, uint8 or floating point: images [n, H, W], [n, H, W, C] or [n, C, H, W];
                a table [n, columns] in floating point; series [n, C, length] with `kind="series"`;
                or sequences of tokens [n, length] in integers. Or a pair (samples, labels), or a
                dict of arrays with the names of an NPZ file, such as `train_images`.
            y: Labels [n]: whole numbers >= 0, or names; or targets [n, ...], numbers. The classes
                are those that occur, numbers in the order of the numbers.
            test: A common test set, as a pair (x, y).
            clients: Natural client of each sample, [n] names or numbers.
            group: What several samples come from, such as their patient, [n] names or numbers;
                samples of one group stay in one part of a client.
            classes: Names of the C classes, in the order of their numbers, or by number; labels
                that are numbers are then positions in them.
            layout: Where the channels of images are: `channels_last`, `channels_first`, or `auto`:
                the axis that has 1 or 3 entries. Tensors have them first if both axes, or none,
                have 1 or 3 entries. Series have them first unless it says otherwise.
            kind: `images`, `series`, `table`, `tokens`, or `auto`: what axes and type say.
            padding: Token id that fills up shorter sequences. With it, `x` may have sequences of
                different lengths, which are filled up on the right.
            vocabulary: Number of token ids V, or a text for each id; by default the ids up to the
                largest token.
            targets: Whether `y` has targets instead of classes. By default it has if it cannot
                have classes: several values for each sample, or values that are not whole numbers.
            name: Name of the data set in tables and folders.
        """
        arrays: Arrays = dict(x) if isinstance(x, Mapping) else _pair(x, y, padding, "train")
        arrays |= {} if test is None else _pair(test, None, padding, "test")
        _check_order(x, clients, "`clients`")
        _check_order(x, group, "`group`")
        names = None if classes is None else _in_order(classes)
        given = {"train_groups": clients, "class_names": names, "vocabulary": vocabulary}
        arrays |= {key: value for key, value in given.items() if value is not None}
        wrong = [(key, "array of `data`", KEYS) for key in arrays if key not in KEYS]
        wrong += [(layout, "`layout`", LAYOUTS)] * (layout not in LAYOUTS)
        wrong += [(kind, "`kind`", KINDS)] * (kind not in KINDS)
        for value, what, known in wrong:
            hint = did_you_mean(str(value), known)
            raise DataError(f"{value!r} is no {what}.{hint} Known: {', '.join(known)}.")
        first = arrays.get("train_images")
        if layout == "auto" and isinstance(first, torch.Tensor) and first.ndim == 4:
            layout = _layout_of(first)
        found = {key: _array(value, f"`data`, `{key}`") for key, value in arrays.items()}
        values = take_targets(found, "`data`", given=targets)
        if values is not None:
            found["class_names"] = np.asarray(NO_CLASSES)
        dataset = npz_files.from_arrays(found, "`data`", _checked_name(name), layout, kind)
        # The samples of arrays are the user's, who may change them.
        dataset = replace(dataset, x=dataset.x.copy(), targets=values)
        if group is not None:
            groups = _array(group, "`group`")
            dataset = labels_of.with_blocks(dataset, groups, "group", "`data`, `group`")
        return cls._of(tokens.complete(dataset, padding, "`data`"))

    @classmethod
    def from_clients(cls, clients: Mapping[Any, Any], **arguments: Any) -> "Data":
        """Return the data of arrays that come by client.

        Args:
            clients: A pair (samples, labels) for each client, by its name.
            **arguments: Further arguments of `from_arrays`.

        >>> both = {"north": (np.zeros((3, 2)), [0, 1, 1]), "south": (np.ones((2, 2)), [1, 0])}
        >>> Data.from_clients(both).dataset.groups
        array([0, 0, 0, 1, 1])
        """
        names = [*map(str, clients)] if isinstance(clients, Mapping) else []
        if not names or len({*names}) < len(names):
            raise DataError("`data` must be a dict with a pair (samples, labels) for each client.")
        pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for key, pair in clients.items():
            where = f"`data`, client `{shortened(str(key), 60)}`"
            x, y = (_array(value, where) for value in _pair(pair, None, None, "train").values())
            if not x.size or not x.shape[:1] == y.shape[:1] != ():
                raise DataError(
                    f"{where} has samples {list(x.shape)} and labels {list(y.shape)}. Give each"
                    " client at least one sample, and one label for each."
                )
            pairs.append((x, y))
        x, y = (loaders.joined(arrays, "`data`") for arrays in zip(*pairs, strict=True))
        owners = np.repeat(names, [len(labels) for _, labels in pairs])
        found = cls.from_arrays(x, y, clients=owners, **arguments)
        made = found.dataset
        first = made.x[made.groups == 0]
        for k, name in enumerate(made.group_names):
            mine = made.x[made.groups == k]
            pixels.check_alike(first, mine, f"`data`, client `{name}`,", "the first one")
        return cls._of(found.dataset, by_client=True)

    @classmethod
    def from_frame(
        cls,
        frame: "pd.DataFrame",
        *,
        label: str | int | None = None,
        client: str | int | None = None,
        drop: Sequence[str | int] = (),
        group: str | int | None = None,
        padding: int | None = None,
        name: str = "data",
    ) -> "Data":
        """Return the data of a DataFrame of pandas, read as CSV files are.

        Words become categories, and missing values are imputed. A column of lists has sequences of
        tokens, which are then the samples.

        Args:
            frame: The table.
            label: Column of the label, or a rule such as `num > 0`; by default the last column that
                is left.
            client: Column of the natural client.
            drop: Columns that are left out, such as identifiers.
            group: Column of what several rows come from, such as a patient, which is no input; rows
                of one group stay in one part of a client.
            padding: Token id that fills up shorter sequences of a column of lists.
            name: Name of the data set in tables and folders.
        """
        # Names have no blanks around them, as in files, so that a model finds its columns there.
        frame = tables.stripped(frame)
        label, client, group = (
            key if key is None else str(key).strip() for key in (label, client, group)
        )
        owners = None
        if client is not None:
            _check_column(client, frame.columns, "client")
            ids = frame.pop(client).to_numpy(dtype=object)
            owners = labels_of.as_texts(ids, f"`data`, column `{client}`", "client")
        cells = {} if frame.empty else frame.iloc[0].to_dict()
        lists = next((str(key) for key in cells if isinstance(cells[key], SEQUENCES)), None)
        if lists is not None:
            x = list(frame.pop(lists))
            y = frame[frame.columns[-1] if label is None else label]
            return cls.from_arrays(x, list(y), clients=owners, padding=padding, name=name)
        names, called = tuple(str(one).strip() for one in drop), _checked_name(name)
        if owners is None:
            dataset = tables.from_frames({"`data`": frame}, "`data`", called, label, names, group)
            return cls._of(replace(dataset, groups=None, group_names=()))
        parts = {str(key): part for key, part in frame.groupby(np.array(owners))}
        frames = {f"`data`, client `{key}`": part for key, part in parts.items()}
        dataset = tables.from_frames(frames, "`data`", called, label, names, group)
        return cls._of(replace(dataset, group_names=tuple(parts)))

    @classmethod
    def from_dataset(cls, dataset: Any, *, test: Any = None, **arguments: Any) -> "Data":
        """Return the data of a map-style `torch.utils.data.Dataset`, read once, into memory.

        Args:
            dataset: Pairs (sample, label): tensors, arrays, images of Pillow, or numbers.
            test: A common test set, another such data set.
            **arguments: Further arguments of `from_arrays`.
        """
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise DataError(
                "`data` are not data with labels. Give arrays as a pair (x, y), a dict of arrays, a"
                " DataFrame of pandas, data loaders, or a map-style torch Dataset."
            )
        names = getattr(dataset, "classes", None)
        is_named = isinstance(names, list | tuple) and all(isinstance(k, str) for k in names)
        keys = {"classes": names or None} if is_named else {}
        parts = {"train": dataset} if test is None else {"train": dataset, "test": test}
        pairs = {part: map(given.__getitem__, range(len(given))) for part, given in parts.items()}
        return cls._of_pairs(pairs, keys | arguments)

    @classmethod
    def from_hugging_face(
        cls, data: Any, *, label: str | None = None, client: str | None = None, **arguments: Any
    ) -> "Data":
        """Return the data of a `Dataset` or `DatasetDict` of Hugging Face's package `datasets`.

        Args:
            data: The data set. A `DatasetDict` has `train`, and perhaps `validation` and `test`.
            label: Column of the label; by default `label` or one of similar names.
            client: Column of the natural client.
            **arguments: Further arguments of `from_arrays`, if there is one column of samples, such
                as `image`; otherwise of `from_frame`, because the data are a table.
        """
        splits = data if isinstance(data, Mapping) else {"train": data}
        if "train" not in splits:
            raise DataError(f"`data` has no split `train`, but {', '.join(splits)}. Give one.")
        columns, features = list(splits["train"].column_names), splits["train"].features
        target = label or next((name for name in LABEL_NAMES if name in columns), columns[-1])
        others = [name for name in columns if name not in (target, client)]
        source = next((name for name in SAMPLE_NAMES if name in others), None)
        if source is None and len(others) != 1:
            frame = splits["train"].to_pandas()
            if label is None:  # a table's label is its last column
                frame = frame[[*(name for name in columns if name != target), target]]
            return cls.from_frame(frame, label=label, client=client, **arguments)
        for key, column in {"label": target, "client": client or target}.items():
            _check_column(column, columns, key)

        def pairs_of(rows: Any) -> Iterable[Any]:
            for k in range(0, len(rows), BLOCK):
                block = rows[k : k + BLOCK]
                yield from zip(block[source or others[0]], block[target], strict=True)

        parts = {"train": "train", "validation": "val", "test": "test"}
        pairs = {parts[split]: pairs_of(splits[split]) for split in parts if split in splits}
        keys = {"classes": getattr(features.get(target), "names", None)}
        if client is not None:
            keys["clients"] = splits["train"][:][client]
        return cls._of_pairs(pairs, keys | arguments)

    @classmethod
    def _of_pairs(cls, parts: Mapping[str, Iterable[Any]], keys: dict[str, Any]) -> "Data":
        """Return the data of the pairs (sample, label) of `train`, `val` and `test`.

        Args:
            parts: The pairs.
            keys: Arguments of `from_arrays`.
        """
        arrays: Arrays = {}
        padding, layout = keys.get("padding"), "auto"
        for part, pairs in parts.items():
            samples, labels = list[Any](), list[Any]()
            for k, pair in enumerate(pairs):
                if not isinstance(pair, tuple | list) or len(pair) != 2:
                    raise DataError(
                        f"`data`: item {k} is not a pair (sample, label), but"
                        f" {type(pair).__name__}. Wrap the data set so that it returns pairs."
                    )
                samples.append(_array(pair[0], f"`data`, item {k}"))
                label = _array(pair[1], f"`data`, the label of item {k}")
                labels.append(label.reshape(()) if label.size == 1 else label)
                if k == 0 and samples[0].ndim == 3:
                    layout = _layout_of(pair[0])
            arrays |= _pair(samples, labels, padding, part)
        return cls.from_arrays(arrays, **({"layout": layout} | keys))

    @classmethod
    def from_loaders(cls, value: Any, **arguments: Any) -> "Data":
        """Return the data of data loaders of torch, each of which is read once, in order.

        Args:
            value: A `torch.utils.data.DataLoader`; a list or dict of them with one for each client,
                whose samples are natural clients; or a `LightningDataModule`, whose
                `train_dataloader` returns one of these, whose `val_dataloader`, if it has one, the
                same for the clients' validation parts, and whose `test_dataloader` the common test
                set. Batches are (samples, labels), (samples, labels, ...) or dicts.
            **arguments: Further arguments of `from_arrays`.
        """
        read = loaders.read(value, "`data`")
        keys = {"layout": "channels_first"} if read.arrays["train_images"].ndim == 4 else {}
        found = cls.from_arrays(read.arrays, **(keys | arguments))
        by_client = "train_groups" in read.arrays
        return cls._of(replace(found.dataset, **read.about), by_client=by_client)

    def section(self) -> dict[str, Any]:
        """Return the keys of the section `data` that stand for this object."""
        padding = {} if self.dataset.padding is None else {"padding": self.dataset.padding}
        return {"source": "object", "name": self.dataset.name, **padding}

    def __repr__(self) -> str:
        found = self.dataset
        test = len(found.y) - found.train
        what = f"{len(found.classes)} classes"
        if found.targets is not None:
            what = f"targets {list(found.targets.shape[1:])} {found.targets.dtype}"
        return (
            f"<Data `{found.name}`: {found.train:,} samples {list(found.x.shape[1:])}"
            f" {found.x.dtype}, {what}, {test:,} common test samples>"
        )


def result_of(found: Any, what: str) -> Any:
    """Return what a function without arguments returns, or data themselves.

    Args:
        found: The function or the data.
        what: What they are, as the beginning of an error message.

    Raises:
        DataError: The function raised an exception.
    """
    with calling(what, "It must be a function without arguments that returns the data.", DataError):
        return found() if callable(found) else found


def is_own(value: Any) -> bool:
    """Return whether an argument `data` is data, and not a section of the configuration."""
    if isinstance(value, Mapping):
        return loaders.are_loaders(value) or any(
            isinstance(item, np.ndarray | torch.Tensor) or _is_hugging_face(item)
            for item in value.values()
        )
    return value is not None and not isinstance(value, str | PathLike)


def _pair(x: Any, y: Any, padding: int | None, part: str) -> Arrays:
    """Return samples and labels, or a pair of both, as arrays with the names of an NPZ file."""
    if y is None and isinstance(x, tuple | list) and len(x) == 2:
        x, y = x
    if y is None:
        raise DataError("`data` are samples without labels. Give a pair (samples, labels).")
    _check_order(x, y, "`y`")
    if padding is not None and isinstance(x, list):
        x = tokens.padded(x, padding, "`data`")
    return {f"{part}_images": x, f"{part}_labels": y}


def _check_column(column: str, columns: Iterable[str], key: str) -> None:
    """Raise a DataError if there is no such column."""
    if column not in columns:
        hint = did_you_mean(column, columns)
        raise DataError(f"`data` has no column `{column}`, which `{key}` names.{hint}")


def _in_order(classes: Any) -> list[Any]:
    """Return names of classes in the order of their numbers."""
    if isinstance(classes, Mapping):  # {0: "cat"}, or {"cat": 0} as `class_to_idx` of torchvision
        names = classes if 0 in classes else {n: name for name, n in classes.items()}
        classes = [names.get(n) for n in range(len(names))]
    if isinstance(classes, str | set | frozenset):
        raise DataError(
            "`classes` must be a list of names, in the order of their numbers 0, 1, ..."
        )
    return list(classes)


def _checked_name(name: str) -> str:
    """Return the name of a data set; raise a DataError if it cannot be that of a folder."""
    if not name or any(part in name for part in "/\\\0") or name.startswith("."):
        raise DataError(f"`name` must be a plain name, got {name!r}.")
    return name


def _layout_of(images: Any) -> str:
    """Return where channels are: first in tensors, if they can be, and last in images of Pillow."""
    if isinstance(images, torch.Tensor):
        last, first = (images.shape[k] in npz_files.CHANNELS for k in (-1, -3))
        return "auto" if last and not first else "channels_first"
    return "channels_last" if _is_image(images) else "auto"


def _check_order(x: Any, other: Any, what: str) -> None:
    """Raise a DataError if the rows of two objects of pandas have the same index in other orders.

    Samples and labels belong together by position, as everywhere but in pandas.
    """
    import pandas as pd

    x = x[0] if isinstance(x, tuple | list) and x else x
    of_pandas = pd.DataFrame | pd.Series
    if not isinstance(x, of_pandas) or not isinstance(other, of_pandas):
        return
    one, two = x.index, other.index
    if not one.equals(two) and one.sort_values().equals(two.sort_values()):
        raise DataError(
            f"{what} has the rows of `x` in another order, by their indices. Bring both to one"
            " order, such as by y.loc[x.index]; or reset both indices if the positions are right."
        )


def _array(value: Any, what: str = "`data`") -> NDArray[Any]:
    """Return a tensor, an image of Pillow, a Series, a list or an array as an array.

    Raises:
        DataError: The value is no array, or has masked entries.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DataError(f"{what} has masked entries, which have no value. Fill or remove them.")
    try:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        if isinstance(value, list | tuple):
            kinds = (torch.Tensor, np.ma.MaskedArray)  # NumPy does not read them as this does
            is_special = any(isinstance(one, kinds) or _is_image(one) for one in value)
            value = [_array(one, what) for one in value] if is_special else value
        return np.asarray(images.as_seen(value) if _is_image(value) else value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"{what}: {type(value).__name__} is not an array ({error}). Bring all samples to one"
            " shape (for tokens, `padding` fills up shorter ones), and tensors to dense ones."
        ) from error


def _is_image(value: Any) -> bool:
    """Return whether an object is an image of Pillow."""
    return type(value).__module__.startswith("PIL.")


def _is_hugging_face(value: Any) -> bool:
    """Return whether an object is a `datasets.Dataset`; the package need not be installed."""
    return hasattr(value, "column_names") and hasattr(value, "features")
