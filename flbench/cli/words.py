"""The words of a command that are not options: names, and overrides `key=value`."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from flbench.cli import suggestions
from flbench.core import parts
from flbench.core.errors import UserError
from flbench.core.registry import ALGORITHMS, MODELS
from flbench.core.wording import how_to_resume, in_shell


def separate(items: Sequence[str], kind: str) -> tuple[list[str], list[str]]:
    """Separate the names among the words of a command from the overrides.

    Args:
        items: The words. `key = value`, which a shell splits into three of them, is one override.
        kind: What the names are of, for error messages, such as "method".

    Returns:
        The names, in their order, and the overrides.

    Raises:
        UserError: A word is a key without a value, or has another sign than `=`.

    >>> separate(["hfcd", "train.rounds=5", "seed", "=", "1"], "method")
    (['hfcd'], ['train.rounds=5', 'seed=1'])
    """
    names, overrides = [], []
    for item in _joined(items):
        if "=" in item:
            overrides.append(item)
            continue
        key, colon, value = item.partition(":")
        if colon and is_key(key) and not is_path(item):
            raise UserError(f"`{item}` has a colon. Write {key}={value or 'VALUE'} (key=value).")
        if is_key(item) and item not in ALGORITHMS:
            raise UserError(
                f"`{item}` has no value. Write {item}=VALUE (key=value); `flbench run"
                " --print-config` prints all keys with their values."
            )
        if not item:
            raise UserError(f"a word is empty. Give a {kind} or key=value, or leave it out.")
        names.append(item)
    return names, overrides


def one_name(items: Sequence[str], kind: str) -> tuple[str | None, list[str]]:
    """Separate at most one name from the overrides among the words of a command.

    Args:
        items: The words.
        kind: What the name is of, for error messages.

    Raises:
        UserError: There is more than one name, or a word is neither a name nor an override.
    """
    names, overrides = separate(items, kind)
    if len(names) > 1:
        raise UserError(f"give one {kind}, got {', '.join(names)}.")
    return (names[0] if names else None), overrides


def method(name: str) -> str:
    """Return the name of the method that a word names; a class of the user is registered.

    Args:
        name: A name, or the import path of a class, `package.module:Class` or `FILE.py:Class`.

    Raises:
        UserError: It is not a method. The message says what to type instead.
    """
    known = ALGORITHMS.names()
    if name in known or name in ALGORITHMS.load():
        return name
    short, colon, value = name.partition(":")
    key = short if is_key(short) else suggestions.key_like(short)
    if not is_path(name) and colon and key:
        raise UserError(f"`{name}` has a colon. Write {key}={value or 'VALUE'} (key=value).")
    if _looks_like_path(name):
        return ALGORITHMS.section(name)["name"]
    if name.endswith(".py"):
        raise UserError(f"`{name}` is a file. Name the class of the method too: {name}:Class.")
    raise UserError(f"`{name}` is neither a method nor key=value.{_instead(name, known)}")


def is_path(word: str) -> bool:
    """Return whether a word is an import path: of a file of Python, or of a module that exists.

    A folder without `__init__.py` counts as a module only within a dotted name.

    >>> is_path("fractions:Fraction"), is_path("seed:1"), is_path("nothing:Here")
    (True, False, False)
    """
    if not _looks_like_path(word):
        return False
    module = word.rpartition(":")[0]
    if module.endswith(".py"):
        return True
    top, *inner = module.split(".")
    spec = parts.spec_of(top)
    return spec is not None and (bool(inner) or spec.origin is not None)


def _looks_like_path(word: str) -> bool:
    """Return whether a word has the form `package.module:name` or `FILE.py:name`."""
    module, _, name = word.rpartition(":")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        return False
    return module.endswith(".py") or all(part.isidentifier() for part in module.split("."))


def is_key(word: str) -> bool:
    """Return whether a word is a key or a section of the configuration with default method and net.

    >>> is_key("train.rounds"), is_key("train"), is_key("hfcd")
    (True, True, False)
    """
    from flbench.config.schema import Config
    from flbench.config.sources import leaves

    if word in Config.model_fields:
        return True
    if word.startswith(("algorithm.", "model.")):
        return re.fullmatch(r"\w+\.\w+", word) is not None
    keys = leaves(Config().tree())
    return any(key == word or key.startswith(f"{word}.") for key in keys)


def _joined(items: Sequence[str]) -> list[str]:
    """Return the words, with the parts of `key = value` joined to one word.

    >>> _joined(["seed", "=", "1", "train.rounds=", "5", "data.name", "=digits", "hfcd"])
    ['seed=1', 'train.rounds=5', 'data.name=digits', 'hfcd']
    """
    found: list[str] = []
    for item in items:
        follows_key = bool(found) and "=" not in found[-1]
        follows_sign = bool(found) and found[-1].endswith("=") and found[-1].count("=") == 1
        if follows_sign and "=" not in item:
            belongs = item not in ALGORITHMS.names()
        else:
            belongs = follows_key and item.startswith("=")
        if belongs:
            found[-1] += item
        else:
            found.append(item)
    return found


def _instead(word: str, methods: Sequence[str]) -> str:
    """Return what to type instead of a word that is not a method, to follow its sentence."""
    from flbench.config.schema import EngineConfig
    from flbench.data.known_sets import known

    if word == "help":
        return " Did you mean --help?"
    if close := get_close_matches(word.lower(), methods, n=1, cutoff=0.7):
        return f" Did you mean `{close[0]}`?"
    if word in known():
        return f" `{word}` is a data set: --dataset {word}."
    if word in MODELS.names():
        return f" `{word}` is a net: --model {word}."
    if word in str(EngineConfig.model_fields["name"].annotation).split("'"):
        return f" `{word}` is an engine: --engine {word}."
    path = Path(word)
    for marker, kind, command in (
        ("config.yaml", "a run", "run"),
        ("study.json", "a study", "tune"),
        ("comparison.json", "a comparison", "compare"),
    ):
        if (path / marker).is_file():
            call = how_to_resume(path, command)
            return f" `{word}` is the folder of {kind}: {call} continues it."
    if path.suffix in (".yaml", ".yml"):
        return f" Give a configuration file by an option: --config {in_shell(path)}."
    if path.suffix in (".npz", ".zip") or path.is_dir():
        return f" Give a data file or folder by its key: data.path={in_shell(path)}."
    return (
        " `flbench algos` lists the methods; a key of the configuration is set by key=value, for"
        " example train.rounds=100."
    )
