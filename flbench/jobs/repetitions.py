"""What differs between repetitions of a training: the seed of the training, the partition or both.

The repetitions of a comparison, also of that in a study, have their seeds from here.
"""

from collections.abc import Collection
from typing import Any, Literal, get_args

from flbench.core.errors import ConfigError, did_you_mean

Vary = Literal["training", "partition", "both"]


def check(vary: Any, reasons: dict[str, str] | None = None) -> None:
    """Check what the user gives as `vary`.

    Args:
        vary: What differs between repetitions.
        reasons: Values of `Vary` that are refused here, and why, in a sentence.

    Raises:
        ConfigError: It is no value of `Vary`, or one that is refused.
    """
    refused = reasons or {}
    known: Collection[str] = [value for value in get_args(Vary) if value not in refused]
    if vary not in known:
        why = f" {refused[vary]}" if vary in refused else did_you_mean(str(vary), known)
        raise ConfigError(f"`vary` must be one of {', '.join(known)}, got {vary}.{why}")


def seeds_of(vary: Vary, seed: int, partition_seed: int, number: int) -> tuple[int, int]:
    """Return the seed of the training, and the seed of the partition, of a repetition.

    Args:
        vary: What differs between repetitions.
        seed: Seed of the training of repetition 0.
        partition_seed: Seed of its partition.
        number: Number of the repetition.

    >>> seeds_of("both", 0, 10, 2), seeds_of("training", 0, 10, 2), seeds_of("partition", 0, 10, 2)
    ((2, 12), (2, 10), (0, 12))
    """
    return (
        seed + (0 if vary == "partition" else number),
        partition_seed + (0 if vary == "training" else number),
    )
