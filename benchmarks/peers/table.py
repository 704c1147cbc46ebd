"""The comparison of finished measurements: ratios, intervals, checks, and a table in Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats
from settings import SETTINGS, Setting

from flbench.core.errors import UserError

BARE = "bare"
OURS = "flbench"
Measurement = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """A geometric mean with an interval.

    Attributes:
        value: The mean.
        low: Lower end of the interval; None if there is none.
        high: Upper end of the interval.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3g}"
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def estimate(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive values, and a confidence interval of 95 %.

    The interval is the t-interval of the logarithms. Fewer than three values have none.
    """
    logs = np.log(values)
    mean = float(logs.mean())
    if len(logs) < 3:
        return Estimate(float(np.exp(mean)))
    error = float(logs.std(ddof=1)) / len(logs) ** 0.5
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    value, low, high = (float(np.exp(mean + shift)) for shift in (0.0, -half, half))
    return Estimate(value, low, high)


def spread(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive values, with the smallest and the largest one."""
    mean = float(np.exp(np.log(values).mean()))
    return Estimate(mean, min(values), max(values)) if len(values) > 1 else Estimate(mean)


@dataclass(frozen=True)
class Line:
    """One platform in one setting.

    Attributes:
        label: Platform and variant.
        repeats: Number of finished measurements.
        seconds: Seconds by kind of time: `rounds` is the training alone, `process` the whole
            process, `cpu` the time of all cores for the process, where it was measured.
        to_bare: Ratio of the seconds to those of the bare loop in the same repeat, by kind.
        to_peer: Ratio to the fastest peer in the same repeat, by kind.
        steps: Optimizer steps of the measurements; one number if the work was the same.
        accuracy: Mean accuracy of the global model.
        problem: Why there are no figures, or why they cannot be compared; empty if they can.
    """

    label: str
    repeats: int = 0
    seconds: dict[str, Estimate] = field(default_factory=dict)
    to_bare: dict[str, Estimate] = field(default_factory=dict)
    to_peer: dict[str, Estimate] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    accuracy: float = float("nan")
    problem: str = ""


@dataclass(frozen=True)
class Comparison:
    """All platforms in one setting.

    Attributes:
        setting: The setting.
        rounds: Rounds that were trained.
        lines: The platforms, in the order in which they were first measured.
        fastest: Label of the fastest peer by kind of time; empty without a peer.
        loads: Smallest and largest load average of a minute, before the measurements began.
    """

    setting: Setting
    rounds: int
    lines: tuple[Line, ...]
    fastest: dict[str, str]
    loads: tuple[float, float]


KINDS = {"rounds": "seconds", "process": "process_seconds", "cpu": "cpu_seconds"}


def compare(measurements: Sequence[Measurement], setting: Setting) -> Comparison | None:
    """Compare the measurements of a setting; None if there are none.

    Args:
        measurements: All measurements, of this setting and of others, in the order of time.
        setting: The setting.

    Raises:
        UserError: The measurements have different numbers of rounds.
    """
    own = [one for one in measurements if one["setting"] == setting.name]
    if not own:
        return None
    if len({one["rounds"] for one in own}) > 1:
        raise UserError(
            f"setting {setting.name} was measured with different numbers of rounds. Measure it"
            " again in another folder, or with the same --scale."
        )
    rounds = own[0]["rounds"]
    labels = list(dict.fromkeys(one["label"] for one in own))
    done = {label: {} for label in labels}
    for one in own:
        if "error" not in one:
            done[one["label"]][one["repeat"]] = one
    fastest = {}
    for kind, key in KINDS.items():
        means = {
            label: estimate(values).value
            for label, repeats in done.items()
            if not label.startswith((BARE, OURS)) and (values := _values(repeats, key))
        }
        if means:
            fastest[kind] = min(means, key=means.__getitem__)
    lines = []
    for label in labels:
        repeats = done[label]
        errors = [one["error"] for one in own if one["label"] == label and "error" in one]
        if not repeats:
            lines.append(Line(label, problem=errors[-1]))
            continue
        reached = fmean(one["accuracy"] for one in repeats.values())
        lines.append(
            Line(
                label,
                len(repeats),
                {
                    kind: spread(values)
                    for kind, key in KINDS.items()
                    if (values := _values(repeats, key))
                },
                {
                    kind: ratio
                    for kind, key in KINDS.items()
                    if (ratio := _ratio(repeats, done.get(BARE, {}), key)) is not None
                },
                {
                    kind: ratio
                    for kind, key in KINDS.items()
                    if kind in fastest
                    and (ratio := _ratio(repeats, done[fastest[kind]], key)) is not None
                },
                tuple(sorted({one["steps"] for one in repeats.values()})),
                reached,
                _problem(repeats, done.get(BARE, {}), setting, rounds)
                or (f"{len(errors)} failed: {errors[-1]}" if errors else ""),
            )
        )
    loads = [one["load_before"] for one in own]
    return Comparison(setting, rounds, tuple(lines), fastest, (min(loads), max(loads)))


def _values(repeats: dict[int, Measurement], key: str) -> list[float]:
    """Return the times of the repeats in which a time was measured."""
    return [one[key] for one in repeats.values() if key in one]


def _ratio(
    repeats: dict[int, Measurement], reference: dict[int, Measurement], key: str
) -> Estimate | None:
    """Return the ratio of two platforms over the repeats that both have finished."""
    both = [k for k in repeats if key in repeats[k] and key in reference.get(k, {})]
    return estimate([repeats[k][key] / reference[k][key] for k in both]) if both else None


def _problem(
    repeats: dict[int, Measurement],
    bare: dict[int, Measurement],
    setting: Setting,
    rounds: int,
) -> str:
    """Return why a platform has not done the same work, or an empty text."""
    wanted = setting.steps(rounds)
    steps = sorted({one["steps"] for one in repeats.values()})
    if steps != [wanted]:
        return f"took {', '.join(map(str, steps))} steps instead of {wanted}"
    if not bare:
        return ""
    reached, expected = (
        fmean(one["accuracy"] for one in group.values()) for group in (repeats, bare)
    )
    if abs(reached - expected) > setting.tolerance:
        return (
            f"accuracy {reached:.3f} differs from the bare loop's {expected:.3f} by more than"
            f" {setting.tolerance}"
        )
    return ""


def problems(comparisons: Sequence[Comparison]) -> list[str]:
    """Return one sentence for each platform without comparable figures."""
    return [
        f"({one.setting.name}) {line.label}: {line.problem}"
        for one in comparisons
        for line in one.lines
        if line.problem
    ]


def markdown(measurements: Sequence[Measurement]) -> str:
    """Return the table of every measured setting, in Markdown."""
    found = (compare(measurements, setting) for setting in SETTINGS.values())
    return "\n".join(_section(one) for one in found if one is not None)


def _section(comparison: Comparison) -> str:
    """Return the table of one setting."""
    setting, rounds = comparison.setting, comparison.rounds
    scale = (
        f"{rounds} of {setting.rounds} rounds" if rounds != setting.rounds else f"{rounds} rounds"
    )
    low, high = comparison.loads
    head = (
        "| | repeats | training, s | process, s | CPU, s | training / bare | process / bare"
        " | CPU / bare | training / fastest peer | process / fastest peer | accuracy |"
    )
    lines = [
        f"## ({setting.name}) {setting.title}",
        "",
        f"{scale}, batches of {setting.batch}, {setting.steps(rounds):,} steps; load average before"
        f" a measurement {low:.1f} to {high:.1f}.",
        "",
        head,
        "|---" * (head.count("|") - 1) + "|",
    ]
    for line in comparison.lines:
        if not line.repeats:
            lines.append(f"| {line.label} |" + " |" * 10)
            continue
        cells = [str(line.repeats)]
        cells += [str(line.seconds.get(kind, "")) for kind in KINDS]
        cells += [str(line.to_bare.get(kind, "")) for kind in KINDS]
        cells += [str(line.to_peer.get(kind, "")) for kind in ("rounds", "process")]
        lines.append(f"| {line.label} | {' | '.join(cells)} | {line.accuracy:.3f} |")
    lines.append("")
    for kind, title in (("rounds", "training"), ("process", "the whole process")):
        if kind in comparison.fastest:
            lines.append(_verdict(comparison, kind, title))
    lines += [f"- {line.label}: {line.problem}." for line in comparison.lines if line.problem]
    return "\n".join([*lines, ""])


def _verdict(comparison: Comparison, kind: str, title: str) -> str:
    """Return a sentence that says whether a peer or flbench is faster."""
    peer = comparison.fastest[kind]
    ours = {
        line.label: line.to_peer[kind]
        for line in comparison.lines
        if line.label.startswith(OURS) and kind in line.to_peer
    }
    if not ours:
        return f"- Fastest peer in {title}: {peer}."
    best = min(ours, key=lambda label: ours[label].value)
    sentence = f"- Fastest peer in {title}: {peer}; {best} takes {ours[best]} of its time."
    slower = [label for label, ratio in ours.items() if (ratio.low or ratio.value) > 1]
    alike = [
        label
        for label, ratio in ours.items()
        if ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
    ]
    if slower:
        sentence += f" {peer} is faster than {', '.join(slower)}."
    if alike:
        sentence += f" No difference is shown between {peer} and {', '.join(alike)}."
    return sentence
