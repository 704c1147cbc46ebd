"""The plan of a comparison: its cells, methods x data sets x settings x repetitions."""

import hashlib
import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final, Self

from flbench.config.resolve import as_data, resolve
from flbench.config.schema import CHECKPOINT_SECONDS, Config
from flbench.config.sources import Layer, from_values, merge
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.own_names import check_whole
from flbench.core.registry import ALGORITHMS
from flbench.jobs import repetitions
from flbench.jobs.job import Job
from flbench.jobs.repetitions import Vary

ORIGIN: Final = "flbench compare"
"""Origin of the values that the plan sets in the configuration of a cell."""
DEFAULTS: Final = from_values(
    {
        "output.checkpoint_every": 1,
        "output.checkpoint_seconds": CHECKPOINT_SECONDS,
        "tracking.mlflow": False,
    },
    ORIGIN,
)
"""Defaults in which a cell differs from a run: a checkpoint every few seconds, so that little of a
killed cell is lost, and no copy in MLflow unless it is asked for."""
FIXED: Final = ("seed", "partition.seed", "algorithm.name", "output.", "tracking.")
"""Keys that no grid can have: the seeds tell repetitions apart, and the others change no result."""
LENGTH: Final = 40  # characters of each part of the name of a cell's folder


@dataclass(frozen=True)
class LabelledLayer:
    """A method or a data set of a comparison.

    Attributes:
        label: Its name in the comparison.
        layer: What it sets in the configuration.
        is_optional: Whether a method that cannot be trained is left out with a note, instead of an
            error that refuses the comparison.
    """

    label: str
    layer: Layer
    is_optional: bool = False


@dataclass(frozen=True)
class Design:
    """What a comparison is about, as the user asked for it.

    Attributes:
        base: Configuration that all cells share.
        methods: The methods, in the order of the tables. The layer of each one sets
            `algorithm.name`, and whatever else this method alone has.
        data: The data sets. One without values stands for the data of `base`.
        grid: Values of the varied keys by dotted key. Keys `algorithm.KEY` make variants of the
            methods that have such a key; each combination of values of the other keys is a setting.
        seeds: Number of repetitions of each method, data set and setting.
        vary: What differs between repetitions: the seed of the training (`training`), that of the
            partition (`partition`), or both (`both`).
        tuned: Study whose best parameters the methods have; None for none.
        untuned: Names of the methods that this study does not have. They have default parameters.
        reference: Label of the method with which each of the others is compared; None to compare
            all pairs of methods.
    """

    base: Layer
    methods: tuple[LabelledLayer, ...]
    data: tuple[LabelledLayer, ...] = (LabelledLayer("", Layer()),)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    seeds: int = 5
    vary: Vary = "both"
    tuned: str | None = None
    reference: str | None = None
    untuned: tuple[str, ...] = ()

    def tree(self) -> dict[str, Any]:
        """Return the design as values of JSON."""
        return {
            "base": self.base.written(),
            "methods": [{"label": one.label, **one.layer.written()} for one in self.methods],
            "data": [{"label": one.label, **one.layer.written()} for one in self.data],
            "grid": {key: list(values) for key, values in self.grid.items()},
            "seeds": self.seeds,
            "vary": self.vary,
            "tuned": self.tuned,
            "reference": self.reference,
            **({"untuned": list(self.untuned)} if self.untuned else {}),
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Self:
        """Return the design that `tree` has written.

        Raises:
            KeyError: A part is missing.
            TypeError: A part is of another type.
        """

        def choice(entry: Mapping[str, Any]) -> LabelledLayer:
            return LabelledLayer(entry["label"], Layer(entry["tree"], entry["origins"]))

        return cls(
            base=Layer(**tree["base"]),
            methods=tuple(map(choice, tree["methods"])),
            data=tuple(map(choice, tree["data"])),
            grid={key: tuple(values) for key, values in tree["grid"].items()},
            seeds=int(tree["seeds"]),
            vary=tree["vary"],
            tuned=tree["tuned"],
            reference=tree.get("reference"),  # an earlier version did not write it
            untuned=tuple(map(str, tree.get("untuned", ()))),
        )


def check(design: Design) -> None:
    """Check what needs no data: numbers, names and the keys of the grid.

    Raises:
        ConfigError: The design cannot be carried out.
    """
    repetitions.check(design.vary)
    check_whole("seeds", design.seeds, 1)
    for kind, choices in (("method", design.methods), ("data set", design.data)):
        labels = [one.label for one in choices]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"the {kind} `{label}` is named twice. Name it once.")
    for key, values in design.grid.items():
        _check_axis(key, values, design)


def _check_axis(key: str, values: Sequence[Any], design: Design) -> None:
    """Raise a ConfigError if a key or its values cannot be varied by the grid."""
    grid = "`grid`"
    if key.startswith(FIXED):
        cure = (
            " The repetitions have other seeds: `seeds`."
            if key.endswith("seed")
            else f" Leave it out of {grid}."
        )
        raise ConfigError(f"{grid}: `{key}` cannot be varied.{cure}")
    if key.startswith("data.") and design.data[0].layer:
        raise ConfigError(f"{grid}: `{key}` cannot be varied together with `data`. Leave one out.")
    if not values:
        raise ConfigError(f"{grid}: `{key}` has no value. Write KEY=VALUE,VALUE.")
    texts = [json.dumps(value) for value in values]
    for value, text in zip(values, texts, strict=True):
        if texts.count(text) > 1:
            raise ConfigError(f"{grid}: `{key}` has the value {value!r} twice. Give it once.")
    section, _, name = key.partition(".")
    if section == "algorithm":
        methods = [one.layer.tree["algorithm"]["name"] for one in design.methods]
        known = {one.layer.tree["algorithm"]["name"]: _keys(one) for one in design.methods}
        if not any(name in fields for fields in known.values()):
            every = sorted({field for fields in known.values() for field in fields} - {"name"})
            raise ConfigError(
                f"{grid}: none of {', '.join(methods)} has the key `{key}`."
                f"{did_you_mean(name, every)}"
            )


def cells(design: Design) -> list[Job]:
    """Return the cells of a comparison, ordered by data set, setting, repetition and method.

    So the methods of a repetition are trained one after the other, and share its partition.

    Args:
        design: The design.

    Raises:
        ConfigError: A configuration is wrong. All errors are reported together, each once.
    """
    methods = [one for method in design.methods for one in _variants(method, design.grid)]
    found: list[Job] = []
    errors: dict[str, None] = {}
    for data, (words, values) in product(design.data, _settings(design.grid)):
        row = []
        for method in methods:
            layers = [DEFAULTS, design.base, method.layer, data.layer, values]
            try:
                row.append((method.label, *resolve(layers)))
            except ConfigError as error:
                errors |= dict.fromkeys(str(error).splitlines())
        for repetition in range(design.seeds):
            for label, base, origins in row:
                config, changed, last = _repetition(base, design.vary, repetition)
                parts = (label, data.label or base.data.title, *words, last)
                found.append(
                    Job(
                        "-".join(map(_safe, parts)),
                        label,
                        data.label,
                        ", ".join(words),
                        repetition,
                        config,
                        origins | dict.fromkeys(changed, ORIGIN),
                    )
                )
    if errors:
        raise ConfigError("\n".join(errors))
    return found


def without_invalid(design: Design) -> tuple[Design, dict[str, str]]:
    """Leave out the optional methods whose configuration is wrong.

    Args:
        design: The design.

    Returns:
        The design, and why methods are left out, by label.
    """
    reasons: dict[str, str] = {}
    for method in design.methods:
        if method.is_optional:
            try:
                cells(replace(design, methods=(method,), seeds=1))
            except ConfigError as error:
                reasons[method.label] = str(error)
    return without(design, reasons), reasons


def without(design: Design, labels: Container[str]) -> Design:
    """Return a design without the methods that have these labels."""
    return replace(design, methods=tuple(one for one in design.methods if one.label not in labels))


def seeds_of(design: Design, repetition: int) -> tuple[int, int]:
    """Return the seed, and the seed of the partition, of the cells of a repetition.

    Args:
        design: The design.
        repetition: Number of the repetition, from 0.
    """
    config, _, _ = _repetition(as_data([DEFAULTS, design.base]), design.vary, repetition)
    return config.seed, config.partition_seed


def _repetition(base: Config, vary: Vary, repetition: int) -> tuple[Config, tuple[str, ...], str]:
    """Return the configuration of a repetition, the keys that it sets, and the end of its name."""
    seed, partition = repetitions.seeds_of(vary, base.seed, base.partition_seed, repetition)
    config = base.altered(seed=seed, partition=base.partition.altered(seed=partition))
    last = f"partition{partition}" if vary == "partition" else f"seed{seed}"
    return config, ("seed", "partition.seed"), last


def _variants(method: LabelledLayer, grid: Mapping[str, Sequence[Any]]) -> Iterator[LabelledLayer]:
    """Yield a method with each combination of the values of those keys of the grid that it has."""
    known = _keys(method)
    own = {
        key: values
        for key, values in grid.items()
        if key.startswith("algorithm.") and key.partition(".")[2] in known
    }
    for combination in product(*own.values()):
        values = dict(zip(own, combination, strict=True))
        words = " ".join(_words(values))
        layer = _with(method.layer, values)
        yield LabelledLayer(f"{method.label} {words}".rstrip(), layer)


def _keys(method: LabelledLayer) -> Mapping[str, Any]:
    """Return the keys of a method."""
    section = method.layer.tree["algorithm"]
    keys: Mapping[str, Any] = ALGORITHMS.find(
        section["name"], section.get("source")
    ).Config.model_fields
    return keys


def _settings(grid: Mapping[str, Sequence[Any]]) -> list[tuple[list[str], Layer]]:
    """Return the combinations of values of the keys outside `algorithm`: words and layers."""
    keys = [key for key in grid if not key.startswith("algorithm.")]
    return [
        (_words(values), _with(Layer(), values))
        for values in (
            dict(zip(keys, combination, strict=True))
            for combination in product(*(grid[key] for key in keys))
        )
    ]


def _with(layer: Layer, values: Mapping[str, Any]) -> Layer:
    """Return a layer with more values by dotted key."""
    return merge([layer, from_values(values, "grid")])


def _words(values: Mapping[str, Any]) -> list[str]:
    """Return values as `key=value`; a key is shortened to its last part if that is unambiguous.

    >>> _words({"partition.alpha": 0.1, "model.name": "mlp", "train.optimizer.name": "sgd"})
    ['alpha=0.1', 'model.name=mlp', 'train.optimizer.name=sgd']
    """
    last = [key.rpartition(".")[2] for key in values]
    return [
        f"{short if last.count(short) == 1 else key}={_text(value)}"
        for short, (key, value) in zip(last, values.items(), strict=True)
    ]


def _text(value: Any) -> str:
    """Return a value on one line."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def _safe(text: str) -> str:
    """Return a text as a part of a folder's name; texts that differ stay different.

    >>> _safe("alpha=0.1"), _safe("a b/c")
    ('alpha=0.1', 'a_b_c~539138')
    """
    safe = re.sub(r"[^\w.=+]", "_", text, flags=re.ASCII)[:LENGTH].lstrip(".") or "_"
    return safe if safe == text else f"{safe}~{hashlib.sha256(text.encode()).hexdigest()[:6]}"
