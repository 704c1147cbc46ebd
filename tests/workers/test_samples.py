"""Samples that workers share: a training that changes them is found."""

import numpy as np
import pytest

from flbench.core.errors import RunError

samples = pytest.importorskip("flbench.workers.samples")


def test_the_digest_depends_on_the_values_and_not_on_the_layout():
    array = np.arange(12.0).reshape(3, 4)

    assert samples.digest(array) == samples.digest(np.asfortranarray(array))
    assert samples.digest(array) != samples.digest(array + 1e-12)


def test_changed_samples_are_an_error():
    array = np.zeros((2, 3))
    before = samples.digest(array)
    samples.check_unchanged(array, before)

    array[1, 2] = 1.0

    with pytest.raises(RunError, match="not valid"):
        samples.check_unchanged(array, before)
