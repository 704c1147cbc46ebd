"""The configuration: its schema, with every default.

A method's own keys stand in its file (`algorithms/NAME.py`), a net's in `models/NAME.py`; both are
selected by name. Every key has its meaning, unit and range here or there, and nowhere else.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
)


class Strict(BaseModel):
    """Base of all configuration: frozen, unknown keys refused, no NaN and no infinity."""

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
        """Refuse `true` where a number is expected; pydantic would read it as 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind in (int, float, int | None, float | None):
            raise ValueError("a number")
        return value


def _expanded(path: Path) -> Path:
    """Read `~` as the home folder, as a shell does at the start of a word."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"a path ({error})") from error


UserPath = Annotated[Path, AfterValidator(_expanded)]


class DataConfig(Strict):
    """Where samples come from."""

    name: str = Field("digits", description="data set; `flbench data` lists them")
    root: UserPath = Field(
        Path("data"), description="folder where NAME.npz, NAME.zip or NAME/ is looked up"
    )
    path: UserPath | None = Field(
        None, description="a data file or folder, instead of a look-up by name"
    )
    normalize: Literal["standard", "unit"] = Field(
        "standard",
        description="standard: zero mean, unit variance per channel over all training parts;"
        " unit: [0, 1]",
    )
    augment: tuple[Literal["crop", "flip"], ...] = Field(
        (), description="of training images: crop (4 pixels of padding), flip (left and right)"
    )
    label: str | None = Field(
        None, description="tables: label column (default the last), or a rule such as `num > 0`"
    )


class PartitionConfig(Strict):
    """Who holds which samples."""

    scheme: Literal[
        "iid", "dirichlet", "pathological", "grouped", "quantity", "natural", "file"
    ] = Field("dirichlet", description="how samples are dealt to clients")
    clients: int | None = Field(
        None, ge=1, description="number of clients N (default 20; every group under `natural`)"
    )
    alpha: float = Field(
        0.1, gt=0, description="dirichlet, quantity: concentration; smaller is more skewed"
    )
    balanced: bool = Field(False, description="dirichlet: clients of equal size")
    classes_per_client: int = Field(2, ge=1, description="pathological: classes of each client")
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
        description="deal the train part (the test part is the common test set), or both merged",
    )
    samples: int | None = Field(
        None,
        ge=1,
        description="samples of the pool to deal, drawn with its shares of classes (default: all)",
    )
    min_samples: int = Field(10, ge=1, description="fewest samples of a client")
    seed: int | None = Field(None, ge=0, description="seed of the partition (default: the run's)")
    path: UserPath | None = Field(None, description="file: a saved partition, NAME.npz")


class ModelConfig(Strict):
    """The net. Further keys stand with the net of that name."""

    name: str = Field("mlp", description="net")


class AlgorithmConfig(Strict):
    """The method. Further keys stand with the method of that name."""

    name: str = Field("hfcd", description="method; `flbench algos` lists them")
    agg_weights: Literal["samples", "uniform"] = Field(
        "samples",
        description="weight of a client in a mean over the cohort: its training samples, or one",
    )


class UniformConfig(AlgorithmConfig):
    """Of a method whose paper or authors give all clients of a mean the same weight."""

    agg_weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weight of a client in a mean: one, or its training samples"
    )


def epochs(default: int | None, description: str, *, ge: int = 1) -> Any:
    """Return the field of a number of epochs.

    Args:
        default: None where it depends on other keys; the description says how.
        description: what is trained, and when.
        ge: the smallest number.
    """
    return Field(default, ge=ge, description=description, json_schema_extra={"unit": "epochs"})


class OptimizerConfig(Strict):
    """The local optimiser, made anew in each phase of each round (C2)."""

    name: Literal["sgd", "adam", "adamw"] = Field("sgd", description="optimiser")
    lr: float = Field(0.01, ge=0, description="learning rate of the first round")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum")
    nesterov: bool = Field(False, description="sgd: Nesterov momentum (needs momentum > 0)")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")


class ScheduleConfig(Strict):
    """The learning rate by round, not by how often a client was drawn."""

    name: Literal["constant", "cosine", "exponential", "step"] = Field(
        "constant", description="shape"
    )
    decay: float = Field(
        0.1, gt=0, le=1, description="step: factor; exponential: factor over the whole run"
    )
    every: int = Field(50, ge=1, description="step: rounds between two factors")
    final: float = Field(
        0.0, ge=0, le=1, description="cosine: last learning rate as a share of the first"
    )

    def factor(self, done: int, rounds: int) -> float:
        """Return the factor on the learning rate after `done` of `rounds` rounds."""
        from math import cos, pi

        if self.name == "cosine":
            return self.final + (1 - self.final) * (1 + cos(pi * done / rounds)) / 2
        if self.name == "exponential":
            return float(self.decay ** (done / rounds))
        if self.name == "step":
            return float(self.decay ** (done // self.every))
        return 1.0


class TrainConfig(Strict):
    """How every method trains."""

    rounds: int = Field(100, ge=1, description="communication rounds T")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients in each round")
    local_epochs: int = Field(5, ge=1, description="epochs E of a client in a round")
    batch_size: int = Field(32, ge=1, description="samples B of a step")
    last_batch: Literal["keep", "wrap", "drop"] = Field(
        "keep",
        description="a last batch smaller than B: keep it, fill it up from the epoch's start, or"
        " drop it",
    )
    batchnorm: Literal["average", "local", "drop"] = Field(
        "average",
        description="BatchNorm statistics: averaged like the weights, kept by the client, or"
        " estimated anew when evaluated",
    )
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="local optimiser")
    schedule: ScheduleConfig = Field(ScheduleConfig(), description="learning rate over rounds")
    clip: float | None = Field(None, gt=0, description="largest gradient norm of a client's step")
    on_divergence: Literal["skip", "stop"] = Field(
        "skip",
        description="a client with values that are not finite: leave it out of the round, or stop",
    )


class EngineConfig(Strict):
    """What trains the clients. Results do not depend on it, but for rounding."""

    name: Literal["sequential", "vectorized", "ray", "auto"] = Field(
        "sequential",
        description="sequential: client after client; vectorized: blocks of clients at once; ray:"
        " clients dealt to worker processes; auto: the fastest by a few measured steps",
    )
    workers: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="ray: number of workers; auto: one for each core or GPU"
    )
    address: str | None = Field(
        None, description="ray: of a running cluster, or auto to find it (default: start one)"
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:INDEX"
    )
    block: int | None = Field(
        None, ge=1, description="vectorized: clients at once (default: as memory allows)"
    )
    precision: Literal["32-true", "64-true", "tf32", "bf16-mixed", "16-mixed"] = Field(
        "32-true",
        description="floating-point numbers; tf32: float32 whose products a GPU rounds to TF32",
    )
    trace: bool = Field(
        True,
        description="replay short steps without their Python code; results are the same, bit for"
        " bit",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of PyTorch (default: the cores at hand, 1 for each worker of ray);"
        " other counts give other digests",
    )
    state_memory: float = Field(
        2.0,
        ge=0,
        description="what clients keep lies in a mapped file under output.dir where it is larger",
        json_schema_extra={"unit": "GiB"},
    )


class CommonConfig(Strict):
    """Evaluating on the data set's own test part (GM, PM(V), PM(L))."""

    every: int | None = Field(
        None, ge=1, description="rounds between two (default: last and best round only)"
    )
    limit: int | None = Field(
        1000, ge=1, description="samples of the common test set to use; null for all"
    )


class EvaluationConfig(Strict):
    """When and how models are evaluated."""

    every: int = Field(
        10, ge=1, description="rounds between two evaluations; the last round is always evaluated"
    )
    common: CommonConfig = Field(CommonConfig(), description="evaluating on the common test set")
    confusable: str | None = Field(
        None,
        description="reference for confusable classes: a run folder or its confusion.csv, or `own`",
    )
    rare: Literal["lowest", "share"] = Field(
        "lowest",
        description="rare classes: the 20 % with fewest training samples, or those under 5 % of"
        " all samples",
    )
    target_accuracy: float | None = Field(
        None,
        gt=0,
        le=1,
        description="validation accuracy whose price in rounds and bytes is reported",
    )


class TrackingConfig(Strict):
    """Where figures go besides the run folder."""

    mlflow: Literal["auto", True, False] = Field(
        "auto", description="mirror runs to MLflow; auto: where MLflow is installed"
    )
    uri: str | None = Field(
        None,
        description="MLflow's server or database (default: $MLFLOW_TRACKING_URI, else the local"
        " mlflow/flbench.db)",
    )
    experiment: str | None = Field(
        None, min_length=1, description="MLflow's experiment (default: DATASET-SCHEME)"
    )


class OutputConfig(Strict):
    """What is written, and where."""

    dir: UserPath = Field(Path("runs"), description="runs are written to DIR/EXPERIMENT/RUN-ID/")
    checkpoint_every: int = Field(10, ge=1, description="rounds between two checkpoints")
    predictions: bool = Field(
        False, description="save the predictions of the last evaluation, sample by sample"
    )


class Config(Strict):
    """A whole experiment."""

    seed: int = Field(0, ge=0, lt=2**63, description="of everything random")
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: SerializeAsAny[ModelConfig] = ModelConfig()
    algorithm: SerializeAsAny[AlgorithmConfig] = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    engine: EngineConfig = EngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    output: OutputConfig = OutputConfig()

    def tree(self) -> dict[str, Any]:
        """Return the configuration as the dicts, lists and scalars of YAML and JSON."""
        return self.model_dump(mode="json")

    def hash(self) -> str:
        """Return the SHA-256 (hex) over the keys that make the experiment.

        Left out: `data.root` (what the files hold is checked by the partition's hash), the engine,
        and what is evaluated and written.
        """
        sections = ("seed", "data", "partition", "model", "algorithm", "train")
        tree = {key: value for key, value in self.tree().items() if key in sections}
        del tree["data"]["root"]
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
