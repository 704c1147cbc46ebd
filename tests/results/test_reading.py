"""Reading the files of a run folder: exact, and within limits."""

from io import StringIO
from math import inf, nan

import numpy as np
import pandas as pd
import pytest

from flbench.core.errors import DataError
from flbench.results import folders, metrics_file, partition_arrays
from flbench.results.metrics_file import Row, header_line, read, to_text

VALUES = [0.1, 3.0, -0.0, 1.7e24, 1e16, 2.0**53, -(2.0**63), 1e300, 5e-324, inf, -inf, nan, 1 / 3]


def test_values_come_back_and_are_floats_in_pandas(tmp_path):
    text = header_line() + to_text(Row(1, "train", "", "loss", value) for value in VALUES)
    (tmp_path / "metrics.csv").write_text(text)

    again = [row.value for row in read(tmp_path / "metrics.csv")]
    column = pd.read_csv(StringIO(text), float_precision="round_trip")["value"]

    assert column.dtype == "float64"
    np.testing.assert_array_equal(again, VALUES)
    np.testing.assert_array_equal(column, VALUES)


def test_rows_are_limited_before_they_are_read(tmp_path, monkeypatch):
    """A file of 64 MB with short names, 17 kB in an archive, would need 2 GB of memory."""
    file = tmp_path / "metrics.csv"
    file.write_text(header_line() + "1,a,,b,1\n" * 9)
    assert len(read(file)) == 9

    monkeypatch.setattr(metrics_file, "MOST_ROWS", 9)
    with pytest.raises(DataError, match=r"metrics\.csv.* 10 "):
        read(file)


def test_counts_of_a_small_file_do_not_fill_the_memory(tmp_path, monkeypatch):
    """Zeros of one byte are compressed, and each would take eight bytes here."""
    monkeypatch.setattr(partition_arrays, "MOST_COUNTS", 1000)
    counts = np.zeros((1001, 1), np.int8)
    np.savez_compressed(tmp_path / "partition.npz", train_counts=counts)

    with pytest.raises(DataError, match=r"partition\.npz.*`train_counts`"):
        partition_arrays.read_counts(tmp_path / "partition.npz")


def test_copies_in_the_local_store_of_mlflow_are_no_runs(tmp_path):
    copy = tmp_path / "mlflow" / "artifacts" / "0123" / "artifacts"
    for folder in (tmp_path / "runs" / "a", copy):
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
    (tmp_path / "mlflow" / "flbench.db").touch()

    assert folders.find([tmp_path]) == [tmp_path / "runs" / "a"]
