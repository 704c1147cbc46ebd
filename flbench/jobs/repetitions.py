"""What differs between repetitions of a training: the seed of the training, the partition or both.

The repetitions of a comparison, also of that in a study, have their seeds from here.
"""

from typing import Any, Literal, get_args

from flbench.core.errors import ConfigError, did_you_mean

Vary = Literal["training", "partition", "both"]


def check(vary: Any) -> None:
    """Raise a ConfigError if what the user gives as `vary` is no value of `Vary`."""
    if vary not in (known := get_args(Vary)):
        hint = did_you_mean(str(vary), known)
        raise ConfigError(f"`vary` must be one of {', '.join(known)}, got {vary}.{hint}")


def seeds_of(vary: Vary, seed: int, partition_seed: int, number: int) -> tuple[int, int]:
    """Return the seed of the training, and the seed of the partition, of a repetition.

    `seed` and `partition_seed` are those of repetition 0.

    >>> seeds_of("both", 0, 10, 2), seeds_of("training", 0, 10, 2), seeds_of("partition", 0, 10, 2)
    ((2, 12), (2, 10), (0, 12))
    """
    return (
        seed + (0 if vary == "partition" else number),
        partition_seed + (0 if vary == "training" else number),
    )
