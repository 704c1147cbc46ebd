"""YAML of plain values: whatever PyYAML raises, and whatever it takes minutes for, is one error."""

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flbench.core.plain_yaml import MAX_DEPTH, MAX_VALUES, PlainYamlError, parse, scalar, to_yaml

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
words = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")), min_size=1, max_size=8)
trees = st.dictionaries(words, scalars | words | st.lists(scalars | words, max_size=3), max_size=4)


@pytest.mark.slow
@given(st.dictionaries(words, trees, max_size=4))
def test_plain_values_come_back_from_their_text(tree):
    text = yaml.safe_dump(tree, allow_unicode=True)

    assert yaml.safe_load(text) == tree
    assert (parse(to_yaml(tree, {}))[0] or {}) == tree


def test_lines_of_keys():
    text = "a:\n  b: 1\n  c:\n    - {d: 2}\n\ne: x\n"

    assert parse(text)[1] == {"a": 1, "a.b": 2, "a.c": 3, "e": 6}


def test_numbers_are_decimal_and_words_of_yaml_1_1_are_texts():
    words = ["010", "0x10", "1_000", "1:30", "2001-01-01", "no", "off", "yes", "1e", "+", "- 1"]

    assert parse("[7, 10, -8, +1, 1e3, .5, -.inf, true, ~]")[0] == [
        *(7, 10, -8, 1, 1000.0, 0.5, float("-inf"), True, None),
    ]
    assert parse(f"[{', '.join(words[:-1])}]")[0] == words[:-1]
    assert [scalar(word) for word in words] == words
    assert [scalar(word) for word in ("10", "1e3", "true", "null", "-.5")] == [
        *(10, 1000.0, True, None, -0.5),
    ]


def test_empty_text_has_no_value():
    assert parse("# nothing\n") == (None, {})


WRONG = {
    "no integer": "!!int abc",
    "integer that Python does not print": "9" * 5_000,
    "NUL": "a\x00b",
    "control character": "\x1b[31m",
    "bytes": "!!binary aGk=",
    "Python object": "!!python/object/apply:os.getpid []",
    "tag of one's own": "!mine 3",
    "key that is a list": "{[1]: 2}",
    "key twice": "[{a: 1, a: 2}]",
    "itself": "&a [*a]",
    "unknown alias": "*nowhere",
    "deep": "[" * 50_000,
    "deep mapping": "{a: " * 3_000 + "1" + "}" * 3_000,
    "list of a megabyte": "[" + "1," * 490_000 + "]",
    "two documents": "1\n--- 2",
    "pattern that begins with a star": "[conv1, *.fc]",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_wrong_value_is_one_error_with_a_line_and_soon(case):
    began = time.process_time()

    with pytest.raises(PlainYamlError) as caught:
        parse(f"a: {WRONG[case]}")

    assert time.process_time() - began < 10
    assert caught.value.line in (1, 2, None)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_limits_are_inclusive():
    def deep(levels: int) -> str:
        return "[" * levels + "]" * levels

    assert parse(f"[{'1,' * (MAX_VALUES - 1)}]")
    assert parse(deep(MAX_DEPTH))
    with pytest.raises(PlainYamlError):
        parse(f"[{'1,' * MAX_VALUES}]")
    with pytest.raises(PlainYamlError):
        parse(deep(MAX_DEPTH + 1))
