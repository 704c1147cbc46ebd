"""The tables of a study in words."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from flbench.reports.statistics import CLAIM_FROM, WILCOXON_FROM, Gap, Sample
from flbench.reports.tables import Block, share, size
from flbench.results.study_folder import STATES, VARIANTS, Study, Trial
from flbench.tuning.axes import Axis, shown
from flbench.tuning.bounds import bounds
from flbench.tuning.comparison import FIGURES, Pair, Side, Tuning
from flbench.tuning.report import Report, count, title

RARE = " (rare)"
BROUGHT = {
    "better": "tuning helped",
    "worse": "tuning harmed",
    "not told apart": "not told apart",
}


def brought(report: Report) -> Block:
    """Return default against tuned: validation, test, the difference and what it says."""
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
                    interval(side.validation),
                    interval(side.test.get(report.study.header.metric)),
                    str(len(side.seeds) or "-"),
                    difference(tuning.brought) if tuned else "",
                    _verdict(tuning) if tuned else "",
                )
            )
    return Block(
        f"Default against tuned: {report.metric}",
        (
            *("method", "values", "validation,\nsearch", "validation,\nfinal"),
            *("test,\nfinal", "seeds", "tuning brought\n(test)", "verdict"),
        ),
        tuple(rows),
        "Search: one training with the study's seed; the best of many is flattered by its choice."
        " Final: mean over seeds and half the width of its 95 % interval. Differences are taken"
        " seed by seed, with their 95 % interval (paired t).",
        texts=(0, 1, 7),
    )


def figures(report: Report) -> Block:
    """Return the test figures beside the study's metric."""
    names = [name for name in FIGURES if name != report.study.header.metric]
    rows = [
        (
            tuning.method,
            variant,
            *(interval(tuning.sides[variant].test.get(name)) for name in names),
        )
        for tuning in report.tunings
        for variant in VARIANTS
    ]
    return Block(
        "Other test figures",
        ("method", "values", *(title(name) for name in names)),
        tuple(rows),
        "Of final trainings after the last round: mean over seeds and half the width of its 95 %"
        " interval. Nothing was chosen by them.",
        texts=(0, 1),
    )


def prices(report: Report) -> Block:
    """Return what a final training costs."""
    rows = [
        (tuning.method, variant, *_price(tuning.sides[variant]))
        for tuning in report.tunings
        for variant in VARIANTS
    ]
    return Block(
        "Price of a final training",
        ("method", "values", "up", "down", "peer", "client trainings", "seconds"),
        tuple(rows),
        "Means over seeds. Down: with what a set-up sends; the start net follows from the seed and"
        " is not sent. Peer: between clients.",
        texts=(0, 1),
    )


def rivals(report: Report) -> Block | None:
    """Return the tuned methods against each other; None where no two can be compared."""
    if not report.pairs:
        return None
    rows = tuple(
        (
            f"{pair.first} - {pair.second}",
            difference(pair.gap),
            str(len(pair.gap.seeds)),
            probability(pair.gap.p),
            probability(pair.p),
            probability(pair.gap.wilcoxon),
            _ahead(pair),
        )
        for pair in report.pairs
    )
    return Block(
        f"Tuned methods against each other: {report.metric}, test",
        ("", "difference", "seeds", "p", "p (Holm)", "p (Wilcoxon)", "verdict"),
        rows,
        "Paired t-tests over seeds; the verdict is by p corrected for all pairs (Holm), the"
        " interval is that of one pair alone. Wilcoxon's test is made from"
        f" {WILCOXON_FROM} seeds on: with fewer it cannot tell anything apart.",
        texts=(0, 6),
    )


def parameters(report: Report, method: str) -> Block | None:
    """Return the winner's hyper-parameters beside the defaults; None without a winner."""
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


def winner(report: Report, method: str) -> str:
    """Return a method's best hyper-parameters in a line, with warnings; "" without a winner."""
    won = report.study.winner(method)
    if won is None:
        return ""
    values = ", ".join(f"{path}={shown(value)}" for path, value in won.params.items())
    warnings = [
        f"{axis.path} {text}" for axis in report.axes[method] if (text := edge(axis, won, method))
    ]
    return "; ".join([f"{method}, trial {won.index}: {values}", *warnings])


def edge(axis: Axis, won: Trial, method: str) -> str:
    """Return a warning where the best value lies at an end of its range; "" elsewhere."""
    end = axis.end(won.params.get(axis.path))
    if end is None:
        return ""
    least, most = bounds(axis.path, method)
    low, high = min(axis.choices, default=axis.low), max(axis.choices, default=axis.high)
    if (end == "low" and least is not None and low <= least) or (
        end == "high" and most is not None and high >= most
    ):
        return f"at the {end} end, where the parameter itself ends"
    return f"at the {end} end: widen the space"


class _Classes(NamedTuple):
    """Lines of a method's per_class.csv, and means over seeds, class by class."""

    lines: Sequence[Mapping[str, str]]
    f1: tuple[float, ...]
    recall: tuple[float, ...]


def classes(report: Report) -> Block | None:
    """Return F1 and recall of each class, tuned; None before there are tuned trainings."""
    found = {method: _classes(report.study, method) for method in report.study.methods}
    columns = {method: values for method, values in found.items() if values is not None}
    if not columns:
        return None
    rows = tuple(
        (
            line["name"] + (RARE if line["rare"] == "1" else ""),
            line["train_support"],
            *(share(values.f1[k]) for values in columns.values()),
            *(share(values.recall[k]) for values in columns.values()),
        )
        for k, line in enumerate(next(iter(columns.values())).lines)
    )
    header = [f"{name},\n{method}" for name in ("F1", "recall") for method in columns]
    return Block(
        "Classes, tuned: test",
        ("class", "train", *header),
        rows,
        "Means over seeds, after the last round; train: training samples of all clients.",
    )


def trials(report: Report) -> Block:
    """Return trials by state, and what the search cost."""
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
        "Stopped: by the scheduler. Rounds and seconds are those of all trials together.",
    )


def interval(sample: Sample | None) -> str:
    """Return a mean with half the width of its interval, if it has one."""
    if sample is None:
        return "-"
    return share(sample.mean) + ("" if sample.half is None else f" ± {sample.half:.4f}")


def difference(gap: Gap | None) -> str:
    """Return a difference with half the width of its interval, if it has one."""
    if gap is None:
        return "-"
    half = gap.sample.half
    return f"{gap.sample.mean:+.4f}" + ("" if half is None else f" ± {half:.4f}")


def probability(value: float | None) -> str:
    """Return a p-value."""
    if value is None:
        return "-"
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def _verdict(tuning: Tuning) -> str:
    if tuning.won == 0:
        return "the defaults won"
    if tuning.brought is None or tuning.word is None:
        return "-"
    return BROUGHT.get(tuning.word, "") or _silence(tuning.brought)


def _ahead(pair: Pair) -> str:
    if pair.word == "no claim":
        return _silence(pair.gap)
    ahead = {"better": f"{pair.first} is ahead", "worse": f"{pair.second} is ahead"}
    return ahead.get(pair.word, pair.word)


def _silence(gap: Gap) -> str:
    """Return why nothing is claimed of a difference."""
    seeds = len(gap.seeds)
    if seeds < CLAIM_FROM:
        return f"no claim: {count(seeds, 'seed')}"
    return "no claim: the same in every seed"


def _price(side: Side) -> tuple[str, ...]:
    price = side.price
    if not price:
        return ("-",) * 5
    return (
        size(price["up_bytes"]),
        size(price["down_bytes"] + price["setup_bytes"]),
        size(price["peer_bytes"]),
        f"{price['trainings']:.0f}",
        f"{price['seconds']:.1f}",
    )


def _classes(study: Study, method: str) -> _Classes | None:
    tables = [
        [line for line in final.run.classes if line["moment"] == "last"]
        for final in study.finals_of(method, "tuned").values()
        if final.run is not None
    ]
    if not tables:
        return None
    f1, recall = (
        tuple(fmean(float(line[key]) for line in lines) for lines in zip(*tables, strict=True))
        for key in ("f1", "recall")
    )
    return _Classes(tables[0], f1, recall)
