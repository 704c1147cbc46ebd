"""The runs at or below folders, with the labels of their methods."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flbench.comparison.archive import Unpacked, archives
from flbench.comparison.folder import (
    FAILURES,
    MARKER,
    TUNING,
    is_cell,
    read_cells,
    read_failures,
)
from flbench.core.documents import read_json
from flbench.core.errors import UserError
from flbench.results import folders, reading, study_folder
from flbench.results.reading import Run
from flbench.results.study_folder import VARIANTS, Study


@dataclass(frozen=True)
class Collection:
    """Runs to compare.

    Attributes:
        runs: The runs, finished or not, ordered by path.
        labels: Label of the method by run folder, for runs of studies, and for tuned runs beside
            others.
        names: Name for users by run folder, for runs of archives.
        unpacked: The archives; the folders of their runs exist as long as these objects.
        notes: Sentences about where the runs come from, which limit what they show, about studies
            that are left out, and about methods some of whose cells failed.
    """

    runs: tuple[Run, ...]
    labels: dict[Path, str]
    names: dict[Path, str]
    unpacked: tuple[Unpacked, ...]
    notes: tuple[str, ...] = ()


def collect(paths: Sequence[Path]) -> Collection:
    """Read the runs at or below folders.

    Of a study, the final trainings are taken: `METHOD` has the default hyper-parameters, and
    `METHOD tuned` the tuned ones if they differ. A study without any is left out if there are other
    runs. Where a comparison with the parameters of a study
    stands beside other runs, its methods are `METHOD tuned` too.

    Args:
        paths: Folders of runs and studies, archives, or folders above them. Of archives, those
            directly in a folder are found.

    Raises:
        UserError: A path does not exist, there is no run below it, a run has no classes, or there
            is nothing but studies without finished final trainings.
        DataError: A file in a folder, or an archive, is damaged.
    """
    runs: list[Run] = []
    labels: dict[Path, str] = {}
    names: dict[Path, str] = {}
    notes: list[str] = []
    packed = {path: archives(path) for path in paths}
    unpacked = [Unpacked(file) for found in packed.values() for file in found]
    for one in unpacked:
        names |= {path: one.name(path) for path in folders.below(one.path)}
    # A path that has archives need not have a run below it.
    others = [path for path in folders.find(paths) if folders.is_one(path) or not packed.get(path)]
    for path in [*others, *list(names)]:
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        if study_folder.is_study(path):
            study = study_folder.read(path)
            finals = _finals(study, runs)
            if finals:
                notes.append(_about_study(study))
            else:
                notes.append(_without_finals(names.get(path, str(path))))
            if path in names:
                names |= {one: f"{names[path]}/{one.relative_to(path)}" for one in finals}
            labels |= finals
        elif folders.is_one(path):
            run = reading.read(path)
            run.check_classes()
            runs.append(run)
        else:
            raise UserError(f"{path} has no run below it.")
    if notes and not runs:
        raise UserError(" ".join(notes))
    labels |= _tuned(runs)
    comparisons = dict.fromkeys(run.path.absolute().parents[1] for run in runs if is_cell(run.path))
    notes += _about_tuning(comparisons)
    notes += [sentence for folder in comparisons for sentence in _failed(folder)]
    return Collection(tuple(runs), labels, names, tuple(unpacked), tuple(notes))


def _about_tuning(comparisons: Iterable[Path]) -> list[str]:
    """Return what comparisons say about the parameters that a study has found for their cells."""
    return list(
        dict.fromkeys(
            str(sentence)
            for folder in comparisons
            for sentence in read_json(folder / MARKER).get(TUNING, [])
        )
    )


def _failed(comparison: Path) -> list[str]:
    """Return a sentence for each method some of whose cells failed, with the first reason."""
    if not (comparison / FAILURES).is_file():
        return []
    reasons = read_failures(comparison)
    cells = read_cells(comparison) if reasons else []
    found = []
    for method in dict.fromkeys(cell.method for cell in cells):
        mine = [cell.name for cell in cells if cell.method == method]
        why = [reasons[name] for name in mine if name in reasons]
        if why:
            found.append(f"{method}: {len(why)} of {len(mine)} cells failed. {why[0]}")
    return found


def _about_study(study: Study) -> str:
    """Return how the report of a study's final trainings differs from the study's own page."""
    header = study.header
    return (
        f"The final trainings of {study.path.name} share one partition. The page of the study"
        f" compares {header.metric} of the deployment `{header.deployment}` after the last round;"
        " this report compares the deployed personal models at the best round by validation"
        " accuracy, and corrects for all pairs of its methods, so the figures of the two differ."
    )


def _without_finals(study: str) -> str:
    """Return what the user is told about a study that has no runs to compare."""
    return (
        f"{study} has no finished final training, so there is nothing to compare. `flbench show`"
        " prints its trials. Resume the study, or give it final trainings: flbench tune --seeds 3."
    )


def _tuned(runs: Sequence[Run]) -> dict[Path, str]:
    """Return the labels of the cells whose methods are tuned, if there are other runs too."""
    labels = {}
    tuned: dict[Path, dict[str, str]] = {}  # label by name of the cell, of each comparison
    for run in runs:
        if is_cell(run.path):
            comparison = run.path.absolute().parents[1]
            if comparison not in tuned:
                tree = read_json(comparison / MARKER)
                cells = tree.get("cells", []) if tree.get("tuned") else []
                tuned[comparison] = {cell["name"]: f"{cell['method']} tuned" for cell in cells}
            if label := tuned[comparison].get(run.path.name):
                labels[run.path] = label
    return labels if len(labels) < len(runs) else {}


def _finals(study: Study, runs: list[Run]) -> dict[Path, str]:
    """Add the finished final trainings of a study to the runs, and return their labels."""
    labels = {}
    for method in study.methods:
        for variant in VARIANTS:
            label = method if variant == "default" else f"{method} {variant}"
            for final in study.finals_of(method, variant).values():
                if final.run is not None and final.path not in labels:
                    labels[final.path] = label
                    runs.append(final.run)
    return labels
