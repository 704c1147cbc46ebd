"""Values of configuration keys as a user types them.

The type of the key decides how a word is read. A key of type text takes the word as it is: `no`,
`010` and `#3` are texts like all others. Numbers are decimal. Lists and sections are written in
YAML's flow style, such as `[0.5, 0, 0.5]`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from flbench.config.schema import Config, OwnModelConfig, TermConfig
from flbench.core.files import is_text
from flbench.core.plain_yaml import (
    MAX_DIGITS,
    PlainYamlError,
    has_comment,
    is_integer,
    parse,
    plain_words,
)

BLANKS: Final = " \t\r\n"
NULLS: Final = ("~", "null", "Null", "NULL")
INTEGER: Final = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
DECIMAL: Final = re.compile(r"[+-]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
NOT_FINITE: Final = re.compile(r"[+-]?\.?inf|\.?nan", re.IGNORECASE)
QUOTED: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""", re.DOTALL)
BOOLEANS: Final = {
    form: value
    for words, value in ((("true", "yes", "on"), True), (("false", "no", "off"), False))
    for word in words
    for form in (word, word.capitalize(), word.upper())
}
"""The words that YAML 1.1 reads as booleans."""


@dataclass(frozen=True)
class Accepted:
    """What a key accepts.

    Attributes:
        types: Types of its values, among `str` (also for paths), `int`, `float`, `bool`,
            `NoneType`, `list` and `dict` (sections); None if they are not known, as for the keys of
            methods.
        choices: Words that it accepts besides.
    """

    types: frozenset[type] | None = None
    choices: tuple[Any, ...] = ()

    @property
    def values(self) -> list[Any]:
        """All values, of a key that is on/off or a choice; none of any other key."""
        types = self.types or frozenset()
        found = [*self.choices]
        found += [member.value for one in types if issubclass(one, Enum) for member in one]
        # A choice that is not a text adds its type to the types of the key.
        if bool in types and not any(isinstance(choice, bool) for choice in found):
            found += [True, False]
        return [*found, None] if found and NoneType in types else found

    def accepts(self, *types: type) -> bool:
        """Return whether values may have one of these types; true if the types are not known."""
        return self.types is None or not self.types.isdisjoint(types)

    @property
    def is_free(self) -> bool:
        """Whether values may be texts, numbers and booleans: arguments of the user's functions."""
        return self.types is not None and self.types >= {str, float, bool}

    @property
    def is_text(self) -> bool:
        """Whether values are any texts, and neither numbers nor sections."""
        return self.types is not None and str in self.types and not self.is_free

    @property
    def is_section(self) -> bool:
        """Whether values are sections."""
        return self.types is not None and dict in self.types


ARGUMENT: Final = Accepted(frozenset((str, int, float, bool)))


def value_of(path: Sequence[str], text: str) -> Any:
    """Return the value that a user types for a key.

    Args:
        path: Parts of the dotted key.
        text: What the user types.

    Raises:
        PlainYamlError: The text is empty, or may mean two different values, or is a list or a
            section that is not valid YAML. The message is the end of a sentence.

    >>> value_of(["data", "label"], "#visits"), value_of(["seed"], "010")
    ('#visits', 10)
    >>> value_of(["partition", "split"], "[0.5, 0, 0.5]"), value_of(["train", "clip"], "null")
    ([0.5, 0, 0.5], None)
    """
    kind, word = kind_of(path), text.strip(BLANKS)
    if not is_text(text):
        raise PlainYamlError("a text contains NUL or half of a surrogate pair. Remove it.")
    if not word:
        optional = ", or null for none" if kind.types is not None and NoneType in kind.types else ""
        raise PlainYamlError(f"it is empty. Give a value{optional}.")
    if QUOTED.fullmatch(word):
        return parse(word)[0]
    if word == "null" or (word in NULLS and not (kind.is_text or kind.is_free)):
        return None
    if kind.is_text:
        if word != text:
            raise PlainYamlError(
                f"`{text}` begins or ends with white space. Remove it, or put the text in quotes"
                " that are a part of the value."
            )
        return text
    if kind.is_section or word[0] in "[{":
        return _structure(path, word)
    if word[0] in "&*!" and kind.types is not None and not kind.is_free:
        raise PlainYamlError(
            f"`{word}` begins with `{word[0]}`: YAML's anchors, aliases and tags are not accepted."
            " Remove it."
        )
    return _scalar(kind, word)


def items_of(text: str) -> list[str]:
    """Return the items of a text that are separated by commas outside of brackets and quotes.

    >>> items_of("0.1, [1, 2], 'a, b'")
    ['0.1', '[1, 2]', "'a, b'"]
    """
    found: list[str] = []
    begin, depth, end = 0, 0, 0
    while end < len(text):
        quoted = QUOTED.match(text, end)
        if quoted and (depth or not text[begin:end].strip(BLANKS)):
            end = quoted.end()
            continue
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(text[end], 0)
        if text[end] == "," and depth <= 0:
            found.append(text[begin:end].strip(BLANKS))
            begin = end + 1
        end += 1
    return [*found, text[begin:].strip(BLANKS)]


def wrong_word(
    value: Any, text: str, lines: Mapping[str, int], path: Sequence[str] = ()
) -> tuple[str, str] | None:
    """Find an unquoted word of a YAML text that may not be what the user means.

    These are words such as `no` and `off` among the arguments of the user's own functions, which
    YAML 1.1 reads as booleans, and keys of type text without a value.

    Args:
        value: The value of the text.
        text: The text.
        lines: Line of each key by its dotted path in the text.
        path: Parts of the dotted key that the text is the value of; empty for a whole file.

    Returns:
        The dotted path in the text, and the end of a sentence about it; None if all words are
        clear.
    """
    written = text.splitlines()
    suspects = {}
    for parts, one in _scalars(value, ()):
        dotted, kind = ".".join(parts), kind_of([*path, *parts])
        line = written[lines[dotted] - 1] if dotted in lines else ""
        is_empty = one is None and re.search(rf"{re.escape(parts[-1])}\W?\s*:\s*([#,}}]|$)", line)
        if kind.is_free and isinstance(one, bool):
            suspects[dotted] = "boolean"
        elif kind.is_text and is_empty:
            suspects[dotted] = "empty"
    words = plain_words(text) if suspects else {}
    for dotted, what in suspects.items():
        word = words.get(dotted)
        if what == "boolean" and word is not None and word.lower() not in ("true", "false"):
            return dotted, _ambiguous(word)
        if what == "empty" and word == "":
            return dotted, "has no value. Give a value, or null for none."
    return None


def kind_of(path: Sequence[str], root: type[BaseModel] = Config) -> Accepted:
    """Return what a key accepts.

    Args:
        path: Parts of the dotted key.
        root: Class of the configuration, or of the section, that the key belongs to.

    >>> kind_of(["train", "clip"]).types == {float, NoneType}
    True
    """
    options: tuple[Any, ...] = (root,)
    for depth, key in enumerate(path):
        if TermConfig in options and key not in TermConfig.model_fields:
            return ARGUMENT if depth == len(path) - 1 else Accepted()
        options = tuple(part for option in options for part in _inside(option, key))
        if depth == 0 and key == "model":
            options = (*options, OwnModelConfig)
        if not options:
            return Accepted()
    choices = [choice for one in options if get_origin(one) is Literal for choice in get_args(one)]
    types = {_type(one) for one in options if get_origin(one) is not Literal}
    types |= {type(choice) for choice in choices if not isinstance(choice, str)}
    return Accepted(frozenset(types), tuple(choices))


def _inside(option: Any, key: str) -> tuple[Any, ...]:
    """Return the types of a key of a section, or of an element of a list."""
    if isinstance(option, type) and issubclass(option, BaseModel):
        field = option.model_fields.get(key)
        return () if field is None else tuple(_parts(field.annotation))
    if get_origin(option) is dict:
        return tuple(_parts(get_args(option)[1]))
    if get_origin(option) in (list, tuple) and key.isdecimal():
        return tuple(_parts(get_args(option)[0]))
    return ()


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types of an annotation, without unions and `Annotated`."""
    if hasattr(annotation, "__metadata__"):
        yield from _parts(annotation.__origin__)
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _type(option: Any) -> type:
    """Return the type that stands for the type of a key in `Accepted.types`."""
    kind: type = get_origin(option) or option
    if issubclass(kind, BaseModel):
        return dict
    same: dict[type, type] = {tuple: list, Path: str}
    return same.get(kind, kind)


def _scalars(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the parts of the path of each scalar of nested dicts and lists, and the scalar."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _scalars(item, (*path, key))
    elif isinstance(value, list):
        for k, item in enumerate(value):
            yield from _scalars(item, (*path, str(k)))
    elif path:
        yield path, value


def _structure(path: Sequence[str], word: str) -> Any:
    """Return a list or a section; another word for a section is its name.

    Raises:
        PlainYamlError: The text is not valid YAML, has a comment, or a word that is not clear.
    """
    try:
        value, lines = parse(word)
    except PlainYamlError:
        if word[0] in "[{":
            raise
        return word
    if not isinstance(value, dict | list):
        # A number names no section, and errors show it as a number.
        return value if isinstance(value, int | float) and DECIMAL.fullmatch(word) else word
    if has_comment(word):
        raise PlainYamlError(f"`{word}` has a comment after `#`. Remove it, or quote the words.")
    if (found := wrong_word(value, word, lines, path)) is not None:
        raise PlainYamlError(f"`{'.'.join([*path, found[0]])}` {found[1]}")
    texts = [(parts, one) for parts, one in _scalars(value, ()) if isinstance(one, str)]
    numbers = {parts: one for parts, one in texts if DECIMAL.fullmatch(one)}
    words = plain_words(word) if numbers else {}
    for parts, one in numbers.items():  # such as `1e-3`, which is a word in YAML 1.1
        if kind_of([*path, *parts]).is_free and ".".join(parts) in words:
            raise PlainYamlError(
                f"`{'.'.join([*path, *parts])}` is `{one}`, which YAML 1.1 reads as a word. Write"
                f" {float(one)!r}, or quote the word."
            )
    return value


def _scalar(kind: Accepted, word: str) -> Any:
    """Return a boolean, a number or the word itself.

    Raises:
        PlainYamlError: The word may be a number or a boolean, or not, or the number cannot be
            represented.
    """
    if word in kind.choices:
        return word
    if word in BOOLEANS and kind.accepts(bool, int, float):
        if kind.is_free and word.lower() not in ("true", "false"):
            raise PlainYamlError(f"it {_ambiguous(word)}")
        return BOOLEANS[word]
    if not kind.accepts(int, float):
        return word
    if kind.is_free and _is_unclear(word):
        raise PlainYamlError(
            f"`{word}` may be a number or a word. Write a decimal number without zeros before it,"
            " or put the word in quotes that are a part of the value."
        )
    if INTEGER.fullmatch(word) or DECIMAL.fullmatch(word):
        return _number(word, whole=not kind.accepts(float))
    if NOT_FINITE.fullmatch(word) and not kind.is_free:
        return float(word.replace(".", ""))
    return word


def _number(word: str, *, whole: bool) -> int | float:
    """Return a decimal number; with `whole` an integer if it is one, such as `1e3`.

    Raises:
        PlainYamlError: The number has too many digits, or is too small.
    """
    if len(word) > MAX_DIGITS:
        raise PlainYamlError(f"a number has more than {MAX_DIGITS} digits. Shorten it.")
    if INTEGER.fullmatch(word):
        integer = int(word)
        if not is_integer(integer):
            raise PlainYamlError("an integer has more than 64 bits. Choose a smaller one.")
        return integer
    number, exact = float(word), Decimal(word)
    if number == 0 and exact != 0:
        raise PlainYamlError(f"`{word}` is too small for a number of 64 bits. Choose a larger one.")
    if whole and abs(number) < 2**63 and exact == exact.to_integral_value():
        return int(exact)
    return number


def _is_unclear(word: str) -> bool:
    """Whether some read a word as a number, and others as another number or as a word."""
    if re.fullmatch(r"[+-]?0[0-9_]+", word):
        return True
    if INTEGER.fullmatch(word) or DECIMAL.fullmatch(word):
        return False
    try:
        return isinstance(parse(word)[0], int | float)
    except PlainYamlError:
        return word[0] in "+-0123456789"  # such as `1:30`


def _ambiguous(word: str) -> str:
    """Return the end of a sentence about a word that YAML 1.1 reads as a boolean."""
    meant = "true" if BOOLEANS[word] else "false"
    return f"is `{word}`, which may be a word or {meant}. Write {meant}, or quote the word."
