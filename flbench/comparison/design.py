"""The design of a comparison: methods x data sets x settings x repetitions, and its cells.

As JSON it is what comparison.json says of the comparison.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from flbench.config.resolve import as_data, resolve
from flbench.config.schema import CHECKPOINT_SECONDS, Config
from flbench.config.sources import Layer, from_values, merge
from flbench.core.errors import ConfigError, UserError, did_you_mean
from flbench.core.own_names import check_whole
from flbench.core.registry import ALGORITHMS
from flbench.jobs import repetitions
from flbench.jobs.job import Job
from flbench.jobs.repetitions import Vary

ORIGIN: Final = "flbench compare"
"""Origin of the values that the design sets in the configuration of a cell."""
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
SECTION: Final = "algorithm."
LENGTH: Final = 40  # characters of each part of the name of a cell's folder

Values = Annotated[
    Layer,
    PlainValidator(lambda given: given if isinstance(given, Layer) else Layer(**given)),
    PlainSerializer(Layer.written),
]


class LabelledLayer(BaseModel):
    """A method or a data set of a comparison: its label, and what it sets in the configuration.

    Attributes:
        label: Its name in the comparison.
        tree: The values.
        origins: Where they come from, by their dotted keys.
        own: Whether somebody chose the label, which the method then has beside other runs too.
        is_optional: Whether a method that cannot be trained is left out with a note, instead of an
            error that refuses the comparison.
    """

    model_config = ConfigDict(frozen=True)

    label: str
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    own: bool = False
    is_optional: bool = Field(default=False, exclude=True)

    @classmethod
    def of(cls, label: str, layer: Layer, **more: bool) -> Self:
        """Return a method or a data set that sets the values of a layer."""
        return cls(label=label, **layer.written(), **more)

    @property
    def layer(self) -> Layer:
        """What it sets in the configuration."""
        return Layer(self.tree, self.origins)

    @property
    def method(self) -> str:
        """Name of the algorithm of a method."""
        return str(self.tree["algorithm"]["name"])

    @property
    def keys(self) -> Mapping[str, Any]:
        """The keys that the algorithm of a method has."""
        found: Mapping[str, Any] = ALGORITHMS.find(
            self.method, self.tree["algorithm"].get("source")
        ).Config.model_fields
        return found

    def altered(self, *layers: Layer) -> Self:
        """Return the same method with the values of further layers."""
        return self.model_copy(update=merge([self.layer, *layers]).written())


class Design(BaseModel):
    """What a comparison is about, as the user asked for it.

    Attributes:
        base: Configuration that all cells share.
        methods: The methods, in the order of the tables. Each one sets `algorithm.name`.
        data: The data sets; the only one without a label is that of `base`.
        grid: Values of the varied keys by dotted key. Keys `algorithm.KEY` make variants of the
            methods that have such a key; each combination of values of the other keys is a setting.
        seeds: Number of repetitions of each method, data set and setting.
        vary: What differs between repetitions: the seed of the training (`training`), that of the
            partition (`partition`), or both (`both`).
        tuned: Study whose best parameters the methods have; None for none.
        reference: Label of the method with which each of the others is compared; None to compare
            all pairs of methods.
        untuned: Names of the methods that this study does not have. They have default parameters.
    """

    model_config = ConfigDict(frozen=True)

    base: Values
    methods: tuple[LabelledLayer, ...]
    data: tuple[LabelledLayer, ...] = (LabelledLayer(label=""),)
    grid: dict[str, tuple[Any, ...]] = {}
    seeds: int = 5
    vary: Vary = "both"
    tuned: str | None = None
    reference: str | None = None
    untuned: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        methods: Sequence[LabelledLayer],
        layers: Sequence[Layer],
        *,
        data: Sequence[LabelledLayer] = (),
        grid: Mapping[str, Sequence[Any]] | None = None,
        **settings: Any,
    ) -> Self:
        """Return the design of what a user asks for.

        Args:
            methods: The methods, with the values that each one has alone.
            layers: Layers of the configuration, from the lowest to the highest. Of their keys
                `algorithm.KEY` each method gets those that it has, or that no method has.
            data: The data sets; empty for that of the layers.
            grid: Varied values by dotted key.
            settings: Other attributes. Those that are None have their defaults.

        Raises:
            ConfigError: A number or a name is wrong, or the layers name a method or the data, too.
        """
        *files, given = layers or [Layer()]
        if methods and f"{SECTION}name" in given:
            raise ConfigError(
                f"`algorithm.name` ({given[f'{SECTION}name'].origin}) and the list of the methods"
                " both name methods. Leave one of the two out."
            )
        every = {key for one in methods for key in one.keys}
        found = []
        for one in methods:
            mine = merge([*files, merge([given, one.layer.where(_is_of_method)])])
            kept = [
                key for key in mine if _is_of_method(key) and _name(key) not in every - {*one.keys}
            ]
            found.append(one.altered(mine.where(kept.__contains__), one.layer))
        base = merge(layers).where(lambda key: not _is_of_method(key))
        if [one.label for one in data] == [""]:
            base, data = merge([base, data[0].layer]), ()
        options = {name: value for name, value in settings.items() if value is not None}
        check_whole("seeds", options.get("seeds", 1), 1)
        repetitions.check(options.get("vary", "both"))
        if data:
            options["data"] = tuple(data)
        axes = {key: tuple(some) for key, some in (grid or {}).items()}
        return cls(base=base, methods=tuple(found), grid=axes, **options)

    def altered(self, **values: Any) -> Self:
        """Return the design with other values of attributes."""
        return self.model_copy(update=values)

    def without(self, labels: Mapping[str, Any]) -> Self:
        """Return the design without the methods that have these labels."""
        return self.altered(methods=tuple(one for one in self.methods if one.label not in labels))

    def cells(self) -> list[Job]:
        """Return the cells, ordered by data set, setting, repetition and method.

        So the methods of a repetition are trained one after the other, and share its partition.

        Raises:
            ConfigError: A configuration is wrong. All errors are reported together, each once.
        """
        methods = [one for method in self.methods for one in _variants(method, self.grid)]
        found: list[Job] = []
        errors: dict[str, None] = {}
        for data, (words, values) in product(self.data, _settings(self.grid)):
            row = []
            for method in methods:
                layers = [DEFAULTS, self.base, method.layer, data.layer, values]
                try:
                    row.append((method.label, *resolve(layers)))
                except ConfigError as error:
                    errors |= dict.fromkeys(str(error).splitlines())
            for repetition, (label, base, origins) in product(range(self.seeds), row):
                config = self._repetition(base, repetition)
                last = f"seed{config.seed}"
                if self.vary == "partition":
                    last = f"partition{config.partition_seed}"
                found.append(
                    Job(
                        f"{_folder(label, data.label or base.data.title, *words)}-{last}",
                        label,
                        data.label,
                        ", ".join(words),
                        repetition,
                        config,
                        origins | dict.fromkeys(("seed", "partition.seed"), ORIGIN),
                    )
                )
        if errors:
            raise ConfigError("\n".join(errors))
        return found

    def seeds_of(self, repetition: int) -> tuple[int, int]:
        """Return the seed, and the seed of the partition, of the cells of a repetition, from 0."""
        config = self._repetition(as_data([DEFAULTS, self.base]), repetition)
        return config.seed, config.partition_seed

    def _repetition(self, base: Config, repetition: int) -> Config:
        """Return the configuration of a repetition."""
        seeds = repetitions.seeds_of(self.vary, base.seed, base.partition_seed, repetition)
        return base.altered(seed=seeds[0], partition=base.partition.altered(seed=seeds[1]))


def check(design: Design) -> None:
    """Check what needs no data: the labels, and the keys of the grid.

    Raises:
        ConfigError: The design cannot be carried out.
        UserError: No method is named.
    """
    if not design.methods:
        raise UserError("name the methods, for example `flbench compare hfcd fedavg`.")
    for kind, choices in (("method", design.methods), ("data set", design.data)):
        labels = [one.label for one in choices]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"the {kind} `{label}` is named twice. Name it once.")
        for choice in choices:
            if "tracking" in choice.layer.tree:  # comparison.json hides secrets of the base alone
                raise ConfigError(
                    f"`tracking` of the {kind} `{choice.label}`: set it for the whole comparison."
                )
    for key, values in design.grid.items():
        _check_axis(key, values, design)


def layers_of_each(
    methods: Sequence[LabelledLayer], layers: Sequence[Layer]
) -> dict[str, list[Layer]]:
    """Return the layers of each of several methods by its label; see `Design.of`.

    Raises:
        ConfigError: A method is named twice.
        UserError: No method is named.
    """
    design = Design.of(methods, layers)
    check(design)
    return {one.label: [design.base, one.layer] for one in design.methods}


def _is_of_method(key: str) -> bool:
    return key.startswith(SECTION)


def _name(key: str) -> str:
    """Return the key of a method in a dotted key, such as `tau` in `algorithm.tau`."""
    return key.split(".")[1]


def _check_axis(key: str, values: Sequence[Any], design: Design) -> None:
    """Raise a ConfigError if a key or its values cannot be varied by the grid."""
    if key.startswith(FIXED):
        cure = (
            "The repetitions have other seeds: `seeds`."
            if key.endswith("seed")
            else "Leave it out."
        )
        raise ConfigError(f"`grid`: `{key}` cannot be varied. {cure}")
    if key.startswith("data.") and design.data[0].tree:
        raise ConfigError(f"`grid`: `{key}` cannot be varied together with `data`. Leave one out.")
    texts = [json.dumps(value) for value in values]
    if not texts or len({*texts}) < len(texts):
        raise ConfigError(f"`grid`: `{key}` must have one or more values, each once.")
    if _is_of_method(key) and not any(_name(key) in one.keys for one in design.methods):
        every = sorted({field for one in design.methods for field in one.keys} - {"name"})
        methods = ", ".join(one.label for one in design.methods)
        raise ConfigError(
            f"`grid`: none of {methods} has the key `{key}`.{did_you_mean(_name(key), every)}"
        )


def _variants(method: LabelledLayer, grid: Mapping[str, Sequence[Any]]) -> Iterator[LabelledLayer]:
    """Yield a method with each combination of the values of those keys of the grid that it has."""
    known = method.keys
    own = [key for key in grid if _is_of_method(key) and _name(key) in known]
    for combination in product(*(grid[key] for key in own)):
        values = dict(zip(own, combination, strict=True))
        label = f"{method.label} {' '.join(words_of(values))}".rstrip()
        yield method.altered(from_values(values, "grid")).model_copy(update={"label": label})


def _settings(grid: Mapping[str, Sequence[Any]]) -> list[tuple[list[str], Layer]]:
    """Return the combinations of values of the keys outside `algorithm`: words and layers."""
    keys = [key for key in grid if not _is_of_method(key)]
    combinations = product(*(grid[key] for key in keys))
    found = [dict(zip(keys, combination, strict=True)) for combination in combinations]
    return [(words_of(values), from_values(values, "grid")) for values in found]


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Return values as `key=value`; a key is shortened to its last part if that is unambiguous.

    >>> words_of({"partition.alpha": 0.1, "model.name": "mlp", "train.optimizer.name": "sgd"})
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


def _folder(label: str, *others: str) -> str:
    """Return the first part of the name of a cell's folder, which no other cell has.

    Labels that could be read as those of another cell, or cannot be in a name, are told apart by a
    hash.

    >>> _folder("hfcd tuned", "digits", "alpha=0.1"), _folder("../a b/c", "digits")
    ('hfcd-tuned-digits-alpha=0.1', 'a-b-c-digits~52a43a')
    """
    texts = label, *others
    parts = (re.sub(r"[^\w.=+]+", "-", one, flags=re.ASCII)[:LENGTH].strip(".-") for one in texts)
    name = "-".join(one or "_" for one in parts)
    if name == "-".join((label.replace(" ", "-"), *others)) and "-" not in "".join(texts):
        return name
    return f"{name}~{hashlib.sha256(str(texts).encode()).hexdigest()[:6]}"
