"""Numbers of metrics.csv: exact, and floats for every program that reads them."""

from io import StringIO
from math import inf, nan

import numpy as np
import pandas as pd
import pytest

from flbench.core.errors import DataError
from flbench.results import metrics_file
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
    with pytest.raises(DataError, match=r"metrics\.csv has 10 rows.*limit"):
        read(file)
