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
def test_damaged_file_is_told_in_a_line_with_its_name_and_the_cure(tmp_path, read, text):
    file = tmp_path / "some.file"
    file.write_text(text, encoding="latin-1")

    with pytest.raises(DataError) as told:
        read(file)

    said = str(told.value)
    assert said.startswith(f"{file} is damaged (")
    assert said.endswith("Repair it, or replace it by an intact copy.")
    assert "\n" not in said


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_file_that_is_not_there_has_no_keys(tmp_path, read):
    assert read(tmp_path / "none") == {}


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
