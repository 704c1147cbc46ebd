"""Tables of a study, as text for the console, Markdown and HTML."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from flbench.metrics import ranking_names
from flbench.metrics.rare_names import NAMES as RARE_METRICS
from flbench.reports.statistics import (
    CLAIM_FROM,
    ON_ONE_PARTITION,
    WILCOXON_FROM,
    PairedDifference,
    Sample,
)
from flbench.reports.tables import Block, class_score, p_value, share, size
from flbench.results.study_folder import PERSONAL, STATES, VARIANTS, Study, Trial
from flbench.tuning.axes import Axis, shown
from flbench.tuning.bounds import bounds
from flbench.tuning.comparison import TEST_METRICS, Pair, Side, Tuning
from flbench.tuning.deployments import of_deployment
from flbench.tuning.report import StudyReport, count, title

RARE = " (rare)"
INTERVALS = (
    "An interval that would leave the scale of the metric is cut at its end and printed as [from,"
    " to]; fewer than three seeds are too few for one."
)
GAIN_VERDICTS = {
    "better": f"tuning helped {ON_ONE_PARTITION}",
    "worse": f"tuning harmed {ON_ONE_PARTITION}",
    "no significant difference": "no significant difference",
}
ONE_PARTITION = (
    "All final trainings have the partition of the search, so verdicts and intervals hold on this"
    " one partition; `flbench compare --tuned` compares the methods over several."
)


def gains(report: StudyReport) -> Block:
    """Return the table of default and tuned results: validation, test, gain and verdict."""
    rows = []
    for tuning in report.tunings:
        for variant in VARIANTS:
            side = tuning.sides[variant]
            tuned = variant == "tuned"
            rows.append(
                (
                    tuning.method,
                    variant,
                    share(side.search),
                    interval(side.validation, len(side.seeds)),
                    interval(side.test.get(report.study.header.metric), len(side.seeds)),
                    str(len(side.seeds) or "-"),
                    difference(tuning.gain, len(side.seeds)) if tuned else "",
                    _verdict(tuning) if tuned else "",
                )
            )
    return Block(
        f"Default against tuned: {report.metric}",
        (
            *("method", "values", "validation,\nsearch", "validation,\nfinal"),
            *("test,\nfinal", "seeds", "gain from tuning\n(test)", "verdict"),
        ),
        tuple(rows),
        "Search: one training with the study's seed; the score of the best of many trials is"
        " optimistic. Final: mean over seeds and half the width of its 95 % interval. Gain: mean"
        " difference of trainings with the same seed, and half the width of its 95 % interval"
        f" (paired t-test). {INTERVALS} {ONE_PARTITION}",
        texts=(0, 1, 7),
    )


def other_metrics(report: StudyReport) -> Block:
    """Return the table of the test metrics beside the study's metric."""
    sides = [side for tuning in report.tunings for side in tuning.sides.values()]
    names = [
        name
        for name in TEST_METRICS
        if name != report.study.header.metric
        and (report.has_rare_classes or name not in RARE_METRICS)
        # Two metrics are defined for two classes only.
        and (name not in ranking_names.NAMES or any(name in side.test for side in sides))
    ]
    rows = [
        (
            tuning.method,
            variant,
            str(len(tuning.sides[variant].seeds) or "-"),
            *(
                interval(tuning.sides[variant].test.get(name), len(tuning.sides[variant].seeds))
                for name in names
            ),
        )
        for tuning in report.tunings
        for variant in VARIANTS
    ]
    deployment = report.study.header.deployment
    return Block(
        of_deployment("Other test metrics", deployment),
        ("method", "values", "seeds", *(title(name) for name in names)),
        tuple(rows),
        "Final trainings after the last round: mean over seeds and half the width of its 95 %"
        f" interval. {INTERVALS} No choice depends on these metrics.",
        texts=(0, 1),
    )


def costs(report: StudyReport) -> Block:
    """Return the table of the costs of a final training."""
    rows = [
        (
            *(tuning.method, variant, str(len(tuning.sides[variant].seeds) or "-")),
            *_cost(tuning.sides[variant]),
        )
        for tuning in report.tunings
        for variant in VARIANTS
    ]
    return Block(
        "Cost of a final training",
        ("method", "values", "seeds", "up", "down", "peer", "client trainings", "seconds"),
        tuple(rows),
        "Means over seeds. Seconds are those of the whole training, preparation included. Down"
        " includes what is sent during set-up; the initial model follows from"
        " the seed and is not sent. Peer: between clients.",
        texts=(0, 1),
    )


def comparisons(report: StudyReport) -> Block | None:
    """Return the table of comparisons between tuned methods; None if no two can be compared."""
    if not report.pairs:
        return None
    rows = tuple(
        (
            f"{pair.first} - {pair.second}",
            difference(pair.gap),
            str(len(pair.gap.seeds)),
            p_value(pair.gap.p),
            p_value(pair.p),
            p_value(pair.gap.wilcoxon),
            _ahead(pair),
        )
        for pair in report.pairs
    )
    return Block(
        f"Tuned methods against each other: {report.metric}, test",
        ("", "difference", "seeds", "p", "p (Holm)", "p (Wilcoxon)", "verdict"),
        rows,
        "Paired t-tests over seeds. The verdict uses the p-value corrected for all pairs (Holm);"
        " the interval is not corrected. Wilcoxon's signed-rank test needs at least"
        f" {WILCOXON_FROM} seeds: with fewer, its p-value is always above 0.05. {ONE_PARTITION}",
        texts=(0, 6),
    )


def parameters(report: StudyReport, method: str) -> Block | None:
    """Return the table of a method's best hyper-parameters; None while there is no best trial."""
    won = report.study.winner(method)
    if won is None:
        return None
    defaults = report.study.header.methods[method].defaults
    rows = tuple(
        (
            axis.path,
            axis.values,
            shown(defaults[axis.path]) if axis.path in defaults else "-",
            shown(won.params[axis.path]) if axis.path in won.params else "not set",
            edge(axis, won, method),
        )
        for axis in report.axes[method]
    )
    return Block(
        f"{method}: trial {won.index} won",
        ("parameter", "space", "default", "best", ""),
        rows,
        texts=(0, 1, 4),
    )


def winner(report: StudyReport, method: str) -> str:
    """Return a method's best hyper-parameters as one line, with warnings; "" if there are none."""
    won = report.study.winner(method)
    if won is None:
        return ""
    values = ", ".join(f"{path}={shown(value)}" for path, value in won.params.items())
    warnings = [
        f"{axis.path} {text}" for axis in report.axes[method] if (text := edge(axis, won, method))
    ]
    return "; ".join([f"{method}, trial {won.index}: {values}", *warnings])


def edge(axis: Axis, won: Trial, method: str) -> str:
    """Return a warning if the best value lies at an end of its range; "" otherwise.

    Args:
        axis: Axis of the parameter.
        won: The best trial.
        method: Name of the method, which the hard limits of the parameter depend on.
    """
    end = axis.end(won.params.get(axis.path))
    if end is None:
        return ""
    least, most = bounds(axis.path, method)
    low, high = min(axis.choices, default=axis.low), max(axis.choices, default=axis.high)
    if (end == "low" and least is not None and low <= least) or (
        end == "high" and most is not None and high >= most
    ):
        return f"at the {end} end, which is a limit of the parameter itself"
    return f"at the {end} end: widen the space"


class _Classes(NamedTuple):
    """Lines of a method's per_class.csv, and mean F1 and recall over seeds, by class.

    They are None for a class without test samples.
    """

    lines: Sequence[Mapping[str, str]]
    f1: tuple[float | None, ...]
    recall: tuple[float | None, ...]


def classes(report: StudyReport) -> Block | None:
    """Return the table of F1 and recall by class; None while there are no tuned trainings."""
    found = {method: _classes(report.study, method) for method in report.study.methods}
    columns = {method: values for method, values in found.items() if values is not None}
    if not columns:
        return None
    most = max(len(values.lines) for values in columns.values())
    # A damaged table that lacks classes has no place beside the others.
    columns = {method: one for method, one in columns.items() if len(one.lines) == most}
    rows = tuple(
        (
            line["name"] + (RARE if report.has_rare_classes and line["rare"] == "1" else ""),
            line["train_support"],
            *(share(values.f1[k]) for values in columns.values()),
            *(share(values.recall[k]) for values in columns.values()),
        )
        for k, line in enumerate(next(iter(columns.values())).lines)
    )
    header = [f"{name},\n{method}" for name in ("F1", "recall") for method in columns]
    deployment = report.study.header.deployment
    return Block(
        "Classes, tuned: test" + ("" if deployment == PERSONAL else ", personal models"),
        ("class", "train", *header),
        rows,
        "Means over seeds, after the last round. Train: number of training samples of all clients.",
    )


def trials(report: StudyReport) -> Block:
    """Return the table of the trials by state, and the cost of the search."""
    rows = []
    for method in report.study.methods:
        mine = report.study.trials_of(method)
        spent = sum((trial.seconds or {}).get("total", 0.0) for trial in mine)
        rows.append(
            (
                method,
                *(str(sum(trial.state == state for trial in mine)) for state in STATES),
                str(max(0, report.study.header.trials - len(mine))),
                str(sum(trial.attempts > 1 for trial in mine)),
                str(sum(trial.round for trial in mine)),
                f"{spent:.1f}",
            )
        )
    return Block(
        "Trials of the search",
        ("method", *STATES, "not begun", "retried", "rounds", "seconds"),
        tuple(rows),
        "Stopped: by the scheduler. Rounds and seconds are sums over all trials.",
    )


def interval(sample: Sample | None, seeds: int | None = None) -> str:
    """Format the mean of a metric in [0, 1] and its interval, if it has one.

    Args:
        sample: The values; None if there are none.
        seeds: Number of seeds that is printed beside it. If the metric has fewer values, their
            number is a part of the text.

    >>> interval(Sample(3, 0.5, 0.01, 0.0248)), interval(Sample(3, 0.99, 0.01, 0.0248), seeds=4)
    ('0.5000 ± 0.0248', '0.9900 in [0.9652, 1.0000] (3 of 4 seeds)')
    """
    return "-" if sample is None else _bounded(sample, 0.0, "") + _of_seeds(sample.n, seeds)


def difference(gap: PairedDifference | None, seeds: int | None = None) -> str:
    """Format a difference of two metrics in [0, 1] and its interval, if it has one.

    Args:
        gap: The difference; None if there is none.
        seeds: See `interval`.
    """
    if gap is None:
        return "-"
    return _bounded(gap.sample, -1.0, "+") + _of_seeds(gap.sample.n, seeds)


def _of_seeds(n: int, seeds: int | None) -> str:
    """Return how many of the seeds a figure has; "" if it has all."""
    return "" if seeds is None or n == seeds else f" ({n} of {seeds} seeds)"


def _bounded(sample: Sample, low: float, sign: str) -> str:
    """Format a mean and its interval, which is cut at the ends of the scale [low, 1].

    Values outside the scale are impossible, so the part of the interval inside has the same
    coverage. With two values, Student's t has one degree of freedom: the interval would be 13
    standard errors wide on either side and is not printed.
    """
    text = f"{sample.mean:{sign}.4f}"
    if sample.half is None or sample.n < CLAIM_FROM:
        return text
    ends = sample.mean - sample.half, sample.mean + sample.half
    if low <= ends[0] and ends[1] <= 1:
        return f"{text} ± {sample.half:.4f}"
    return f"{text} in [{max(low, ends[0]):{sign}.4f}, {min(1.0, ends[1]):{sign}.4f}]"


def _verdict(tuning: Tuning) -> str:
    """Return the verdict about the gain from tuning, as text."""
    if tuning.won == 0:
        return "the default trial is the best"
    if tuning.gain is None or tuning.verdict is None:
        return "-"
    return GAIN_VERDICTS.get(tuning.verdict, "") or _no_claim(tuning.gain)


def _ahead(pair: Pair) -> str:
    """Return the verdict about two methods, as text."""
    if pair.verdict == "no claim":
        return _no_claim(pair.gap)
    ahead = {
        "better": f"{pair.first} is better {ON_ONE_PARTITION}",
        "worse": f"{pair.second} is better {ON_ONE_PARTITION}",
    }
    return ahead.get(pair.verdict, pair.verdict)


def _no_claim(gap: PairedDifference) -> str:
    """Return why no claim is made about a difference."""
    seeds = len(gap.seeds)
    if seeds < CLAIM_FROM:
        return f"no claim: {count(seeds, 'seed')}"
    return "no claim: same difference for every seed"


def _cost(side: Side) -> tuple[str, ...]:
    mean = side.costs
    if not mean:
        return ("-",) * 5
    return (
        size(mean["up_bytes"]),
        size(mean["down_bytes"] + mean["setup_bytes"]),
        size(mean["peer_bytes"]),
        f"{mean['trainings']:.0f}",
        f"{mean['seconds']:.1f}",
    )


def _classes(study: Study, method: str) -> _Classes | None:
    tables = [
        [line for line in final.run.classes if line["moment"] == "last"]
        for final in study.finals_of(method, "tuned").values()
        if final.run is not None
    ]
    if not tables:
        return None
    most = max(map(len, tables))
    tables = [lines for lines in tables if len(lines) == most]
    f1, recall = (
        tuple(_mean_of(lines, key) for lines in zip(*tables, strict=True))
        for key in ("f1", "recall")
    )
    return _Classes(tables[0], f1, recall)


def _mean_of(lines: Sequence[Mapping[str, str]], key: str) -> float | None:
    """Return the mean of a score of a class over trainings that have test samples of it."""
    values = [value for line in lines if (value := class_score(line, key)) is not None]
    return fmean(values) if values else None
