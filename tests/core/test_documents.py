"""Errors about damaged files name the file and the cure."""

import pytest

from flbench.core.documents import read_json, read_yaml
from flbench.core.errors import DataError


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_a_file_is_read_whole_or_named(tmp_path, read):
    file = tmp_path / "some.file"
    assert read(file) == {}
    file.write_text('{"a": [1, null]}')
    assert read(file) == {"a": [1, None]}
    for text in ("", "{", "[1]", "a: b: c", "\x00", "\xff"):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(DataError, match=r"some\.file"):
            read(file)


def test_required_file_that_does_not_exist_is_missing(tmp_path):
    with pytest.raises(DataError, match=r"config\.yaml"):
        read_yaml(tmp_path / "config.yaml", required=True)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' + "[" * 10**6 + "]" * 10**6 + "}",
        '{"a":' + "9" * 10**6 + "}",
        '{"a":[' + "[]," * 2_000_000 + "[]]}",
        '{"a":"' + "x" * 64 * 2**20 + '"}',
        "\ufeff{}",
    ],
    ids=["closed", "digits", "values", "bytes", "mark"],
)
def test_json_beyond_a_limit_is_an_error(text, tmp_path):
    (tmp_path / "x.json").write_text(text)

    with pytest.raises(DataError, match=r"x\.json"):
        read_json(tmp_path / "x.json")
