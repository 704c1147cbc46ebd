"""Results of a study: comparisons, axes, importances, and notes for the reader."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from flbench.reports.statistics import CLAIM_FROM
from flbench.results.study_folder import PERSONAL, Study
from flbench.tuning.axes import Axis, axes_of
from flbench.tuning.comparison import Pair, Tuning, pairs, tunings
from flbench.tuning.deployments import of_deployment
from flbench.tuning.importance import Importance, importance

TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "rare_recall": "rare-class recall",
    "worst10_accuracy": "worst 10 % of clients",
    "auroc": "AUROC",
}


@dataclass(frozen=True)
class StudyReport:
    """Results of a study so far; each is computed once.

    Attributes:
        study: The study, as read from its folder.
    """

    study: Study

    @cached_property
    def tunings(self) -> list[Tuning]:
        """Default beside tuned hyper-parameters of each method."""
        return tunings(self.study)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Comparisons between the tuned methods."""
        return pairs(self.study)

    @cached_property
    def axes(self) -> Mapping[str, list[Axis]]:
        """Axes of the parameters of each method's space."""
        return {
            method: axes_of(
                entry.space_tree,
                [trial.params for trial in self.study.trials_of(method)],
                self.study.header.rounds,
            )
            for method, entry in self.study.header.methods.items()
        }

    @cached_property
    def importances(self) -> Mapping[str, Importance]:
        """Importance of the parameters for the score, by method."""
        return {
            method: importance(self.axes[method], self.study.trials_of(method))
            for method in self.study.methods
        }

    @cached_property
    def has_rare_classes(self) -> bool:
        """Whether tables show rare-class metrics; see `flbench.results.reading.Run`."""
        runs = [final.run for final in self.study.finals if final.run is not None]
        return not runs or any(run.has_rare_classes for run in runs)

    @property
    def heading(self) -> str:
        """Title of the report."""
        return f"{', '.join(self.study.methods)} on {self.study.header.dataset}: tuned"

    @property
    def metric(self) -> str:
        """Name of the study's metric, as text, with the deployment unless it is `personal`."""
        return of_deployment(title(self.study.header.metric), self.study.header.deployment)

    @property
    def facts(self) -> dict[str, str]:
        """Settings of the study, as text by name."""
        header = self.study.header
        models = (
            "the personal models"
            if header.deployment == PERSONAL
            else f"the deployment `{header.deployment}`"
        )
        return {
            "data": f"{header.dataset}, {header.scheme}",
            "partition": header.partition_hash or "-",
            "budget": f"{count(header.trials, 'trial')} of {count(header.rounds, 'round')} for"
            f" each method, then {count(header.seeds, 'seed')} of the defaults and of the winner",
            "metric": f"{title(header.metric)} of {models}, after the last round",
            "search": f"{header.search}, scheduler {header.scheduler}, seed {header.seed}",
            "begun": header.created,
            "git revision": header.git_revision or "-",
            "command": " ".join(header.command),
        }

    @property
    def budget(self) -> str:
        """Explanation of the equal budget."""
        early = (
            " The scheduler stops poor trials early, so the numbers of trained rounds differ; they"
            " are listed below."
            if self.study.header.scheduler == "asha"
            else ""
        )
        return (
            "Equal budget: each method has the same number of trials with the same number of"
            " rounds, on the same partition and with the same cohorts. Trial 0 has the method's"
            " default hyper-parameters. Trials are scored on validation parts only, and the best"
            " finished trial wins. Test parts are used in final trainings only, with seeds that the"
            f" search does not use; test metrics are those of the last round.{early}"
        )

    @property
    def notes(self) -> list[str]:
        """Notes for the reader: unfinished trials, unequal budgets, too few seeds."""
        study, notes = self.study, list(self.study.left_out)
        if running := [trial for trial in study.trials if trial.state == "running"]:
            notes.append(
                f"Unfinished: {count(len(running), 'trial')} still running or interrupted."
            )
        started = Counter(trial.method for trial in study.trials)
        short = {
            method: started[method]
            for method in study.methods
            if started[method] < study.header.trials
        }
        if short:
            few = ", ".join(f"{number} of {method}" for method, number in short.items())
            notes.append(
                f"The budget is not equal yet: of {study.header.trials} trials each, {few} have"
                " begun."
            )
        seeds = study.header.seeds
        if seeds == 0:
            notes.append(
                "No seeds: there are no final trainings, and test parts were not evaluated."
            )
        elif seeds == 1:
            notes.append("One seed: there is no interval, and no difference is claimed.")
        elif seeds < CLAIM_FROM:
            notes.append("Two seeds: too few for an interval, and no difference is claimed.")
        for tuning in self.tunings:
            notes += self._stale(tuning)
        return notes

    def _stale(self, tuning: Tuning) -> list[str]:
        """Return a note if tuned final trainings use another trial than the best one."""
        finals = self.study.finals_of(tuning.method, "tuned").values()
        others = sorted({final.trial.of for final in finals} - {tuning.won, None}, key=str)
        if not others:
            return []
        numbers = ", ".join(map(str, others))
        return [
            f"{tuning.method}: trial {tuning.won} is the best one, but the final trainings use"
            f" trial {numbers}."
        ]


def title(metric: str) -> str:
    """Return the name of a metric as text.

    >>> title("balanced_accuracy")
    'balanced accuracy'
    """
    return TITLES.get(metric, metric.replace("_", " "))


def count(number: int, what: str) -> str:
    """Return a number and a noun.

    >>> count(1, "trial"), count(2, "trial")
    ('1 trial', '2 trials')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
