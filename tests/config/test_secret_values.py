"""Refused values do not show the password of an address."""

import pytest

from flbench.config.resolve import resolve
from flbench.config.sources import from_values
from flbench.core.errors import ConfigError


@pytest.mark.parametrize(
    "tracking",
    [
        {"uri": ["http://ann:s3cret@host"]},
        {"uri": {"password": "s3cret"}},
        {"experiment": ["http://ann:s3cret@host"]},
    ],
)
def test_a_refused_value_is_shown_without_its_password(tracking):
    [key] = tracking
    with pytest.raises(ConfigError, match=rf"`tracking\.{key}") as refusal:
        resolve([from_values({"tracking": tracking}, "here")])

    assert "s3cret" not in str(refusal.value)
