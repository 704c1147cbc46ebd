"""YAML of plain values: reading with the scalars of YAML 1.2, and writing with comments.

`no`, `0x10`, `010` and dates are texts. Objects, tags, anchors' aliases and texts that would
need minutes are refused with one kind of error.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import yaml
from yaml.composer import Composer

from flbench.core.text import one_line

MAX_CHARACTERS: Final = 1_000_000
MAX_VALUES: Final = 10_000
MAX_DEPTH: Final = 30
TAG: Final = "tag:yaml.org,2002:"

Scalar = None | bool | int | float | str
FORMS: Final[dict[str, tuple[re.Pattern[str], Callable[[str], Scalar]]]] = {
    "null": (re.compile("~|null|Null|NULL|"), lambda text: None),
    "bool": (re.compile("true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    "int": (re.compile("[-+]?(0|[1-9][0-9]*)"), int),
    "float": (
        re.compile(
            r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}
"""Form and value of the scalars that are no texts."""


class PlainYamlError(ValueError):
    """A text is not YAML, or not plain.

    Attributes:
        line: Number of the line, from 1; None if it is not known.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


_Base: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class _Loader(Composer, _Base):  # type: ignore[misc]
    """PyYAML's safe loader with the scalars of YAML 1.2, within limits.

    libyaml reads the text, where it is there, and Python builds the tree, within the limits.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    _depth = _values = 0

    def __init__(self, text: str) -> None:
        _Base.__init__(self, text)
        self.anchors = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node. A text of too many values is not read to its end."""
        event = self.peek_event()
        line = event.start_mark.line + 1
        self._depth, self._values = self._depth + 1, self._values + 1
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            raise PlainYamlError("aliases (`*name`) and tags (`!name`) need quotes.", line)
        if self._values > MAX_VALUES or self._depth > MAX_DEPTH:
            limits = f"{MAX_VALUES:,} values, or {MAX_DEPTH} within each other"
            raise PlainYamlError(f"it has more than {limits}. Shorten it.", line)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which also quotes the texts that are numbers in YAML 1.2."""


for _kind, (_form, _value) in FORMS.items():
    _Loader.add_constructor(TAG + _kind, lambda _, node, value=_value: value(node.value))
    for _one in (_Loader, _Dumper):
        _one.add_implicit_resolver(TAG + _kind, re.compile(f"(?:{_form.pattern})$"), None)


def parse(text: str) -> tuple[Any, dict[str, int]]:
    """Return the value of a YAML text, and the line of each key by its dotted path.

    Keys must be texts, and a mapping must not have a key twice.

    Args:
        text: The text. An empty text has the value None.

    Raises:
        PlainYamlError: The text is not YAML, has other values than plain ones, or exceeds a limit.
            The message is the end of a sentence, with a full stop.

    >>> parse("a: {b: [1, no]}")
    ({'a': {'b': [1, 'no']}}, {'a': 1, 'a.b': 1})
    """
    if len(text) > MAX_CHARACTERS:
        raise PlainYamlError(f"it has more than {MAX_CHARACTERS:,} characters. Shorten it.")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        return loader.construct_document(node), dict(_keys(node, ""))
    except PlainYamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        why = " ".join(str(getattr(error, "problem", None) or error).split())
        cure = "Correct the YAML. Quote words that begin with a sign, such as '*.fc'."
        raise PlainYamlError(f"{why}. {cure}", mark and mark.line + 1) from error


def scalar(text: str) -> Scalar:
    """Return the value of a word: null, a boolean or a number if it has its form, else the text.

    >>> scalar("1e-3"), scalar("no"), scalar("# 3")
    (0.001, 'no', '# 3')
    """
    for form, value in FORMS.values():
        if form.fullmatch(text):
            return value(text)
    return text


def _keys(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the dotted path and the line of each key."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            list(_keys(item, prefix))
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag != f"{TAG}str":
            shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
            raise PlainYamlError(f"the key `{prefix}{shown}` is not a text. Quote it.", line)
        if key.value in seen:
            raise PlainYamlError(f"the key `{prefix}{key.value}` is there twice.", line)
        seen.add(key.value)
        yield f"{prefix}{key.value}", line
        yield from _keys(value, f"{prefix}{key.value}.")


def to_yaml(tree: Mapping[str, Any], origins: Mapping[str, str], prefix: str = "") -> str:
    """Return nested dicts of plain values as YAML, which `parse` reads as equal dicts.

    Args:
        tree: The values.
        origins: Origin of each value by its dotted path, such as `default` or `my.yaml:3`, for a
            comment. A value without an origin gets none.
        prefix: Path of the section that the values are in, with a dot at its end.

    >>> print(to_yaml({"train": {"rounds": 5}}, {"train.rounds": "my.yaml:2"}), end="")
    train:
      rounds: 5                               # my.yaml:2
    """
    text = ""
    for key, value in tree.items():
        line, path = f"{'  ' * prefix.count('.')}{_flow(key)}:", f"{prefix}{key}"
        if isinstance(value, dict) and value:
            text += f"{line}\n{to_yaml(value, origins, f'{path}.')}"
            continue
        # 0.0 and -0.0 are equal, but their texts are not.
        is_known = value is None or isinstance(value, str | int)
        line += f" {_flow(value) if is_known else _dumped(value)}"
        # The name of a file may contain line breaks.
        text += f"{line:<40}  # {one_line(origins[path])}\n" if path in origins else f"{line}\n"
    return text


def _dumped(value: object) -> str:
    """Return a value in YAML's flow style, on one line."""
    style: dict[str, Any] = {"default_flow_style": True, "width": 10**9}
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, **style)
    if "\x85" in text:  # a line break, which PyYAML does not escape
        text = yaml.dump(value, Dumper=_Dumper, **style)
    return text.removesuffix("\n").removesuffix("\n...")


# Configurations consist of the same keys and mostly of the same values.
_flow = lru_cache(maxsize=4096, typed=True)(_dumped)
