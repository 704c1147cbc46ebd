"""YAML of plain values: whatever PyYAML raises, and whatever it takes minutes for, is one error."""

import re
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flbench.core.plain_yaml import MAX_DEPTH, MAX_VALUES, PlainYamlError, parse

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
words = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")), min_size=1, max_size=8)
trees = st.dictionaries(words, scalars | words | st.lists(scalars | words, max_size=3), max_size=4)


@pytest.mark.slow
@given(st.dictionaries(words, trees, max_size=4))
def test_plain_values_are_those_of_pyyaml(tree):
    text = yaml.safe_dump(tree, allow_unicode=True)

    assert parse(text)[0] == yaml.safe_load(text) == tree


def test_lines_of_keys():
    text = "a:\n  b: 1\n  c:\n    - {d: 2}\n\ne: x\n"

    assert parse(text)[1] == {"a": 1, "a.b": 2, "a.c": 3, "e": 6}


def test_caller_may_change_what_it_gets():
    text = "a: {b: [1]}"
    tree, lines = parse(text)
    tree["a"]["b"].append(2)
    lines.clear()

    assert parse(text) == ({"a": {"b": [1]}}, {"a": 1, "a.b": 1})


def test_numbers_with_one_reading_and_dates_are_what_is_written():
    assert parse("[007, 1_000, 0x10, 08, 2001-01-01, '1:30']")[0] == [
        *(7, 1000, 16),
        *("08", "2001-01-01", "1:30"),
    ]


def test_empty_text_has_no_value():
    assert parse("# nothing\n") == (None, {})


WRONG = {
    "no integer": "!!int abc",
    "no integer at all": "!!int",
    "integer of another alphabet": "!!int ٣",
    "no float": "!!float 1:x",
    "float of nothing": "!!float ''",
    "no truth": "!!bool maybe",
    "no date": "!!timestamp 2001-99-99",
    "no hour": "!!timestamp 2001-01-01 25:61:61",
    "no time zone": "!!timestamp 2001-01-01T00:00:00+99:99",
    "date of a word": "!!timestamp abc",
    "integer that Python does not print": "9" * 5_000,
    "hexadecimal": "0x" + "f" * 17,
    "base 60": ":".join(["59"] * 20),
    "base 60 of a megabyte": ":".join(["59"] * 300_000),
    "float in base 60": ":".join(["59"] * 300) + ".5",
    "octal": "[1, 010]",
    "base 60 of two digits": "{alpha: 1:30}",
    "negative octal with a tag": "!!int -0_17",
    "65 bits": str(2**63),
    "NUL": "a\x00b",
    "escaped NUL": '"a\\0b"',
    "half of a surrogate pair": '"\\ud800"',
    "control character": "\x1b[31m",
    "bytes": "!!binary aGk=",
    "set": "!!set {a, b}",
    "Python object": "!!python/object/apply:os.getpid []",
    "tag of one's own": "!mine 3",
    "merge": "{<<: {a: 1}}",
    "key that is a number": "{1: 2}",
    "key that is a list": "{[1]: 2}",
    "key twice": "[{a: 1, a: 2}]",
    "itself": "&a [*a]",
    "itself in a mapping": "&a {b: *a}",
    "unknown alias": "*nowhere",
    "deep": "[" * 50_000,
    "deep mapping": "{a: " * 3_000 + "1" + "}" * 3_000,
    "list of a megabyte": "[" + "1," * 490_000 + "]",
    "two documents": "1\n--- 2",
    "open quote": "'x",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_wrong_value_is_one_error_with_a_line_and_soon(case):
    began = time.process_time()

    with pytest.raises(PlainYamlError) as caught:
        parse(f"a: {WRONG[case]}")

    assert time.process_time() - began < 10
    assert caught.value.line in (1, 2)
    assert str(caught.value).endswith(".")
    assert re.search(r"\. [A-Z]", str(caught.value))  # the cure is a sentence of its own
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[conv1, *.fc]", "[conv1, *norm]"])
def test_patterns_that_begin_with_a_star_need_quotes(text):
    with pytest.raises(PlainYamlError, match=r"begins with `\*`.*Quote"):
        parse(text)
    assert parse("[conv1, '*.fc']")[0] == ["conv1", "*.fc"]


def test_aliases_count_as_often_as_they_stand():
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    for k in range(1, 7):
        lines.append(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]")

    with pytest.raises(PlainYamlError, match="more than"):
        parse("\n".join(lines))
    assert parse("a: &x [1]\nb: *x")[0] == {"a": [1], "b": [1]}


@pytest.mark.slow
def test_limits_are_inclusive():
    def deep(levels: int) -> str:
        return "[" * levels + "]" * levels

    assert parse(f"[{'1,' * (MAX_VALUES - 1)}]")
    assert parse(deep(MAX_DEPTH))
    with pytest.raises(PlainYamlError, match="more than 10,000 values"):
        parse(f"[{'1,' * MAX_VALUES}]")
    with pytest.raises(PlainYamlError, match="levels deep"):
        parse(deep(MAX_DEPTH + 1))
