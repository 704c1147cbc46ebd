"""Text of strangers: secrets of addresses, control characters, cells of CSV files."""

import csv
import unicodedata
from io import StringIO

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flbench.core.text import (
    cell,
    csv_text,
    one_line,
    printable,
    read_cell,
    redact,
    redact_address,
    without_user,
)

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


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://ann:s3cret@host:5000/mlflow", "http://***@host:5000/mlflow"),
        ("https://s3cret@host", "https://***@host"),  # a token
        ("https://ann:s3cret@@host", "https://***@host"),
        ("http://ann:s3cret/x@host", "http://***@host"),
        ("postgresql+psycopg2://ann:s3cret@host:5432/db", "postgresql+psycopg2://***@host:5432/db"),
        ("postgresql+psycopg2://ann:5/s3cret@host/db", "postgresql+psycopg2://***@host/db"),
        ("postgresql://:s3cret@/db", "postgresql://***@/db"),
        ("postgresql:///db?user=ann&password=s3cret", "postgresql:///db?user=ann&password=***"),
        ("http://host/x?api_key=s3cret#top", "http://host/x?api_key=***#top"),
        ("postgresql://ann:s3cret it is@host/db", "postgresql://***@host/db"),
        ('postgresql://ann:"s3cret"@host/db', "postgresql://***@host/db"),
    ],
)
def test_secrets_are_hidden(address, shown):
    assert redact_address(address) == shown
    assert redact_address(shown) == shown
    assert "***" in shown


@pytest.mark.parametrize(
    "address",
    [
        "http://host:5000",
        "http://host:5000/x@y",
        "http://[::1]:5000",
        "postgresql+psycopg2://ann@host/db",  # the password is in the environment of libpq
        "sqlite:////home/ann@work/a:b@c/flbench.db",
        "mlflow/flbench.db",
    ],
)
def test_address_without_a_secret_stays(address):
    assert redact(address) == address
    assert redact_address(address) == address


def test_secrets_are_hidden_within_a_text():
    text = '"tracking.uri=http://ann:s3cret@a", see http://b:1 and https://s3cret@c/d.'

    assert redact(text) == ('"tracking.uri=http://***@a", see http://b:1 and https://***@c/d.')


def test_links_have_no_user():
    assert without_user("http://ann:s3cret@host:1/a") == "http://host:1/a"
    assert without_user("http://host:1/a") == "http://host:1/a"


def test_escape_sequences_become_visible():
    assert printable("a\x1b[31mb\x9b2Jc\rd\x07") == r"a\x1b[31mb\x9b2Jc\rd\x07"
    assert printable("abc\u202etxt.exe\udc80") == r"abc\u202etxt.exe\udc80"


def test_usual_text_stays():
    text = "Zoë\tnäïve\n北京 \U0001f600 C:\\n [red]x[/red] -5"

    assert printable(text) == text


@given(st.text(alphabet=st.characters(codec=None), max_size=50))
@settings(deadline=None)
def test_no_control_character_and_no_lone_surrogate_is_left(text):
    found = printable(text)

    assert all(sign in "\t\n" or unicodedata.category(sign) not in ("Cc", "Cs") for sign in found)
    found.encode()
    assert "\n" not in one_line(text)
