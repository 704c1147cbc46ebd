"""Cells of CSV files: names that a spreadsheet would calculate, numbers, control characters."""

import csv
from io import StringIO

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flbench.core.csv_text import cell, csv_text, read_cell
from flbench.core.printable import printable

NO_CLOCK = settings(deadline=None)
WORDS = (
    st.text(alphabet=st.sampled_from("=+-@'\"\t\n\r\x1b ,;|1.e5a\u00e4\uff1d"), max_size=8)
    | st.text()
)


@pytest.mark.parametrize(
    "name",
    ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1", "'=1", "\uff1d1", "-", "=2"],
)
def test_formula_is_made_harmless(name):
    assert cell(name) == f"'{name}"
    assert read_cell(cell(name)) == name


@pytest.mark.parametrize("number", ["-1", "+1", "-0.5", "-1e-05", "+.5", "-2.", "-inf", "3"])
def test_number_stays_a_number(number):
    assert cell(number) == number


@pytest.mark.parametrize("number", [1.7e24, 1e16, -0.0, float("inf"), -1e300, 2**63, -(10**25)])
def test_column_of_floats_stays_one_in_pandas(number):
    column = pd.read_csv(StringIO(csv_text("x", [[0.5], [number]])))["x"]

    assert column.dtype == "float64"
    assert column.tolist() == [0.5, float(number)]


def test_cells_that_are_not_text_are_written_as_they_are():
    rows = [[-0.5, None, float("nan"), -3, True, 1e-07]]

    assert csv_text("abcdef", rows) == "a,b,c,d,e,f\n-0.5,,,-3,True,1e-07\n"


@given(WORDS)
@NO_CLOCK
def test_text_is_read_again_as_it_is_printed(name):
    """What comes back is the name; only control characters stay escapes."""
    [header, [read]] = (
        csv.reader(StringIO(csv_text(["name"], [[name]]), newline=""))
        if (name)
        else [["name"], [""]]
    )

    assert header == ["name"]
    assert read_cell(read) == printable(name)


@given(WORDS)
@NO_CLOCK
def test_no_cell_begins_a_formula_or_has_control_characters(name):
    written = cell(name)

    is_number = written.strip("+-.0123456789eE") == "" or "inf" in written.lower()
    assert not written.lstrip().startswith(("=", "+", "-", "@")) or is_number
    assert not [sign for sign in written if ord(sign) < 32 and sign not in "\t\n"]
