"""What a study found: its comparisons, made once, and what must be known to read them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from flbench.reports.statistics import CLAIM_FROM
from flbench.results.study_folder import Study
from flbench.tuning.axes import Axis, axes_of
from flbench.tuning.comparison import Pair, Tuning, pairs, tunings
from flbench.tuning.importance import Importance, importance

TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "rare_recall": "rare-class recall",
    "worst10_accuracy": "worst 10 % of clients",
}


@dataclass(frozen=True)
class Report:
    """What a study found so far."""

    study: Study

    @cached_property
    def tunings(self) -> list[Tuning]:
        """Default against tuned, by method."""
        return tunings(self.study)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Tuned methods against each other."""
        return pairs(self.study)

    @cached_property
    def axes(self) -> Mapping[str, list[Axis]]:
        """The parameters of each method's space."""
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
        """What the score depends on, by method."""
        return {
            method: importance(self.axes[method], self.study.trials_of(method))
            for method in self.study.methods
        }

    @property
    def heading(self) -> str:
        """What the study is about."""
        return f"{', '.join(self.study.methods)} on {self.study.header.dataset}: tuned"

    @property
    def metric(self) -> str:
        """The study's metric in words."""
        return title(self.study.header.metric)

    @property
    def facts(self) -> dict[str, str]:
        """The setting of the study."""
        header = self.study.header
        return {
            "data": f"{header.dataset}, {header.scheme}",
            "partition": header.partition_hash or "-",
            "budget": f"{count(header.trials, 'trial')} of {count(header.rounds, 'round')} for"
            f" each method, then {count(header.seeds, 'seed')} of the defaults and of the winner",
            "metric": f"{self.metric} of the personal models, after the last round",
            "search": f"{header.search}, scheduler {header.scheduler}, seed {header.seed}",
            "begun": header.created,
            "git revision": header.git_revision or "-",
            "command": " ".join(header.command),
        }

    @property
    def budget(self) -> str:
        """What an equal budget means here."""
        early = (
            " The scheduler stops poor trials early, so the rounds that were trained differ; they"
            " stand below."
            if self.study.header.scheduler == "asha"
            else ""
        )
        return (
            "Equal budget: each method has the same number of trials, each of the same rounds, on"
            " the same partition with the same cohorts; trial 0 has the method's default"
            " hyper-parameters. Trials are scored on validation alone, and the best finished one"
            " wins. Test is scored in final trainings alone, with seeds that the search never saw;"
            f" their figures are those of the last round.{early}"
        )

    @property
    def remarks(self) -> list[str]:
        """What must be known before a figure is believed."""
        study, said = self.study, []
        if open_ := [trial for trial in study.trials if trial.state == "running"]:
            said.append(f"Unfinished: {count(len(open_), 'trial')} still running or broken off.")
        started = Counter(trial.method for trial in study.trials)
        short = {
            method: started[method]
            for method in study.methods
            if started[method] < study.header.trials
        }
        if short:
            few = ", ".join(f"{number} of {method}" for method, number in short.items())
            said.append(
                f"The budget is not equal yet: of {study.header.trials} trials each, {few} have"
                " begun."
            )
        seeds = study.header.seeds
        if seeds == 0:
            said.append("No seeds: nothing was trained again, and no test part was looked at.")
        elif seeds == 1:
            said.append("One seed: there is no interval, and no difference is claimed.")
        elif seeds < CLAIM_FROM:
            said.append("Two seeds: their intervals say little, and no difference is claimed.")
        for tuning in self.tunings:
            said += self._stale(tuning)
        return said

    def _stale(self, tuning: Tuning) -> list[str]:
        """Return whether tuned trainings are of another trial than the one that leads now."""
        finals = self.study.finals_of(tuning.method, "tuned").values()
        others = sorted({final.trial.of for final in finals} - {tuning.won, None}, key=str)
        if not others:
            return []
        numbers = ", ".join(map(str, others))
        return [f"{tuning.method}: trial {tuning.won} leads, but finals are of trial {numbers}."]


def title(metric: str) -> str:
    """Return a figure's name in words."""
    return TITLES.get(metric, metric.replace("_", " "))


def count(number: int, what: str) -> str:
    """Return a number of things: `1 trial`, `2 trials`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
