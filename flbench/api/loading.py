"""Reading runs, studies and comparisons back from their folders."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final

import pandas as pd

from flbench.analysis.equal_work import TRAFFIC
from flbench.api.comparisons import PlannedComparison
from flbench.api.runs import Run
from flbench.api.studies import Study
from flbench.calls import arguments
from flbench.comparison.folder import is_comparison
from flbench.config.schema import OutputConfig
from flbench.config.sources import leaves
from flbench.core.errors import UserError
from flbench.core.text import warn
from flbench.results import folders, reading, study_folder

FIRST: Final = ("method", "dataset", "model", "seed")
STATE: Final = ("rounds", "best_round", "finished")
LAST: Final = (*TRAFFIC, "seconds", "path")
PLACES: Final = ("output.", "tracking.", "data.root")  # keys that say where files are
SEED: Final = "partition.seed"
NAMED: Final = ("algorithm.name", "data.name", "model.name", "train.rounds")


def load(path: str | PathLike[str], *, trust: bool = False) -> Run | Study | PlannedComparison:
    """Read the folder of a run, of a study or of a comparison.

    Reading runs no code that the folder names.

    Args:
        path: The folder.
        trust: Whether the models of a run may run such code, if your flbench has not written the
            folder on this machine.

    Returns:
        The run, the study, or the comparison of `fl.compare`, finished or not.

    Raises:
        UserError: The path is not such a folder.
        DataError: A file in the folder is damaged.
    """
    folder = arguments.path_of(path, "path")
    if study_folder.is_study(folder):
        return Study(folder)
    if is_comparison(folder):
        return PlannedComparison(folder)
    if folder.is_dir() and not folders.is_one(folder) and folders.below(folder):
        raise UserError(
            f"{folder} is not a run folder, but there are runs below it:"
            f" fl.runs({str(folder)!r}) lists them."
        )
    return Run(folder, trust=trust)


def runs(*paths: str | PathLike[str]) -> pd.DataFrame:
    """List the runs at or below folders, one per row.

    The runs of a study are part of it and are not listed.

    Args:
        paths: Folders; without any, `runs`, where `fl.run` writes by default.

    Returns:
        A DataFrame with the columns

        - `method`, `dataset` and `model` str, `seed` int64;
        - the configuration keys in which the runs differ, by their dotted names; a run whose method
          or net has no such key has a missing value;
        - `rounds` and `best_round` int64, `finished` bool;
        - `validation.METRIC` and `test.METRIC` float64: metrics of the personal models at the best
          round by validation, for an unfinished run the best one so far. Other deployments have
          the columns `test.DEPLOYMENT.METRIC`, and metrics of cohorts alone have none;
        - `up_bytes`, `down_bytes`, `peer_bytes` and `setup_bytes` int64, over all rounds;
        - `seconds` float64, of the whole run; NaN while it is unfinished;
        - `path` str, which `fl.load` reads.

        A folder that cannot be read is left out, and a warning says why.

    Raises:
        UserError: A path does not exist.
    """
    given: Sequence[str | PathLike[str]] = paths or (OutputConfig().dir,)
    roots = [arguments.path_of(path, "path") for path in given]
    if missing := [root for root in roots if not root.exists()]:
        raise UserError(f"{missing[0]} does not exist.")
    found = []
    for folder in folders.find(roots):
        if study_folder.is_study(folder) or not folders.is_one(folder):
            continue
        try:
            found.append(reading.read(folder))
        except UserError as error:
            warn(f"left out: {error}", stacklevel=2)
    return _table(found)


def settings_of(found: Sequence[reading.StoredRun]) -> pd.DataFrame:
    """Return a table with a row for each run and a column for each key in which runs differ."""
    trees = [leaves(run.config.tree()) for run in found]
    texts = pd.DataFrame([{key: str(value) for key, value in tree.items()} for tree in trees])
    keys = [key for key in map(str, texts) if texts[key].nunique() > 1]
    own = [key for key in keys if key not in NAMED and not key.startswith(PLACES)]
    if {"seed", SEED} <= {*own} and texts["seed"].equals(texts[SEED]):
        own.remove(SEED)
    rows = [{key: _value(tree.get(key)) for key in own} for tree in trees]
    return pd.DataFrame(rows, index=range(len(found)), columns=own, dtype=object)


def _table(found: Sequence[reading.StoredRun]) -> pd.DataFrame:
    """Return the DataFrame of `runs`."""
    settings = settings_of(found).drop(columns="seed", errors="ignore")
    rows = [_row(run, keys) for run, keys in zip(found, settings.to_dict("records"), strict=True)]
    metrics = sorted(
        {key for row in rows for key in row if key.startswith(("validation.", "test."))}
    )
    frame = pd.DataFrame(rows, columns=[*FIRST, *settings, *STATE, *metrics, *LAST])
    return frame.astype(dict.fromkeys(("seconds", *metrics), "float64"))


def _value(value: Any) -> Any:
    """Return a value for a cell of a table: a list as text."""
    return str(value) if isinstance(value, list) else value


def _row(run: reading.StoredRun, settings: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the row of one run."""
    summary = run.summary
    best = {split: summary["best"][split] for split in ("validation", "test")}
    return {
        "method": summary["algorithm"],
        **{key: summary[key] for key in ("dataset", "model", "seed", "rounds")},
        **settings,
        "best_round": summary["best"]["round"],
        "finished": run.finished,
        **{key: value for key, value in leaves(best).items() if "@" not in key},
        **{kind: summary["communication"][kind] for kind in TRAFFIC},
        "seconds": summary["seconds"]["total"] if run.finished else float("nan"),
        "path": str(run.path),
    }
