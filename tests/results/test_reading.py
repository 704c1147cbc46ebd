"""Limits of the files of a run folder."""

import numpy as np
import pytest

from flbench.core.errors import DataError
from flbench.results import partition_arrays


def test_counts_of_a_small_file_do_not_fill_the_memory(tmp_path, monkeypatch):
    """Zeros of one byte are compressed, and each would take eight bytes here."""
    monkeypatch.setattr(partition_arrays, "MOST_COUNTS", 1000)
    counts = np.zeros((1001, 1), np.int8)
    np.savez_compressed(tmp_path / "partition.npz", train_counts=counts)

    with pytest.raises(DataError, match=r"partition.npz is damaged: .*1,000 entries"):
        partition_arrays.read_counts(tmp_path / "partition.npz")
