"""Reading the folder of a run, finished or not."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flbench.config.resolve import read as read_config
from flbench.config.schema import Config
from flbench.core.documents import as_data_error, read_json
from flbench.core.errors import DataError, UserError
from flbench.core.wording import how_to_resume
from flbench.metrics import names as metric_names
from flbench.results import metrics_file
from flbench.results.metrics_file import CURE, Row
from flbench.results.summary import (
    RunningSummary,
    Summary,
    checked,
    cost_to_reach,
    metrics_at,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from flbench.results.partition_arrays import Samples
    from flbench.results.tables import Moment


CLIENT_SCORES: Final = ("accuracy", "balanced_accuracy", "macro_f1")
VALIDATION: Final = "validation_"
"""What names of columns of clients.csv begin with if they have metrics of the validation part."""


@dataclass(frozen=True, eq=False)
class StoredRun:
    """The results of one run, as read from its folder.

    Attributes:
        path: The run folder.
        config: Configuration of the run.
        summary: Content of summary.json; for an unfinished run, those of its keys that can be
            computed from metrics.csv.
        rows: Rows of metrics.csv.
        finished: Whether the folder has a summary.json.
        classes: Rows of per_class.csv for the best and the last round, see `tables.classes`; empty
            for an unfinished run, and for one whose targets are not classes.
        clients: Rows of clients.csv, see `tables.clients`; empty for an unfinished run.
        data_hash: SHA-256 (hex) of the samples and labels of the data set, from partition.json (see
            `partition_files.data_hash`); None for a run of a version that did not write it.
    """

    path: Path
    config: Config
    summary: Summary
    rows: list[Row]
    finished: bool
    classes: "pd.DataFrame"
    clients: "pd.DataFrame"
    data_hash: str | None = None

    def check_classes(self) -> None:
        """Raise a UserError if the run does not classify, for what is about its classes."""
        if not self.config.has_classes:
            raise UserError(
                f"{self.path} has no classes: its targets are judged by"
                f" {', '.join(self.config.evaluation.metrics or ())}. Its metrics are in"
                " metrics.csv and clients.csv (fl.load(PATH).metrics and .clients)."
            )

    def class_table(self, moment: "Moment" = "best") -> "pd.DataFrame":
        """Return the rows of `classes` for the best or for the last round."""
        return self.classes[self.classes["moment"] == moment]

    def client_table(self, moment: "Moment" = "best") -> "pd.DataFrame":
        """Return the rows of `clients` for the best or for the last round."""
        return self.clients[self.clients["moment"] == moment]

    @cached_property
    def client_counts(self) -> "NDArray[np.int64] | None":
        """Training samples [N, C] by client and class; None if partition.npz lacks them."""
        from flbench.results.partition_arrays import read_counts

        counts = read_counts(self.path / "partition.npz")
        if counts is None:
            return None
        for table, key, axis in ((self.clients, "client", 0), (self.classes, "class", 1)):
            if len(table) and table[key].max() >= counts.shape[axis]:
                raise DataError(
                    f"{self.path / 'partition.npz'} is damaged: its `train_counts` have the shape"
                    f" {list(counts.shape)}, but there is a {key} {table[key].max()}. {CURE}"
                )
        return counts

    def samples(self) -> "Samples | None":
        """Return the samples of the clients; None if there is no partition.npz that has them."""
        from flbench.results.partition_arrays import read_samples

        return read_samples(self.path / "partition.npz")

    @cached_property
    def scores(self) -> dict[str, float]:
        """Test metrics at the best round, without those of rare classes where no class is rare."""
        return {
            name: float(value)
            for name, value in self.summary["best"]["test"].items()
            if isinstance(value, int | float)
            and (name not in metric_names.RARE or self.has_rare_classes)
        }

    @cached_property
    def has_rare_classes(self) -> bool:
        """Whether per_class.csv marks rare classes."""
        return bool(self.classes["rare"].any())


def check_run_folder(path: Path) -> None:
    """Check that a path is a run folder: it has a config.yaml.

    Raises:
        UserError: The path does not exist or is not a run folder.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    for kind, command in (("study", "tune"), ("comparison", "compare")):
        if (path / f"{kind}.json").is_file():
            raise UserError(
                f"{path} is a {kind}. Name one of the run folders in it. `flbench {command}"
                f" --resume` continues a {kind}."
            )
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not a run folder: it has no config.yaml.")


def is_finished(path: Path) -> bool:
    """Return whether a run folder has a summary.json, which is written last."""
    return (path / "summary.json").is_file()


def read(path: Path) -> StoredRun:
    """Read a run folder.

    The method, and other parts that are not flbench's own, need not be installed, and are not
    imported.

    Raises:
        UserError: The path is not a run folder, or its configuration is not valid.
        DataError: A file in the folder is damaged.
    """
    check_run_folder(path)
    config = read_config(path / "config.yaml")
    rows = metrics_file.read(path / "metrics.csv")
    file = path / "summary.json"
    if finished := is_finished(path):
        with as_data_error(file, f"Remove it, and resume the run: {how_to_resume(path)}"):
            summary = checked(read_json(file), has_classes=config.has_classes)
    else:
        summary = so_far(config, rows)
    known, data = read_tables(path, config), _data_hash(path)
    return StoredRun(path, config, summary, rows, finished, **known, data_hash=data)


def read_tables(path: Path, config: Config) -> "dict[str, pd.DataFrame]":
    """Return `classes` and `clients` of a run, which are empty where it has no file of them."""
    from flbench.results import tables

    return {
        "classes": tables.classes(path / "per_class.csv"),
        "clients": tables.clients(path / "clients.csv", client_scores(config)),
    }


def client_scores(config: Config) -> tuple[str, ...]:
    """Return the metrics that clients.csv has for each client of a run."""
    return CLIENT_SCORES if config.has_classes else tuple(config.evaluation.metrics or ())


def _data_hash(path: Path) -> str | None:
    """Return the hash of the data set in partition.json; None if it is not there."""
    file = path / "partition.json"
    found = read_json(file).get("data") if file.is_file() else None
    return None if found is None else str(found)


def so_far(config: Config, rows: list[Row]) -> Summary:
    """Return the keys of a summary that metrics.csv has, also before the run is finished."""
    by = config.evaluation.best
    running = RunningSummary(rows, by)
    last, best = running.last or 0, running.best
    summary: Summary = {
        "algorithm": config.algorithm.name,
        "dataset": config.data.title,
        "model": config.model.name,
        "seed": config.seed,
        "rounds": config.train.rounds,
        "last": metrics_at(rows, last, by),
        "best": metrics_at(rows, last if best is None else best, by),
        **running.totals(),
    }
    if config.evaluation.target_accuracy is not None:
        summary["target"] = cost_to_reach(config.evaluation.target_accuracy, rows)
    return summary
