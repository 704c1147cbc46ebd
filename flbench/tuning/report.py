"""Results of a study: comparison of its methods, axes, importances, and notes for the reader."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from flbench.analysis import answer
from flbench.analysis.statistics import CLAIM_FROM
from flbench.analysis.tables import Analysis
from flbench.results.study_folder import DIGITS, PERSONAL, StoredStudy
from flbench.tuning.importance import Importance, importance
from flbench.tuning.reading import parameters
from flbench.tuning.reported import of_deployment
from flbench.tuning.search_space import Parameter

GAINS = {
    "better": "tuning helped {}",
    "worse": "tuning harmed {}",
    "no significant difference": "tuning made no significant difference for {}",
    "no claim": "there is no claim about tuning for {}",
}
OPPOSITE = {"better": "worse", "worse": "better"}
"""What the test of the tuned against the default parameters says, by its verdict."""


@dataclass(frozen=True)
class StudyReport:
    """Results of a study so far; each is computed once.

    Attributes:
        study: The study, as read from its folder.
        analysis: Comparison of its cells, in which `METHOD tuned` has the tuned parameters. None
            while none of them is finished.
        why_not: Why the cells, if there are any, cannot be compared.
    """

    study: StoredStudy
    analysis: Analysis | None = None
    why_not: str | None = None

    @cached_property
    def answer(self) -> tuple[str, ...]:
        """What tuning changed for each method, and which method is best, in sentences."""
        if self.analysis is None:
            return ()
        said: dict[str, list[str]] = {text: [] for text in GAINS.values()}
        pairs = self.analysis.pairs
        rows = pairs[pairs["metric"] == self.analysis.comparison.metric]
        for first, second, verdict in rows[["first", "second", "verdict"]].itertuples(index=False):
            method = min(first, second)
            if max(first, second) == f"{method} tuned":  # the verdict is about the first one
                found = OPPOSITE.get(verdict, verdict) if first == method else verdict
                said[GAINS[found]].append(method)
        kept = [name for name in self.study.methods if self._kept_defaults(name)]
        said["no trial was better than the default parameters of {}"] = kept
        parts = [text.format(answer.listing(names)) for text, names in said.items() if names]
        comparison = self.analysis.comparison
        population = comparison.sampling_at(comparison.places[0]).population
        gains = f"{': '.join(filter(None, [population, '; '.join(parts)]))}."
        gains = gains[:1].upper() + gains[1:]
        return (*([gains] if parts else []), *self.analysis.answer)

    def _kept_defaults(self, method: str) -> bool:
        """Return whether the default parameters of a method have won its search."""
        won = self.study.winner(method)
        return self.study.is_searched and won is not None and won.index == 0

    @cached_property
    def axes(self) -> Mapping[str, list[Parameter]]:
        """Parameters of each method's space."""
        return {
            method: parameters(entry.space_tree, self.study.path / "study.json")
            for method, entry in self.study.header.methods.items()
        }

    @cached_property
    def importances(self) -> Mapping[str, Importance]:
        """Importance of the parameters for the score, by method."""
        return {
            method: importance(self.axes[method], self.study.trials_of(method))
            for method in self.study.methods
        }

    @property
    def heading(self) -> str:
        """Title of the report."""
        return f"{', '.join(self.study.methods)} on {self.study.header.dataset}: tuned"

    @property
    def metric(self) -> str:
        """Name of the study's metric, as text, with the deployment unless it is `personal`."""
        return of_deployment(answer.words(self.study.header.metric), self.study.header.deployment)

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
            "partition of the search": header.partition_hash or "-",
            "budget": f"{count(header.trials, 'trial')} of {count(header.rounds, 'round')} for"
            f" each method, then {count(header.seeds, 'final training')} of the defaults and of the"
            f" winner, {self._what_varies}",
            "metric": f"{answer.words(header.metric)} of {models}: of trials after the last round,"
            " of final trainings at the best round by validation accuracy",
            "search": f"{header.search}, scheduler {header.scheduler}, seed {header.seed}",
            "begun": header.created,
            "git revision": header.git_revision or "-",
            "command": " ".join(header.command),
        }

    @property
    def _what_varies(self) -> str:
        """What differs between final trainings, in words."""
        if self.study.header.vary == "training":
            return "each with another seed, on the partition of the search"
        return "each with another seed and another partition"

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
            " default hyper-parameters. Trials are scored on validation parts only, after the last"
            " round, and the best finished trial wins; the validation loss decides between equal"
            " scores. Test parts are used in final trainings only,"
            f" {self._what_varies}; test metrics are those of the best round by validation"
            f" accuracy, and the column last round has the means after the last round.{early}"
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
        for method in study.methods:
            notes += self._undecided(method)
        if self.analysis is not None:
            notes += self.analysis.comparison.warnings
        return [*notes, self.why_not] if self.why_not else notes

    def _undecided(self, method: str) -> list[str]:
        """Return a note if scores do not tell trials apart."""
        header, trials = self.study.header, self.study.trials_of(method)
        scores = [round(trial.score, DIGITS) for trial in trials if trial.score is not None]
        won = self.study.winner(method)
        if won is None or won.score is None or len(scores) == 1:
            return []
        if len(set(scores)) == 1:
            return [
                f"{method}: the validation {self.metric} is {won.score:.4f} in each of"
                f" {len(scores)} trials, so the search has compared their losses alone. Search by"
                " another metric (--metric), or with more rounds (--rounds) or validation samples"
                " (partition.split)."
            ]
        sample = 1 / header.validation if header.validation else 0.0
        done = [t.score for t in trials if t.state == "finished" and t.score is not None]
        near = sum(round(won.score - score - sample, DIGITS) <= 0 for score in done)
        if near == 1:
            return []
        return [
            f"{method}: {near} trials within about one validation sample ({sample:.4f}) of the best"
            f" validation {self.metric}; the validation loss decides between equal scores."
        ]


def count(number: int, what: str) -> str:
    """Return a number and a noun.

    >>> count(1, "trial"), count(2, "trial")
    ('1 trial', '2 trials')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
