"""What a comparison takes over from a study, and how the study's setting differs from its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flbench.analysis.arrangement import SECTIONS, WITHOUT
from flbench.comparison.plan import Design
from flbench.config.schema import Config
from flbench.config.sources import Layer, from_values, leaves, merge
from flbench.core.documents import read_json
from flbench.core.errors import ConfigError, UserError
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples
from flbench.results import reading, study_folder
from flbench.results.differences import text_of
from flbench.results.study_folder import PERSONAL, StoredStudy, Trial

COMPARED: Final = (*SECTIONS, "algorithm.", "engine.precision")
SEARCHED_BY: Final = "accuracy"  # the metric that a comparison ranks by, unless its report is asked
UNCOMPARED: Final = (*WITHOUT, "data.source", "data.sha256", "partition.sha256", "algorithm.name")
"""Keys that name a file or a seed; data and partitions are compared by their hashes."""
AFTER: Final = "Without seed and partition.seed, the repetitions begin after those of the search."

Cells = Mapping[tuple[str, tuple[str, str]], Config]
"""Complete configuration of the first repetition, by method, and labels of data and setting."""


def after_search(base: Layer, study: StoredStudy) -> Layer:
    """Return what all cells share, with seeds that begin after those of a study's search.

    The search has chosen the parameters by its seed and its partition, so that repetitions with
    these are not independent of the choice. Seeds that the user gives are kept. The seeds of the
    final trainings have chosen nothing, and are not left out.

    Args:
        base: Configuration that all cells share.
        study: The study.
    """
    seed, partition = _search_seeds(study)
    values = {"seed": seed + 1, "partition.seed": partition + 1}
    given = [key for key in values if key in base.origins]
    if "seed" in given:  # it determines the seed of the partition, too
        return base
    left = {key: value for key, value in values.items() if key not in given}
    return merge([base, from_values(left, f"after the search of {study.path}")])


def complete(first: Config, asked: Config) -> Config:
    """Return the complete configuration of a repetition, which differs from the first by seeds.

    Args:
        first: Complete configuration of the first repetition.
        asked: Configuration of a repetition.
    """
    partition = first.partition.altered(seed=asked.partition_seed)
    return first.altered(seed=asked.seed, partition=partition, output=asked.output)


def check(design: Design, cells: Sequence[Job], built: Cells, samples: LoadedSamples) -> None:
    """Check that a study has found the parameters of a comparison in the setting of its cells.

    Args:
        design: The design of the comparison.
        cells: Its cells.
        built: What their first repetitions find out.
        samples: Its data.

    Raises:
        ConfigError: A key on which results depend has another value. There is one line for each.
    """
    if (study := _study(design)) is None:
        return
    if design.reference is not None:  # the variants of an ablation are meant to differ
        cells = [cell for cell in cells if cell.method == design.reference]
    if found := _labelled(_different(study, cells, built, samples), study, cells):
        lines = [f"`tuned={design.tuned}`: {words}." for words in found]
        raise ConfigError(
            "\n".join(lines) + "\nThe study has found the best parameters in another setting"
            " (there) than that of the comparison (here), in which others may be the best. Give"
            " the comparison the values of the study, tune the methods in the setting of the"
            " comparison, or compare them nevertheless, with a note: `force`."
        )


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
        A sentence about the methods that have default parameters, one about the keys in which the
        setting of the search differs from that of the comparison, and one for each place that has
        the partition or the seed of the search. None without `design.tuned`, or if its study
        cannot be read any more.
    """
    if (study := _study(design)) is None:
        return []
    return [
        *_about_defaults(design, study),
        *_about_setting(study, cells, built, samples),
        *_about_partition(study, cells, samples),
    ]


def about_missing(design: Design) -> list[str]:
    """Return a sentence if the study that has found the parameters is not in its place any more."""
    if design.tuned is None or _study(design) is not None:
        return []
    return [
        f"{design.tuned}, the study that has found the parameters, is not there: its setting is not"
        " compared with that of the comparison."
    ]


def _study(design: Design) -> StoredStudy | None:
    """Return the study whose parameters a comparison has; None if it cannot be read any more."""
    if design.tuned is None or not study_folder.is_study(Path(design.tuned)):
        return None
    return study_folder.read(Path(design.tuned))


def _search_seeds(study: StoredStudy) -> tuple[int, int]:
    """Return the seed, and the seed of the partition, of the trials of a search."""
    seed = study.header.seed
    winners = filter(None, map(study.winner, study.methods))
    config = next(filter(None, (_config(study, won) for won in winners)), None)
    return seed, seed if config is None else config.partition_seed


def _about_defaults(design: Design, study: StoredStudy) -> list[str]:
    """Return a sentence about the methods that the study has not tuned, if there are any."""
    if not design.untuned:
        return []
    names = ", ".join(design.untuned)
    has = "has its" if len(design.untuned) == 1 else "have their"
    return [
        f"{names} {has} default parameters, because the study {study.path.name} has not tuned"
        f" {'it' if len(design.untuned) == 1 else 'them'}; the other methods have tuned ones. A"
        " difference between a tuned method and one with default parameters is in part the gain"
        " from tuning."
    ]


def _different(
    study: StoredStudy, cells: Sequence[Job], built: Cells, samples: LoadedSamples
) -> dict[str, dict[str, None]]:
    """Return the labels of methods by the differences between the search and their cells."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        won = study.winner(cell.config.algorithm.name)
        if cell.repetition or won is None:
            continue
        here = complete(built[cell.method, (cell.data, cell.setting)], cell.config)
        for difference in _differences(study, won, cell, here, samples):
            found.setdefault(difference, {})[cell.method] = None
    return found


def _labelled(
    found: Mapping[str, Mapping[str, None]], study: StoredStudy, cells: Sequence[Job]
) -> list[str]:
    """Return differences, each with the methods that it is about unless all tuned ones have it."""
    methods = {cell.method for cell in cells if study.winner(cell.config.algorithm.name)}
    return [
        f"{difference} ({', '.join(of)})" if 0 < len(of) < len(methods) else difference
        for difference, of in found.items()
    ]


def _about_setting(
    study: StoredStudy, cells: Sequence[Job], built: Cells, samples: LoadedSamples
) -> list[str]:
    """Return a sentence about the keys in which search and comparison differ, if there are any."""
    found = _different(study, cells, built, samples)
    if study.header.metric != SEARCHED_BY or study.header.deployment != PERSONAL:
        what = f"{study.header.metric} of `{study.header.deployment}`"
        found[f"the metric: {what} there, {SEARCHED_BY} of `{PERSONAL}` here"] = {}
    if not found:
        return []
    return [
        f"The parameters are those that the study {study.path.name} has found in another setting:"
        f" {'; '.join(_labelled(found, study, cells))}. They need not be the best ones here."
        " Tune the methods in the setting of the comparison before you claim that one is better."
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
    """Return a sentence for each place whose repetitions are not independent of the search."""
    wanted = study.header.partition_hash
    if wanted is None:
        return []
    training, seed = _search_seeds(study)
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
            seeded = [cell.repetition + 1 for cell in mine if cell.config.seed == training]
            found += _about_seed(study, place, seeded, len(mine))
            continue
        is_all = len(same) == len(tried)
        which = "each repetition" if is_all and len(mine) > 1 else f"repetition {same[0]}"
        cure = (
            ""
            if is_all and len(mine) > 1 and mine[0].config.partition.seed != seed
            else f" {AFTER}"
        )
        found.append(
            f"{place}: {which} has the partition on which the study {study.path.name} searched:"
            " its validation parts have chosen the parameters, so its results are not independent"
            f" of the search.{cure}"
        )
    return found


def _about_seed(study: StoredStudy, place: str, seeded: Sequence[int], count: int) -> list[str]:
    """Return a sentence if repetitions have the seed of the search, on other partitions."""
    if not seeded:
        return []
    seed = study.header.seed
    which = "each repetition" if 1 < count == len(seeded) else f"repetition {seeded[0]}"
    return [
        f"{place}: {which} has the seed {seed} of the search of the study {study.path.name}. The"
        " parameters were chosen with the initial weights and cohorts of this seed, so its results"
        f" are not independent of the search. {AFTER}"
    ]
