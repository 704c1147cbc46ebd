"""Parsing of YAML with plain values, within limits of size and depth.

PyYAML's safe loader creates no Python objects. But it raises many kinds of exceptions for values
such as `!!int abc`, needs a minute for a list of a megabyte, and returns values whose aliases make
them exponentially large. `parse` refuses all of these with one kind of error.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import yaml

from flbench.core.files import is_text

MAX_CHARACTERS: Final = 1_000_000
MAX_VALUES: Final = 10_000
MAX_DEPTH: Final = 30
MAX_DIGITS: Final = 100
REMEMBERED: Final = 10_000  # characters of the longest text whose value is remembered
TAG: Final = "tag:yaml.org,2002:"
PLAIN: Final = ("null", "bool", "int", "float", "str", "timestamp", "seq", "map")
# What the value of a tag must look like without the tag. PyYAML would accept digits of any alphabet
# after `!!int`.
LOOKS_LIKE: Final = {"int": ("int",), "float": ("float", "int")}
# YAML 1.1 reads `010` as octal, and `1:30` as minutes and seconds; nobody means that.
SEXAGESIMAL: Final = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
OCTAL: Final = re.compile(r"[-+]?0[0-7_]+")


class PlainYamlError(ValueError):
    """A text is not YAML, or not plain.

    Attributes:
        line: Number of the line, from 1; None if it is not known.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


def parse(text: str) -> tuple[Any, dict[str, int]]:
    """Return the value of a YAML text, and the line of each key by its dotted path.

    Keys must be words, and a mapping must not have a key twice. Integers must fit in 64 bits.
    Numbers are decimal: `010` and `1:30`, which YAML 1.1 reads as 8 and 90, are refused. Dates are
    texts. Texts must contain neither NUL, which no path can contain, nor surrogates, which UTF-8
    cannot encode.

    Args:
        text: The text. An empty text has the value None.

    Raises:
        PlainYamlError: The text is not YAML, has other values than plain ones, or exceeds a limit.
            The message is the end of a sentence, with a full stop.

    >>> parse("a: {b: [1, x]}")
    ({'a': {'b': [1, 'x']}}, {'a': 1, 'a.b': 1})
    """
    value, lines = (_parse_once if len(text) <= REMEMBERED else _parse)(text)
    return _copy(value), dict(lines)


def _copy(value: Any) -> Any:
    """Return a copy of a plain value, for which `copy.deepcopy` takes five times as long."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def is_integer(value: int) -> bool:
    """Return whether an integer fits in 64 bits, as those of a YAML text must."""
    return -(2**63) <= value < 2**63


def plain_words(text: str) -> dict[str, str]:
    r"""Return the scalars of a YAML text that are not quoted, as they are written.

    Args:
        text: A text that `parse` accepts.

    Returns:
        The scalars by dotted path, with the positions of elements of lists. An empty value is "".

    >>> plain_words("a: [no, 'no', 1e3]\nb:")
    {'a.0': 'no', 'a.2': '1e3', 'b': ''}
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    finally:
        loader.dispose()
    return {} if node is None else dict(_plain_words(node, ""))


def _plain_words(node: yaml.Node, path: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the text of each scalar that is not quoted."""
    begin = f"{path}." if path else ""
    if isinstance(node, yaml.ScalarNode):
        if node.style is None:
            yield path, node.value
    elif isinstance(node, yaml.SequenceNode):
        for k, item in enumerate(node.value):
            yield from _plain_words(item, f"{begin}{k}")
    else:
        for key, value in node.value:
            yield from _plain_words(value, f"{begin}{key.value}")


def has_comment(text: str) -> bool:
    """Return whether a YAML text has a comment.

    Args:
        text: A text that `parse` accepts.

    >>> has_comment("[1, 2] # x"), has_comment("['# x']")
    (True, False)
    """
    end = 0
    for token in yaml.scan(text, yaml.SafeLoader):
        if "#" in text[end : token.start_mark.index]:
            return True
        end = max(end, token.end_mark.index)
    return "#" in text[end:]


def _parse(text: str) -> tuple[Any, dict[str, int]]:
    """Return a value and lines as `parse` does; callers must not change them."""
    if len(text) > MAX_CHARACTERS:
        raise PlainYamlError(f"it has more than {MAX_CHARACTERS:,} characters. Shorten it.")
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise PlainYamlError(
            f"the character U+{error.character:04X} is not allowed in YAML. Remove it.", line
        ) from None
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = dict(_keys(node, "", _Counts()))
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        raise _as_plain(error) from error
    finally:
        loader.dispose()


# PyYAML takes milliseconds for a configuration, and a process often reads the same text again.
_parse_once = lru_cache(maxsize=512)(_parse)


class _Counts:
    """Counts values against the limits."""

    def __init__(self) -> None:
        self.values = 0

    def add(self, depth: int, mark: yaml.Mark) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            raise PlainYamlError(
                f"it has more than {MAX_VALUES:,} values. Shorten it.", mark.line + 1
            )
        if depth > MAX_DEPTH:
            raise PlainYamlError(
                f"it is nested more than {MAX_DEPTH} levels deep. Remove levels.", mark.line + 1
            )


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with limits, and with one kind of error for wrong values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._counts = _Counts()
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node. A text of too many values is not read to its end."""
        self._depth += 1
        self._counts.add(self._depth, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the Python value of a node."""
        line, kind = node.start_mark.line + 1, node.tag.removeprefix(TAG)
        if kind not in PLAIN:
            raise PlainYamlError(
                f"the tag {kind} is not accepted: values must be plain, no Python objects. Remove"
                " it.",
                line,
            )
        if kind in LOOKS_LIKE and isinstance(node, yaml.ScalarNode):
            if len(node.value) > MAX_DIGITS:
                raise PlainYamlError(
                    f"a number has more than {MAX_DIGITS} digits. Quote it if it is meant as a"
                    " word.",
                    line,
                )
            looks_like: str = self.resolve(  # type: ignore[no-untyped-call]
                yaml.ScalarNode, node.value, (True, False)
            )
            if looks_like.removeprefix(TAG) not in LOOKS_LIKE[kind]:
                raise _wrong_value(node)
            if not _is_decimal(node.value):
                raise PlainYamlError(
                    f"`{node.value}` is not a decimal number: YAML 1.1 reads it as"
                    f" {super().construct_object(node, deep)}. Write that number in digits, or"
                    " quote a word.",
                    line,
                )
        try:
            value = super().construct_object(node, deep)
        except PlainYamlError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _wrong_value(node) from error
        if isinstance(value, int) and not is_integer(value):
            raise PlainYamlError(
                "an integer has more than 64 bits. Quote it if it is meant as a word.", line
            )
        if isinstance(value, str) and not is_text(value):
            raise PlainYamlError(
                "a text contains NUL or half of a surrogate pair. Remove it.", line
            )
        return value


# A date stays the text that was written: no key has a date as its value.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag != f"{TAG}timestamp"]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _is_decimal(number: str) -> bool:
    """Whether YAML 1.1 reads a number as people do; `007` is 7 in either way."""
    if OCTAL.fullmatch(number):
        digits = number.replace("_", "")
        return int(digits, 8) == int(digits)
    return SEXAGESIMAL.fullmatch(number) is None


def _keys(
    node: yaml.Node, prefix: str, counts: _Counts, depth: int = 1
) -> Iterator[tuple[str, int]]:
    """Yield the dotted path and line of every key; count all values, aliases expanded.

    Raises:
        PlainYamlError: A key is not a word, or a mapping has a key twice, or a limit is exceeded.
    """
    counts.add(depth, node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            for _ in _keys(item, prefix, counts, depth + 1):
                pass
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            counts.add(depth + 1, key.start_mark)
            if key.tag != f"{TAG}str":
                shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
                raise PlainYamlError(
                    f"a key must be a word, got `{prefix}{shown}`. Quote or rename it.", line
                )
            if key.value in seen:
                raise PlainYamlError(
                    f"the key `{prefix}{key.value}` appears twice. Remove one of the two.", line
                )
            seen.add(key.value)
            yield f"{prefix}{key.value}", line
            yield from _keys(value, f"{prefix}{key.value}.", counts, depth + 1)


def _wrong_value(node: yaml.Node) -> PlainYamlError:
    """Return the error about a value that is not of the type that its tag or its form says."""
    kind = node.tag.removeprefix(TAG)
    shown = f"`{node.value}`" if isinstance(node, yaml.ScalarNode) else "a list or a mapping"
    return PlainYamlError(
        f"{shown} is not a valid {kind}. Quote a value that is meant as a word.",
        node.start_mark.line + 1,
    )


def _as_plain(error: yaml.YAMLError) -> PlainYamlError:
    """Return an error of PyYAML in one sentence."""
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    mark = getattr(error, "problem_mark", None)
    if any("alias" in part for part in parts if part):
        return PlainYamlError(
            "a word that begins with `*` is an alias of YAML, and none has this name. Quote a word"
            " that is meant as a pattern, such as '*.fc'.",
            None if mark is None else mark.line + 1,
        )
    return PlainYamlError(
        f"{', '.join(part for part in parts if part) or 'it is not YAML'}. Correct the YAML.",
        None if mark is None else mark.line + 1,
    )
