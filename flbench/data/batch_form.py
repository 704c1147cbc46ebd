"""How a batch of a user's data loader is made of samples, labels and further values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flbench.core.errors import DataError

SAMPLE_NAMES: Final = (
    *("image", "img", "pixel_values", "input_ids", "tokens", "input_values", "x", "features"),
    *("images", "input", "inputs"),
)
"""Keys of samples in a batch, and columns of them in data sets of Hugging Face."""
LABEL_NAMES: Final = ("label", "labels", "fine_label", "target", "y", "targets")
"""Keys of labels in a batch, and columns of them in data sets of Hugging Face."""


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
        """Return the form of a batch: a tuple or list (samples, labels, ...), or a dict.

        A dict has keys such as `x` and `y`, or `image` and `label`.

        Raises:
            DataError: It is neither, or its samples or labels cannot be told.
        """
        if isinstance(batch, tuple | list) and len(batch) >= 2:
            return cls(tuple(range(len(batch))), 0, 1, is_dict=False)
        keys = tuple(batch) if isinstance(batch, Mapping) else ()
        samples, labels = (
            [key for key in keys if key in names] for names in (SAMPLE_NAMES, LABEL_NAMES)
        )
        if len(samples) != 1 or len(labels) != 1:
            raise DataError(
                f"{what} is of type {type(batch).__name__} with the keys"
                f" {', '.join(map(str, keys)) or None}. It must be (samples, labels), (samples,"
                " labels, ...) with further values for each sample, or a dict with one key of"
                f" {', '.join(SAMPLE_NAMES)}, and one of"
                f" {', '.join(LABEL_NAMES)}."
            )
        return cls(keys, samples[0], labels[0], is_dict=True)

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
