"""What a comparison takes over from a study, and how the study's setting differs from its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from flbench.comparison.design import Design, LabelledLayer
from flbench.config import trust
from flbench.config.schema import Config
from flbench.config.sources import Layer, from_values, is_line, leaves, merge
from flbench.core.documents import read_json
from flbench.core.errors import ConfigError
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples
from flbench.results import reading, study_folder
from flbench.results.differences import SECTIONS, WITHOUT, text_of
from flbench.results.study_folder import StoredStudy, Trial
from flbench.tuning.request import OTHER_DATA

COMPARED: Final = (*SECTIONS, "algorithm.", "engine.precision")
SEARCHED_BY: Final = "accuracy"  # the metric that a comparison ranks by, unless its report is asked
UNCOMPARED: Final = (*WITHOUT, "data.source", "data.sha256", "partition.sha256", "algorithm.name")
"""Keys that name a file or a seed; data and partitions are compared by their hashes."""

Cells = Mapping[tuple[str, tuple[str, str]], Config]
"""Complete configuration of the first repetition, by method, and labels of data and setting."""


def with_best(design: Design, path: Path) -> Design:
    """Return a design whose methods have the best parameters that a study has found.

    The search has chosen them by its seed and its partition, so repetitions with these would not
    be independent of the choice: unless the user gives seeds, they begin after those of the search.

    Raises:
        ConfigError: The study has none of the methods, has no winner of one, or a parameter is
            given too.
    """
    study = study_folder.read(path)
    methods, untuned = best(design.methods, design.base, study)
    if len({one.method for one in methods}) == len(untuned):
        raise ConfigError(
            f"`tuned={path}`: the study has none of the methods, but"
            f" {', '.join(study.methods)}. Leave it out, or name methods that it has tuned."
        )
    base, given = design.base, design.base.origins
    named = {*base, *design.grid, *(key for one in design.data for key in one.layer)}
    if not OTHER_DATA & named:  # a study that names no data has default data of its own
        base = merge([from_values(study.header.setting, f"default of {path}"), base])
    if "seed" not in given:  # it determines the seed of the partition, too
        seed, partition = _search_seeds(study)
        after = {"seed": seed + 1, "partition.seed": partition + 1}
        left = {key: value for key, value in after.items() if key not in given}
        base = merge([base, from_values(left, f"after the search of {path}")])
    return design.altered(base=base, methods=methods, tuned=str(path.absolute()), untuned=untuned)


def best(
    methods: Sequence[LabelledLayer], base: Layer, study: StoredStudy
) -> tuple[tuple[LabelledLayer, ...], tuple[str, ...]]:
    """Return methods with the best parameters of a study, and the names of those that it lacks.

    Raises:
        ConfigError: A method of the study has no winner, or one of its parameters is given too.
    """
    path = study.path
    won = {name: study.winner(name) for name in {one.method for one in methods}}
    merged = {name: one.params for name, one in won.items() if one}
    trust.check(path / "study.json", merged, study.header.setting)
    found: list[LabelledLayer] = []
    for method in methods:
        winner = won[method.method]
        if winner is None and method.method in study.methods:
            raise ConfigError(
                f"`tuned={path}`: no trial of {method.label} has finished with a score. Resume the"
                f" study, or leave {method.label} out."
            )
        params = {} if winner is None else winner.params
        for key in params:
            place = method.origins.get(key, base.origins.get(key, "default"))
            if not is_line(place) and not place.startswith("default"):
                raise ConfigError(
                    f"`tuned={path}` and {place} both give `{key}` of {method.label}. Leave one of"
                    " the two out."
                )
        found.append(method.altered(from_values(params, str(path))) if params else method)
    untuned = (one.method for one in methods if one.method not in study.methods)
    return tuple(found), tuple(dict.fromkeys(untuned))


def about(
    design: Design, cells: Sequence[Job], built: Cells, samples: LoadedSamples, *, force: bool
) -> list[str]:
    """Return what a reader must know about parameters that a study has found.

    These are a sentence about the methods that have default parameters, one about the keys in which
    the setting of the search differs from that of the comparison, and one about repetitions that
    have the seed or the partition of the search.

    Raises:
        ConfigError: A key on which results depend has another value. There is one line for each.
    """
    if design.tuned is None:
        return []
    if not study_folder.is_study(Path(design.tuned)):
        return [f"{design.tuned} is not there: its setting is not compared with that of the cells."]
    study = study_folder.read(Path(design.tuned))
    name, found = study.path.name, []
    # The variants of an ablation are meant to differ.
    compared = [one for one in cells if design.reference in (None, one.method)]
    different = _differences(study, compared, built, samples)
    if different and not force:
        raise ConfigError(
            "\n".join(f"`tuned={design.tuned}`: {words}." for words in different)
            + "\nThe best parameters in the setting of the study (there) need not be the best in"
            " that of the comparison (here). Give the comparison the values of the study, tune the"
            " methods in its setting, or compare them with a note: `force`."
        )
    if design.untuned:
        found.append(
            f"Default parameters: {', '.join(design.untuned)}, which the study {name} has not"
            " tuned. A difference between a tuned method and one with default parameters is in"
            " part the gain from tuning."
        )
    if study.header.metric != SEARCHED_BY:
        different.append(f"the metric: {study.header.metric} there, {SEARCHED_BY} here")
    if different:
        found.append(
            f"The parameters are those that the study {name} has found in another setting:"
            f" {'; '.join(different)}. They need not be the best ones here. Tune the methods in the"
            " setting of the comparison before you claim that one is better."
        )
    seeds = _search_seeds(study)
    # The partition of a repetition costs time, so only those that can be equal are made: most
    # schemes make another one for another seed, the others the same one for all seeds.
    tried = [one for one in cells if not one.repetition or one.config.partition_seed == seeds[1]]
    wanted = study.header.partition_hash
    if seeds[0] in {one.config.seed for one in cells} or any(
        samples.federation(one).partition.hash() == wanted
        for one in tried
        if one.method == cells[0].method
    ):
        found.append(
            f"Repetitions have the seed or the partition of the search of the study {name}, by"
            " which the parameters were chosen, so their results are not independent of the"
            " search. Without seed and partition.seed, the repetitions begin after it."
        )
    return found


def _search_seeds(study: StoredStudy) -> tuple[int, int]:
    """Return the seed, and the seed of the partition, of the trials of a search."""
    seed = study.header.seed
    folders = [_folder(study, won) for won in map(study.winner, study.methods) if won is not None]
    known = [folder for folder in folders if (folder / "config.yaml").is_file()]
    return seed, reading.read(known[0]).config.partition_seed if known else seed


def _folder(study: StoredStudy, trial: Trial) -> Path:
    """Return the folder of a trial of the search."""
    return study.path / "trials" / trial.method / f"{trial.index:03d}"


def _differences(
    study: StoredStudy, cells: Sequence[Job], built: Cells, samples: LoadedSamples
) -> list[str]:
    """Return the differences between the search and the cells, and the methods that they are of.

    The methods are named where not all tuned ones have a difference.
    """
    found: dict[str, dict[str, None]] = {}
    methods = set()
    for cell in cells:
        won = study.winner(cell.config.algorithm.name)
        if cell.repetition or won is None:
            continue
        methods.add(cell.method)
        folder = _folder(study, won)
        there = leaves(reading.read(folder).config.tree())
        was = read_json(folder / "partition.json").get("data")
        mine, now = [], samples.data_hash(cell)
        if was not in (None, now):
            names = study.header.dataset, cell.config.data.title
            mine = [f"the data: {names[0]} ({was[:6]}) there, {names[1]} ({now[:6]}) here"]
        mine += [
            f"{key}: {text_of(there.get(key))} there, {text_of(value)} here"
            for key, value in leaves(built[cell.method, (cell.data, cell.setting)].tree()).items()
            if key.startswith(COMPARED)
            and key not in UNCOMPARED
            and not any(f"{searched}.".startswith(f"{key}.") for searched in won.params)
            and there.get(key) != value
        ]
        for difference in mine:
            found.setdefault(difference, {})[cell.method] = None
    return [
        f"{difference} ({', '.join(of)})" if len(of) < len(methods) else difference
        for difference, of in found.items()
    ]
