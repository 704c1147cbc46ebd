"""The gain from tuning of each method, and comparisons between the tuned methods."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from flbench.metrics import ranking_names
from flbench.reports.statistics import (
    PairedDifference,
    Sample,
    Verdict,
    holm,
    paired_difference,
    sample,
)
from flbench.results.study_folder import Study, Variant
from flbench.results.summary import Summary

TEST_METRICS = (
    *("accuracy", "balanced_accuracy", "macro_f1", "rare_recall", "worst10_accuracy"),
    *ranking_names.NAMES,
)
"""Test metrics that the report shows beside the study's metric, as far as the data have them."""

TRAFFIC = ("up_bytes", "down_bytes", "peer_bytes", "setup_bytes")


@dataclass(frozen=True)
class Side:
    """Results of a method with its default or with its tuned hyper-parameters.

    Attributes:
        search: Score of the trial in the search: the metric on validation parts, with the study's
            seed. None if there is no such finished trial.
        validation: The study's metric on validation parts, over the seeds of the final trainings.
        test: Test metrics by name, over the same seeds. Metrics that no training has are missing.
        costs: Mean costs of the final trainings: bytes by kind, `trainings` of clients, `seconds`.
        seeds: Seeds of the finished final trainings.
    """

    search: float | None
    validation: Sample | None
    test: Mapping[str, Sample]
    costs: Mapping[str, float]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Tuning:
    """A method's default hyper-parameters beside its tuned ones.

    Attributes:
        method: Name of the method.
        sides: Results with the default and with the tuned hyper-parameters.
        won: Index of the best trial; None while no trial has finished with a score.
        gain: Gain from tuning: the study's metric on test, tuned minus default, paired by seed.
            None if no seed has both trainings, and if the default trial is the best one.
    """

    method: str
    sides: Mapping[Variant, Side]
    won: int | None
    gain: PairedDifference | None

    @property
    def verdict(self) -> Verdict | None:
        """Verdict about the gain, by the method's own paired t-test; None without a gain."""
        return None if self.gain is None else self.gain.verdict(self.gain.p)


@dataclass(frozen=True)
class Pair:
    """Two tuned methods, compared on test parts.

    Attributes:
        first: Name of a method.
        second: Name of another method.
        gap: Difference of the study's metric, first minus second, paired by seed.
        p: p-value of the paired t-test, corrected by Holm's procedure for all pairs that have one.
            None if the pair has no p-value.
    """

    first: str
    second: str
    gap: PairedDifference
    p: float | None

    @property
    def verdict(self) -> Verdict:
        """Verdict about the first method relative to the second."""
        return self.gap.verdict(self.p)


def tunings(study: Study) -> list[Tuning]:
    """Compare each method's default hyper-parameters with its tuned ones, as far as trained."""
    results = []
    for method in study.methods:
        won = study.winner(method)
        sides: dict[Variant, Side] = {
            variant: _side(study, method, variant) for variant in ("default", "tuned")
        }
        gain = paired_difference(
            study.values(method, "default", study.header.metric),
            study.values(method, "tuned", study.header.metric),
        )
        number = None if won is None else won.index
        results.append(Tuning(method, sides, number, None if number == 0 else gain))
    return results


def pairs(study: Study) -> list[Pair]:
    """Compare every two tuned methods that have final trainings with the same seeds."""
    values = {
        method: study.values(method, "tuned", study.header.metric) for method in study.methods
    }
    gaps = {
        (first, second): gap
        for first, second in combinations(values, 2)
        if (gap := paired_difference(values[second], values[first])) is not None
    }
    tested = {names: gap.p for names, gap in gaps.items() if gap.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [Pair(*names, gap, corrected.get(names)) for names, gap in gaps.items()]


def _side(study: Study, method: str, variant: Variant) -> Side:
    metric = study.header.metric
    trial = (
        study.winner(method)
        if variant == "tuned"
        else next((trial for trial in study.trials_of(method) if trial.index == 0), None)
    )
    test = {
        name: values
        for name in dict.fromkeys((metric, *TEST_METRICS))
        if (values := study.values(method, variant, name))
    }
    validation = study.values(method, variant, metric, split="validation")
    finals = study.finals_of(method, variant)
    return Side(
        search=trial.score if trial is not None and trial.state == "finished" else None,
        validation=sample(list(validation.values())) if validation else None,
        test={name: sample(list(values.values())) for name, values in test.items()},
        costs=_mean_costs(
            [final.run.summary for final in finals.values() if final.run is not None]
        ),
        seeds=tuple(sorted(finals)),
    )


def _mean_costs(summaries: list[Summary]) -> dict[str, float]:
    """Return the mean costs of runs: bytes by kind, trainings of clients, seconds."""
    if not summaries:
        return {}
    columns = [_costs(summary) for summary in summaries]
    return {name: fmean(column[name] for column in columns) for name in columns[0]}


def _costs(summary: Summary) -> dict[str, float]:
    """Return the costs of one run: bytes by kind, trainings of clients, seconds."""
    return {
        **{kind: float(summary["communication"][kind]) for kind in TRAFFIC},
        "trainings": float(summary["client_trainings"]),
        "seconds": float(summary["seconds"]["total"]),
    }
