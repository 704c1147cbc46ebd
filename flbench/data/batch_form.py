"""How a batch of a user's data loader is made of samples, labels and further values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flbench.core.errors import DataError

SAMPLE_COLUMNS: Final = (
    *("image", "img", "pixel_values", "input_ids", "tokens", "input_values", "x", "features"),
)
"""Columns of samples of data sets of Hugging Face; the first one that is there counts."""
LABEL_COLUMNS: Final = ("label", "labels", "fine_label", "target", "y")
"""Columns of labels of data sets of Hugging Face; the first one that is there counts."""
SAMPLE_NAMES: Final = (*SAMPLE_COLUMNS, "images", "input", "inputs")
"""Keys of the samples in a batch; one of them must be there."""
LABEL_NAMES: Final = (*LABEL_COLUMNS, "targets")
"""Keys of the labels in a batch; one of them must be there."""


@dataclass(frozen=True)
class BatchForm:
    """The form of a batch: a tuple of values, or a dict.

    Attributes:
        keys: The keys of a dict, or the places in a tuple, in order.
        sample: The key of the samples.
        label: The key of the labels or targets.
        is_dict: Whether the batch is a dict.

    >>> form = BatchForm.of({"image": 1, "label": 2, "weight": 3}, "the batch")
    >>> form.sample, form.label, form.extras
    ('image', 'label', ('weight',))
    >>> BatchForm.of({"input_ids": 1, "attention_mask": 2, "labels": 3}, "the batch").sample
    'input_ids'
    >>> form.packed("x", "y", {"weight": "w"})
    {'image': 'x', 'label': 'y', 'weight': 'w'}
    """

    keys: tuple[str | int, ...]
    sample: str | int
    label: str | int
    is_dict: bool

    @classmethod
    def of(cls, batch: Any, what: str) -> "BatchForm":
        """Return the form of a batch.

        Args:
            batch: A tuple or list (samples, labels, ...), or a dict with keys such as `x` and `y`,
                or `image` and `label`.
            what: What the batch is, as the beginning of an error message.

        Raises:
            DataError: It is neither, or its samples or labels cannot be told.
        """
        if isinstance(batch, Mapping):
            keys = tuple(batch)
            sample, label = _one_of(keys, SAMPLE_NAMES), _one_of(keys, LABEL_NAMES)
            if sample is None or label is None:
                raise DataError(
                    f"{what} is a dict with the keys {', '.join(map(str, keys))}. Name the samples"
                    f" one of {', '.join(SAMPLE_NAMES)}, and the labels one of"
                    f" {', '.join(LABEL_NAMES)}, each once."
                )
            return cls(keys, sample, label, is_dict=True)
        if isinstance(batch, tuple | list) and len(batch) >= 2:
            return cls(tuple(range(len(batch))), 0, 1, is_dict=False)
        got = f"{type(batch).__name__}"
        raise DataError(
            f"{what} is of type {got}. It must be (samples, labels), (samples, labels, ...) with"
            " further values for each sample, or a dict."
        )

    @property
    def extras(self) -> tuple[str | int, ...]:
        """The keys of the values that are neither samples nor labels."""
        return tuple(key for key in self.keys if key not in (self.sample, self.label))

    def packed(self, x: Any, y: Any, extras: Mapping[str | int, Any]) -> Any:
        """Return a batch of this form."""
        values = {self.sample: x, self.label: y, **extras}
        if self.is_dict:
            return {key: values[key] for key in self.keys}
        return tuple(values[key] for key in self.keys)


PAIR: Final = BatchForm((0, 1), 0, 1, is_dict=False)
"""The form (samples, labels)."""


def _one_of(keys: Sequence[Any], names: Sequence[str]) -> str | None:
    """Return the one key that is among some names; None if there is none, or several are."""
    found = [str(key) for key in keys if key in names]
    return found[0] if len(found) == 1 else None
