"""Each configuration that is accepted can be read again from its text."""

import pytest

from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_file
from flbench.core.plain_yaml import to_yaml


def layer(**arguments):
    return Layer({"partition": {"scheme": "mine:scheme", "args": arguments}})


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"sizes": [k * 0.37 for k in range(1_000)]},
        {"text": "x" * 100_000},
        {
            "yes": 1,
            "1": 2,
            "a: b": "no",
            "#": "#",
            "null": "1e-3",
            "n": "no",
            "e": "1E5",
            "f": ".5",
            "day": "2024-01-01",
        },
        {"words": ["010", "1:30", "~", "", " a ", "a\nb", "\U0001f600", "\x1b", "\x85"]},
        {"numbers": [1e16, -0.0, 1e-310, 2**63 - 1, -(2**63)], "empty": []},
        {},
    ],
)
def test_configuration_comes_back_from_its_text(tmp_path, arguments):
    config, origins = resolve([layer(**arguments)])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config.tree(), origins))

    again, _ = resolve([from_file(file)])

    assert again.tree() == config.tree()
    assert again.hash() == config.hash()
    assert file.stat().st_size < 250_000


def text_of(value):
    """What YAML has for a value, by hand."""
    if isinstance(value, str):
        return f"'{value}'"
    return str(value).lower() if value is not None else "null"


def test_equal_values_of_several_types_keep_their_texts():
    """Texts are remembered by value, and Python finds 1, 1.0 and True equal."""
    values = [1, 1.0, True, 0, 0.0, -0.0, False, None, "1", "true", "null", ""]
    for some in (values, values[::-1]):
        lines = to_yaml({f"key{k}": value for k, value in enumerate(some)}, {}).splitlines()
        found = [line.partition(": ")[2] for line in lines]
        assert found == [text_of(value) for value in some]
