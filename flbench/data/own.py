"""Data given as objects: arrays, tensors, tables of pandas, data sets of torch and Hugging Face.

All of them become the arrays of an NPZ file, or the CSV files of a table, and are read as those
are: with the same checks and the same result.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from flbench.core.errors import DataError, did_you_mean, shortened
from flbench.core.user_code_errors import calling
from flbench.data import labels as labels_of
from flbench.data import loaders, npz_files, pixels, table_files, tokens
from flbench.data.batch_form import LABEL_COLUMNS, SAMPLE_COLUMNS
from flbench.data.dataset import Dataset
from flbench.data.targets import NAMES as NO_CLASSES
from flbench.data.targets import take as take_targets

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, NDArray[Any]]
KEYS: Final = tuple(
    f"{part}_{kind}" for part in ("train", "val", "test") for kind in ("images", "labels", "groups")
)
LAYOUTS: Final = ("auto", "channels_first", "channels_last")
KINDS: Final = ("auto", "images", "series", "table", "tokens")
BLOCK: Final = 256  # rows of a Hugging Face data set that are decoded at once


class Data:
    """A data set of your own, for `fl.run(data=...)`.

    What is accepted as `x`:

    - samples, with labels `y` or as a pair `(x, y)`: arrays or tensors, uint8 or floating point,
      [n, H, W], [n, H, W, C], [n, C, H, W]; a table [n, columns] in floating point; series
      [n, C, length] with `kind="series"`; or sequences of tokens [n, length] in integers;
    - a dict of arrays with the names of an NPZ file, such as `train_images` and `train_labels`;
    - a DataFrame of pandas, with the label in its last column or in `label`. Words become
      categories, and missing values are imputed, as for CSV files;
    - a `torch.utils.data.Dataset` of pairs (sample, label). It is read once, into memory;
    - a `torch.utils.data.DataLoader`, a list or dict of them with one for each client (their
      samples are natural clients), or a `LightningDataModule`, whose `train_dataloader` returns one
      of these, whose `val_dataloader`, if it has one, the same for the clients' validation parts,
      and whose `test_dataloader` the common test set. Each loader is read once, in the order of its
      data set; batches are (samples, labels), (samples, labels, ...) or dicts;
    - a `Dataset` or `DatasetDict` of Hugging Face's package `datasets`.

    For tasks other than classification, `y` (or what takes its place in the other forms) has
    targets: numbers [n], vectors [n, D], or maps [n, H, W], floating point or integers. They are
    for `fl.federate` with `metrics`.

    Args:
        x: The data.
        y: Labels [n]: whole numbers >= 0, or names; or targets [n, ...]. The classes are those that
            occur, numbers in the order of the numbers; with `classes`, numbers are positions in it.
        test: A common test set, as a pair (x, y), or in the form of `x`.
        clients: Natural client of each sample, [n] names or numbers, for `partition="natural"`.
        classes: Names of the C classes; by default those of the labels or of the data set.
        label: Tables and Hugging Face: column of the label, a name or a number. Tables: or a rule
            such as `num > 0`.
        client: Tables and Hugging Face: column with the natural client.
        drop: Tables: columns that are left out, such as identifiers.
        group: What several samples come from, such as their patient; samples of one group stay in
            one part of a client. Tables: its column, which is no input. Arrays: names or numbers
            [n].
        layout: Where the channels of images are: `channels_last`, `channels_first`, or `auto`: the
            axis that has 1 or 3 entries. Tensors have the channels first if both axes, or none,
            have 1 or 3 entries. Series have them first unless it says otherwise.
        kind: What the samples are: `images`, `series`, `table`, `tokens`, or `auto`: what axes and
            type say.
        padding: Tokens: id that fills up shorter sequences. With it, `x` may have sequences of
            different lengths, which are filled up on the right.
        vocabulary: Tokens: number of token ids V, or a text for each id; by default the ids up to
            the largest token.
        name: Name of the data set in tables and folders.
        targets: Whether `y` has targets instead of classes. By default it has if it cannot have
            classes: several values for each sample, or values that are not whole numbers. A
            regression to whole numbers [n] needs `targets=True`.

    Attributes:
        dataset: The data set as flbench uses it.
        where: What the data are, as error messages call them.
        by_client: Whether there is a data loader for each client. Then the scheme `natural` is the
            default.

    Raises:
        DataError: The data cannot be used. The message says why.

    >>> data = Data(np.zeros((4, 8, 8), dtype=np.uint8), ["cat", "dog", "dog", "cat"])
    >>> data.dataset.classes, data.dataset.y
    (('cat', 'dog'), array([0, 1, 1, 0]))
    >>> Data(np.zeros((4, 2)), np.array([0.1, 0.2, 0.3, 0.4]), name="prices")
    <Data `prices`: 4 samples [2] float32, targets [] float64, 0 common test samples>
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        test: Any = None,
        clients: Any = None,
        classes: Sequence[str] | None = None,
        label: str | int | None = None,
        client: str | int | None = None,
        drop: Sequence[str | int] = (),
        group: Any = None,
        layout: str = "auto",
        kind: str = "auto",
        padding: int | None = None,
        vocabulary: int | Sequence[str] | None = None,
        name: str = "data",
        targets: bool | None = None,
    ) -> None:
        import pandas as pd

        self.where = f"`data` ({type(x).__name__})"
        self.by_client = False
        for key, value, known in (("layout", layout, LAYOUTS), ("kind", kind, KINDS)):
            if value not in known:
                hint = did_you_mean(str(value), known)
                raise DataError(f"`{key}` must be one of {', '.join(known)}, got {value!r}.{hint}")
        if not name or any(part in name for part in "/\\\0") or name.startswith("."):
            raise DataError(f"`name` must be a plain name, got {name!r}.")
        label = None if label is None else _column_name(label)
        client = None if client is None else _column_name(client)
        drop = _columns_to_drop(drop, client, self.where)
        if isinstance(x, pd.DataFrame) and y is None and (column := _column_of_lists(x)):
            _refuse(self.where, f"the column `{column}` of sequences", drop=drop or None)
            x, y, clients = _columns_of(x, column, label, client, clients, self.where)
            label = client = None
        loaded = loaders.read(x, self.where) if y is None else None
        if padding is not None and loaded is None:
            x = _padded(x, padding, self.where)
        if isinstance(x, pd.DataFrame) and y is None:
            _refuse_targets(self.where, targets)
            self._refuse_for_tables(kind, test, clients, classes, padding, vocabulary)
            self.dataset = _table(x, label, client, drop, name, self.where, group)
            return
        if loaded is not None:
            _refuse(self.where, "data loaders", test=test, clients=clients, group=group)
            arrays = loaded.arrays
        else:
            arrays = _arrays(x, y, label, client, self.where, padding)
        if "frame" in arrays:
            _refuse_targets(self.where, targets)
            self._refuse_for_tables(kind, test, clients, classes, padding, vocabulary)
            self.dataset = _table(arrays["frame"], label, client, drop, name, self.where, group)
            return
        _refuse(self.where, "data without named columns", drop=drop or None)
        if test is not None:
            part = _arrays(test, None, label, None, f"{self.where}, `test`", padding)
            arrays |= {key.replace("train_", "test_"): part[key] for key in part if "_" in key}
        if clients is not None:
            _check_order(x, clients, f"{self.where}, `clients`")
            arrays["train_groups"] = _array(clients, f"{self.where}, `clients`")
            labels_of.as_texts(arrays["train_groups"], f"{self.where}, `clients`", "client")
        if layout == "auto" and "layout" in arrays:
            layout = arrays["layout"]
        names = arrays.get("class_names") if classes is None else _array(_in_order(classes))
        usable: Arrays = {key: arrays[key] for key in KEYS if key in arrays}
        found = take_targets(usable, self.where, given=targets)
        if found is not None:
            _refuse(self.where, "targets", classes=classes)
            names = NO_CLASSES
        if names is not None:
            usable["class_names"] = np.asarray(names)
        if vocabulary is None:
            vocabulary = arrays.get("vocabulary")
        if vocabulary is not None:
            usable["vocabulary"] = np.asarray(vocabulary)
        dataset = npz_files.from_arrays(usable, self.where, name, layout, kind)
        notes = (*dataset.notes, *pixels.notes(arrays.get("transparent", 0)))
        dataset = replace(dataset, targets=found, notes=notes)
        if group is not None:
            what = f"{self.where}, `group`"
            if isinstance(group, str | int):
                raise DataError(
                    f"{what} names the column {group!r}, and these data have no named columns. Give"
                    " a name or number for each sample, [n]."
                )
            _check_order(x, group, what)
            dataset = labels_of.with_blocks(dataset, _array(group, what), "group", what)
        self.dataset = loaded.added_to(dataset) if loaded else dataset
        self.by_client = loaded is not None and "train_groups" in loaded.arrays
        if dataset.kind == "tokens":
            self.dataset = tokens.complete(self.dataset, padding, self.where)
        else:
            _refuse(self.where, f"{dataset.kind}", padding=padding)

    def _refuse_for_tables(
        self, kind: str, test: Any, clients: Any, classes: Any, padding: Any, vocabulary: Any
    ) -> None:
        """Raise a DataError if an argument is set that is not for tables with named columns."""
        given = {"test": test, "clients": clients, "classes": classes}
        given |= {"padding": padding, "vocabulary": vocabulary}
        given["kind"] = None if kind in ("auto", "table") else kind
        _refuse(self.where, "tables", **given)

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


class _Frames:
    """Tables of pandas as CSV files in memory, one for each client, or one for all samples."""

    def __init__(
        self, frames: "Mapping[str, pd.DataFrame]", where: str, *, by_client: bool
    ) -> None:
        self.path = Path(where)
        self._frames, self._by_client = dict(frames), by_client

    @property
    def names(self) -> list[str]:
        """Names of the files."""
        return list(self._frames)

    def place(self, name: str) -> str:
        """Return what error messages call a table."""
        client = f" of the client `{shortened(name.removesuffix('.csv'), 60)}`"
        return f"{self.path}, rows{client if self._by_client else ''} as CSV"

    def read(self, name: str) -> bytes:
        """Return a table as the text of a CSV file."""
        return self._frames[name].to_csv(index=False).encode()

    def left_out(self, used: Iterable[str], kinds: str) -> tuple[str, ...]:
        """Return no notes: all tables are read."""
        return ()


def _column_of_lists(frame: "pd.DataFrame") -> str | None:
    """Return the name of the column of a DataFrame whose cells are sequences or arrays, if any."""
    for name in frame.columns if len(frame) else ():
        if isinstance(frame[name].iloc[0], list | tuple | np.ndarray):
            return str(name)
    return None


def _columns_of(
    frame: "pd.DataFrame",
    column: str,
    label: str | None,
    client: str | None,
    clients: Any,
    where: str,
) -> "tuple[list[Any], pd.Series, Any]":
    """Return the samples, labels and clients of a DataFrame with a column of sequences.

    Args:
        frame: The DataFrame.
        column: Name of the column with the samples.
        label: Column of the label; None for the last of the others.
        client: Column of the natural client.
        clients: The natural clients if they are given beside the DataFrame.
        where: What the data are, for error messages.
    """
    frame = _plain(frame, where)
    others = [name for name in frame.columns if name not in (column, client)]
    for name, key in ((label, "label"), (client, "client")):
        if name is not None and name not in frame.columns:
            hint = did_you_mean(name, frame.columns)
            raise DataError(f"{where} has no column `{name}`, which `{key}` names.{hint}")
    if label is None and not others:
        raise DataError(f"{where} has no column besides `{column}`. Add a column of labels.")
    y = frame[others[-1] if label is None else label].reset_index(drop=True)
    if client is not None:
        clients = frame[client].to_numpy(dtype=object)
    return list(frame[column]), y, clients


def _padded(x: Any, padding: int, where: str) -> Any:
    """Return a list of sequences as an array, the shorter ones filled up; other data as they are.

    A pair (sequences, labels) keeps its labels.
    """
    if isinstance(x, tuple) and len(x) == 2:
        return _padded(x[0], padding, where), x[1]
    is_list = isinstance(x, list) or (isinstance(x, np.ndarray) and x.dtype == object)
    first = x[0] if is_list and len(x) else None
    if isinstance(first, list | tuple | np.ndarray | torch.Tensor) and not any(
        isinstance(one, str | list | tuple) for one in first
    ):
        return tokens.padded(x, padding, where)
    return x


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
    """Return whether an argument `data` is data, and not a section of the configuration.

    Args:
        value: The argument.
    """
    if isinstance(value, Mapping):
        return loaders.are_for_clients(value) or any(
            isinstance(item, np.ndarray | torch.Tensor) or _is_hugging_face(item)
            for item in value.values()
        )
    return value is not None and not isinstance(value, str | PathLike)


def _refuse(where: str, what: str, **arguments: Any) -> None:
    """Raise a DataError if an argument is set that is for other kinds of data."""
    for name, value in arguments.items():
        if value is not None:
            cure = " Use `client`, the name of a column." if name == "clients" else ""
            raise DataError(f"{where}: `{name}` cannot be used with {what}. Leave it out.{cure}")


def _columns_to_drop(drop: Any, client: str | None, where: str) -> tuple[str, ...]:
    """Return the names of an argument `drop`.

    Args:
        drop: Names of columns.
        client: Column with the natural client.
        where: What the data are, for error messages.

    Raises:
        DataError: It is a text, or it names the column of the client.
    """
    if isinstance(drop, str | bytes) or not isinstance(drop, Iterable):
        raise DataError(f"{where}: `drop` must be a list of columns, got {drop!r}.")
    names = tuple(dict.fromkeys(_column_name(name) for name in drop))
    if client in names:
        raise DataError(
            f"{where}: `drop` leaves out the column `{client}`, which `client` names. Take it out"
            " of `drop`: the column of the clients is no feature."
        )
    return names


def _refuse_targets(where: str, targets: bool | None) -> None:
    """Raise a DataError if the labels of a table are said to be targets."""
    if targets:
        raise DataError(
            f"{where}: tables have a column of classes. Give targets as arrays: fl.Data(x, y,"
            " targets=True)."
        )


def _table(
    frame: "pd.DataFrame",
    label: str | None,
    client: str | None,
    drop: tuple[str, ...],
    name: str,
    where: str,
    group: Any = None,
) -> Dataset:
    """Return the data set of a DataFrame, read as CSV files with one file for each client."""
    frame = _plain(frame, where)
    if group is not None and not isinstance(group, str | int):
        raise DataError(f"{where}: `group` must be the name of a column, got {type(group)}.")
    group = None if group is None else _column_name(group)
    if group is not None and group == client:
        raise DataError(
            f"{where}: `group` and `client` name the same column, `{client}`. Name two columns."
        )
    if client is not None and client == label:
        raise DataError(
            f"{where}: `label` and `client` name the same column, `{label}`. Name two columns."
        )
    if client is not None:
        if client not in frame.columns:
            hint = did_you_mean(client, frame.columns)
            raise DataError(f"{where} has no column `{client}`, which `client` names.{hint}")
        ids = frame[client].to_numpy(dtype=object)
        labels_of.as_texts(ids, f"{where}, column `{client}`", "client")
    left = [name for name in frame.columns if name not in (*drop, client, group)]
    column = left[-1] if label is None and left else label
    if column in frame.columns and frame[column].isna().any():
        row = int(np.flatnonzero(frame[column].isna())[0])
        raise DataError(
            f"{where}: row {row} (counted from 0) has no label in column `{column}`. Fill it in, or"
            " drop the row."
        )
    if client is not None:
        parts = {str(key): part for key, part in frame.groupby(frame[client].astype(str))}
        frames = {f"{key}.csv": part.drop(columns=client) for key, part in parts.items()}
    else:
        parts, frames = {}, {"table.csv": frame}
    tables = _Frames(frames, where, by_client=client is not None)
    dataset = table_files.read(tables, name, label, drop, "drop", group)
    if client is None:
        return replace(dataset, groups=None, group_names=())
    return replace(dataset, group_names=tuple(parts))


def _plain(frame: "pd.DataFrame", where: str) -> "pd.DataFrame":
    """Return a DataFrame whose columns have texts as names, and which has no byte strings.

    Raises:
        DataError: The columns have names of several levels, or two columns have one name.
    """
    import pandas as pd

    if isinstance(frame.columns, pd.MultiIndex):
        raise DataError(
            f"{where}: the columns have names of {frame.columns.nlevels} levels (MultiIndex). Give"
            " each a single name, for example by frame.columns = ['_'.join(map(str, name)) for name"
            " in frame.columns]."
        )
    names = [_column_name(name) for name in frame.columns]
    if twice := next((name for k, name in enumerate(names) if name in names[:k]), None):
        raise DataError(f"{where} has two columns of the name `{twice}`. Rename or remove one.")
    frame = frame.set_axis(names, axis="columns")
    for name in names:
        column = frame[name]
        if column.dtype == object and any(isinstance(value, bytes) for value in column):
            decoded = [_decoded(v) if isinstance(v, bytes) else v for v in column]
            frame = frame.assign(**{name: pd.Series(decoded, index=frame.index, dtype=object)})
    return frame


def _column_name(name: Any) -> str:
    """Return the name of a column, which can be a number or a byte string, as text."""
    import pandas as pd

    if name is None or name is pd.NA or (isinstance(name, float) and name != name):
        return ""  # as in a CSV file whose header has no name for it
    return _decoded(name) if isinstance(name, bytes) else str(name)


def _decoded(value: bytes) -> str:
    """Return a byte string as text, in UTF-8."""
    return value.decode("utf-8", "backslashreplace")


def _arrays(
    x: Any, y: Any, label: str | None, client: str | None, where: str, padding: int | None = None
) -> dict[str, Any]:
    """Return data as the arrays of an NPZ file.

    Besides, `layout` if the type of the data says it, or `frame` alone if they are a table.
    """
    if isinstance(x, Mapping) and any(map(_is_hugging_face, x.values())):
        return _hugging_face_parts(x, label, client, where, padding)
    if _is_hugging_face(x):
        return _hugging_face(x, label, client, where, padding)
    _refuse(where, "arrays", label=label, client=client)
    if isinstance(x, Mapping):
        if unknown := [key for key in x if key not in (*KEYS, "class_names", "vocabulary")]:
            raise DataError(
                f"{where} has the key {unknown[0]!r}.{did_you_mean(str(unknown[0]), KEYS)}"
                f" Keys: {', '.join(KEYS)}, class_names, vocabulary."
            )
        return _first_channels(x.get("train_images")) | {
            key: _array(value, f"{where}, `{key}`") for key, value in x.items()
        }
    if y is None and isinstance(x, tuple | list) and len(x) == 2:
        x, y = x
    if y is not None:
        _check_order(x, y, f"{where}, `y`")
        return _first_channels(x) | {
            "train_images": _array(x, f"{where}, `x`"),
            "train_labels": _array(y, f"{where}, `y`"),
        }
    if isinstance(x, IterableDataset) or not (
        hasattr(x, "__getitem__") and hasattr(x, "__len__") and not isinstance(x, np.ndarray)
    ):
        raise DataError(
            f"{where} are not data with labels. Give arrays as a pair (x, y), a dict of arrays, a"
            " DataFrame of pandas, a map-style torch Dataset, or fl.Data(x, y)."
        )
    pairs = (x[k] for k in range(len(x)))
    return _stacked(pairs, len(x), where, padding) | _names_of(getattr(x, "classes", None))


def _in_order(classes: Any) -> list[Any]:
    """Return names of classes in the order of their numbers.

    Args:
        classes: The names in this order, or a mapping between names and numbers, either way round.

    Raises:
        DataError: They have no order, or are one text.
    """
    if isinstance(classes, Mapping):
        is_by_name = any(isinstance(key, str) for key in classes)
        by_number = {n: name for name, n in classes.items()} if is_by_name else dict(classes)
        if by_number.keys() == set(range(len(classes))):
            return [by_number[n] for n in range(len(classes))]
    if isinstance(classes, str | bytes | Set | Mapping):
        raise DataError(
            f"`classes` is of type {type(classes).__name__}, got {shortened(repr(classes), 100)}."
            " Give the names of the classes as a list, in the order of their numbers 0, 1, ..."
        )
    return list(classes)


def _first_channels(x: Any) -> dict[str, Any]:
    """Return the layout of a batch of images if it is a tensor that has the channels first."""
    is_images = isinstance(x, torch.Tensor) and x.ndim == 4
    return {"layout": "channels_first"} if is_images and not _has_last_channels(x.shape) else {}


def _has_last_channels(shape: Sequence[int]) -> bool:
    """Return whether only the last of the axes [..., ., ., .] can be that of 1 or 3 channels."""
    return shape[-1] in npz_files.CHANNELS and shape[-3] not in npz_files.CHANNELS


def _names_of(classes: Any) -> dict[str, Any]:
    """Return names of classes that a data set has, if they are names."""
    is_names = isinstance(classes, list | tuple) and all(isinstance(k, str) for k in classes)
    return {"class_names": list(classes)} if is_names and classes else {}


def _stacked(
    pairs: Iterable[Any], count: int, where: str, padding: int | None = None
) -> dict[str, Any]:
    """Return the samples and labels of pairs, written one by one into one array.

    Args:
        pairs: Pairs (sample, label): tensors, arrays, images of Pillow, or numbers.
        count: Number of pairs.
        where: What the data are.
        padding: Token id that fills up shorter sequences; None if all have one shape.
    """
    x: NDArray[Any] = np.empty(0)
    sequences: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    found: dict[str, Any] = {}
    transparent = 0
    for k, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(
                f"{where}: item {k} is not a pair (sample, label), but {type(pair).__name__}. Wrap"
                " the data set so that it returns pairs."
            )
        is_image = _is_image(pair[0])
        if is_image:
            seen, is_transparent = pixels.as_seen(pair[0])
            transparent += is_transparent
        sample = _array(seen if is_image else pair[0], f"{where}, item {k}")
        if k == 0:
            x = np.empty((count, *sample.shape), dtype=sample.dtype)
            if sample.ndim == 3:
                is_first = isinstance(pair[0], torch.Tensor) and not _has_last_channels(x.shape)
                if is_first or is_image:
                    found["layout"] = "channels_first" if is_first else "channels_last"
        if padding is not None:
            sequences.append(sample)
        elif sample.shape != x.shape[1:] or sample.dtype != x.dtype:
            cure = (
                "Give `padding`, the token id that fills up shorter sequences."
                if sample.ndim == x.ndim - 1 == 1 and sample.dtype.kind in "iu"
                else "Bring all samples to one shape and type, for example with a transform."
            )
            raise DataError(
                f"{where}: item {k} has the shape {list(sample.shape)} and type {sample.dtype},"
                f" but item 0 {list(x.shape[1:])} and {x.dtype}. {cure}"
            )
        else:
            x[k] = sample
        label = _array(pair[1], f"{where}, the label of item {k}")
        label = label.reshape(()) if label.size == 1 else label
        if labels and label.shape != labels[0].shape:
            raise DataError(
                f"{where}: the label of item {k} has the shape {list(label.shape)}, but that of"
                f" item 0 {list(labels[0].shape)}. A label is a single integer, the class, and"
                " targets have one shape."
            )
        labels.append(label)
    if transparent:
        found["transparent"] = transparent
    if padding is not None:
        x = tokens.padded(sequences, padding, where)
    return {"train_images": x, "train_labels": np.asarray(labels), **found}


def _check_order(x: Any, other: Any, what: str) -> None:
    """Raise a DataError if the rows of two objects of pandas have the same index in other orders.

    Samples and labels belong together by position, as everywhere but in pandas.

    Args:
        x: The samples.
        other: Their labels or clients.
        what: What `other` is, as the beginning of an error message.
    """
    import pandas as pd

    x = x[0] if isinstance(x, tuple | list) and x else x
    if not all(isinstance(one, pd.DataFrame | pd.Series) for one in (x, other)):
        return
    if x.index.equals(other.index) or len(x) != len(other) or not x.index.is_unique:
        return
    places = x.index.get_indexer(other.index) if other.index.is_unique else np.array([-1])
    if (places >= 0).all():
        row = int(np.flatnonzero(places != np.arange(len(x)))[0])
        raise DataError(
            f"{what} has the rows of `x` in another order: row {row} (counted from 0) has the index"
            f" `{other.index[row]}` there and `{x.index[row]}` in `x`. Bring both to one order, for"
            " example by y.loc[x.index]; or reset both indices (reset_index(drop=True)) if the"
            " positions are right."
        )


def _array(value: Any, what: str = "`data`") -> NDArray[Any]:
    """Return a tensor, an image of Pillow, a Series, a list or an array as an array.

    Args:
        value: The value. Images are read as `pixels.as_seen` describes.
        what: What the value is, as the beginning of an error message.

    Raises:
        DataError: The value is no array, or has masked entries.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    if _is_image(value):
        value, _ = pixels.as_seen(value)
    if hasattr(value, "nnz") and hasattr(value, "toarray"):
        raise DataError(f"{what} is a sparse matrix of SciPy. Give a dense array: .toarray().")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        place = np.argwhere(np.ma.getmaskarray(value))[0].tolist()
        raise DataError(
            f"{what} is a masked array, whose entry {place} is masked: what is masked has no value."
            " Fill the entries in (`.filled(value)`), or leave these samples out."
        )
    try:
        if isinstance(value, torch.Tensor):
            return np.asarray(value.resolve_conj().resolve_neg().numpy())
        if isinstance(value, list | tuple) and any(map(_is_special, value)):
            value = [_array(item, what) for item in value]
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"{what}: {type(value).__name__} is not an array ({error}). Bring all samples to one"
            " shape, and tensors to dense ones."
        ) from error


def _is_image(value: Any) -> bool:
    """Return whether an object is an image of Pillow."""
    return type(value).__module__.startswith("PIL.")


def _is_special(value: Any) -> bool:
    """Return whether NumPy would not read an entry of a list as `_array` does."""
    return isinstance(value, torch.Tensor | np.ma.MaskedArray) or _is_image(value)


def _is_hugging_face(value: Any) -> bool:
    """Return whether an object is a `datasets.Dataset`; the package need not be installed."""
    return hasattr(value, "column_names") and hasattr(value, "features")


def _hugging_face_parts(
    parts: Mapping[Any, Any],
    label: str | None,
    client: str | None,
    where: str,
    padding: int | None = None,
) -> dict[str, Any]:
    """Return the arrays of a DatasetDict with `train` and perhaps `validation` and `test`."""
    if "train" not in parts:
        raise DataError(
            f"{where} has no split `train`, but {', '.join(map(str, parts))}. Give one of them,"
            f" such as data[{next(iter(parts))!r}]."
        )
    found = _hugging_face(parts["train"], label, client, where, padding)
    if "frame" in found:
        raise DataError(
            f"{where} are tables with several splits. Give one of them, such as data['train']."
        )
    for split, part in (("validation", "val"), ("test", "test")):
        if split in parts:
            more = _hugging_face(parts[split], label, None, f"{where}, split `{split}`", padding)
            found |= {f"{part}_{kind}": more[f"train_{kind}"] for kind in ("images", "labels")}
    return found


def _hugging_face(
    data: Any, label: str | None, client: str | None, where: str, padding: int | None = None
) -> dict[str, Any]:
    """Return the arrays of a `datasets.Dataset`, or its DataFrame if it is a table."""
    columns = list(data.column_names)
    for name, given in (("label", label), ("client", client)):
        if given is not None and given not in columns:
            rule = table_files.RULE.fullmatch(given)
            if name == "label" and rule is not None and rule["column"].strip() in columns:
                continue
            hint = did_you_mean(given, columns) or f" Columns: {', '.join(columns)}."
            raise DataError(f"{where} has no column `{given}`, which `{name}` names.{hint}")
    target = label or next((name for name in LABEL_COLUMNS if name in columns), columns[-1])
    others = [name for name in columns if name not in (target, client)]
    source = next((name for name in SAMPLE_COLUMNS if name in others), None)
    if source is None and len(others) != 1:
        frame = data.to_pandas()
        if label is None:  # a table's label is its last column
            frame = frame[[*(name for name in columns if name != target), target]]
        return {"frame": frame}
    source = source or others[0]
    blocks = (data[k : k + BLOCK] for k in range(0, len(data), BLOCK))
    groups: list[Any] = []

    def pairs() -> Iterable[Any]:
        for block in blocks:
            groups.extend(block[client] if client is not None else ())
            yield from zip(block[source], block[target], strict=True)

    found = _stacked(pairs(), len(data), where, padding)
    if client is not None:
        found["train_groups"] = _array(groups)
    return found | _names_of(getattr(data.features.get(target), "names", None))
