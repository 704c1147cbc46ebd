"""Samples that all workers of a machine share in memory."""

import hashlib
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import ray
from numpy.typing import NDArray

from flbench.core.errors import RunError


def digest(samples: NDArray[Any]) -> str:
    """Return the SHA-256 (hex) of the bytes of samples."""
    return hashlib.sha256(np.ascontiguousarray(samples).data).hexdigest()


def check_unchanged(samples: NDArray[Any], sha256: str) -> None:
    """Check that no worker has changed samples: PyTorch ignores the read-only flag of their memory.

    Args:
        samples: The samples in shared memory.
        sha256: Their `digest` before the first training.

    Raises:
        RunError: They have changed.
    """
    if digest(samples) != sha256:
        raise RunError(
            "the samples that all trainings share have changed: a loss or a method writes to its"
            " inputs. The results of these trainings are not valid. Correct it, and start again"
            " from the beginning."
        )


@dataclass(frozen=True)
class SharedSamples:
    """Samples in Ray's object store.

    Attributes:
        reference: Reference of the samples.
        sha256: Their hash when they were stored.
    """

    reference: Any
    sha256: str

    @classmethod
    def put(cls, samples: NDArray[Any]) -> Self:
        """Store samples."""
        return cls(ray.put(samples), digest(samples))

    def check(self) -> None:
        """Raise a RunError if a training has changed the samples; see `check_unchanged`."""
        check_unchanged(ray.get(self.reference), self.sha256)
