"""The runs at or below folders, with the labels of their methods."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flbench.core.errors import UserError
from flbench.results import folders, reading, study_folder
from flbench.results.reading import Run
from flbench.results.study_folder import VARIANTS, Study


@dataclass(frozen=True)
class Collection:
    """Runs to compare.

    Attributes:
        runs: The runs, finished or not, ordered by path.
        labels: Label of the method by run folder, for runs of studies.
    """

    runs: tuple[Run, ...]
    labels: dict[Path, str]


def collect(paths: Sequence[Path]) -> Collection:
    """Read the runs at or below folders.

    Of a study, the final trainings are taken: `METHOD` has the default hyper-parameters, and
    `METHOD tuned` the tuned ones if they differ.

    Args:
        paths: Folders of runs and studies, or folders above them.

    Raises:
        UserError: A path does not exist, or there is no run below it.
        DataError: A file in a folder is damaged.
    """
    runs: list[Run] = []
    labels: dict[Path, str] = {}
    for path in folders.find(paths):
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        if study_folder.is_study(path):
            labels |= _finals(study_folder.read(path), runs)
        elif folders.is_one(path):
            runs.append(reading.read(path))
        else:
            raise UserError(f"{path} has no run below it.")
    return Collection(tuple(runs), labels)


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
    if not labels:
        raise UserError(
            f"{study.path} has no finished final training. Resume the study, or give it final"
            " trainings: flbench tune --seeds 3."
        )
    return labels
