"""The configuration layers that `--config`, methods, overrides and short forms stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flbench.cli import options, words
from flbench.config import trust
from flbench.config.sources import Layer, from_file, from_overrides, from_values, merge
from flbench.core.errors import ConfigError
from flbench.core.registry import ALGORITHMS

WORDS: Final = "command line"
"""Origin of values that words set: methods and overrides."""


@dataclass(frozen=True)
class CommandLine:
    """What a user gave on the command line for the configuration of one run or of several.

    Attributes:
        overrides: Overrides `key=value`.
        short_forms: Texts of the given short forms, by the name of the option.
        config: Configuration file; None for none.
        out: Option `--out` of `flbench run`: folder of the run folders; None if it is not given.
        methods: Names of the methods; empty if none is named.
    """

    overrides: Sequence[str] = ()
    short_forms: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None
    out: str | None = None
    methods: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        items: Sequence[str] | None,
        algo: Sequence[str] | None,
        short_forms: Mapping[str, str],
        config: Path | None,
        out: str | None = None,
    ) -> "CommandLine":
        """Return what the words and options of a command that takes methods say.

        Raises:
            UserError: See `flbench.cli.words.methods`.
        """
        methods, overrides = words.methods(items or [], algo or [])
        return cls(overrides, short_forms, config, out, methods)

    def layers(self, method: str | None = None) -> list[Layer]:
        """Return the layers of one run, from the lowest to the highest: file, command line.

        Args:
            method: The method of the run; None for the one of the other layers.

        Raises:
            UserError: Two options set a key to different values.
        """
        layers = [] if self.config is None else [from_file(self.config)]
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
        """
        if len(self.methods) < 2:
            return [self.layers(*self.methods)]
        from flbench.comparison.design import LabelledLayer, layers_of_each

        methods = [
            LabelledLayer.of(name, from_values({"algorithm": ALGORITHMS.section(name)}, WORDS))
            for name in self.methods
        ]
        return [*layers_of_each(methods, self.layers()).values()]

    def _own(self, method: str | None) -> Layer:
        """Return the layer of the overrides, the short forms, `--out` and the method."""
        overrides = from_overrides(self.overrides, WORDS)
        texts = options.origins(self.short_forms)
        texts += [] if self.out is None else [("--out", "output.dir", self.out)]
        own = [from_overrides([f"{key}={text}"], option) for option, key, text in texts]
        if method is not None:
            own.append(from_values({"algorithm": ALGORITHMS.section(method)}, WORDS))
        values = {key: one.value for key, one in overrides.items()}
        for key, one in (pair for layer in own for pair in layer.items()):
            if key in values and values[key] != one.value:
                raise ConfigError(
                    f"`{key}` is given twice: as {one.value} ({one.origin}) and as {key}="
                    f"{values[key]}. Leave one of the two out."
                )
        return merge([overrides, *own])
