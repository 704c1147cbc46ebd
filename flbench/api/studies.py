"""A study as an object: its trials, its winners and what can be said about them."""

from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Final

import pandas as pd

from flbench.api import html
from flbench.api.study_plots import StudyPlots
from flbench.calls import arguments
from flbench.config.sources import leaves
from flbench.core.errors import UserError, did_you_mean
from flbench.results import metrics_file, study_folder
from flbench.results.study_folder import Trial
from flbench.results.summary import evaluated_rounds
from flbench.tuning import tables
from flbench.tuning.failures import find_failures
from flbench.tuning.report import StudyReport
from flbench.tuning.reported import reported

TRIALS: Final = {
    "method": "str",
    "trial": "int64",
    "state": "str",
    "score": "float64",
    "loss": "float64",
    "round": "int64",
    "rounds": "int64",
    "seconds": "float64",
    "attempts": "int64",
    "reason": "str",
}
"""Columns of `Study.trials` with their types; the parameters stand before `attempts`."""

FINALS: Final = {
    "method": "str",
    "variant": "str",
    "seed": "int64",
    "partition_seed": "int64",
    "trial": "int64",
    "up_bytes": "int64",
    "down_bytes": "int64",
    "peer_bytes": "int64",
    "setup_bytes": "int64",
    "seconds": "float64",
    "path": "str",
}
"""Columns of `Study.finals` with their types; the metrics stand before `up_bytes`."""

VERDICTS: Final = {
    "first": "str",
    "second": "str",
    "difference": "float64",
    "low": "float64",
    "high": "float64",
    "seeds": "int64",
    "p": "float64",
    "p_holm": "float64",
    "p_wilcoxon": "float64",
    "verdict": "str",
}
"""Columns of `Study.verdicts` with their types."""


class Study:
    """A study of `fl.tune`, finished or not, as read from its folder.

    Args:
        path: The study folder.

    Raises:
        UserError: The path is not a study folder.
        DataError: A file in the folder is damaged.

    Attributes:
        path: The study folder.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = arguments.path_of(path, "path")
        self._study = study_folder.read(self.path, lenient=True)
        self._report = StudyReport(self._study)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return self._study.methods

    @property
    def metric(self) -> str:
        """Validation metric that scores the trials."""
        return self._study.header.metric

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The trials of the search, one per row; trial 0 of a method has the default parameters.

        Columns: `method` str; `trial` int64, its number; `state` str, `finished`, `stopped` (by the
        scheduler), `running`, `diverged` or `failed`; `score` float64, the validation metric at the
        last evaluation; `loss` float64, the validation loss after the last round, which decides
        between equal scores; `round` and `rounds` int64, those done and those asked for; `seconds`
        float64; a column for each hyper-parameter by its dotted key, missing where the method does
        not have it; `attempts` int64; `reason` str, why it failed.
        """
        keys = list(dict.fromkeys(key for trial in self._study.trials for key in trial.params))
        rows = [
            {
                "method": trial.method,
                "trial": trial.index,
                "state": trial.state,
                "score": trial.score,
                "loss": trial.loss,
                "round": trial.round,
                "rounds": trial.rounds,
                "seconds": (trial.seconds or {}).get("total"),
                **{key: trial.params.get(key) for key in keys},
                "attempts": trial.attempts,
                "reason": trial.reason or "",
            }
            for trial in self._study.trials
        ]
        names = list(TRIALS)
        return pd.DataFrame(rows, columns=[*names[:-2], *keys, *names[-2:]]).astype(TRIALS)

    @cached_property
    def finals(self) -> pd.DataFrame:
        """The finished final trainings, one per row, each with another seed.

        Columns: `method` str; `variant` str, `default` or `tuned` parameters; `seed` and
        `partition_seed` int64, those of the training and of the partition; `trial` int64, the trial
        whose parameters it has; `validation.METRIC` and `test.METRIC` float64, at the best round by
        validation, and `last.validation.METRIC` and `last.test.METRIC`, after the last round;
        `up_bytes`, `down_bytes`, `peer_bytes` and `setup_bytes` int64 and `seconds` float64
        of the whole run; `path` str, which `fl.load` reads. If the default parameters won the
        search, the method has no tuned rows.
        """
        rows = []
        for final in self._study.finals:
            if final.run is None:
                continue
            summary = final.run.summary
            best, last = (
                {split: summary[moment][split] for split in ("validation", "test")}
                for moment in ("best", "last")
            )
            rows.append(
                {
                    "method": final.trial.method,
                    "variant": final.trial.variant,
                    "seed": final.trial.seed,
                    "partition_seed": final.run.config.partition_seed,
                    "trial": final.trial.index,
                    **{
                        key: value
                        for key, value in leaves({**best, "last": last}).items()
                        if "@" not in key
                    },
                    **{name: summary["communication"][name] for name in list(FINALS)[5:9]},
                    "seconds": summary["seconds"]["total"],
                    "path": str(final.path),
                }
            )
        metrics = sorted({key for row in rows for key in row} - FINALS.keys())
        names = list(FINALS)
        frame = pd.DataFrame(rows, columns=[*names[:5], *metrics, *names[5:]])
        return frame.astype(FINALS | dict.fromkeys(metrics, "float64"))

    def results(self) -> pd.DataFrame:
        """Return the trials of the search in the form of Ray Tune's `ResultGrid.get_dataframe()`.

        There is one row for each trial that has been evaluated, with its last evaluation. Columns:
        those that a trial of `fl.tuning.trainable` reports (`val_accuracy`, `round`, `up_bytes`
        ...); `done`; `training_iteration`, the number of evaluations; `trial_id`, `METHOD/NUMBER`;
        `date`, `time_total_s`, `logdir`; and `config/KEY` for each hyper-parameter, with the
        method as `config/algorithm.name`.
        """
        header, rows = self._study.header, []
        for trial in self._study.trials:
            folder = self.path / "trials" / trial.method / f"{trial.index:03d}"
            file = folder / "metrics.csv"
            lines = metrics_file.read(file) if file.is_file() else []
            seconds = trial.seconds or {}
            found = reported(lines, seconds, header.deployment, trial.rounds)
            if not found:
                continue
            rows.append(
                {
                    **found,
                    "done": trial.ended is not None,
                    "training_iteration": len(evaluated_rounds(lines)),
                    "trial_id": f"{trial.method}/{trial.index:03d}",
                    "date": trial.ended or trial.started,
                    "time_total_s": seconds.get("total"),
                    "logdir": str(folder),
                    "config/algorithm.name": trial.method,
                    **{f"config/{key}": value for key, value in trial.params.items()},
                }
            )
        first = [key for row in rows for key in row if not key.startswith("config/")]
        last = [key for row in rows for key in row if key.startswith("config/")]
        return pd.DataFrame(rows, columns=list(dict.fromkeys([*first, *last])))

    @cached_property
    def plot(self) -> StudyPlots:
        """Pictures of the study as figures of matplotlib."""
        return StudyPlots(self._report)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """What the final trainings say, by paired tests over their seeds on test parts.

        There is a row for each method, its tuned against its default parameters, and one for each
        pair of tuned methods. Columns: `first` and `second` str, such as `hfcd tuned` and `hfcd`; a
        method whose default parameters won the search has no tuned ones; `difference` float64, the
        mean of first minus second, and `low` and `high`, the ends of its 95 % interval (NaN for
        fewer than three seeds, and for differences that are all equal); `seeds` int64; `p`,
        `p_holm` (corrected for all pairs of tuned methods; `p` itself for the gain of one method)
        and `p_wilcoxon` float64; `verdict` str, about `first`.
        """
        names = {"n": "seeds", "wilcoxon": "p_wilcoxon"}
        analysis = self._report.analysis
        found = pd.DataFrame(columns=list(VERDICTS)) if analysis is None else analysis.pairs
        return found.rename(columns=names)[list(VERDICTS)].astype(VERDICTS)

    def best(self, method: str) -> Trial:
        """Return the best finished trial of a method; of equal scores, that of the smallest loss.

        `study.best("hfcd").params` are its hyper-parameters by their dotted keys, which
        `fl.run("hfcd", **study.best("hfcd").params)` trains again.

        Args:
            method: Name of the method.

        Raises:
            UserError: The study has no such method, or no trial of it has finished with a score.
        """
        if method not in self.methods:
            raise UserError(
                f"{self.path} has no method `{method}`.{did_you_mean(method, self.methods)} It has"
                f" {', '.join(self.methods)}."
            )
        found = self._study.winner(method)
        if found is None:
            raise UserError(
                f"no trial of `{method}` in {self.path} has finished with a score. fl.resume("
                f"{str(self.path)!r}) continues an interrupted study."
            )
        return found

    @property
    def notes(self) -> list[str]:
        """Facts that make a comparison unfair or unfinished, and failures; one sentence each."""
        return [*self._report.notes, *find_failures(self._report)]

    def __reduce__(self) -> tuple[type["Study"], tuple[Path]]:
        return Study, (self.path,)

    def __repr__(self) -> str:
        header = self._study.header
        return (
            f"<Study of {', '.join(self.methods)} on {header.dataset}: {len(self._study.trials)} of"
            f" {header.trials * len(self.methods)} trials, {len(self.finals)} final trainings;"
            f" {self.path}>"
        )

    def _repr_html_(self) -> str:
        winners = [tables.winner(self._report, method) for method in self.methods]
        facts = {key: self._report.facts[key] for key in ("data", "budget", "metric", "search")}
        return html.card(
            self._report.heading,
            html.facts(facts | {"folder": str(self.path)}),
            html.prose("\n\n".join(self._report.answer)),
            *map(html.block, tables.comparison(self._report)),
            html.heading("Best parameters"),
            html.notes([winner for winner in winners if winner]),
            html.heading("Notes") if self.notes else "",
            html.notes(self.notes),
        )
