"""The trials of a study as the mirror sees them: with their folders, read one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flbench.core.documents import as_data_error
from flbench.core.errors import DataError
from flbench.results.study_folder import Trial, best_trial, read_trial
from flbench.tracking.mirror_run import summary_metrics, unix_milliseconds
from flbench.tracking.mirror_tree import file_versions


@dataclass(frozen=True)
class TrialFolder:
    """The folder of a trial of the search, or of a final training.

    Attributes:
        path: The folder.
        trial: Content of its trial.json.
        started: Time at which the trial began, in ms since 1970.
        ended: Time at which the trial ended, in ms since 1970; None if that is not known.
    """

    path: Path
    trial: Trial
    started: int
    ended: int | None

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a trial.json.

        Raises:
            DataError: The file is damaged.
        """
        trial = read_trial(file)
        with as_data_error(file):
            if trial.started is None:
                raise KeyError("started")
            ended = None if trial.ended is None else unix_milliseconds(trial.ended)
            return cls(file.parent, trial, unix_milliseconds(trial.started), ended)

    @property
    def is_final(self) -> bool:
        """Whether this is a final training, not a trial of the search."""
        return self.trial.kind == "final"

    @property
    def parent_index(self) -> int:
        """For a final training: the number of the trial whose hyper-parameters it uses."""
        return self.trial.of or 0

    @property
    def name(self) -> str:
        """Name of the run in MLflow."""
        if self.is_final:
            # MLflow's tree shows only the first characters: they must tell the runs apart.
            return f"{self.trial.variant}{self.trial.seed} {self.trial.method}"
        return f"{self.trial.method} {self.path.name}"

    def file_versions(self) -> tuple[tuple[int, int] | None, ...]:
        """Return modification time and size of the files that change while the trial runs."""
        return file_versions(self.path, "trial.json", "metrics.csv", "summary.json")


def trial_folders(parent: Path) -> tuple[list[TrialFolder], list[DataError]]:
    """Read the trials in the subfolders of a folder.

    Returns:
        The trials ordered by the names of their folders, and an error for each trial.json that is
        damaged.
    """
    folders, errors = [], []
    for file in sorted(parent.glob("*/trial.json")):
        try:
            folders.append(TrialFolder.read(file))
        except DataError as error:
            errors.append(error)
    return folders, errors


def best_folder(folders: Sequence[TrialFolder]) -> TrialFolder | None:
    """Return the folder of the best finished trial; see `flbench.results.study_folder.best_trial`.

    None if no finished trial has a score.
    """
    best = best_trial([folder.trial for folder in folders])
    return next((folder for folder in folders if folder.trial is best), None) if best else None


def mean_metrics(folders: Sequence[Path]) -> dict[str, float]:
    """Return the mean of each summary metric over finished run folders.

    A metric that one of the summaries lacks is left out.
    """
    summaries = [summary_metrics(folder) for folder in folders]
    shared = set.intersection(*(set(summary) for summary in summaries))
    return {
        name: sum(summary[name] for summary in summaries) / len(summaries)
        for name in sorted(shared)
    }
