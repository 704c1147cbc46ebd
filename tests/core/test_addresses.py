"""The parts of an address that are written to files and printed."""

import pytest

from flbench.core import addresses

SECRET = "s3cret"


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
    assert addresses.redact_address(address) == shown
    assert addresses.redact_address(shown) == shown
    assert addresses.is_redacted(shown)


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
    assert addresses.redact(address) == address
    assert addresses.redact_address(address) == address


def test_secrets_are_hidden_within_a_text():
    text = f'"tracking.uri=http://ann:{SECRET}@a", see http://b:1 and https://{SECRET}@c/d.'

    assert addresses.redact(text) == (
        '"tracking.uri=http://***@a", see http://b:1 and https://***@c/d.'
    )


def test_links_have_no_user():
    assert addresses.without_user("http://ann:s3cret@host:1/a") == "http://host:1/a"
    assert addresses.without_user("http://host:1/a") == "http://host:1/a"
