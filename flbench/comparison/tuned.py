"""How the setting in which a study chose parameters differs from that of a comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flbench.analysis.arrangement import SECTIONS, WITHOUT
from flbench.comparison.plan import Design
from flbench.config.schema import Config
from flbench.config.sources import leaves
from flbench.core.documents import read_json
from flbench.core.errors import UserError
from flbench.experiment.found import Found
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples
from flbench.results import reading, study_folder
from flbench.results.differences import text_of
from flbench.results.study_folder import PERSONAL, StoredStudy, Trial

COMPARED: Final = (*SECTIONS, "algorithm.", "engine.precision")
SEARCHED_BY: Final = "accuracy"  # the metric that a comparison ranks by, unless its report is asked
UNCOMPARED: Final = (*WITHOUT, "data.source", "data.sha256", "partition.sha256", "algorithm.name")
"""Keys that name a file or a seed; data and partitions are compared by their hashes."""

Cells = Mapping[tuple[str, tuple[str, str]], Found]
"""What the first repetition finds out, by method, and labels of data and setting."""


def sentences(
    design: Design, cells: Sequence[Job], built: Cells, samples: LoadedSamples
) -> list[str]:
    """Return what a reader must know about parameters that a study has found.

    Args:
        design: The design of the comparison.
        cells: Its cells.
        built: What their first repetitions find out.
        samples: Its data.

    Returns:
        A sentence about the keys in which the setting of the search differs from that of the
        comparison, and one for each place that has the partition of the search. None without
        `design.tuned`, or if its study cannot be read any more.
    """
    if design.tuned is None or not study_folder.is_study(Path(design.tuned)):
        return []
    study = study_folder.read(Path(design.tuned))
    return [*_about_setting(study, cells, built, samples), *_about_partition(study, cells, samples)]


def _about_setting(
    study: StoredStudy, cells: Sequence[Job], built: Cells, samples: LoadedSamples
) -> list[str]:
    """Return a sentence about the keys in which search and comparison differ, if there are any."""
    found: dict[str, dict[str, None]] = {}  # methods by difference
    for cell in cells:
        won = study.winner(cell.config.algorithm.name)
        if cell.repetition or won is None:
            continue
        here = built[cell.method, (cell.data, cell.setting)].complete(cell.config)
        for difference in _differences(study, won, cell, here, samples):
            found.setdefault(difference, {})[cell.method] = None
    if study.header.metric != SEARCHED_BY or study.header.deployment != PERSONAL:
        what = f"{study.header.metric} of `{study.header.deployment}`"
        found[f"the metric: {what} there, {SEARCHED_BY} of `{PERSONAL}` here"] = {}
    if not found:
        return []
    methods = dict.fromkeys(cell.method for cell in cells)
    words = [
        f"{difference} ({', '.join(of)})" if 0 < len(of) < len(methods) else difference
        for difference, of in found.items()
    ]
    return [
        f"The parameters are those that the study {study.path.name} has found in another setting:"
        f" {'; '.join(words)}. They need not be the best ones here. Tune the methods in the setting"
        " of the comparison before you claim that one is better."
    ]


def _differences(
    study: StoredStudy, won: Trial, cell: Job, here: Config, samples: LoadedSamples
) -> list[str]:
    """Return the keys in which the best trial of a method and a cell differ, with both values."""
    config = _config(study, won)
    if config is None:
        return _by_header(study, cell, here)
    there = leaves(config.tree())
    found = [
        _words(key, there.get(key), value)
        for key, value in leaves(here.tree()).items()
        if key.startswith(COMPARED)
        and key not in UNCOMPARED
        and not any(f"{searched}.".startswith(f"{key}.") for searched in won.params)
        and there.get(key) != value
    ]
    file = _folder(study, won) / "partition.json"
    was = read_json(file).get("data") if file.is_file() else None
    if was is not None and was != samples.data_hash(cell):
        names = study.header.dataset, cell.data or cell.config.data.title
        what = (
            f": {names[0]} there, {names[1]} here" if names[0] != names[1] else " (other samples)"
        )
        found.insert(0, f"the data{what}")
    return found


def _folder(study: StoredStudy, trial: Trial) -> Path:
    """Return the folder of a trial of the search."""
    return study.path / "trials" / trial.method / f"{trial.index:03d}"


def _config(study: StoredStudy, trial: Trial) -> Config | None:
    """Return the configuration of a trial; None if its folder cannot be read any more."""
    try:
        return reading.read(_folder(study, trial)).config
    except UserError:
        return None


def _by_header(study: StoredStudy, cell: Job, here: Config) -> list[str]:
    """Return the differences that study.json shows, for a study without folders of trials."""
    header = study.header
    pairs = {
        "the data": (header.dataset, cell.data or cell.config.data.title),
        "partition.scheme": (header.scheme, here.partition.title),
        "train.rounds": (header.rounds, here.train.rounds),
    }
    return [_words(key, *both) for key, both in pairs.items() if both[0] != both[1]]


def _words(key: str, there: Any, here: Any) -> str:
    """Return a key with the values of the study and of the comparison."""
    return f"{key}: {text_of(there)} there, {text_of(here)} here"


def _about_partition(study: StoredStudy, cells: Sequence[Job], samples: LoadedSamples) -> list[str]:
    """Return a sentence for each place with repetitions on the partition of the search."""
    wanted = study.header.partition_hash
    won = study.winner(cells[0].config.algorithm.name)
    config = None if won is None else _config(study, won)
    if wanted is None:
        return []
    own = None if config is None else config.partition.seed
    seed = study.header.seed if own is None else own
    found = []
    first = cells[0].method  # all methods of a repetition have one partition
    for place in dict.fromkeys(cell.place for cell in cells):
        mine = [cell for cell in cells if (cell.place, cell.method) == (place, first)]
        # The partition of a repetition costs time, so only those that can be equal are made: most
        # schemes make another one for another seed, the others the same one for all seeds.
        tried = [cell for cell in mine if cell.repetition < 2 or cell.config.partition.seed == seed]
        same = [
            cell.repetition + 1
            for cell in tried
            if samples.federation(cell).partition.hash() == wanted
        ]
        if not same:
            continue
        is_all = len(same) == len(tried)
        which = "each repetition" if is_all and len(mine) > 1 else f"repetition {same[0]}"
        cure = (
            ""
            if is_all and len(mine) > 1 and mine[0].config.partition.seed != seed
            else f" partition.seed={seed + 1} leaves this partition out."
        )
        found.append(
            f"{place}: {which} has the partition on which the study {study.path.name} searched:"
            " its validation parts have chosen the parameters, so its results are not independent"
            f" of the search.{cure}"
        )
    return found
