"""Texts without the folders of absolute paths, which name people and machines."""

import re
import shlex
from typing import Any, Final

LONGEST_COMMAND: Final = 100_000
"""Largest number of characters of a command that is taken apart into words."""

_FOLDER: Final = (
    # A word, or up to three words that are no file, no option and no end of a part of a sentence.
    r"""(?:(?:\\.|[^\s/"'`\\])+"""
    r"""|(?![^\s/]*(?:\.\w+|[,;:)])\s)[^\s/"'`=]+(?:\ [^\s/"'`=-][^\s/"'`=]*){1,2})/+"""
)
_END: Final = r"""(?=[^\s/"'`])"""  # what is left is not empty
_PATH: Final = re.compile(
    rf"""(?:(?<![\w.~:/-])|(?<=[\s"'`]-[A-Za-z])|(?<=^-[A-Za-z]))/+(?:{_FOLDER})+{_END}"""
)
_QUOTED: Final = re.compile(r"""(?<=['"`])/(?:[^'"`/\n]+/)+(?=[^'"`/\n])""")
_HOME: Final = re.compile(rf"""(?<![\w.~:/-])~(?:[A-Za-z][\w.-]{{0,40}})?/+(?:{_FOLDER})*{_END}""")
# `file:///a/b`, `sqlite:////a/b`, `file:/a/b`, `C:/a/b`, and hosts with the folders of people.
_ADDRESS: Final = re.compile(
    rf"""(?P<scheme>\b[A-Za-z][\w.+-]{{0,30}}):(?:(?P<slashes>/(?!/)|///+)
    |//(?<=file://)[^\s/"'`]+/+|(?P<host>(?<=sftp:|.ssh:|.nfs:|.smb:|.scp:)//[^\s/"'`]*/)
    )(?:{_FOLDER.replace(" ", "[ ]").replace(chr(92) + "[ ]", "[ ]")})*{_END}""",
    re.VERBOSE,
)
_LINE: Final = re.compile(
    r"(?P<key>\s*(?:- )?[\w.]+: |\s*- )(?P<value>.*?)(?P<origin>(?<!\s)\s+#\s.*)?"
)
_WORD: Final = re.compile(r"(?P<option>-[A-Za-z]|[\w.-]+=)?(?P<path>~?/.*)", re.DOTALL)
_SENTENCE: Final = re.compile(r"[.:;,]\s|\n|[\"'`]")


def without_parents(text: str) -> str:
    """Return a text in which absolute paths have lost their folders.

    Paths in addresses such as `file:///home/me/x` lose them too, but not those of web addresses.
    A folder's name that is not in quotation marks can have up to three words.

    Args:
        text: The text, for example a sentence.

    >>> without_parents("/opt/bin/flbench run --config=/home/me/board/digits.yaml a/b x=1/2")
    'flbench run --config=digits.yaml a/b x=1/2'
    >>> without_parents("/home/me/studies/one/ http://127.0.0.1:5000/a/b")
    'one/ http://127.0.0.1:5000/a/b'
    >>> without_parents("sqlite:////home/me/runs.db and /home/ann smith/my data/x.npz")
    'sqlite:///runs.db and x.npz'
    """
    for pattern in (_QUOTED, _PATH, _HOME):
        text = pattern.sub("", text)
    return _ADDRESS.sub(_address, text)


def without_parents_in(tree: Any, key: str = "") -> Any:
    """Return a tree of values of JSON in which texts have lost the folders of absolute paths.

    Args:
        tree: The values. An entry `command` is a command of the shell, or the list of its words;
            a text that is nothing but a path may have any number of spaces.
        key: Key of the values in the tree above.

    >>> without_parents_in({"command": "x '--config=/home/me/a b c d/e.yaml'", "data": "/a b/c d"})
    {'command': 'x --config=e.yaml', 'data': 'c d'}
    """
    if isinstance(tree, str):
        if key != "command" or len(tree) > LONGEST_COMMAND:
            return _value(tree)
        try:
            return shlex.join(map(_word, shlex.split(tree)))
        except ValueError:  # no command
            return without_parents(tree)
    if isinstance(tree, dict):
        return {
            without_parents(name): without_parents_in(value, name) for name, value in tree.items()
        }
    if isinstance(tree, list):
        if key == "command":
            return [_word(one) if isinstance(one, str) else without_parents_in(one) for one in tree]
        return [without_parents_in(value) for value in tree]
    return tree


def without_parents_in_yaml(text: str) -> str:
    r"""Return the text of a config.yaml in which absolute paths have lost their folders.

    >>> without_parents_in_yaml("root: /home/me/my own data  # /home/me/my configs/a.yaml:3")
    'root: my own data  # a.yaml:3'
    """
    return "\n".join(map(_yaml_line, text.split("\n")))


def _yaml_line(line: str) -> str:
    """Return a line of YAML: a key, a value, and the origin of the value in a comment."""
    found = _LINE.fullmatch(line)
    if found is None:
        return without_parents(line)
    value, mark = found["value"], ""
    if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
        mark, value = value[0], value[1:-1]
    origin = found["origin"] or ""
    begin = re.match(r"\s*#\s", origin)
    if begin is not None:
        origin = begin[0] + _value(origin[begin.end() :])
    return f"{found['key']}{mark}{_value(value)}{mark}{origin}"


def _value(text: str) -> str:
    """Return a text that may be a path as a whole."""
    is_path = text.startswith(("/", "~")) and _SENTENCE.search(text) is None
    return _word(text) if is_path else without_parents(text)


def _word(text: str) -> str:
    """Return a word of a command: a path, or an option with a path."""
    found = _WORD.fullmatch(text)
    if found is None or "=" in found["path"] or "://" in found["path"]:
        return without_parents(text)
    path = found["path"].rstrip("/") or "/"
    last = path.rpartition("/")[2] + found["path"][len(path) :]
    return f"{found['option'] or ''}{last or '/'}"


def _address(found: re.Match[str]) -> str:
    """Return the beginning of an address, up to the last part of its path."""
    if found["host"]:
        return f"{found['scheme']}:{found['host']}"
    return f"{found['scheme']}:{'' if found['slashes'] == '/' else '///'}"
