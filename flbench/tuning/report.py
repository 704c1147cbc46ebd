"""The report of a study: its search, before the comparison of its methods."""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pandas as pd

from flbench.analysis import answer, statistics
from flbench.analysis import report as comparison_report
from flbench.analysis.report import Extra
from flbench.analysis.shown import TABLES, signed
from flbench.analysis.tables import Analysis
from flbench.core.wording import count, how_to_resume, in_shell
from flbench.reports import render
from flbench.reports.shown import Chapter, Column, Drawn, Part, Shown, score, tenth, whole
from flbench.results.study_folder import DIGITS, STATES, StoredStudy, Trial, best_trial
from flbench.tuning import study_figures
from flbench.tuning.importance import PERMUTATIONS, Importance, at_first_rung, importance
from flbench.tuning.search_space import Parameter, parse, shown
from flbench.tuning.study import OTHER_METRIC

GAINS: Final = {
    "better": "tuning helped {}",
    "worse": "tuning harmed {}",
    "no significant difference": "tuning made no significant difference for {}",
    "no claim": "there is no claim about tuning for {}",
}
"""What the test of the tuned against the default parameters says, by its verdict."""
BUDGETS: Final = {
    "trials": "Each method has the same number of trials",
    "steps": "Each method has about the same optimizer steps: fewer trials if they take more,",
}
BUDGET: Final = (
    "{} with the same number of rounds, on the same"
    " partition and with the same cohorts; a scheduler may stop trials early. Trial 0 has the"
    " default hyper-parameters. Trials are scored on validation parts only, after the last round,"
    " and the best finished trial wins; the validation loss decides between equal scores."
)
CHANCE: Final = (
    "Parameters without an effect get a share by chance. p is the share of"
    f" {1 + PERMUTATIONS} orders of the scores, {PERMUTATIONS} random ones and that of the trials,"
    " in which the parameter has as large a share."
)
GAINED: Final = ("accuracy", "macro_f1", "rare_recall")
"""Test metrics of the table of gains, besides the one that ranks."""
OPPOSITE: Final = {"better": "worse", "worse": "better"}
TRIALS: Final = {
    "method": "str",
    "trial": "int64",
    "state": "str",
    "score": "float64",
    "loss": "float64",
    "round": "int64",
    "rounds": "int64",
    "steps": "float64",
    "seconds": "float64",
    "winner": "bool",
    "attempts": "int64",
    "reason": "str",
}
"""Columns of the table of the trials with their types; the parameters stand before `attempts`."""


@dataclass(frozen=True)
class StudyReport:
    """Results of a study so far; each is computed once.

    Attributes:
        study: The study, as read from its folder.
        analysis: Comparison of its cells, in which `METHOD tuned` has the tuned parameters. None
            while none of them is finished.
        why_not: Why the cells, if there are any, cannot be compared.
        cells: State of each cell; see `fl.PlannedComparison.cells`.
    """

    study: StoredStudy
    analysis: Analysis | None = None
    why_not: str | None = None
    cells: Sequence[str] = ()

    def write(self, folder: Path) -> None:
        """Write the report: the search and, if there is one, the comparison; see `report.write`."""
        comparison_report.write(folder, self.analysis, self.extra)

    @property
    def extra(self) -> Extra:
        """What the report has besides the comparison."""
        methods = [Chapter(name, [*self._parts(name)]) for name in self.study.methods]
        equal = BUDGETS.get(self.study.header.equal, BUDGETS["trials"])
        search: list[Part] = [BUDGET.format(equal), self.facts, self.table]
        if self.failures:
            search.append(Chapter("Trials that failed or have no score", [self.failures]))
        tree = asdict(self.study.header) | {"notes": self.notes, "failures": self.failures}
        tree["methods"] = {method: self._found(method) for method in self.study.methods}
        return Extra(
            self.heading,
            self.answer,
            self.notes,
            [*methods, Chapter("Search", search)],
            {"search": tree},
            {"trials": self.trials.astype({"winner": int})},
        )

    @property
    def gains(self) -> list[str]:
        """What tuning changed for each method, in a sentence; none before the comparison."""
        if self.analysis is None:
            return []
        comparison, pairs = self.analysis.comparison, self.analysis.pairs
        said: dict[str, list[str]] = {text: [] for text in GAINS.values()}
        for row in pairs[pairs["metric"] == comparison.metric].to_dict("records"):
            method, verdict = min(row["first"], row["second"]), row["verdict"]
            if max(row["first"], row["second"]) != f"{method} tuned":
                continue
            found = (row["difference"], row["low"], row["high"])
            if row["first"] == method:  # the verdict is about the first one
                verdict = OPPOSITE.get(verdict, verdict)
                found = (-row["difference"], -row["high"], -row["low"])
            changed = f"test {self.metric} {signed(found)}{self._rare_gain(method)}"
            said[GAINS[verdict]].append(f"{method} ({changed})")
        won = {name: self.study.winner(name) for name in self.study.methods}
        kept = [name for name, one in won.items() if one is not None and one.index == 0]
        said["no trial was better than the default parameters of {}"] = kept
        parts = [text.format(answer.listing(names)) for text, names in said.items() if names]
        population = comparison.sampling_at(comparison.places[0]).population
        sentence = ": ".join(filter(None, [population, "; ".join(parts)]))
        return [f"{sentence[:1].upper()}{sentence[1:]}."] if parts else []

    def _rare_gain(self, method: str) -> str:
        """Return what tuning changed in the recall of rare classes; "" without these."""
        metric, table = answer.words("rare_recall"), self.gain(method)
        for row in table.rows if table and self.study.header.metric != "rare_recall" else ():
            if row["metric"] == metric:
                _, low, high = gain = row["gain"]
                unsure = ", not significant" if low <= 0 <= high else ""
                return f"; {metric} {signed(gain)}{unsure}"
        return ""

    @property
    def answer(self) -> list[str]:
        """What tuning changed, the best parameters, and which one of several methods is best."""
        has_several = len(self.study.methods) > 1
        compared = self.analysis.answer if self.analysis and has_several else ()
        return [*self.gains, *self.best, *compared]

    @property
    def best(self) -> list[str]:
        """The best parameters of each method as words of a command, and how they are used."""
        found = {}
        for method, entry in self.study.header.methods.items():
            if (won := self.study.winner(method)) is not None:
                found[method] = [
                    f"{key}={value if isinstance(value, str) else json.dumps(value)}"
                    for key, value in won.params.items()
                    if key not in entry.defaults or entry.defaults[key] != value
                ]
        said = [
            f"Best parameters of {method}: {shlex.join(words) or 'the default ones'}"
            for method, words in found.items()
        ]
        if any(found.values()):
            names, header = " ".join(dict.fromkeys([*found, "fedavg", "local"])), self.study.header
            # `--tuned` takes over the setting of a study on default data, its rounds among it.
            rounds = "" if header.setting else f" --rounds {header.rounds}"
            said.append(
                "To compare them with other methods (add the other keys of data and training that"
                f" the study was given): flbench compare {names} --tuned"
                f" {in_shell(self.study.path)}{rounds}"
            )
        return said

    @cached_property
    def axes(self) -> Mapping[str, list[Parameter]]:
        """Parameters of each method's space."""
        file = self.study.path / "study.json"
        return {
            method: [*parse(entry.space_tree, {}, str(file)).parameters.values()]
            for method, entry in self.study.header.methods.items()
        }

    @cached_property
    def importances(self) -> Mapping[str, Importance]:
        """Importance of the parameters for the score, by method."""
        return {
            method: importance(self.axes[method], self.study.trials_of(method), scores)
            for method, (_, scores) in self.rungs.items()
        }

    @cached_property
    def rungs(self) -> Mapping[str, tuple[int, Mapping[int, float]]]:
        """The scores of all trials at one round, by method; see `importance.at_first_rung`."""
        return {method: at_first_rung(self.study, method) for method in self.study.methods}

    @property
    def heading(self) -> str:
        """Title of the report."""
        tail = " with a long tail" * (self.study.header.imbalance < 1)
        return f"{', '.join(self.study.methods)} on {self.study.header.dataset}{tail}: tuned"

    @property
    def metric(self) -> str:
        """Name of the study's metric, as text."""
        return answer.words(self.study.header.metric)

    @property
    def facts(self) -> dict[str, str]:
        """Settings of the study, as text by name."""
        header = self.study.header
        on = " on the partition of the search" if header.vary == "training" else " and partition"
        tail = f", long tail (data.imbalance={header.imbalance:g})" * (header.imbalance < 1)
        own = (f" ({key}={one})" for key, one in header.setting.items() if key == "partition.alpha")
        of = {name: header.trials_of(name) for name in self.study.methods}
        trials = count(header.trials, "trial") + " for each method" * (len(of) > 1)
        if len(set(of.values())) > 1:
            trials = f"trials: {', '.join(f'{n} of {name}' for name, n in of.items())}"
        return {
            "data": f"{header.dataset}{tail}, {header.scheme}{''.join(own)}",
            "partition of the search": header.partition_hash or "-",
            "budget": f"{trials}, {count(header.rounds, 'round')} each, then"
            f" {count(header.seeds, 'repetition')} of the default and"
            f" of the best parameters, each with another seed{on}",
            "metric": f"{self.metric} of the personal models",
            "search": f"{header.search}, scheduler {header.scheduler}, seed {header.seed}",
            "begun": header.created,
            "git revision": header.git_revision or "-",
            "command": " ".join(header.command),
        }

    @property
    def notes(self) -> list[str]:
        """Notes: what is unfinished, and why cells cannot be compared."""
        study, notes = self.study, list(self.study.left_out)
        ended = sum(trial.state != "running" for trial in study.trials)
        done, left = "", sum(state in ("unfinished", "waiting") for state in self.cells)
        if not study.is_searched:
            done = f"{ended} of {sum(map(study.header.trials_of, study.methods))} trials have ended"
        elif left:
            done = f"{self.cells.count('finished')} of {len(self.cells)} cells are finished"
        if done:
            again = how_to_resume(study.path, "tune")
            notes.append(f"Interrupted, or still running: {done}. Resume with `{again}`.")
        if not study.header.seeds:
            notes.append("No repetitions (`seeds=0`): test parts were not evaluated.")
        return [*notes, self.why_not] if self.why_not else notes

    def undecided(self, method: str) -> list[str]:
        """Return a sentence if scores do not tell trials of a method apart."""
        header, trials = self.study.header, self.study.trials_of(method)
        scores = [round(trial.score, DIGITS) for trial in trials if trial.score is not None]
        won = self.study.winner(method)
        if won is None or won.score is None or len(scores) == 1:
            return []
        decides = "The validation loss decides between equal scores."
        if len(set(scores)) == 1:
            return [
                f"{method}: the validation {self.metric} is {won.score:.4f} in each of"
                f" {len(scores)} trials. {decides} {OTHER_METRIC}"
            ]
        sample = 1 / header.validation if header.validation else 0.0
        if (near := len(self._near(method, sample))) < 2:
            return []
        within = f"within one validation sample ({sample:.4f}) of the best {self.metric}."
        equal = f" {decides}" * (len(self._near(method, 0.0)) > 1)
        return [f"{method}: {near} trials, the best among them, are {within}{equal}"]

    def _near(self, method: str, distance: float) -> list[Trial]:
        """Return the finished trials of a method with at most this distance to the best score."""
        best = max((won.score or 0.0 for won in [self.study.winner(method)] if won), default=0.0)
        return [
            trial
            for trial in self.study.trials_of(method)
            if trial.state == "finished"
            and trial.score is not None
            and round(best - trial.score - distance, DIGITS) <= 0
        ]

    @property
    def said(self) -> list[str]:
        """All notes on the study: on its search, on trials that failed, and on its comparison."""
        warnings = self.analysis.comparison.warnings if self.analysis else ()
        undecided = [one for name in self.study.methods for one in self.undecided(name)]
        return [*undecided, *self.notes, *self.failures, *warnings]

    @property
    def tables(self) -> list[Shown]:
        """The tables of the console: leaderboard and differences of the comparison."""
        if self.analysis is None:
            return []
        names, places = ("leaderboard", "pairs"), self.analysis.comparison.places
        return [one for name in names for at in places for one in TABLES[name](self.analysis, at)]

    @property
    def failures(self) -> list[str]:
        """A sentence for each trial that failed or has no score, and for each lost method."""
        lines = []
        for trial in self.study.trials:
            where = f"{trial.method}, trial {trial.index}: {trial.state}"
            if trial.state == "finished" and trial.score is None:
                lines.append(
                    f"{where} without a score: the validation parts have no {self.metric}."
                )
            elif trial.state in ("failed", "diverged"):
                again = f" ({trial.attempts} attempts)" if trial.attempts > 1 else ""
                why = trial.reason or "no reason is given."
                lines.append(f"{where} after {count(trial.round, 'round')}{again}: {why}")
        return lines + [
            f"{name}: no trial has finished with a score, so there is no winner."
            for name in self.study.methods
            if self.study.winner(name) is None and self.study.trials_of(name)
        ]

    @property
    def trials(self) -> pd.DataFrame:
        """The trials, one per row; see `fl.Study.trials`."""
        trials = self.study.trials
        keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
        winners = [self.study.winner(method) for method in self.study.methods]
        rows = [
            {
                **{name: getattr(trial, name, None) for name in TRIALS},
                "trial": trial.index,
                "seconds": (trial.seconds or {}).get("total"),
                "winner": trial in winners,
                **{key: trial.params.get(key) for key in keys},
                "reason": trial.reason or "",
            }
            for trial in trials
        ]
        names = list(TRIALS)
        return pd.DataFrame(rows, columns=[*names[:-2], *keys, *names[-2:]]).astype(TRIALS)

    @property
    def table(self) -> Shown:
        """The table of the trials by method: scores, states, and the cost of the search."""
        rows: list[dict[str, Any]] = []
        for method in self.study.methods:
            mine, won = self.study.trials_of(method), self.study.winner(method)
            first = best_trial([trial for trial in mine if trial.index == 0])
            rows.append(
                {
                    "method": method,
                    "default": None if first is None else first.score,
                    "best": None if won is None else won.score,
                    # A column without a trial is left out.
                    **{name: sum(one.state == name for one in mine) or None for name in STATES},
                    "not begun": max(0, self.study.header.trials_of(method) - len(mine)) or None,
                    "retried": sum(trial.attempts > 1 for trial in mine) or None,
                    "trials": len(mine),
                    "rounds": sum(trial.round for trial in mine),
                    "steps": sum(trial.steps or 0 for trial in mine) or None,
                    "seconds": sum((trial.seconds or {}).get("total", 0.0) for trial in mine),
                }
            )
        counts = [*STATES, "not begun", "retried", "trials", "rounds", "steps"]
        about = "Rounds, optimizer steps and seconds are sums over all trials."
        if any(row["default"] is not None or row["best"] is not None for row in rows):
            about = (
                f"Default and best: validation {self.metric} of the default trial and of the best"
                " one, each from one training with the seed of the study; the score of the best of"
                f" many trials is optimistic. {about}"
            )
        return Shown(
            "Trials of the search",
            {
                "method": Column("method"),
                **{name: Column(name, score) for name in ("default", "best")},
                **{name: Column(name, whole) for name in counts},
                "seconds": Column("seconds", tenth),
            },
            rows,
            about,
        )

    def parameters(self, method: str) -> Shown | None:
        """Return the table of a method's best hyper-parameters; None while there is none."""
        won = self.study.winner(method)
        if won is None:
            return None
        defaults, edges = self.study.header.methods[method].defaults, self._edges(method)
        found, flat = self.importances[method], self.flat(method)
        rows = [
            (
                axis.path,
                axis.values,
                shown(defaults[axis.path]) if axis.path in defaults else "-",
                shown(won.params[axis.path]) if axis.path in won.params else "not set",
                flat.get(axis.path, ""),
                f"{found.shares[axis.path]:.2f} (p = {found.p[axis.path]:.2f})"
                if axis.path in found.shares
                else "",
            )
            for axis in self.axes[method]
        ]
        headings = ("parameter", "space", "default", "best", "flat", "importance")
        near = len(self._near(method, self.error(method)))
        about = [
            f"Flat: the values of the {near} finished trials within a standard error"
            f" ({self.error(method):.4f}) of the best validation {self.metric}."
        ] * bool(flat)
        about += [f"{path} is {warning}." for path, warning in edges.items()]
        return replace(
            render.plain(f"{method}: trial {won.index} won", headings, rows),
            about=" ".join(about),
        )

    def error(self, method: str) -> float:
        """Return the standard error of the best score, as that of a share of its samples.

        It is the share of one sample at least; 0 if their number is not known.
        """
        won, n = self.study.winner(method), self.study.header.validation
        if won is None or won.score is None or not n:
            return 0.0
        share = min(1.0, max(0.0, won.score))
        return max(1 / n, math.sqrt(share * (1 - share) / n))

    def flat(self, method: str) -> dict[str, str]:
        """Return the values of each parameter with which trials are about as good as the best.

        Nothing is returned if there is no other such trial; see `error`.
        """
        near, found = self._near(method, self.error(method)), dict[str, str]()
        for axis in self.axes[method] if len(near) > 1 else ():
            values = [one.params[axis.path] for one in near if axis.path in one.params]
            if not values or None in values:
                continue
            if axis.choices:
                found[axis.path] = ", ".join(dict.fromkeys(map(shown, values)))
            else:
                ends = map(shown, (min(values), max(values)))
                found[axis.path] = " to ".join(dict.fromkeys(ends))
        return found

    def own_tables(self, method: str) -> list[Shown]:
        """Return the best parameters of a method and what they gain, as far as they are known."""
        return [one for one in (self.parameters(method), self.gain(method)) if one is not None]

    def gain(self, method: str) -> Shown | None:
        """Return what tuning changed in several test metrics; None without both comparisons."""
        if self.analysis is None:
            return None
        comparison, tuned = self.analysis.comparison, f"{method} tuned"
        rows: list[dict[str, Any]] = []
        for metric in dict.fromkeys((comparison.metric, *GAINED)):
            values = pd.DataFrame(
                {
                    label: {
                        one.repetition: one.score(metric)
                        for one in comparison.entries
                        if one.method == label
                    }
                    for label in (method, tuned)
                }
            ).dropna()
            overlap = comparison.sampling_at(comparison.places[0]).overlap
            for row in statistics.differences(values, [(tuned, method)], overlap=overlap).to_dict(
                "records"
            ):
                means = {"default": values[method].mean(), "tuned": values[tuned].mean()}
                gap = (row["difference"], row["low"], row["high"])
                rows.append({"metric": answer.words(metric), **means, "gain": gap, "n": row["n"]})
        if not rows:
            return None
        return Shown(
            f"{method}: gain of the best parameters",
            {
                "metric": Column("test metric"),
                "default": Column("default", score),
                "tuned": Column("tuned", score),
                "gain": Column("gain (95 % interval)", signed),
                "n": Column("runs", whole),
            },
            rows,
            "Means over paired repetitions. Each interval is for its metric alone.",
        )

    def _edges(self, method: str) -> dict[str, str]:
        """Return warnings about best values at an end of their range, by parameter."""
        won = self.study.winner(method)
        ends = (
            {}
            if won is None
            else {a.path: a.end(won.params.get(a.path)) for a in self.axes[method]}
        )
        return {
            path: f"at the {end} end: widen the space, if the parameter allows it"
            for path, end in ends.items()
            if end
        }

    def _found(self, method: str) -> dict[str, Any]:
        """Return the entries of report.json on the best trial of a method."""
        won, entry = self.study.winner(method), self.study.header.methods[method]
        best = won and {"index": won.index, "score": won.score, "params": won.params}
        return {
            "space": entry.space,
            "defaults": entry.defaults,
            "winner": best,
            "at_the_edge": self._edges(method),
            "importance": self.importances[method].shares,
            "importance_p": self.importances[method].p,
            "importance_round": self.rungs[method][0],
            "flat": self.flat(method),
            "tied": len(self._near(method, 1 / (self.study.header.validation or math.inf))),
            "importance_note": self.importances[method].why,
        }

    def _parts(self, method: str) -> Iterator[Part]:
        """Yield the pictures of a method's search, its best parameters and what they gain."""
        axes, trials = self.axes[method], self.study.trials_of(method)
        if is_drawable := any(trial.score is not None for trial in trials):
            yield Drawn(
                f"{method}-parallel",
                "All trials",
                f"Each line is a trial, coloured by its validation {self.metric}. The best trial is"
                " bold; trials that did not finish are dashed.",
                study_figures.parallel(axes, trials, self.metric),
                is_map=True,
            )
        yield self.parameters(method) or "No trial has finished with a score yet."
        yield from self.undecided(method)
        if (gain := self.gain(method)) is not None:
            yield gain
        if not is_drawable:
            return
        found, (number, scores) = self.importances[method], self.rungs[method]
        about = (
            f"fANOVA over the scores of {len(scores)} trials after round {number}, the last one"
            " that all have reached: share of the score's variance that each parameter explains"
            f" alone, normalized to a sum of 1. {CHANCE} "
        )
        yield f"Importance of the parameters: {about * bool(found.shares)}{found.why}".strip()
        yield Drawn(
            f"{method}-scatter",
            "Score over each parameter",
            "The star is the best trial; trials that did not finish are hollow.",
            study_figures.scatter(axes, trials, self.metric),
        )


def search_failure(study: StoredStudy) -> str | None:
    """Return why a study, or a method of it, has no result; None if each method has a winner.

    The sentences name the first reason of each method without a trial that finished with a score.
    """
    lost = [method for method in study.methods if study.winner(method) is None]
    if not lost:
        return None
    reasons = {
        method: next((trial.reason for trial in study.trials_of(method) if trial.reason), None)
        for method in lost
    }
    which = "" if len(lost) == len(study.methods) else f" of {', '.join(lost)}"
    said = [f"{method}: {reason}" for method, reason in reasons.items() if reason]
    return " ".join([f"no trial{which} finished with a score.", *said])
