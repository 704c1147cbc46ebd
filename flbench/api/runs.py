"""A run as an object: its configuration, its results as DataFrames, its pictures."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from flbench.calls import arguments
from flbench.config.schema import Config
from flbench.config.trust import run_code
from flbench.core.parts import offered
from flbench.core.text import warn
from flbench.reports.shown import run_score
from flbench.results import reading, tables
from flbench.results.summary import ended_after

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from flbench.api.partitions import Partition
    from flbench.api.verbs import ExportSettings, ModelSettings
    from flbench.deploy.models import TrainedModel


class Run:
    """A run, finished or not, as read from its folder.

    `fl.run`, `fl.resume` and `fl.load` return one. It is a view of the folder at that time: after
    a resume, `fl.load` reads the folder again. What its attributes return are copies.

    Args:
        path: The run folder.
        objects: Data, partition scheme, net, loss terms and metrics of the run that are objects
            without an import path, by section; `trained` and `predict` need them.
        trust: Whether `trained`, `model` and `predict` may run code that the folder names and that
            your flbench has not written on this machine.

    Raises:
        UserError: The path is not a run folder, or its configuration is not valid.
        DataError: A file in the folder is damaged.

    Attributes:
        path: The run folder.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        objects: Mapping[str, Any] | None = None,
        *,
        trust: bool = False,
    ) -> None:
        self.path = arguments.path_of(path, "path")
        self._trust = trust
        self._objects = dict(objects or {})
        self._run = reading.read(self.path)
        self._models: dict[tuple[int | str | None, str | None, str], TrainedModel] = {}

    @property
    def config(self) -> Config:
        """The complete configuration; `run.config.train.rounds` is a value of it."""
        return self._run.config

    @property
    def finished(self) -> bool:
        """Whether the run is finished; `fl.resume` continues one that is not."""
        return self._run.finished

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json (see `flbench.results.summary`).

        Besides, `validation` and `test` have the metrics of the best round by validation, which are
        `best.validation` and `best.test`. For an unfinished run: what is known so far.
        """
        summary = deepcopy(self._run.summary)
        best = summary["best"]
        return {**summary, "validation": best["validation"], "test": best["test"]}

    @property
    def metrics(self) -> "pd.DataFrame":
        """All metrics over the rounds, one per row.

        Columns: `round` int64, the number of rounds completed; `split` str, such as `train`,
        `validation` or `test`; `protocol` str, the model, such as `personal` or `gm`; `metric` str;
        `value` float64. See `flbench.results.metrics_file.Row`.
        """
        import pandas as pd

        return pd.DataFrame(list(self._run.rows), columns=[*tables.METRICS]).astype(tables.METRICS)

    @property
    def per_class(self) -> "pd.DataFrame":
        """Test metrics of each class, pooled over the clients; empty for an unfinished run.

        Columns: `moment` str, `best` or `last` round, with equal rows if they are the same round;
        `class` int64 and its `name` str; `train_support` and `test_support` int64, numbers of
        samples; `precision`, `recall` and `f1` float64 in [0, 1], the last two NaN for a class
        without test samples; `rare` and `confusable` bool.

        Raises:
            UserError: The targets of the run are not classes.
        """
        self._run.check_classes()
        return self._run.classes.copy()

    @property
    def clients(self) -> "pd.DataFrame":
        """Metrics of each client's personal model; empty for an unfinished run.

        Columns: `moment` str, `best` or `last` round, with equal rows if they are the same round;
        `client` int64; `name` str (natural clients with names only); `train_size` and `test_size`
        int64, numbers of samples; `classes` int64, the classes that it trains on, if there are
        classes; `trainings` int64, the rounds that it took part in; `steps` int64, its optimizer
        steps; `validation_size` int64; test metrics, such as `accuracy`, and validation metrics,
        such as `validation_accuracy`, float64, NaN for a client without samples in that part.
        """
        return self._run.clients.copy()

    @property
    def new_clients(self) -> "pd.DataFrame":
        """Metrics of each client that joins after the training (`partition.new_clients`).

        Columns are those of `clients` and `epochs` int64: epochs over the client's training part,
        on a copy, after which the model was evaluated; 0 is the model that the server would send.
        A client has a row for each number. Without such clients there are no rows.
        """
        has_classes = self.config.has_classes
        return tables.new_clients(self.path / "new_clients.csv", has_classes=has_classes)

    @property
    def confusion(self) -> "pd.DataFrame":
        """Confusion counts after the last round, summed over the clients; empty while unfinished.

        Columns: `split` str, `validation` or `test`; `true`, `predicted` and `count` int64. Pairs
        of classes without samples have no row.

        Raises:
            UserError: The targets of the run are not classes.
        """
        self._run.check_classes()
        return tables.read(self.path / "confusion.csv", tables.CONFUSION)

    @cached_property
    def partition(self) -> "Partition":
        """The samples of every client."""
        from flbench.api.partitions import Partition  # it imports PyTorch

        return Partition.read(self.path / "partition.npz")

    @property
    def notes(self) -> list[str]:
        """Sentences about the run for the user; those of an unfinished run are not known."""
        return list(self._run.summary.get("notes", ()))

    @property
    def digest(self) -> str | None:
        """SHA-256 (hex) over the weights of all clients' models; None for an unfinished run."""
        return self._run.summary.get("weights_digest")

    def trained(
        self,
        client: int | str | None = None,
        *,
        deployment: str | None = None,
        checkpoint: Literal["best", "last"] = "best",
    ) -> "TrainedModel":
        """Return a model of the run with its normalization, classes and card.

        The data set of the run must be there and unchanged. A model is kept once it is loaded.

        Args:
            client: Name of a natural client, or id of the client, in [0, N). The global model has
                none.
            deployment: See `ModelSettings`.
            checkpoint: See `ModelSettings`.

        Raises:
            UserError: The method has no such client or model, the run has no such checkpoint, or
                the model needs a client.
            DataError: A file is damaged, or the data differ from those of the run.
            DivergedError: The model has weights that are not finite.
        """
        from flbench.deploy import loading

        key = client, deployment, checkpoint
        if key in self._models:
            return self._models[key]
        notes: list[str] = []
        from flbench.calls.process import preserved  # it imports PyTorch

        with run_code(self._trust), preserved(), offered(self._objects):
            model = loading.load(self.path, client, deployment, checkpoint, notes.append)
        if notes:
            warn("\n".join(notes), stacklevel=2)
        self._models[key] = model
        return model

    def model(
        self,
        client: int | str | None = None,
        **settings: "Unpack[ModelSettings]",
    ) -> "nn.Module":
        """Return a copy of the net of a client, or of the global one, in eval mode on the CPU.

        It maps normalized inputs [B, ...] to scores [B, C], or to the outputs [B, ...] of a module
        whose targets are not classes. `predict` normalizes raw samples.

        Args:
            client: Name or id of a client; see `trained`.
            settings: Which model; see `ModelSettings`.

        Raises:
            UserError: See `trained`.
        """
        return deepcopy(self.trained(client, **settings).net)

    def predict(
        self,
        x: "pd.DataFrame | Tensor | NDArray[Any] | Sequence[Sequence[int]]",
        client: int | str | None = None,
        **settings: "Unpack[ModelSettings]",
    ) -> "Tensor":
        """Return the scores of raw samples, which are normalized as in training.

        Args:
            x: Samples as the data set stores them: images [B, height, width] or [B, height, width,
                channels], uint8 where the data set has uint8 images; series [B, channels, length];
                tokens [B, length], or a list of sequences if the data have a padding id; rows of
                tables [B, columns], or a DataFrame with the columns of the data set, in any order
                and with others, whose words are encoded as in training.
            client: Name or id of a client; see `trained`.
            settings: Which model; see `ModelSettings`.

        Returns:
            Scores [B, C] on the CPU; `scores.argmax(1)` are the predicted classes. Outputs
            [B, ...] of a module whose targets are not classes.

        Raises:
            UserError: The samples do not fit the data set, or see `trained`.
        """
        model = self.trained(client, **settings)
        if model.layout.is_table:
            x = model.raw(x)
            for sentence in model.unknown_words(x.numpy()):
                warn(sentence, stacklevel=2)
        return model.predict(x)

    def export(
        self,
        file: str | PathLike[str],
        client: int | str | None = None,
        **settings: "Unpack[ExportSettings]",
    ) -> Path:
        """Write a model to a file that loads and predicts without flbench, as `flbench export`.

        The model's card is written to `FILE.json`: classes, inputs, normalization, test metrics,
        hashes, and the lines of Python that load the file.

        Args:
            file: The file to write: `.pt2` for `torch.export`, `.onnx`, or `.safetensors`, which
                holds the weights alone.
            client: Name or id of a client; see `trained`.
            settings: Which model, and whether to replace files; see `ExportSettings`.

        Returns:
            The file.

        Raises:
            UserError: There is no such format, a package is missing, a file exists, the format
                cannot hold the model, or see `trained`.
            RunError: The file would not predict what the model predicts, or the disk failed.
        """
        from flbench.deploy import formats

        overwrite = settings.pop("overwrite", False)
        path = arguments.path_of(file, "file")
        model = self.trained(client, **cast("ModelSettings", settings))
        return formats.write(model, path, overwrite=overwrite)[0]

    def plot(self, name: str, **options: Any) -> "Figure":
        """Draw a picture as a figure of matplotlib; `figure.savefig(PATH)` writes it.

        Args:
            name: `curves`, the metric that chooses the best round and the loss by round;
                `per_class`, recall and F1 of each class after the last round; or `confusion`, the
                confusion matrix after the last round.
            options: `split`, `validation` or `test` (default), of `confusion`.

        Raises:
            UserError: There is no such picture or split, or the run is unfinished or has no
                classes.
        """
        from flbench.api import plots

        return plots.named(plots.PICTURES, name)(self, **options)

    @property
    def title(self) -> str:
        """Method and data set."""
        return f"{self.summary['algorithm']} on {self.summary['dataset']}"

    def __reduce__(self) -> tuple[type["Run"], tuple[Path]]:
        return Run, (self.path,)

    def __repr__(self) -> str:
        best, by = self.summary["best"], self.config.evaluation.best
        value = run_score(best["test"].get(by.column), has_classes=self.config.has_classes)
        state = f"round {best['round']} of {ended_after(self.summary)}, test {by.title} {value}"
        if not self.finished:
            state = f"unfinished: fl.resume({str(self.path)!r})"
        return f"<Run of {self.title}, seed {self.config.seed}: {state}; {self.path}>"

    def _repr_html_(self) -> str:
        from flbench.api import notebook

        return notebook.card_of(self._run)
