"""The data type of a data set in memory, and checks of its labels."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from flbench.core.errors import DataError, shortened
from flbench.core.files import is_text
from flbench.core.own_names import as_written

if TYPE_CHECKING:
    from flbench.data.batch_form import BatchForm

Kind = Literal["images", "series", "table", "tokens"]
"""What samples are: images [channels, height, width], series [channels, length], rows of tables
[columns], or sequences of tokens [length], whole numbers that the net looks up."""

PARTS: Final = ("train", "validation", "test")
"""The parts of a client's samples."""
MAX_CLASSES = 10_000
NO_CLASSES = (
    "If they are not classes, give them in Python:"
    " fl.federate(module, fl.Data(x, y, targets=True))."
)
FEW_CLASSES = 1_000  # more classes than these are not accepted without a sample for each of them


@dataclass(frozen=True)
class Dataset:
    """All samples of a data set; those of its train part come first.

    Attributes:
        name: Name of the data set.
        x: Images [n, channels, height, width], uint8 or float32; series [n, channels, length]
            float32; rows of tables [n, columns] float32 with NaN for missing values; or sequences
            of tokens [n, length] of an integer type.
        y: Labels [n] int64 in [0, C) for C classes; all 0 if there are `targets`.
        classes: Names of the C classes; a single one, for all samples, if there are `targets`.
        train: Number of samples of the data set's own train part; the others are its test part.
        groups: Number of the natural client of each sample, [n] int64; -1 for samples without one.
            None if the data set has no natural clients.
        scale: Divisor that brings uint8 images into [0, 1].
        group_names: Names of the natural clients, by their number: those of their files, or what
            an NPZ file names them.
        columns: Names of the columns of a table.
        words: Words of each column of a table, sorted; empty for columns of numbers. In `x` such a
            column has the position of the word.
        dropped: Names of the columns of a table that were left out.
        notes: Notes for the user about what was read, one sentence each.
        sha256: SHA-256 (hex) over all samples and labels, of the data of `data.source` only.
        vocabulary: Number of token ids V of sequences of tokens; 0 for other samples.
        tokens: What each token id stands for, [V] texts; empty if it is not known.
        padding: Token id that fills up shorter sequences; None if there is none.
        starts: Position of the first value of each sample in the series or text of its client,
            [n] int64; None if samples have no order.
        span: Number of positions that a sample covers from there on, its label included.
        targets: Targets [n, ...] that are not classes, such as the numbers of a regression or the
            maps of a segmentation: float32, float64 or int64. None for classification.
        form: The form of the batches that the `training_step` of a LightningModule gets; None for
            (samples, labels).
        extras: Further values of each sample, [n, ...] by their key in `form`.
        validation: Number of samples at the end of the train part that the user has chosen for
            validation parts of clients; 0 if all validation parts are drawn.
        blocks: Number of the group (`data.group`) of each sample, such as its patient, [n] int64.
            Samples of one group stay in one part of a client. None without groups.
        blocks_of: Name of the column or array that has the groups.
    """

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    train: int
    groups: NDArray[np.int64] | None = None
    scale: float = 255.0
    group_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sha256: str | None = None
    vocabulary: int = 0
    tokens: tuple[str, ...] = ()
    padding: int | None = None
    starts: NDArray[np.int64] | None = None
    span: int = 0
    targets: NDArray[Any] | None = None
    form: "BatchForm | None" = None
    extras: Mapping[str | int, NDArray[Any]] = field(default_factory=dict)
    validation: int = 0
    blocks: NDArray[np.int64] | None = None
    blocks_of: str = ""

    @property
    def truth(self) -> NDArray[Any]:
        """What the models are to predict: `targets` [n, ...] if there are any, else `y` [n]."""
        return self.y if self.targets is None else self.targets

    @property
    def kind(self) -> Kind:
        """What the samples are; see `Kind`."""
        if self.x.ndim == 2:
            return "table" if self.x.dtype.kind == "f" else "tokens"
        return "series" if self.x.ndim == 3 else "images"

    @property
    def is_table(self) -> bool:
        """Whether the samples are rows of tables."""
        return self.kind == "table"

    @property
    def is_pixels(self) -> bool:
        """Whether the samples are images of whole numbers in [0, `scale`]."""
        return self.kind == "images" and self.x.dtype == np.uint8

    @property
    def within_channel(self) -> tuple[int, ...]:
        """Axes of `x` that a statistic of a channel or column is computed over."""
        return (0, *range(2, self.x.ndim))

    @property
    def by_channel(self) -> tuple[int, ...]:
        """Shape that brings [channels] or [columns] to broadcast against one sample."""
        return (-1, *(1,) * (self.x.ndim - 2))


@dataclass(frozen=True)
class KnownDataset:
    """Description of a data set that flbench knows by name.

    Attributes:
        title: Title for people.
        classes: Number of classes C.
        shape: Shape of one sample.
        where: Where its files come from, for messages.
        load: Function that loads it from `data.root`, downloading if necessary; None for data sets
            that must be given as a file.
        downloaded: Path below `data.root` that a download by torchvision creates.
    """

    title: str
    classes: int
    shape: tuple[int, ...]
    where: str
    load: Callable[[Path], Dataset] | None = None
    downloaded: str = ""


def check_one_each(y: NDArray[Any], what: str) -> None:
    """Raise a DataError if labels are not one value for each sample, [n] or [n, 1].

    Args:
        y: The labels.
        what: Name of the labels, as the beginning of the error message.
    """
    if y.ndim > 1 and y.size != len(y):
        is_one_hot = y.ndim == 2 and y.dtype.kind in "iubf" and bool(((y != 0).sum(1) == 1).all())
        cure = (
            "They are one-hot labels: save y.argmax(1)."
            if is_one_hot
            else "flbench has one class for each sample; several labels for a sample (multi-label)"
            " are not supported. Save one column of them."
        )
        raise DataError(
            f"{what} have the shape {list(y.shape)}, {y.size // max(1, len(y))} values for each"
            f" sample. {cure}"
        )


def check_labels(
    y: NDArray[Any], what: str, classes: int | None = None, cure: str = NO_CLASSES
) -> NDArray[np.int64]:
    """Check labels and return them as int64 [n].

    Args:
        y: Labels [n] or [n, 1] of any numeric type.
        what: Name of the labels, as the beginning of the error message.
        classes: Number of classes; None for the largest number that flbench accepts.
        cure: What to do about a label outside of that range.

    Raises:
        DataError: A label is not an integer in [0, classes).

    >>> check_labels(np.array([[0.0], [2.0]]), "labels")
    array([0, 2])
    """
    check_one_each(y, what)
    y = np.asarray(y).reshape(-1)
    missing = np.flatnonzero(np.isnan(y)) if y.dtype.kind == "f" else y[:0]
    if len(missing):
        raise DataError(
            f"{what}: the label of sample {missing[0]} (counted from 0) is missing, got"
            f" {y[missing[0]]}. Fill it in, or leave the sample out."
        )
    is_whole = y.dtype.kind in "iub" or (
        y.dtype.kind == "f" and bool(np.isfinite(y).all()) and np.array_equal(y, np.round(y))
    )
    if not is_whole:
        got = str(y.dtype)
        if y.dtype.kind == "f":
            bad = int(np.flatnonzero(y != np.round(np.nan_to_num(y, posinf=0)))[0])
            got = f"{y[bad]} at position {bad}"
        raise DataError(
            f"{what} must be whole numbers, the class of each sample, got {got}. {NO_CLASSES}"
        )
    limit = MAX_CLASSES if classes is None else classes
    if len(y) and (y.min() < 0 or y.max() >= limit):
        bad = int(np.flatnonzero((y < 0) | (y >= limit))[0])
        if y[bad] < 0:
            cure = (
                "Leave out samples without a label, and number the classes from 0 (for labels -1"
                f" and 1: y > 0). {NO_CLASSES}"
            )
        raise DataError(f"{what} must lie in [0, {limit}), got {y[bad]} at position {bad}. {cure}")
    return y.astype(np.int64)


def check_classes(dataset: Dataset, path: Path | str) -> None:
    """Check the classes of a data set that was read from a file, if it has classes.

    Args:
        dataset: The data set.
        path: The file or folder, for the message.

    Raises:
        DataError: The samples have a single class, there are too many classes, or more classes
            than samples, or the name of a class is empty, is that of another class, is not UTF-8
            text, or is too long.
    """
    names = dataset.classes
    if dataset.targets is not None:
        return
    if len(names) > MAX_CLASSES:
        raise DataError(
            f"{path} has {len(names):,} classes; the limit is {MAX_CLASSES:,}. Merge or leave out"
            " classes."
        )
    if len(names) > max(FEW_CLASSES, len(dataset.y)):
        raise DataError(
            f"{path} has {len(names):,} classes, but only {len(dataset.y):,} samples. Leave out the"
            f" names of classes without samples. {NO_CLASSES}"
        )
    if dataset.y.min() == dataset.y.max():
        raise DataError(
            f"{path}: all samples have the class `{names[dataset.y[0]]}`; classification needs at"
            " least two classes. Check the labels, or add samples of other classes."
        )
    if wrong := [name for name in names if not is_text(name)]:
        raise DataError(
            f"{path}: the class name {wrong[0]!r} contains NUL or is not UTF-8 text. Rename it."
        )
    check_lengths(names, "class", path)
    check_names(names, path)


def check_lengths(names: Sequence[str], what: str, path: Path | str) -> None:
    """Raise a DataError if the name of a class or client is too long for the files of results.

    Args:
        names: The names.
        what: What they name, `class` or `client`.
        path: The file or folder, or what the data are, for the message.
    """
    for k, name in enumerate(names):
        try:
            as_written(name, f"the name of {what} {k}, {shortened(name, 60)!r},")
        except ValueError as error:
            raise DataError(f"{path}: {error}. Shorten it.") from error


def check_names(names: Sequence[str], path: Path | str) -> None:
    """Raise a DataError if a class has an empty name, or two classes have the same name.

    Args:
        names: Names of the C classes.
        path: The file or folder, or what the data are, for the message.
    """
    seen: dict[str, int] = {}
    for k, name in enumerate(names):
        if not name.strip():
            raise DataError(f"{path}: class {k} has an empty name, {name!r}. Name it.")
        if (other := seen.setdefault(name.strip(), k)) != k:
            raise DataError(
                f"{path}: the classes {other} and {k} have the same name, {name.strip()!r}. Give"
                " each class a name of its own."
            )


def notes_on_names(names: Sequence[str], what: str, whose: str = "") -> tuple[str, ...]:
    """Return a note if two different names look the same, or differ by case alone.

    Names of one letter may differ by case, as the classes of handwritten letters do.

    Args:
        names: Names of classes or clients, or words of a column.
        what: What they name: `class`, `client` or `word`.
        whose: What they belong to, such as ` of the column sex`.

    >>> [note] = notes_on_names(["a", "b", "a "], "client")
    >>> "0 and 2, 'a' and 'a '" in note
    True
    >>> len(notes_on_names(["Male", "male"], "class")), len(notes_on_names(["A", "a"], "class"))
    (1, 0)
    """
    seen: dict[str, int] = {}
    for k, name in enumerate(names):
        shown = " ".join(unicodedata.normalize("NFC", name).split())
        shown = shown.casefold() if len(shown) > 1 else shown
        if (other := seen.setdefault(shown, k)) != k:
            plural = "classes" if what == "class" else f"{what}s"
            return (
                f"data: the {plural} {other} and {k}{whose}, {names[other]!a} and {name!a}, look"
                f" the same, or differ by case alone, and are two. If they mean one {what}, write"
                " them in one way.",
            )
    return ()
