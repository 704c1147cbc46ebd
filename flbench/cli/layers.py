"""The configuration layers that `--config`, methods, overrides and short forms stand for."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from flbench.cli import aliases, console, words
from flbench.config import trust
from flbench.config.sources import Layer, from_file, from_overrides, from_values, merge
from flbench.core.errors import ConfigError, UserError
from flbench.core.registry import ALGORITHMS

WORDS: Final = "command line"
"""Origin of values that overrides and words without an option set."""


@dataclass(frozen=True)
class CommandLine:
    """What a user gave on the command line for the configuration of one run or of several.

    Attributes:
        overrides: Overrides `key=value`.
        short_forms: Texts of the given short forms, by the name of the option.
        config: Configuration file; None for none.
        out: Option `--out` of `flbench run`: folder of the run folders; None if it is not given.
        methods: Names of the methods; empty if none is named.
        methods_origin: What names the methods: `--algo`, or the command line.
    """

    overrides: Sequence[str] = ()
    short_forms: Mapping[str, str] = field(default_factory=dict)
    config: str | Path | None = None
    out: str | None = None
    methods: tuple[str, ...] = ()
    methods_origin: str = WORDS

    def layers(self, method: str | None = None) -> list[Layer]:
        """Return the layers of one run, from the lowest to the highest: file, command line.

        Args:
            method: The method of the run; None for the one of the other layers.

        Raises:
            UserError: An option is empty, or two of them set a key to different values.
        """
        for option, value in (("--config", self.config), ("--out", self.out)):
            if value == "":
                raise UserError(f"{option} is empty. Give a path, or leave the option out.")
        layers = [] if self.config is None else [from_file(Path(self.config))]
        for layer in layers:
            trust.check(Path(str(self.config)), layer.tree)
        # One layer holds all that the command line sets: merging it over the file drops the keys
        # of a method or net that the command line replaces, and none that the command line sets.
        return [*layers, self._own(method)]

    def layers_of_each(self) -> list[list[Layer]]:
        """Return the layers of each run: one run for each method that is named.

        If there are several methods, each one gets those overrides `algorithm.KEY=...` whose key it
        has. A key that none of the methods has is refused later, when the configuration is
        resolved.

        Raises:
            UserError: A name is empty, or a method is named twice.
        """
        if len(self.methods) < 2:
            return [self.layers(*self.methods)]
        found = []
        for name in self.methods:
            kept = _overrides_of(name, self.methods, self.overrides)
            found.append(replace(self, overrides=kept).layers(name))
        return found

    def _own(self, method: str | None) -> Layer:
        """Return the layer of the overrides, the short forms, `--out` and the method."""
        overrides = from_overrides(self.overrides, WORDS)
        values = {key: one.value for key, one in overrides.items()}
        options = aliases.origins(self.short_forms)
        options += [] if self.out is None else [("--out", "output.dir", self.out)]
        own = []
        for option, key, text in options:
            layer = from_overrides([f"{key}={text}"], option)
            if any(key in values and values[key] != one.value for key, one in layer.items()):
                raise _conflict(f"{option} {text}", f"{key}={_text(values[key])}", key)
            own.append(layer)
        if method is not None:
            key = "algorithm.name"
            if key in values and values[key] != method:
                given = f"--algo {method}" if self.methods_origin == "--algo" else f"`{method}`"
                raise _conflict(given, f"{key}={values[key]}", key)
            section = ALGORITHMS.section(method)
            own.append(from_values({"algorithm": section}, self.methods_origin))
        return merge([overrides, *own])


def methods(
    items: Sequence[str], algo: str | None, *, option: str = "--algo"
) -> tuple[tuple[str, ...], str, list[str]]:
    """Separate the methods from the overrides among the words of a command.

    Args:
        items: Words of the command.
        algo: Value of the option that names methods too, separated by commas; None without it.
        option: The option.

    Returns:
        The names of the methods, what names them, and the overrides.

    Raises:
        UserError: A word is neither a method nor an override, a name is empty or given twice, or
            the words and the option name different methods.
    """
    names, overrides = words.separate(items, "method")
    by_option = () if algo is None else _split(f"{option} {algo}", algo)
    # A shell splits `hfcd, fedavg` into two words; the path of a file may have blanks.
    lines = "\n".join(one if ":" in one else "\n".join(one.split()) for one in names)
    joined = re.sub(r"\s*,\s*", ",", lines).split("\n")
    by_words = tuple(name for word in joined if word for name in _split(f"`{word}`", word))
    by_words = tuple(map(words.method, by_words))
    by_option = tuple(words.method(name) if ":" in name else name for name in by_option)
    for name in by_words:
        if by_words.count(name) > 1:
            raise UserError(f"`{name}` is named twice. Name it once.")
    if by_words and by_option and set(by_words) != set(by_option):
        raise UserError(
            f"`{' '.join(names)}` and {option} {algo} name different methods. Name the methods"
            " once."
        )
    return by_words or by_option, option if by_option and not by_words else WORDS, overrides


def _split(given: str, text: str) -> tuple[str, ...]:
    """Return names that are separated by commas.

    Raises:
        UserError: A name is empty or given twice.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not name:
            raise UserError(f"{given}: a name is empty. Put one comma between two names.")
        if names.count(name) > 1:
            raise UserError(f"{given}: `{name}` is named twice. Name it once.")
    return names


def _overrides_of(name: str, names: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides without the keys that only other methods of the comparison have."""
    from flbench.calls.arguments import keys_of_others

    sections = [item.partition("=")[0].strip().partition(".") for item in overrides]
    keys = [key for section, _, key in sections if section == "algorithm" and key]
    others = keys_of_others(name, names, keys)
    kept = []
    for item, (section, _, key) in zip(overrides, sections, strict=True):
        if section == "algorithm" and key in others:
            owners = ", ".join(others[key])
            console.notes([f"{section}.{key} is set for {owners}; {name} has no such key."])
        else:
            kept.append(item)
    return kept


def _conflict(option: str, override: str, key: str) -> ConfigError:
    return ConfigError(
        f"{option} and {override} give `{key}` two different values. Leave one of the two out."
    )


def _text(value: Any) -> str:
    """Return a value as YAML writes it on one line."""
    return value if isinstance(value, str) else json.dumps(value)
