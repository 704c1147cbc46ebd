"""What tuning brought to each method, and how the tuned methods stand to each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from flbench.reports.statistics import Gap, Sample, Word, gap, holm, sample
from flbench.results.study_folder import Study, Variant
from flbench.results.summary import Summary

FIGURES = ("accuracy", "balanced_accuracy", "macro_f1", "rare_recall", "worst10_accuracy")
"""Test figures of the report, beside the study's metric."""

TRAFFIC = ("up_bytes", "down_bytes", "peer_bytes", "setup_bytes")


@dataclass(frozen=True)
class Side:
    """A method with its default or its tuned hyper-parameters.

    Attributes:
        search: the trial's score in the search: validation, the study's own seed.
        validation: the study's metric on validation, over the seeds of final trainings.
        test: test figures by name, the same way; those that no training has are missing.
        price: means over final trainings: bytes by kind, `trainings`, `seconds`.
        seeds: of the final trainings that are finished.
    """

    search: float | None
    validation: Sample | None
    test: Mapping[str, Sample]
    price: Mapping[str, float]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Tuning:
    """A method's default hyper-parameters against its tuned ones.

    Attributes:
        method: its name.
        sides: default and tuned.
        won: number of the trial that won; None while there is none.
        brought: the study's metric on test, tuned minus default, seed by seed; None where no seed
            has both, and where the defaults won.
    """

    method: str
    sides: Mapping[Variant, Side]
    won: int | None
    brought: Gap | None

    @property
    def word(self) -> Word | None:
        """What tuning did, by the method's own test; None where there is nothing to compare."""
        return None if self.brought is None else self.brought.word(self.brought.p)


@dataclass(frozen=True)
class Pair:
    """Two tuned methods on test.

    Attributes:
        first: a method.
        second: another.
        gap: the study's metric, first minus second, seed by seed.
        p: of the paired t-test, corrected by Holm for all pairs that have one.
    """

    first: str
    second: str
    gap: Gap
    p: float | None

    @property
    def word(self) -> Word:
        """What the first is beside the second."""
        return self.gap.word(self.p)


def tunings(study: Study) -> list[Tuning]:
    """Return each method's defaults against what tuning found, as far as they are there."""
    found = []
    for method in study.methods:
        won = study.winner(method)
        sides: dict[Variant, Side] = {
            variant: _side(study, method, variant) for variant in ("default", "tuned")
        }
        brought = gap(
            study.values(method, "default", study.header.metric),
            study.values(method, "tuned", study.header.metric),
        )
        number = None if won is None else won.index
        found.append(Tuning(method, sides, number, None if number == 0 else brought))
    return found


def pairs(study: Study) -> list[Pair]:
    """Return the tuned methods against each other, those that share a seed."""
    values = {
        method: study.values(method, "tuned", study.header.metric) for method in study.methods
    }
    gaps = {
        (first, second): found
        for first, second in combinations(values, 2)
        if (found := gap(values[second], values[first])) is not None
    }
    tested = {names: found.p for names, found in gaps.items() if found.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [Pair(*names, found, corrected.get(names)) for names, found in gaps.items()]


def _side(study: Study, method: str, variant: Variant) -> Side:
    metric = study.header.metric
    trial = (
        study.winner(method)
        if variant == "tuned"
        else next((trial for trial in study.trials_of(method) if trial.index == 0), None)
    )
    test = {
        name: values
        for name in dict.fromkeys((metric, *FIGURES))
        if (values := study.values(method, variant, name))
    }
    validation = study.values(method, variant, metric, split="validation")
    finals = study.finals_of(method, variant)
    return Side(
        search=trial.score if trial is not None and trial.state == "finished" else None,
        validation=sample(list(validation.values())) if validation else None,
        test={name: sample(list(values.values())) for name, values in test.items()},
        price=_price([final.run.summary for final in finals.values() if final.run is not None]),
        seeds=tuple(sorted(finals)),
    )


def _price(summaries: list[Summary]) -> dict[str, float]:
    """Return means over runs: bytes by kind, trainings of clients, seconds."""
    if not summaries:
        return {}
    columns = [_bill(summary) for summary in summaries]
    return {name: fmean(column[name] for column in columns) for name in columns[0]}


def _bill(summary: Summary) -> dict[str, float]:
    return {
        **{kind: float(summary["communication"][kind]) for kind in TRAFFIC},
        "trainings": float(summary["client_trainings"]),
        "seconds": float(summary["seconds"]["total"]),
    }
