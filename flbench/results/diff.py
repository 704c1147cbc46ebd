"""What differs between two runs: configuration, data, provenance and results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flbench.config.sources import leaves
from flbench.core.documents import read_json
from flbench.results.differences import PARTITION, SAMPLES, SOURCE, differences
from flbench.results.reading import StoredRun

PLACES: Final = ("output.", "tracking.")  # where files are written and sent
HASHES: Final = ("partition_hash", "config_hash", "weights_digest")
COSTS: Final = ("up_bytes", "down_bytes", "peer_bytes", "setup_bytes")

Pair = tuple[Any, Any]
"""The values of the first and the second run; None where a run has none."""


@dataclass(frozen=True)
class RunDiff:
    """What differs between two runs.

    Attributes:
        configuration: Values of the configuration keys that differ, by dotted key; `data` stands
            for the name of the data set, and `samples` and `partition` for the beginnings of the
            hashes of its samples and of the clients' parts, if no key explains that these differ.
            Keys that say where files are written are left out.
        provenance: What differs in provenance.json and in the hashes of partition, configuration
            and weights, by name; versions of packages have the prefix `packages.`.
        metrics: Validation and test metrics at the best round by validation, by `SPLIT.METRIC`,
            equal or not; and bytes and seconds of all rounds.
        warnings: Sentences that say what the differences mean for a comparison.
    """

    configuration: Mapping[str, Pair]
    provenance: Mapping[str, Pair]
    metrics: Mapping[str, Pair]
    warnings: tuple[str, ...]


def diff(first: StoredRun, second: StoredRun) -> RunDiff:
    """Compare two runs, finished or not.

    Args:
        first: A run.
        second: Another run.

    Raises:
        DataError: provenance.json of a run is damaged.
    """
    trees = [
        {"data": run.summary["dataset"], **leaves(run.config.tree())} for run in (first, second)
    ]
    configuration = {
        key: pair for key, pair in _unequal(*trees).items() if not key.startswith(PLACES)
    }
    configuration.pop(SOURCE, None)
    apart = differences([first, second])
    for name in (SAMPLES, PARTITION):
        if name in apart.values:
            configuration[name] = (apart.values[name][0], apart.values[name][1])
    warnings = list(apart.warnings)
    if configuration:
        warnings.append(
            "these are two single runs: whether a difference between their metrics is larger than"
            " that between two seeds is not known. Repeat both with at least three seeds."
        )
    else:
        digests = [run.summary.get("weights_digest") for run in (first, second)]
        if None not in digests:
            same = "equal" if digests[0] == digests[1] else "different"
            warnings.append(f"the runs have the same configuration and {same} weights.")
    if unfinished := [str(run.path) for run in (first, second) if not run.finished]:
        warnings.append(f"not finished: {', '.join(unfinished)}.")
    return RunDiff(
        configuration,
        _unequal(_origin(first), _origin(second)),
        _pairs(_results(first), _results(second)),
        tuple(warnings),
    )


def _origin(run: StoredRun) -> dict[str, Any]:
    """Return provenance and hashes of a run by dotted names, without the time of its start."""
    written = leaves(read_json(run.path / "provenance.json"))
    written.pop("started", None)
    return written | {name: run.summary.get(name) for name in HASHES}


def _results(run: StoredRun) -> dict[str, Any]:
    """Return metrics and costs of a run by name."""
    best = run.summary["best"]
    found = {
        f"{split}.{name}": value
        for split in ("validation", "test")
        for name, value in best[split].items()
        if isinstance(value, int | float)
    }
    sent = run.summary["communication"]
    found |= {"best_round": best["round"]} | {name: sent[name] for name in COSTS}
    return found | ({"seconds": run.summary["seconds"]["total"]} if run.finished else {})


def _pairs(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Pair]:
    """Return the values of all names, in the order of the first mapping, then the second."""
    return {name: (first.get(name), second.get(name)) for name in {**first, **second}}


def _unequal(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Pair]:
    """Return the pairs whose values differ."""
    return {name: pair for name, pair in _pairs(first, second).items() if pair[0] != pair[1]}
