"""Errors about damaged files name the file and the cure."""

import pytest

from flbench.core.documents import as_data_error, read_json, read_yaml
from flbench.core.errors import DataError

DAMAGED = {
    read_json: ["", "{", "[1]", "null", "\xff"],
    read_yaml: ["", "a: [1", "- 1", "a: b: c", "\x00"],
}


@pytest.mark.parametrize(
    ("read", "text"), [(read, text) for read, texts in DAMAGED.items() for text in texts]
)
def test_error_about_a_damaged_file_is_one_line_with_its_name_and_the_cure(tmp_path, read, text):
    file = tmp_path / "some.file"
    file.write_text(text, encoding="latin-1")

    with pytest.raises(DataError) as caught:
        read(file)

    message = str(caught.value)
    assert message.startswith(f"{file} is damaged (")
    assert message.endswith("Repair it, or replace it by an intact copy.")
    assert "\n" not in message


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_file_that_does_not_exist_has_no_keys(tmp_path, read):
    assert read(tmp_path / "none") == {}


def test_required_file_that_does_not_exist_is_missing(tmp_path):
    with pytest.raises(DataError, match=r"config\.yaml is missing\. Restore it from a copy\."):
        read_yaml(tmp_path / "config.yaml", required=True)


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_whole_file_is_read(tmp_path, read):
    (tmp_path / "whole").write_text('{"a": [1, null]}')

    assert read(tmp_path / "whole") == {"a": [1, None]}


def test_what_is_missing_is_named(tmp_path):
    with (
        pytest.raises(DataError, match=r"x\.json is damaged .`seed` is missing"),
        as_data_error(tmp_path / "x.json"),
    ):
        {}["seed"]


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
