"""The comparison of finished measurements: ratios, intervals, checks, and a table in Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from settings import SETTINGS, Setting

from flbench.core.errors import UserError

BARE = "bare"
OURS = "flbench"
OF_PEERS = ("training", "process")
"""Kinds that are compared with the fastest peer."""
KINDS = {"training": "seconds", "process": "process_seconds", "CPU": "cpu_seconds"}
"""Kinds of time: the rounds alone, the whole process, and all cores for the process."""
Estimate = tuple[float, float, float]
"""A geometric mean, and two ends, which are NaN where there are none."""


def estimate(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive values with its confidence interval of 95 %.

    The interval is the t-interval of the logarithms. Fewer than three values have none.
    """
    logs = np.log(np.asarray(values, dtype=float))
    half = np.nan
    if len(logs) > 2:
        half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    value, low, high = np.exp(logs.mean() + np.array([0.0, -half, half])).tolist()
    return value, low, high


def spread(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive values, with the smallest and the largest one."""
    ends = (min(values), max(values)) if len(values) > 1 else (np.nan, np.nan)
    return float(np.exp(np.log(values).mean())), *ends


def text(one: Estimate | None) -> str:
    """Return an estimate as the table shows it; nothing for None."""
    if one is None:
        return ""
    value, low, high = (f"{number:.3g}" for number in one)
    return value if np.isnan(one[1]) else f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Comparison:
    """All platforms in one setting.

    Attributes:
        setting: The setting.
        rounds: Rounds that were trained.
        repeats: Number of finished measurements, by platform and variant, in the order in which
            these were first measured.
        seconds: Seconds by kind of time, for each of them.
        to_bare: Ratio of the seconds to those of the bare loop in the same repeat, by kind.
        to_peer: Ratio to the fastest peer in the same repeat, by kind.
        accuracy: Mean accuracy of the global model.
        problems: Why there are no figures, or why they cannot be compared.
        fastest: Label of the fastest peer by kind of time; empty without a peer.
        loads: Smallest and largest load average of a minute, before the measurements began.
    """

    setting: Setting
    rounds: int
    repeats: dict[str, int]
    seconds: dict[str, dict[str, Estimate]]
    to_bare: dict[str, dict[str, Estimate]]
    to_peer: dict[str, dict[str, Estimate]]
    accuracy: dict[str, float]
    problems: dict[str, str]
    fastest: dict[str, str]
    loads: tuple[float, float]


def compare(measurements: Sequence[dict[str, Any]], setting: Setting) -> Comparison | None:
    """Compare the measurements of a setting; None if there are none.

    Raises:
        UserError: The measurements have different numbers of rounds.
    """
    columns = ["label", "repeat", "error", "steps", "accuracy", *KINDS.values()]
    own = pd.DataFrame([one for one in measurements if one["setting"] == setting.name])
    if own.empty:
        return None
    if own["rounds"].nunique() > 1:
        raise UserError(
            f"setting {setting.name} was measured with different numbers of rounds. Measure it"
            " again in another folder, or with the same --scale."
        )
    own = own.reindex(columns=own.columns.union(columns, sort=False))
    labels = list(own["label"].unique())
    done = own[own["error"].isna()].drop_duplicates(["label", "repeat"], keep="last")
    peers = [one for one in labels if not one.startswith((BARE, OURS))]
    fastest: dict[str, str] = {}
    found: list[dict[str, dict[str, Estimate]]] = [{one: {} for one in labels} for _ in range(3)]
    for kind, key in KINDS.items():
        times = done.pivot(index="repeat", columns="label", values=key).astype(float)
        times = times.reindex(columns=labels)
        means = np.log(times[peers]).mean().dropna()
        if len(means):
            fastest[kind] = str(means.idxmin())
        references = (None, BARE, fastest.get(kind))
        for place, reference in zip(found, references, strict=True):
            for label in labels:
                values = times[label]
                if place is not found[0]:
                    values = values / times[reference] if reference in times else values * np.nan
                if len(values := values.dropna()):
                    place[label][kind] = (estimate if reference else spread)(list(values))
    rounds, reached = int(own["rounds"].iloc[0]), done.groupby("label")["accuracy"].mean()
    problems = {}
    for label in labels:
        errors = list(own[(own["label"] == label) & own["error"].notna()]["error"])
        steps = sorted({int(one) for one in done[done["label"] == label]["steps"]})
        gap = abs(reached.get(label, np.nan) - reached.get(BARE, np.nan))
        if not steps:
            problems[label] = errors[-1]
        elif steps != [setting.steps(rounds)]:
            wanted = setting.steps(rounds)
            problems[label] = f"took {', '.join(map(str, steps))} steps instead of {wanted}"
        elif gap > setting.tolerance:
            problems[label] = (
                f"accuracy {reached[label]:.3f} differs from the bare loop's {reached[BARE]:.3f} by"
                f" more than {setting.tolerance}"
            )
        elif errors:
            problems[label] = f"{len(errors)} failed: {errors[-1]}"
    repeats = {label: int((done["label"] == label).sum()) for label in labels}
    loads = float(own["load_before"].min()), float(own["load_before"].max())
    return Comparison(setting, rounds, repeats, *found, dict(reached), problems, fastest, loads)


def markdown(measurements: Sequence[dict[str, Any]]) -> str:
    """Return the table of every measured setting, in Markdown."""
    found = (compare(measurements, setting) for setting in SETTINGS.values())
    return "\n".join(_section(one) for one in found if one is not None)


def _section(found: Comparison) -> str:
    """Return the table of one setting."""
    setting, rounds = found.setting, found.rounds
    scale = f"{rounds} of {setting.rounds}" if rounds != setting.rounds else f"{rounds}"
    head = ["", "repeats", *(f"{kind}, s" for kind in KINDS), *(f"{kind} / bare" for kind in KINDS)]
    head += [*(f"{kind} / {found.fastest.get(kind, 'peer')}" for kind in OF_PEERS), "accuracy"]
    lines = [
        f"## ({setting.name}) {setting.title}",
        "",
        f"{scale} rounds, batches of {setting.batch}, {setting.steps(rounds):,} steps; load average"
        f" before a measurement {found.loads[0]:.1f} to {found.loads[1]:.1f}.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for label, repeats in found.repeats.items():
        cells = [label, str(repeats), *(text(found.seconds[label].get(kind)) for kind in KINDS)]
        cells += [text(found.to_bare[label].get(kind)) for kind in KINDS]
        cells += [text(found.to_peer[label].get(kind)) for kind in OF_PEERS]
        cells += [f"{found.accuracy[label]:.3f}"] if repeats else [""]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines += [f"- {label}: {problem}." for label, problem in found.problems.items()]
    return "\n".join([*lines, ""])
