"""The runs at or below folders, with the labels of their methods."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flbench.comparison.archive import Unpacked, archives
from flbench.comparison.folder import (
    MARKER,
    TUNING,
    is_cell,
    read_cells,
    read_design,
)
from flbench.core.documents import as_data_error, read_json
from flbench.core.errors import UserError
from flbench.core.own_names import checked
from flbench.jobs.folder import FAILURES, read_failures
from flbench.results import folders, reading, study_folder
from flbench.results.left_out import LeftOut
from flbench.results.reading import StoredRun
from flbench.results.study_folder import StoredStudy

MOST_SENTENCES: Final = 20  # of a comparison about its parameters


@dataclass(frozen=True)
class Collection:
    """Runs to compare.

    Attributes:
        runs: The runs, finished or not, ordered by path.
        labels: Label of the method by run folder, for runs of studies, and for tuned runs beside
            others.
        names: Name for users by run folder, for runs of archives.
        unpacked: The archives; the folders of their runs exist as long as these objects.
        notes: Sentences about what is left out, about where the runs come from, which limits what
            they show, and about methods some of whose cells failed.
        reference: Label of the method with which each of the others is compared, if all runs are
            cells of one comparison that has one; or None.
    """

    runs: tuple[StoredRun, ...]
    labels: dict[Path, str]
    names: dict[Path, str]
    unpacked: tuple[Unpacked, ...]
    notes: tuple[str, ...] = ()
    reference: str | None = None


def collect(paths: Sequence[Path]) -> Collection:
    """Read the runs at or below folders.

    Of a study, the final trainings are taken: `METHOD` has the default hyper-parameters, and
    `METHOD tuned` the tuned ones if they differ. A study without any is left out if there are other
    runs. Where a comparison with the parameters of a study stands beside other runs, its methods
    are `METHOD tuned` too.

    What cannot be compared is left out, and a note says why: a run, a study or an archive that is
    damaged, a run without classes, and a path without a run below it.

    Args:
        paths: Folders of runs and studies, archives, or folders above them. Of archives, those
            directly in a folder are found.

    Raises:
        UserError: A path does not exist, or nothing remains: the error is that of the first run,
            study, archive or path that is left out.
    """
    runs: list[StoredRun] = []
    labels: dict[Path, str] = {}
    names: dict[Path, str] = {}
    notes: list[str] = []
    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"{missing[0]} does not exist.")
    left_out = LeftOut()
    packed = {path: archives(path) for path in paths}
    unpacked = []
    for file in (file for found in packed.values() for file in found):
        with left_out.catching(file):
            unpacked.append(Unpacked(file))
            below = [*folders.below(unpacked[-1].path)]
            if not below:
                raise UserError(f"{file} has no run and no study in it.")
            names |= {path: unpacked[-1].name(path) for path in below}
    # A path that has archives need not have a run below it.
    others = [path for path in folders.find(paths) if folders.is_one(path) or not packed.get(path)]
    for path in [*others, *list(names)]:
        with left_out.catching(path, names.get(path)):
            if study_folder.is_study(path):
                study = study_folder.read(path, lenient=True)
                notes += study.left_out
                finals = _finals(study, runs, left_out)
                if not finals:
                    raise UserError(_without_finals(names.get(path, str(path))))
                if path in names:
                    names |= {one: f"{names[path]}/{one.relative_to(path)}" for one in finals}
                labels |= finals
                notes.append(_about_study(study))
            elif folders.is_one(path):
                runs.append(_checked(reading.read(path)))
            else:
                raise UserError(f"{path} has no run below it.")
    if not runs:
        left_out.raise_first()
    labels |= _tuned(runs, left_out)
    reference, more = _beside_reference(runs, left_out)
    labels |= more
    comparisons = dict.fromkeys(run.path.absolute().parents[1] for run in runs if is_cell(run.path))
    notes += _about_tuning(comparisons, left_out)
    notes += _failed(comparisons, left_out)
    sentences = (*left_out.sentences, *notes)
    return Collection(tuple(runs), labels, names, tuple(unpacked), sentences, reference)


def _checked(run: StoredRun) -> StoredRun:
    """Return a run whose files a comparison can use; raise a UserError if it cannot."""
    if run.finished:
        run.check_comparable()
    else:
        run.check_classes()
    return run


def _about_tuning(comparisons: Iterable[Path], left_out: LeftOut) -> list[str]:
    """Return the sentences that the reports of comparisons repeat."""
    found: dict[str, None] = {}
    for folder in comparisons:
        with left_out.catching(folder):
            sentences = read_json(folder / MARKER).get(TUNING, [])
            with as_data_error(folder / MARKER):
                found |= dict.fromkeys(map(str, [*sentences][:MOST_SENTENCES]))
    return list(found)


def _failed(comparisons: Iterable[Path], left_out: LeftOut) -> list[str]:
    """Return a sentence for each method some of whose cells failed, with the first reason."""
    found: list[str] = []
    for comparison in comparisons:
        if not (comparison / FAILURES).is_file():
            continue
        with left_out.catching(comparison), as_data_error(comparison / FAILURES):
            reasons = read_failures(comparison)
            cells = read_cells(comparison) if reasons else []
            for method in dict.fromkeys(cell.method for cell in cells):
                mine = [cell.name for cell in cells if cell.method == method]
                why = [str(reasons[name]) for name in mine if name in reasons]
                if why:
                    found.append(f"{method}: {len(why)} of {len(mine)} cells failed. {why[0]}")
    return found[:MOST_SENTENCES]


def _about_study(study: StoredStudy) -> str:
    """Return how the report of a study's final trainings differs from the study's own page."""
    header = study.header
    finals = [run for _, _, run in study.finished_finals()]
    is_one = len({run.summary.get("partition_hash") for run in finals}) == 1
    shared = f"The final trainings of {study.path.name} share one partition. " if is_one else ""
    return (
        f"{shared}The page of the study {study.path.name} compares {header.metric} of the"
        f" deployment `{header.deployment}`, and tests the gain of each method and the pairs of"
        " tuned methods; this report compares the deployed personal models, and corrects for all"
        " pairs of its methods."
    )


def _without_finals(study: str) -> str:
    """Return what the user is told about a study that has no runs to compare."""
    return (
        f"{study} has no finished final training, so there is nothing to compare. `flbench show`"
        " prints its trials. Resume the study, or give it final trainings: flbench tune --seeds 5."
    )


def _tuned(runs: Sequence[StoredRun], left_out: LeftOut) -> dict[Path, str]:
    """Return the labels of the cells whose methods are tuned, if there are other runs too."""
    labels = {}
    tuned: dict[Path, dict[str, str]] = {}  # label by name of the cell, of each comparison
    for run in runs:
        if is_cell(run.path):
            comparison = run.path.absolute().parents[1]
            if comparison not in tuned:
                tuned[comparison] = {}
                with left_out.catching(comparison):
                    tuned[comparison] = _tuned_cells(comparison / MARKER)
            if label := tuned[comparison].get(run.path.name):
                labels[run.path] = label
    return labels if len(labels) < len(runs) else {}


def _tuned_cells(file: Path) -> dict[str, str]:
    """Return the labels of the cells with tuned parameters of a comparison by their names.

    A label of a method begins with its name, behind which a variant has its keys.
    """
    tree = read_json(file)
    with as_data_error(file):
        untuned = {*map(str, tree.get("untuned", []))}
        return {
            cell["name"]: f"{label} tuned"
            for cell in (tree.get("cells", []) if tree.get("tuned") else [])
            if (label := checked(cell["method"], "the name of a method")).partition(" ")[0]
            not in untuned
        }


def _beside_reference(
    runs: Sequence[StoredRun], left_out: LeftOut
) -> tuple[str | None, dict[Path, str]]:
    """Return the reference of the comparison that all runs are cells of, and the runs' labels.

    The labels are those of the plan, which name what differs from the reference. Beside other runs,
    methods are named by all keys in which their runs differ.
    """
    folders = {run.path.absolute().parents[1] if is_cell(run.path) else None for run in runs}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is None:
        return None, {}
    with left_out.catching(folder), as_data_error(folder / MARKER):
        design, _ = read_design(folder)
        if design.reference is not None:
            labels = {cell.name: checked(cell.method, "a method") for cell in read_cells(folder)}
            if all(run.path.name in labels for run in runs):
                return design.reference, {run.path: labels[run.path.name] for run in runs}
    return None, {}


def _finals(study: StoredStudy, runs: list[StoredRun], left_out: LeftOut) -> dict[Path, str]:
    """Add the finished final trainings of a study to the runs, and return their labels."""
    labels = {}
    for label, _, run in study.finished_finals():
        with left_out.catching(run.path):
            runs.append(_checked(run))
            labels[run.path] = label
    return labels
