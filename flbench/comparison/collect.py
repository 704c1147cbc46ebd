"""The runs at or below folders, with the labels of their methods."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flbench.comparison.archive import Unpacked, archives
from flbench.comparison.folder import MARKER, TUNING, is_cell, is_comparison, read_cells
from flbench.core.documents import as_data_error, read_json
from flbench.core.errors import UserError
from flbench.core.own_names import checked
from flbench.jobs.folder import read_failures
from flbench.results import folders, reading, study_folder
from flbench.results.differences import check_comparable
from flbench.results.left_out import LeftOut
from flbench.results.reading import StoredRun

MOST_SENTENCES: Final = 20  # of a comparison about its parameters, or about its failures


@dataclass(frozen=True)
class Collection:
    """Runs to compare.

    Attributes:
        runs: The runs, finished or not, ordered by path.
        labels: Label of the method by run folder, for runs that are not named by their keys.
        names: Name for users by run folder, for runs of archives.
        unpacked: The archives; the folders of their runs exist as long as these objects.
        notes: Sentences about what is left out, about where the runs come from, which limits what
            they show, and about methods some of whose cells failed.
        reference: Label of the method with which each of the others is compared, if all runs are
            cells of one comparison that has one; or None.
        metric: Metric that ranks the methods: that of the studies among the folders if they agree,
            otherwise the accuracy.
    """

    runs: tuple[StoredRun, ...]
    labels: dict[Path, str]
    names: dict[Path, str]
    unpacked: tuple[Unpacked, ...]
    notes: tuple[str, ...]
    reference: str | None
    metric: str


def collect(paths: Sequence[Path]) -> Collection:
    """Read the runs at or below folders.

    Of a study, the cells are taken: `METHOD` has the default hyper-parameters, and `METHOD tuned`
    the tuned ones if they differ. A study without any is left out if there are other runs. Methods
    of one comparison have the labels of its design. Beside other runs they keep those that somebody
    chose, those with the parameters of a study are `METHOD tuned`, and the others are named by the
    keys in which their runs differ.

    What cannot be compared is left out, and a note says why: a run, a study or an archive that is
    damaged, a run without classes, and a path without a run below it.

    Args:
        paths: Folders of runs and studies, archives, or folders above them. Of archives, those
            directly in a folder are found.

    Raises:
        UserError: A path does not exist, or nothing remains: the error is that of the first run,
            study, archive or path that is left out.
    """
    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"{missing[0]} does not exist.")
    left_out, runs, notes, unpacked = LeftOut(), [], list[str](), []
    names: dict[Path, str] = {}
    packed = {path: archives(path) for path in paths}
    for file in (file for found in packed.values() for file in found):
        with left_out.catching(file):
            unpacked.append(Unpacked(file))
            below = [*folders.below(unpacked[-1].path)]
            if not below:
                raise UserError(f"{file} has no run and no study in it.")
            names |= {path: unpacked[-1].name(path) for path in below}
    # A path that has archives need not have a run below it.
    others = [path for path in folders.find(paths) if folders.is_one(path) or not packed.get(path)]
    metrics = set()
    for path in [*others, *list(names)]:
        with left_out.catching(path, names.get(path)):
            begun = [path]
            if study_folder.is_study(path):
                study = study_folder.read(path, lenient=True)
                notes += study.left_out
                planned = read_cells(path) if is_comparison(path) else []
                begun = [path / "cells" / one.name for one in planned]
                begun = [*filter(folders.is_one, begun)]
                if not begun:
                    raise UserError(
                        f"{names.get(path, path)} has no finished cell, so there is nothing to"
                        " compare. `flbench show` prints its trials. Resume the study, or give it"
                        " repetitions: flbench tune --seeds 5."
                    )
                metrics.add(study.header.metric)
                if path in names:
                    names |= {one: f"{names[path]}/{one.relative_to(path)}" for one in begun}
            elif not folders.is_one(path):
                raise UserError(f"{path} has no run below it.")
            for one in begun:
                with left_out.catching(one, names.get(one)):
                    run = reading.read(one)
                    check_comparable(run) if run.finished else run.check_classes()
                    runs.append(run)
    if not runs:
        left_out.raise_first()
    labels, reference = _labels(runs, left_out, notes)
    sentences = (*left_out.sentences, *dict.fromkeys(notes))
    metric = metrics.pop() if len(metrics) == 1 else "accuracy"
    return Collection(tuple(runs), labels, names, tuple(unpacked), sentences, reference, metric)


def _labels(
    runs: Sequence[StoredRun], left_out: LeftOut, notes: list[str]
) -> tuple[dict[Path, str], str | None]:
    """Return labels and reference of cells among runs, and add notes about their comparisons."""
    folders_of = [run.path.absolute().parents[1] if is_cell(run.path) else None for run in runs]
    is_alone = len({*folders_of}) == 1
    reference = None
    labels: dict[Path, str] = {}
    tuned: dict[Path, str] = {}
    for folder in dict.fromkeys(filter(None, folders_of)):
        with left_out.catching(folder), as_data_error(folder / MARKER):
            about = read_json(folder / MARKER)
            mine = [run.path for run, of in zip(runs, folders_of, strict=True) if of == folder]
            reference = about.get("reference") if is_alone else None
            untuned = about.get("untuned", ())
            cells = {cell["name"]: cell for cell in about["cells"]}
            for path, cell in ((path, cells[path.name]) for path in mine if path.name in cells):
                label = checked(cell["method"], "the name of a method")
                is_tuned = about.get("tuned") and label.partition(" ")[0] not in untuned
                # Beside other runs, a label that nobody chose could stand for runs of other keys.
                if cell.get("own") or (is_alone and not (is_tuned and untuned)):
                    labels[path] = label
                elif is_tuned:
                    tuned[path] = f"{label} tuned"
            notes += list(map(str, about.get(TUNING, [])))[:MOST_SENTENCES]
            notes += _failed(folder)
    labels |= tuned if len(tuned) < len(runs) else {}
    return labels, reference


def _failed(comparison: Path) -> list[str]:
    """Return a sentence for each method some of whose cells failed, with the first reason."""
    reasons = read_failures(comparison)
    names: dict[str, list[str]] = {}
    for cell in read_cells(comparison) if reasons else ():
        names.setdefault(cell.method, []).append(cell.name)
    failed = {method: [one for one in mine if one in reasons] for method, mine in names.items()}
    return [
        f"{method}: {len(some)} of {len(names[method])} cells failed. {reasons[some[0]]}"
        for method, some in failed.items()
        if some
    ][:MOST_SENTENCES]
