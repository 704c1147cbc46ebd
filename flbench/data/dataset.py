"""The data type of a data set in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flbench.data.batch_form import BatchForm

Kind = Literal["images", "series", "table", "tokens"]
"""What samples are: images [channels, height, width], series [channels, length], rows of tables
[columns], or sequences of tokens [length], whole numbers that the net looks up."""

PARTS: Final = ("train", "validation", "test")
"""The parts of a client's samples."""


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
