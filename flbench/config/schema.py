"""The schema of the configuration: every key with its meaning, range, unit and default.

The keys of a method are defined in its module (`flbench/algorithms/NAME.py`), those of a net in
`flbench/models/NAME.py`; `algorithm.name` and `model.name` select them.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from math import cos, pi
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flbench.config.sources import leaves
from flbench.core import parts
from flbench.core.errors import ConfigError
from flbench.core.parts import OBJECT
from flbench.core.plain_yaml import scalar
from flbench.core.registry import ALGORITHMS, MODELS, TERMS
from flbench.core.text import redact_address

# Unless the user sets `evaluation.every`, a run of ten rounds or more has at least this number of
# evaluations; a shorter one has an evaluation after each round.
EVALUATIONS: Final = 10
CHECKPOINT_SECONDS: Final = 5.0
"""Seconds between two checkpoints of a training of a study or a comparison, by default."""
LONGEST_PERIOD: Final = 10  # most rounds between two of them, unless the user sets it

Scalar = bool | int | float | str
Argument = Scalar | Annotated[list[Scalar], Field(max_length=1000)]
"""A value of `partition.args` and `model.args`."""
DEFAULT_METHOD: Final = "hfcd"
DEFAULT_NET: Final = "mlp"
AS_DATA: Final = "as data"
"""Context of the validation of a configuration that flbench has recorded."""


class Strict(BaseModel):
    """Base class of all sections: immutable; refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        validate_default=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a boolean where a number is expected; pydantic would accept `true` as 1.

        A section that is null has its defaults, and a choice may be a number's text.
        """
        kind = cls.model_fields[str(info.field_name)].annotation
        if value is None and isinstance(kind, type) and issubclass(kind, Strict):
            return {}
        if isinstance(value, str) and kind in (int, int | None):
            return found if type(found := scalar(value)) is float else value  # 1e3, as in a file
        if isinstance(value, str) and get_origin(kind) is Literal:
            return value if value in get_args(kind) else scalar(value)
        if isinstance(value, bool) and kind in (int, float, int | None, float | None):
            raise ValueError("a number")
        return value

    def altered(self, **values: object) -> Self:
        """Return a copy with other values. The values are not checked, only their names.

        Raises:
            ValueError: There is no key of such a name.
        """
        if unknown := values.keys() - type(self).model_fields.keys():
            raise ValueError(f"{type(self).__name__} has no keys {sorted(unknown)}")
        return self.model_copy(update=values)


UserPath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)))]


def _form(pattern: str, words: str) -> AfterValidator:
    """Return a check of texts of a form, which messages call by these words."""

    def checked(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(words)
        return text

    return AfterValidator(checked)


OwnPath = Annotated[
    str,
    _form(
        rf"{OBJECT}|(?!{OBJECT}:)[\w.]+:[\w.]+",
        "an import path, such as `FILE.py:function`",
    ),
]
"""Import path of a part of the user's own; `object` for one without."""
Sha256 = Annotated[str, _form("[0-9a-f]{64}", "a SHA-256: 64 of the digits 0 to 9 and a to f")]


def _in_one_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of columns sorted and each once, because their order changes nothing."""
    if any(not name.strip() for name in names):
        raise ValueError("names of columns, which are not empty")
    return tuple(sorted(set(names)))


def _number_share_or_names(value: object) -> object:
    """Return a number of clients, a share below 1 of all, or names; also for the text of one."""
    if isinstance(value, list | tuple) and value:
        return tuple(sorted({str(name) for name in value}))
    value = scalar(value) if isinstance(value, str) else value
    if value is None or (type(value) is int and value >= 1):
        return value
    if type(value) is float and 0 < value < 1:
        return value
    raise ValueError("a number of clients, >= 1, a share between 0 and 1, or a list of their names")


def _column(name: object) -> object:
    """Return the name of a column or a class, which YAML may read as a number, as text."""
    return str(name) if type(name) in (int, float) else name


Column = Annotated[StrictStr, BeforeValidator(_column)]
Columns = Annotated[tuple[Column, ...], AfterValidator(_in_one_order)]


class GivenNormalization(Strict):
    """Section `data.normalize`: (x - mean) / std by numbers that are known beforehand."""

    mean: tuple[float, ...] = Field(
        description="mean of each channel or column, or one for all; of pixels in [0, 1]",
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        description="standard deviation of each channel or column, or one for all; of pixels in"
        " [0, 1]",
    )


def _numbers(value: object) -> object:
    """Return a section of numbers as such, so that its errors have its keys."""
    return GivenNormalization.model_validate(value) if isinstance(value, dict) else value


HUGGING_FACE: Final = "hf:"
"""Beginning of `data.name` for a data set of the package `datasets`."""


class ArraysConfig(Strict):
    """Section `data.arrays`: names of arrays in an NPZ file that has names of its own."""

    samples: str | None = Field(None, description="NPZ: array to read as `train_images`")
    labels: str | None = Field(None, description="NPZ: array to read as `train_labels`")
    clients: str | None = Field(
        None, description="NPZ: array to read as `train_groups`, the natural client of each sample"
    )
    classes: str | None = Field(None, description="NPZ: array to read as `class_names`")
    test_samples: str | None = Field(None, description="NPZ: array to read as `test_images`")
    test_labels: str | None = Field(None, description="NPZ: array to read as `test_labels`")

    def renamed(self) -> dict[str, str]:
        """Return the names in the file by the names that flbench reads.

        >>> ArraysConfig(samples="windows", clients="subject").renamed()
        {'train_images': 'windows', 'train_groups': 'subject'}
        """
        read = ("train_images", "train_labels", "train_groups", "class_names")
        both = zip((*read, "test_images", "test_labels"), self.model_dump().values(), strict=True)
        return {name: found for name, found in both if found is not None}


class TextConfig(Strict):
    """Section `data.text`: samples of texts (.txt), windows and the character after each."""

    window: int = Field(
        80, ge=1, description="texts: characters of a sample; its class is the character after them"
    )
    stride: int = Field(
        1, ge=1, description="texts: characters between the beginnings of two windows"
    )
    shortest: int | None = Field(
        None,
        ge=1,
        description="texts: characters of the shortest text that is a client; shorter ones are left"
        " out (default: those without a window)",
    )


class DataConfig(Strict):
    """Section `data`: the data set."""

    name: str = Field(
        "digits",
        description="data set; `flbench data` lists those that flbench knows; hf:OWNER/NAME is"
        " one of Hugging Face's package `datasets`",
    )
    root: UserPath = Field(
        Path("data"), description="folder in which NAME.npz, NAME.zip or NAME/ is searched"
    )
    path: UserPath | None = Field(
        None, description="a data file or folder, instead of a search by name"
    )
    layout: Literal["auto", "channels_last", "channels_first"] = Field(
        "auto",
        description="NPZ: axes of images with channels: channels_last [n, H, W, C] (NumPy, Pillow,"
        " TensorFlow's NHWC), channels_first [n, C, H, W] (PyTorch's NCHW); auto: the axis that has"
        " 1 or 3 entries",
    )
    kind: Literal["auto", "images", "series", "table", "tokens"] = Field(
        "auto",
        description="what the samples of arrays are: images; series [n, channels, length]; table"
        " [n, columns]; tokens [n, length], integers that the net looks up; auto: by axes and type",
    )
    arrays: ArraysConfig = Field(ArraysConfig(), description="NPZ: names of the arrays")
    padding: int | None = Field(
        None, ge=0, description="tokens: id that fills up shorter sequences (default: none)"
    )
    resize: (
        Annotated[int, Field(ge=1)]
        | tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
        | None
    ) = Field(
        None,
        description="image files: size [height, width] that all images are resized to, or one"
        " number for both; null for images of one size",
    )
    text: TextConfig = Field(TextConfig(), description="samples of texts")
    client: str | None = Field(
        None,
        description="images: `folder` reads CLIENT/CLASS/*, with a natural client in each folder"
        " (partition.scheme=natural); hf:OWNER/NAME: column of the natural client",
    )
    source: OwnPath | None = Field(
        None,
        description="a function of your own, `package.module:name`, that returns the data, instead"
        " of a search by name; `object` for data given in Python",
    )
    sha256: Sha256 | None = Field(
        None, description="SHA-256 of the samples of `source`; flbench writes it to config.yaml"
    )
    normalize: Annotated[
        Literal["standard", "none", "client"] | GivenNormalization,
        BeforeValidator(_numbers),
    ] = Field(
        "standard",
        description="standard: zero mean and unit variance of each channel or column over all"
        " training parts; none: inputs as they are; client: zero mean and unit variance over the"
        " client's own training part, so that clients share no statistics; or {mean: [...], std:"
        " [...]}, numbers of your own",
    )
    imbalance: float = Field(
        1.0,
        gt=0,
        le=1,
        description="samples of the rarest class over those of the most frequent one, among those"
        " that are distributed: a long tail over the classes, in an order that all runs share; 1"
        " keeps all samples",
    )
    augment: tuple[Literal["crop", "flip"], ...] = Field(
        (),
        description="augmentation of training images: crop (after padding by 4 pixels), flip (left"
        " and right)",
    )
    label: Column | None = Field(
        None,
        description="tables: column of the label (default: the last), or a rule such as `num > 0`",
    )
    drop: Columns = Field(
        (),
        description="tables with named columns: columns that are left out, such as identifiers",
    )
    group: Column | None = Field(
        None,
        description="tables: column, and NPZ: array, of what several samples come from, such as a"
        " patient or a device; samples of one group stay in one part of a client (training,"
        " validation or test), and the column is no input",
    )

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        """Refuse two places of the data."""
        if self.source is not None and self.path is not None:
            raise ValueError("`data.source` and `data.path` are both set: leave one of them out")
        return self

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width that image files are resized to; None if they stay as they are."""
        return (self.resize, self.resize) if isinstance(self.resize, int) else self.resize

    @property
    def title(self) -> str:
        """Name of the data set: that of the file, folder or function if there is one, else `name`.

        >>> DataConfig(path="files/hospitals.zip").title
        'hospitals'
        """
        if self.path is None and self.source is None and self.name.startswith(HUGGING_FACE):
            return self.name.removeprefix(HUGGING_FACE).rstrip("/").rpartition("/")[2]
        if self.source is not None and ":" in self.source:
            return self.source.rpartition(":")[2]
        return self.name if self.path is None else self.path.stem


SchemeName = Literal[
    "iid",
    "dirichlet",
    "pathological",
    "grouped",
    "quantity",
    "shards",
    "extended_dirichlet",
    "similarity",
    "target",
    "natural",
    "file",
]
DEALT: Final = (
    *("iid", "dirichlet", "pathological", "grouped", "quantity", "shards", "extended_dirichlet"),
    *("similarity", "target"),
)
SCHEME_KEYS: Final = {
    "alpha": ("dirichlet", "quantity", "extended_dirichlet", "target"),
    "balanced": ("dirichlet",),
    "classes_per_client": ("pathological", "extended_dirichlet"),
    "shards": ("shards",),
    "similarity": ("similarity",),
    "bins": ("target",),
    "main_classes": ("grouped",),
    "main_share": ("grouped",),
    "samples_per_client": ("grouped",),
    "path": ("file",),
    "split": (*DEALT, "natural"),
    "pool": (*DEALT, "natural"),
    "samples": (*DEALT, "natural"),
    "min_samples": DEALT,
}
"""Schemes that use a key of the section `partition`, for keys that some of them ignore."""


class PartitionConfig(Strict):
    """Section `partition`: how samples are distributed to clients."""

    scheme: SchemeName | OwnPath = Field(
        "dirichlet",
        description="scheme by which samples are distributed to clients; or package.module:name, a"
        " function of your own",
    )
    clients: int | None = Field(
        None,
        ge=1,
        description="number of clients N (default: 20; under `natural` all natural clients)",
    )
    alpha: float = Field(
        0.1,
        gt=0,
        description="dirichlet, quantity, extended_dirichlet, target: concentration; a smaller one"
        " gives more skew",
    )
    balanced: bool = Field(
        False, description="dirichlet: give all clients the same number of samples"
    )
    classes_per_client: int = Field(
        2, ge=1, description="pathological, extended_dirichlet: number of classes of each client"
    )
    shards: int = Field(
        2,
        ge=1,
        description="shards: number of a client's pieces of the samples sorted by class",
    )
    similarity: float = Field(
        0.1,
        ge=0,
        le=1,
        description="similarity: share of a client's samples that are drawn at random; the others"
        " are a piece of the samples sorted by class",
    )
    bins: int = Field(
        10,
        ge=2,
        description="target: number of intervals of the target, with equally many samples, whose"
        " shares differ between clients",
    )
    main_classes: tuple[int, ...] = Field(
        (2, 3, 5), description="grouped: number of main classes of each group, in class order"
    )
    main_share: float = Field(
        0.8, gt=0, le=1, description="grouped: share of a client's samples from main classes"
    )
    samples_per_client: int | None = Field(
        None,
        ge=1,
        description="grouped: samples of each client (default: as many as the rarest class allows)",
    )
    split: tuple[float, float, float] = Field(
        (0.6, 0.2, 0.2), description="shares of a client's samples for [train, validation, test]"
    )
    pool: Literal["train", "merged"] = Field(
        "train",
        description="samples to distribute: the data set's train part (its test part becomes the"
        " common test set), or both parts merged",
    )
    samples: int | None = Field(
        None,
        ge=1,
        description="number of samples to distribute, drawn in proportion to the classes (default:"
        " all)",
    )
    min_samples: int = Field(10, ge=1, description="smallest number of samples of a client")
    seed: int | None = Field(None, ge=0, description="seed of the partition (default: `seed`)")
    path: UserPath | None = Field(None, description="file: the saved partition, NAME.npz")
    args: dict[str, Argument] | None = Field(
        None,
        description="keyword arguments of a function of your own: numbers, booleans, texts, and"
        " lists of them",
    )
    sha256: Sha256 | None = Field(
        None,
        description="SHA-256 of the source file of a function of your own, or of the partition that"
        " an object made; flbench writes it to config.yaml",
    )

    new_clients: Annotated[
        int | float | tuple[str, ...] | None, BeforeValidator(_number_share_or_names)
    ] = Field(
        None,
        description="clients that join after the training: a number, or a share below 1 of all"
        " clients, which are drawn at random; or a list of the names of natural clients; they train"
        " in no round, and no statistic uses their samples (default: none)",
    )

    @field_validator("split")
    @classmethod
    def _has_sum_one(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        """Refuse values that are no shares, or leave nothing to train on."""
        if min(value) < 0 or abs(sum(value) - 1) > 1e-6 or value[0] == 0:
            raise ValueError("three shares >= 0 that sum to 1, the first one > 0")
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        """Refuse a saved partition without a file."""
        if self.scheme == "file" and self.path is None:
            raise ValueError("`partition.scheme=file` needs `partition.path`, the saved partition")
        return self

    @property
    def is_own(self) -> bool:
        """Whether the scheme is a function of the user."""
        return self.scheme not in get_args(SchemeName)

    @property
    def title(self) -> str:
        """Name of the scheme in tables and folders: that of the function if it is the user's.

        >>> PartitionConfig(scheme="my_schemes:by_label").title
        'by_label'
        """
        return self.scheme.rpartition(":")[2]


class ShiftConfig(Strict):
    """Section `shift`: how samples and labels differ between groups of clients.

    Client k is in group k mod G. All parts of a client are shifted in the same way, and samples
    without a client, such as the common test set, are not.
    """

    groups: int | None = Field(
        None,
        ge=1,
        description="number of groups G (default: as many as the longest list has values; without"
        " a list, each client is a group of its own)",
    )
    rotation: tuple[float, ...] | None = Field(
        None,
        min_length=1,
        description="images: angle of each group, counter-clockwise, such as [0, 90, 180, 270]",
        json_schema_extra={"unit": "degrees"},
    )
    noise: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        None,
        min_length=1,
        description="images: standard deviation of Gaussian noise, as a share of the range of"
        " pixels; it is drawn once for each sample",
    )
    labels: bool = Field(
        False, description="concept shift: permute the classes of labels; group 0 keeps its labels"
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is shifted."""
        return bool(self.rotation or self.noise or self.labels)


class LoraConfig(Strict):
    """Section `model.lora`: low-rank adapters by the package PEFT."""

    rank: int | None = Field(
        None,
        ge=1,
        description="rank of the adapters, which the head trains with, at most that of a layer's"
        " weight (null: none)",
    )
    alpha: float = Field(8.0, gt=0, description="numerator of the adapters' factor alpha / rank")
    targets: tuple[StrictStr, ...] = Field(
        (),
        description="layers that get an adapter, patterns of names such as [fc1, '*.attn.qkv']"
        " (default: the linear layers below the head, or the convolutions if there are none)",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the adapters' inputs")


class ModelConfig(Strict):
    """Section `model`: the net. Each net adds keys of its own."""

    name: str = Field(DEFAULT_NET, description="net")
    weights: str | None = Field(
        None,
        description="weights that all clients start from: a file (safetensors, or a state dict in"
        " .pth), or the name of pretrained weights, such as DEFAULT, of a net of torchvision or"
        " timm (default: drawn from `seed`)",
    )
    weights_sha256: Sha256 | None = Field(
        None, description="SHA-256 of the weights; flbench writes it to config.yaml"
    )
    freeze: Literal["none", "backbone"] | tuple[StrictStr, ...] = Field(
        "none",
        min_length=1,
        description="parameters that no method trains, sends or keeps: none, backbone (all but the"
        " head), or patterns of names, such as [conv1, stage?_*]",
    )
    lora: LoraConfig = Field(LoraConfig(), description="adapters of low rank that are trained")
    cache: Literal["auto", "off"] = Field(
        "auto",
        description="auto: outputs of the first layers are computed once if model.freeze freezes"
        " them and they are the same in each step; off: in each step",
    )


class OwnModelConfig(ModelConfig):
    """Section `model` of a net of the user, whose `name` is `package.module:name` or `object`."""

    head: str | None = Field(
        None,
        description="submodule that computes the logits (default: the last linear layer; with"
        " `lightning` the linear layer whose outputs `forward` returns)",
    )
    channels: int | None = Field(
        None,
        ge=1,
        description="channels of the images that the net takes: grey images are repeated to as many"
        " (default: images are given as they are)",
    )
    lightning: bool = Field(
        False,
        description="train a LightningModule by its own training_step and configure_optimizers"
        " instead of the cross entropy and train.optimizer",
    )
    args: dict[str, Argument] | None = Field(
        None,
        description="keyword arguments of the function or class that makes the net: numbers,"
        " booleans, texts, and lists of them",
    )
    sha256: Sha256 | None = Field(
        None,
        description="SHA-256 of the source file, or of an object; flbench writes it to config.yaml",
    )
    fixed: str | None = Field(
        None,
        description="numbers of the net's frozen parameters and of its modules in eval mode, if"
        " there are any; flbench writes it to config.yaml",
    )


class AlgorithmConfig(Strict):
    """Section `algorithm`: the method. Each method adds keys of its own."""

    name: str = Field(DEFAULT_METHOD, description="method; `flbench algos` lists them")
    agg_weights: Literal["samples", "uniform"] = Field(
        "samples",
        description="weight of a client in a mean over the cohort: its number of training samples,"
        " or 1",
    )
    source: OwnPath | None = Field(
        None,
        description="class of a method of your own, `package.module:name`, or `object` for one of a"
        " script or notebook; flbench writes it to config.yaml",
    )
    sha256: Sha256 | None = Field(
        None,
        description="SHA-256 of the source of a method of your own and of the modules of the same"
        " package or folder that it imports; flbench writes it to config.yaml",
    )


class RecordedAlgorithmConfig(AlgorithmConfig):
    """Section `algorithm` of a configuration that is read as data, without the method's code."""

    model_config = ConfigDict(extra="allow")
    agg_weights: ClassVar[Any] = "samples"  # type: ignore[misc]  # in the tree only if the file has it


class RecordedModelConfig(ModelConfig):
    """Section `model` of a configuration that is read as data, without the net's code."""

    model_config = ConfigDict(extra="allow")


class UniformConfig(AlgorithmConfig):
    """Section `algorithm` of a method whose paper or code gives all clients the same weight."""

    agg_weights: Literal["samples", "uniform"] = Field(
        "uniform",
        description="weight of a client in a mean over the cohort: 1, or its number of training"
        " samples",
    )


def epochs(default: int | None, description: str, *, ge: int = 1) -> Any:
    """Return a pydantic field for a number of epochs.

    Args:
        default: Default value; None if the default depends on other keys, which the description
            explains.
        description: What is trained for this number of epochs, and when.
        ge: Smallest value.
    """
    return Field(default, ge=ge, description=description, json_schema_extra={"unit": "epochs"})


class OptimizerConfig(Strict):
    """Section `train.optimizer`: the local optimizer.

    A new optimizer is created in each phase of each round, so no momentum is carried over.
    """

    name: Literal["sgd", "adam", "adamw"] = Field("sgd", description="optimizer")
    lr: float = Field(0.01, ge=0, description="learning rate of the first round")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum")
    nesterov: bool = Field(False, description="sgd: Nesterov momentum (needs momentum > 0)")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")

    @model_validator(mode="after")
    def _has_momentum(self) -> Self:
        """Refuse Nesterov momentum without momentum."""
        if self.nesterov and self.momentum == 0:
            raise ValueError("`train.optimizer.nesterov` needs `train.optimizer.momentum` > 0")
        return self


class ScheduleConfig(Strict):
    """Section `train.schedule`: the learning rate as a function of the round.

    It does not depend on how often a client has participated.
    """

    name: Literal["constant", "cosine", "exponential", "step"] = Field(
        "constant", description="shape of the schedule"
    )
    decay: float = Field(
        0.1,
        gt=0,
        le=1,
        description="step: factor at each step; exponential: factor over the whole run",
    )
    every: int = Field(50, ge=1, description="step: rounds between two steps")
    final: float = Field(
        0.0, ge=0, le=1, description="cosine: last learning rate as a share of the first"
    )

    def lr_factor(self, done: int, rounds: int) -> float:
        """Return the factor in [0, 1] that multiplies the learning rate of one round.

        With s = done / rounds it is 1 for `constant`, final + (1 - final) (1 + cos(pi s)) / 2 for
        `cosine`, decay^s for `exponential`, and decay^floor(done / every) for `step`. In the last
        round done = rounds - 1, so the factor of `cosine` is still above a `final` < 1.

        Args:
            done: Number of rounds completed before it, in [0, rounds]; `rounds` in a set-up stage
                after the last round.
            rounds: Number of rounds of the run, at least 1.

        >>> ScheduleConfig(name="step", decay=0.5, every=10).lr_factor(25, 100)
        0.25
        """
        if self.name == "cosine":
            return self.final + (1 - self.final) * (1 + cos(pi * done / rounds)) / 2
        if self.name == "exponential":
            return float(self.decay ** (done / rounds))
        if self.name == "step":
            return float(self.decay ** (done // self.every))
        return 1.0


class EarlyStoppingConfig(Strict):
    """Section `train.early_stopping`: ends a run when a metric does not improve any more.

    It is off unless `patience` is set.
    """

    metric: str = Field(
        "validation/personal/accuracy",
        description="metric that must improve, as split/protocol/metric of metrics.csv; train/loss"
        " where there is no protocol",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="evaluations without an improvement after which the run stops (default: it"
        " does not stop early)",
    )
    min_delta: float = Field(
        0.0, ge=0, description="an improvement is a change of the metric by more than this"
    )
    mode: Literal["max", "min"] | None = Field(
        None,
        description="whether a larger or a smaller value is better (default: what is known of the"
        " metric)",
    )


class TermConfig(Strict):
    """An entry of `train.terms`: a loss term. Each term adds keys of its own."""

    name: str = Field(
        description="loss term; or package.module:name, a function of one's own, whose further keys"
        " are its keyword arguments"
    )
    weight: float = Field(
        1.0, gt=0, description="factor of the term, where the method's cross entropy has factor 1"
    )
    instead: bool = Field(
        False,
        description="take the term instead of the method's cross entropy; false adds it to that",
    )


class RecordedTermConfig(TermConfig):
    """An entry of `train.terms` of a configuration that is read as data, without its code."""

    model_config = ConfigDict(extra="allow")
    weight: Any = 1.0
    instead: Any = False


class OwnTermConfig(TermConfig):
    """An entry of `train.terms` that names a function by its import path, `package.module:name`.

    Keys other than those below are keyword arguments of the function: numbers, booleans or words.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr]

    sha256: Sha256 | None = Field(
        None, description="SHA-256 of the function's source file; flbench writes it to config.yaml"
    )

    def arguments(self) -> dict[str, Scalar]:
        """Return the keyword arguments of the function, by name."""
        return dict(self.__pydantic_extra__)


def method_class(section: dict[str, Any]) -> type[AlgorithmConfig]:
    """Return the class of the keys of a method.

    A name that is an import path becomes that under which the method is registered, and a method
    that is not flbench's own gets the place that it is imported from.

    Args:
        section: Section `algorithm`; it is changed.

    Raises:
        ConfigError: There is no such method, `source` or `sha256` is given for a method of flbench,
            or a method of the user's own has such a key.
    """
    name, given = str(section.get("name", DEFAULT_METHOD)), section.get("source")
    if ":" in name:
        name = section["name"] = ALGORITHMS.adopt(parts.find(name), name)
    found = ALGORITHMS.find(name, None if given is None else str(given))
    source = ALGORITHMS.source(found)
    kind: type[AlgorithmConfig] = found.Config
    for key in ("source", "sha256"):
        if source is None and section.get(key) is not None:
            raise ConfigError(
                f"`algorithm.{key}={section[key]}` is that of another method than flbench's"
                f" `{name}`. Leave it out, or register your class under another name."
            )
        if kind.model_fields[key].description != AlgorithmConfig.model_fields[key].description:
            raise ConfigError(
                f"the method `{name}` has a key `{key}`, in which flbench records its source. Give"
                f" the key of {kind.__qualname__} another name."
            )
    section["source"] = source
    return kind


def net_class(section: dict[str, Any]) -> type[ModelConfig]:
    """Return the class of the keys of a net; see `method_class`."""
    name = str(section.get("name", DEFAULT_NET))
    kind: type[ModelConfig] = OwnModelConfig
    return kind if ":" in name or name == OBJECT else MODELS.find(name).Config


def term_class(section: dict[str, Any]) -> type[TermConfig]:
    """Return the class of the keys of a loss term; see `method_class`."""
    if "name" not in section:
        return TermConfig
    name = str(section["name"])
    kind: type[TermConfig] = OwnTermConfig
    return kind if ":" in name else TERMS.find(name).Config


def _section_of(
    find: Callable[[dict[str, Any]], type[Strict]], recorded: type[Strict]
) -> BeforeValidator:
    """Return a validator of a section whose keys depend on the name in it.

    Args:
        find: Function from the section to the class of its keys.
        recorded: The class if the section is read as data: then nothing is imported.
    """

    def made(value: Any, info: ValidationInfo) -> Any:
        section = {"name": value} if isinstance(value, str) else value
        if not isinstance(section, dict):
            return section
        if info.context == AS_DATA:
            return recorded.model_validate(section, context=AS_DATA)
        section = dict(section)
        try:
            return find(section).model_validate(section)
        except ConfigError as error:
            raise PydanticCustomError("sentence", "{why}", {"why": str(error)}) from error

    return BeforeValidator(made)


Method = Annotated[
    SerializeAsAny[AlgorithmConfig], _section_of(method_class, RecordedAlgorithmConfig)
]
Net = Annotated[SerializeAsAny[ModelConfig], _section_of(net_class, RecordedModelConfig)]
Term = Annotated[SerializeAsAny[TermConfig], _section_of(term_class, RecordedTermConfig)]


class TrainConfig(Strict):
    """Section `train`: local training, the same for all methods."""

    rounds: int = Field(100, ge=1, description="number of communication rounds T")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients in each round")
    local_epochs: int | None = Field(
        5, ge=1, description="local epochs E of a client in a round; null with local_steps"
    )
    local_steps: int | None = Field(
        None,
        ge=1,
        description="optimizer steps of a client in a round instead of local_epochs, on batches of"
        " successive shuffled epochs; not with partition.new_clients",
    )
    batch_size: int = Field(32, ge=1, description="batch size B")
    last_batch: Literal["keep", "wrap", "drop"] = Field(
        "keep",
        description="last batch of an epoch if it is smaller than B: keep it, fill it up with the"
        " first samples of the epoch (wrap), or drop it",
    )
    batchnorm: Literal["average", "local", "drop"] = Field(
        "average",
        description="BatchNorm statistics: averaged like the weights, kept by the client (local),"
        " or discarded and re-estimated for each evaluation (drop)",
    )
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="local optimizer")
    schedule: ScheduleConfig = Field(ScheduleConfig(), description="learning rate by round")
    clip: float | None = Field(
        None, gt=0, description="largest norm of the gradient in a client's step"
    )
    on_divergence: Literal["skip", "stop"] = Field(
        "skip",
        description="if a client's values are not finite: leave it out of the round, or stop the"
        " run",
    )
    early_stopping: EarlyStoppingConfig = Field(
        EarlyStoppingConfig(), description="end of a run that does not improve any more"
    )
    terms: tuple[Term, ...] = Field(
        (),
        description="loss terms that are added to the cross entropy of any method, or take its"
        " place; a list such as [{name: focal, gamma: 2, weight: 0.5}]",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_one_length(cls, value: Any) -> Any:
        """Refuse epochs beside steps, and neither; the default of epochs gives way to steps."""
        if not isinstance(value, dict):
            return value
        epochs, steps = value.get("local_epochs", 5), value.get("local_steps")
        if steps is not None and "local_epochs" not in value:
            return {**value, "local_epochs": None}
        if (epochs is None) == (steps is None):
            raise ValueError(
                "set either `train.local_epochs` or `train.local_steps`, and the other to null; got"
                f" {epochs} and {steps}"
            )
        return value

    def epochs_of(self, method: str) -> int:
        """Return `local_epochs` for a method that divides them.

        Raises:
            ConfigError: There are `local_steps` instead.
        """
        if self.local_epochs is None:
            raise ConfigError(
                f"`train.local_steps={self.local_steps}`: {method} divides the epochs of a round."
                " Set `train.local_epochs` instead."
            )
        return self.local_epochs


class EngineConfig(Strict):
    """Section `engine`: what trains the clients. Results depend on it only by rounding."""

    name: Literal["sequential", "vectorized", "ray", "auto"] = Field(
        "auto",
        description="sequential: one client after the other; vectorized: blocks of clients at"
        " once; ray: clients distributed over worker processes; auto: vectorized on a GPU, and for"
        " a net without convolutions and with at most 131,072 scalars, if clients can be stacked;"
        " otherwise sequential",
    )
    workers: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="processes that train clients at the same time; auto: as many as are worth it,"
        " at most one per core, and one on a GPU (ray: one per core or GPU); a number of processes"
        " on GPUs takes them in turn; the digest does not depend on it",
    )
    address: str | None = Field(
        None,
        description="ray: address of a running cluster, or auto to find one (default: start one)",
    )
    device: Annotated[
        str, _form(r"auto|cpu|cuda(:[0-9]{1,4})?", "auto, cpu, cuda or cuda:INDEX")
    ] = Field(
        "auto",
        description="auto, cpu, cuda or cuda:INDEX",
    )
    block: int | None = Field(
        None,
        ge=1,
        description="vectorized: clients trained at once (default: as many as memory allows); the"
        " digest depends on it",
    )
    precision: Literal["32-true", "64-true", "tf32", "bf16-mixed", "16-mixed"] = Field(
        "32-true",
        description="floating-point type; tf32: float32, with factors of products rounded to TF32",
    )
    compile: Literal["off", "on", "auto"] = Field(
        "off",
        description="vectorized, on a GPU: on compiles the gradients of each phase, which takes"
        " about half a minute; auto: on if the training has 6e14 operations or more",
    )
    threads: int = Field(
        1,
        ge=1,
        description="CPU threads of PyTorch in each process that trains; more than 1 helps large"
        " nets where cohorts have fewer clients than the machine has cores; the digest depends on"
        " it",
    )
    state_memory: float = Field(
        2.0,
        ge=0,
        description="largest size in memory of the tensors that clients keep, of those that the"
        " server keeps, and of a round's results; larger ones are mapped files under output.dir",
        json_schema_extra={"unit": "GiB"},
    )
    wait_seconds: float = Field(
        300.0,
        ge=1,
        description="ray: longest wait for a node with free CPUs or GPUs while nothing is trained;"
        " then the run, study or comparison ends, and can be resumed",
        json_schema_extra={"unit": "s"},
    )


class OwnMetricConfig(Strict):
    """An entry of `evaluation.metrics`: a metric of the user's own, or its import path alone."""

    source: str = Field(
        description="import path package.module:name of a function of a confusion matrix, or of a"
        " metric of torchmetrics",
    )
    sha256: Sha256 | None = Field(
        None, description="SHA-256 of the function's source file; flbench writes it to config.yaml"
    )

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        """Accept the import path in the place of the section."""
        return {"source": value} if isinstance(value, str) else value


class BestConfig(Strict):
    """Section `evaluation.best`: how the best round of a run without classes is chosen.

    The best round of a classification is the one with the highest validation accuracy.
    """

    metric: str | None = Field(
        None,
        description="targets that are not classes: metric of evaluation.metrics whose validation"
        " value decides (default: the first; flbench writes it to config.yaml)",
    )
    mode: Literal["max", "min"] | None = Field(
        None,
        description="whether a larger or a smaller value is better (default: what the metric says"
        " as higher_is_better)",
    )

    @property
    def column(self) -> str:
        """Name of the metric in metrics.csv.

        >>> BestConfig().column, BestConfig(metric="mae", mode="min").column
        ('accuracy', 'mae')
        """
        return self.metric or "accuracy"

    @property
    def title(self) -> str:
        """Name of the metric in sentences."""
        return self.column.replace("_", " ")

    def key(self, value: float) -> float:
        """Return a number that is larger for a better value of the metric."""
        return -value if self.mode == "min" else value


class CommonConfig(Strict):
    """Section `evaluation.common`: evaluation on the common test set (GM, PM(V), PM(L)).

    The common test set is the data set's own test part.
    """

    every: int | None = Field(
        None,
        ge=1,
        description="rounds between two such evaluations (default: only the last and the best"
        " round)",
    )
    limit: int | None = Field(
        1000,
        ge=1,
        description="number of its samples that personal models are evaluated on; null for all",
    )


class AdaptConfig(Strict):
    """Section `evaluation.adapt`: evaluation of clients that join after the training.

    They are the clients of `partition.new_clients`; without them the section has no effect.
    """

    finetune_epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 1, 5),
        min_length=1,
        description="epochs over the client's training part after which its model is evaluated, on"
        " a copy that is discarded; 0 is the model that the server would send",
    )
    train: Literal["own", "all"] = Field(
        "own",
        description="parameters that are trained: those that clients keep (all, if they keep none),"
        " or all that a client of a round trains",
    )
    seen: bool = Field(
        True,
        description="also evaluate the clients that have trained, after as many epochs from their"
        " own models; the difference is the gap",
    )

    @field_validator("finetune_epochs")
    @classmethod
    def _is_ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        """Refuse numbers that are not in ascending order, or that are there twice."""
        if list(value) != sorted(set(value)):
            raise ValueError("different numbers in ascending order, such as [0, 1, 5]")
        return value


class EvaluationConfig(Strict):
    """Section `evaluation`: when and how models are evaluated."""

    every: int | None = Field(
        None,
        ge=1,
        description="rounds between two evaluations (default: a tenth of train.rounds, at least 1"
        " and at most 10); the last round is always evaluated",
    )
    common: CommonConfig = Field(CommonConfig(), description="evaluation on the common test set")
    confusable: str | None = Field(
        None,
        description="reference run that defines the confusable classes: a run folder, its"
        " confusion.csv, or `own` for this run itself; `{seed}` stands for the seed of the run",
    )
    rare: Literal["lowest", "share"] = Field(
        "lowest",
        description="rare classes: the fifth of the classes with the fewest training samples, and"
        " classes with equally few (lowest), or those with less than 5 % of all samples (share)",
    )
    metrics: dict[str, OwnMetricConfig] | None = Field(
        None, description="metrics of your own, by name: package.module:name of a function"
    )
    positive: Column | None = Field(
        None,
        description="positive class of AUROC and average precision, by its name, where there are"
        " two classes (default: the second one)",
    )
    probabilities: bool = Field(
        False,
        description="also compute metrics of the predicted probabilities on the clients' own parts:"
        " macro AUROC, expected calibration error, negative log-likelihood, Brier score; the"
        " probabilities of all samples and classes are kept in memory for it",
    )
    best: BestConfig = Field(
        BestConfig(), description="choice of the best round where there are no classes"
    )
    adapt: AdaptConfig = Field(
        AdaptConfig(), description="evaluation of clients that join after the training"
    )
    target_accuracy: float | None = Field(
        None,
        gt=0,
        le=1,
        description="accuracy; the rounds and bytes until the validation accuracy reaches it are"
        " reported, or until the test accuracy does if there is no validation part",
    )


class TrackingConfig(Strict):
    """Section `tracking`: where metrics are sent besides the run folder."""

    mlflow: bool | Literal["auto"] = Field(
        "auto", description="send runs to MLflow; auto: if MLflow is installed"
    )
    uri: str | None = Field(
        None,
        repr=False,
        description="MLflow's server or database (default: $MLFLOW_TRACKING_URI, else the local"
        " mlflow/flbench.db). Its user and password are not stored",
    )
    experiment: str | None = Field(
        None, min_length=1, description="name of MLflow's experiment (default: DATASET-SCHEME)"
    )

    @field_serializer("uri")
    def _without_secrets(self, uri: str | None) -> str | None:
        """Return what files and reports contain instead of the address."""
        return None if uri is None else redact_address(uri)


class OutputConfig(Strict):
    """Section `output`: what is written, and where."""

    dir: UserPath = Field(Path("runs"), description="runs are written to DIR/EXPERIMENT/RUN-ID/")
    checkpoint_every: int = Field(10, ge=1, description="rounds between two checkpoints")
    checkpoint_seconds: float = Field(
        0.0,
        ge=0,
        description="least seconds between two checkpoints; the last round is saved in any case",
    )
    keep_trials: Literal["best", "all"] = Field(
        "best",
        description="checkpoints of which trials a study keeps: those of each method's best trial,"
        " or of all trials; cells keep theirs",
    )
    predictions: bool = Field(
        False,
        description="write the prediction of every test sample after the last round to"
        " predictions.csv",
    )


NOT_HASHED: Final = ("engine", "evaluation", "tracking", "output")
"""Sections that do not determine a result, except for `engine.precision`."""
PLACES: Final = ("data.root", "algorithm.source", "model.weights")
"""Places of what counts by its SHA-256."""


class Config(Strict):
    """The complete configuration of a run."""

    seed: int = Field(0, ge=0, lt=2**63, description="seed of all randomness")
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    shift: ShiftConfig = ShiftConfig()
    model: Net = ModelConfig()
    algorithm: Method = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    engine: EngineConfig = EngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    output: OutputConfig = OutputConfig()

    @property
    def has_classes(self) -> bool:
        """Whether a run classifies: false for the complete configuration of another task."""
        return self.evaluation.best.metric is None

    @property
    def client_metric(self) -> str:
        """Name of the metric that compares the models of a complete configuration over clients.

        >>> Config().client_metric
        'accuracy_mean'
        """
        return "accuracy_mean" if self.has_classes else f"{self.evaluation.best.column}_mean"

    @property
    def has_own_optimizer(self) -> bool:
        """Whether a LightningModule of the user makes the optimizer (`model.lightning`)."""
        return bool(getattr(self.model, "lightning", False))

    @property
    def evaluation_period(self) -> int:
        """Rounds between two evaluations: `evaluation.every`, or its default if that is None.

        The default is a tenth of `train.rounds`, rounded down, but at least 1 and at most 10. A run
        of ten rounds or more is therefore evaluated at least ten times, a shorter one after each
        round.

        >>> Config(train={"rounds": 50}).evaluation_period
        5
        >>> Config(train={"rounds": 5}).evaluation_period
        1
        >>> Config(train={"rounds": 50}, evaluation={"every": 20}).evaluation_period
        20
        """
        if self.evaluation.every is not None:
            return self.evaluation.every
        return min(LONGEST_PERIOD, max(1, self.train.rounds // EVALUATIONS))

    @property
    def partition_seed(self) -> int:
        """Seed of the partition: `partition.seed`, or `seed` if that is None."""
        return self.seed if self.partition.seed is None else self.partition.seed

    def tree(self) -> dict[str, Any]:
        """Return the configuration as nested dicts, lists and scalars, as for YAML and JSON."""
        return self.model_dump(mode="json")

    def hash(self) -> str:
        """Return the SHA-256 (hex) over the keys that define the experiment.

        These are the keys whose values differ from the defaults of the schema, without `NOT_HASHED`
        and `PLACES`; the keys of a method and of a net count with all their values. Early stopping
        depends on the rounds that are evaluated.
        """
        defaults = leaves(Config().tree())
        kept = {
            key: value
            for key, value in leaves(self.tree()).items()
            if (key not in defaults or value != defaults[key]) and _is_hashed(key)
        }
        if self.train.early_stopping.patience is not None:
            kept["evaluation.every"] = self.evaluation_period
        return hashlib.sha256(json.dumps(["2", kept], sort_keys=True).encode()).hexdigest()


def _is_hashed(key: str) -> bool:
    """Return whether a key determines results."""
    section = key.partition(".")[0]
    return key == "engine.precision" or not (section in NOT_HASHED or key in PLACES)
