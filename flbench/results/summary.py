"""Summaries of metrics.csv: the metrics of one round, and totals over rounds."""

from collections import defaultdict
from functools import partial
from itertools import product
from math import isnan
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from flbench.config.schema import BestConfig
from flbench.core import own_names
from flbench.metrics import names as metric_names
from flbench.results.metrics_file import MOST_BYTES, TRAINING, Row

MOST: Final = 2**63 - 1
"""Largest seed, number of rounds, of clients, of trainings and of seconds."""
ROUNDING: Final = 1e-6
SHARES: Final = frozenset(
    {"accuracy", "accuracy_mean", "balanced_accuracy", "macro_f1", *metric_names.RARE}
    | {"confusable_f1", "worst10_accuracy", "auroc", "average_precision"}
)
"""Metrics in [0, 1] of runs that classify."""

SPLITS: Final = ("validation", "test")

Summary = dict[str, Any]
"""The content of summary.json, or a part of it.

- `algorithm`, `dataset`, `model`, `seed`, `rounds`, `clients`: what was run; `paper`: the
  publication of the method; `changed`: the keys of the configuration that differ from the defaults.
- `partition_hash`, `config_hash`, `weights_digest`: SHA-256 (hex); the digest covers the weights of
  all clients' models after the last round.
- `last`, `best`: metrics of two rounds, see `metrics_at`; `best_by` says how the best round was
  chosen.
- `communication`, `steps`, `passes`, `client_trainings`, `trainings_without_step`, `diverged`: see
  `RunningSummary.totals`.
- `clients_never_trained`: number of clients without a completed training.
- `seconds`: `train` (rounds without evaluations), `evaluate`, `write` (checkpoints and tables) and
  `total`, which has the preparation too. The report and this summary are written after these times
  were taken.
- `engine`: `name`, `device`, `precision`, `threads`, `torch` (version), and what the engine
  reports.
- `notes`: sentences for the user.
- `positive_class`: with two classes, the name of the one that AUROC and average precision rank.
- `stopped`: if a callback ended the run before its last round: `round` and `reason`.
- `new_clients`: with `partition.new_clients`, of the clients that join after the training: their
  number `clients`, what they `train` (`evaluation.adapt`), the numbers of `epochs`, and for each of
  these `received_bytes`, `sent_bytes` and optimizer `steps`, as means over the clients after the
  last round.
- `target`: with `evaluation.target_accuracy`, see `cost_to_reach`.
"""


Name = Annotated[str, AfterValidator(partial(own_names.checked, what="it"))]
Count = Annotated[int, Field(ge=0, le=MOST)]
Bytes = Annotated[int, Field(ge=0, le=MOST_BYTES)]
Time = Annotated[float, Field(ge=0, le=float(MOST), allow_inf_nan=False)]
Sentence = Annotated[str, Field(max_length=100_000)]
MOST_SAMPLES: Final = 10**12
"""Largest number of samples of a client and a class."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Moment(_Part):
    round: Count
    validation: dict[Name, float | dict[Name, float]]
    test: dict[Name, float | dict[Name, float]]


class _Traffic(_Part):
    up_bytes: Bytes
    down_bytes: Bytes
    peer_bytes: Bytes
    setup_bytes: Bytes


class _Seconds(_Part):
    train: Time
    evaluate: Time
    total: Time


class _Stopped(_Part):
    round: Count
    reason: Sentence


class _Target(_Part):
    accuracy: float
    round: Count | None
    split: Name = "validation"
    communication: _Traffic | None = None


class _NewClients(_Part):
    clients: Count
    epochs: list[Count]
    received_bytes: dict[Name, float]
    sent_bytes: dict[Name, float] = {}
    steps: dict[Name, float]


class _Finished(_Part):
    """The keys of summary.json that flbench reads; there are more."""

    algorithm: Name
    dataset: Sentence  # the name of a file, which can have any characters
    model: Name
    seed: Count
    rounds: Count
    last: _Moment
    best: _Moment
    communication: _Traffic
    client_trainings: Count
    trainings_without_step: Count
    diverged: Count
    seconds: _Seconds
    stopped: _Stopped | None = None
    clients: Count = 0
    clients_never_trained: Count = 0
    partition_hash: Name = "-"
    config_hash: Name = "-"
    weights_digest: Name = "-"
    best_by: Name = "-"
    positive_class: Sentence = "-"
    paper: Sentence = "-"
    changed: list[Name] = []
    notes: list[Sentence] = []
    engine: dict[str, Any] = {}
    target: _Target | None = None
    new_clients: _NewClients | None = None


def checked(summary: Summary, *, has_classes: bool) -> Summary:
    """Return the content of a summary.json, if it has the keys that flbench reads.

    Args:
        summary: The content.
        has_classes: Whether the run classifies, so that its metrics are shares. One that is not
            defined may be NaN, except for the accuracy.

    Returns:
        The content. Control characters in the name of the data set are replaced by escapes.

    Raises:
        ValueError: A key is missing, or its value has the wrong type, is no name where a name is
            expected, or is out of range.
    """
    _Finished.model_validate(summary)
    target = summary.get("target")
    if target and target["round"] is not None and not target.get("communication"):
        raise ValueError("it has no `target.communication`")
    for moment, split in product(("last", "best"), ("validation", "test")) if has_classes else ():
        for name, value in summary[moment][split].items():
            if name not in SHARES or isinstance(value, dict) or is_share(value):
                continue
            if name == "accuracy" or not isnan(value):
                raise ValueError(f"`{moment}.{split}.{name}` is {value}, which is no share")
    return {**summary, "dataset": own_names.as_written(summary["dataset"], "`dataset`")}


def is_share(value: float) -> bool:
    """Return whether a number is in [0, 1], up to rounding."""
    return -ROUNDING <= value <= 1 + ROUNDING


BY_ACCURACY: Final = BestConfig()


class RunningSummary:
    """What is known of metrics.csv while it grows: best and last evaluated round, and totals.

    Each row is read once, so that a run of R evaluated rounds reads its rows once and not R times.

    Args:
        rows: Rows of metrics.csv; the list may grow, and is not changed otherwise.
        by: Section `evaluation.best`: the metric that takes the place of the accuracy where there
            are not classes.

    >>> rows = [Row(5, "validation", "personal", "accuracy", 0.6)]
    >>> running = RunningSummary(rows)
    >>> rows.append(Row(10, "validation", "personal", "accuracy", 0.8))
    >>> running.best, running.last, running.totals()["client_trainings"]
    (10, 10, 0)
    """

    def __init__(self, rows: list[Row], by: BestConfig = BY_ACCURACY) -> None:
        self._rows, self._by = rows, by
        self._read = 0  # rows that are in the values below
        # The key of the best value, and minus its round.
        self._best: tuple[float, int] | None = None
        self._rounds: set[int] = set()
        self._sums: defaultdict[str, float] = defaultdict(float)

    @property
    def best(self) -> int | None:
        """The round with the best validation value, the earliest of several; None without one."""
        self._read_new()
        return None if self._best is None else -self._best[1]

    @property
    def last(self) -> int | None:
        """The last round after which models were evaluated; None if there is none."""
        self._read_new()
        return max(self._rounds, default=None)

    @property
    def evaluated(self) -> int:
        """Number of rounds after which models were evaluated."""
        self._read_new()
        return len(self._rounds)

    def totals(self) -> Summary:
        """Return bytes and counts of client trainings, summed over all rounds.

        Returns:
            `communication` (bytes `up_bytes`, `down_bytes`, `peer_bytes`, `setup_bytes`),
            optimizer `steps`, `passes` of Statistics, `client_trainings`,
            `trainings_without_step` and `diverged`.
        """
        self._read_new()
        sums = self._sums
        return {
            "communication": {kind: int(sums[kind]) for kind in _Traffic.model_fields},
            "steps": int(sums["steps"]),
            "passes": int(sums["passes"]),
            "client_trainings": int(sums["trainings"]),
            "trainings_without_step": int(sums["without_step"]),
            "diverged": int(sums["diverged"]),
        }

    def _read_new(self) -> None:
        """Read the rows that were appended since the last call."""
        new, self._read = self._rows[self._read :], len(self._rows)
        column, sums = self._by.column, self._sums
        for row in new:
            if row.split in TRAINING:
                sums[row.metric] += row.value
            if row.protocol != "personal" or row.split not in SPLITS:
                continue
            self._rounds.add(row.round)
            if row.split == "validation" and row.metric == column:
                key = (self._by.key(row.value), -row.round)
                self._best = key if self._best is None else max(self._best, key)


def ended_after(summary: Summary) -> int:
    """Return the round that a finished run ended after: its last one, unless it was stopped.

    >>> ended_after({"rounds": 60})
    60
    >>> ended_after({"rounds": 60, "stopped": {"round": 52, "reason": "the target is reached"}})
    52
    """
    stopped = summary.get("stopped")
    return int(summary["rounds"] if stopped is None else stopped["round"])


def training_failure(summary: Summary) -> str | None:
    """Return why a run has trained nothing; None if a client finished a training, or none began.

    >>> training_failure({"client_trainings": 3, "diverged": 2, "trainings_without_step": 0})
    >>> training_failure({"client_trainings": 3, "diverged": 2, "trainings_without_step": 1})
    'no client finished a training (2 diverged, 1 took no step)'
    """
    diverged, without_step = summary["diverged"], summary["trainings_without_step"]
    if not 0 < diverged + without_step == summary["client_trainings"]:
        return None
    return f"no client finished a training ({diverged} diverged, {without_step} took no step)"


def metrics_at(rows: list[Row], number: int, by: BestConfig = BY_ACCURACY) -> Summary:
    """Return the metrics of one round as nested dicts, as in summary.json.

    Args:
        rows: Rows of metrics.csv.
        number: Number of the round.
        by: Section `evaluation.best`: the metric that takes the place of the accuracy where there
            are not classes.

    Returns:
        `{"round": ..., "validation": {...}, "test": {...}}`. Metrics of the protocol `personal` are
        stored by their names; those of another protocol (`head`, `ft`) in a dict of its name.
        Metrics on the common test set are stored under `test`: the accuracies `gm`, `pm_v` and
        `pm_l` (with the suffix `@local` for the cohort right after local training), and the metrics
        of the personal models in the dict `common`.
    """
    metrics: Summary = {"round": number, "validation": {}, "test": {}}
    for row in rows:
        if row.round != number or row.split not in (*SPLITS, "common"):
            continue
        split, inner = row.split, row.protocol
        if split == "common":
            split, inner = "test", "common"
            if row.protocol.removesuffix("@local") in ("gm", "pm_v", "pm_l"):
                if row.metric == by.column:
                    metrics["test"][row.protocol] = row.value
                continue
            if row.protocol != "personal":
                continue
        if inner == "personal":
            metrics[split][row.metric] = row.value
        else:
            metrics[split].setdefault(inner, {})[row.metric] = row.value
    for split in SPLITS:  # numbers first, then the dicts of other protocols
        items = sorted(metrics[split].items(), key=lambda item: isinstance(item[1], dict))
        metrics[split] = dict(items)
    return metrics


def cost_to_reach(target: float, rows: list[Row]) -> Summary:
    """Return the round in which the accuracy first reaches a target, and the costs until then.

    The accuracy is that of the validation parts. Without a validation part it is that of the test
    parts, which `split` says.

    Args:
        target: Accuracy in (0, 1] of the personal models.
        rows: Rows of metrics.csv, in ascending order of rounds.

    Returns:
        `accuracy` (the target), `split` (`validation` or `test`) and `round`, which is None if the
        target is not reached; if it is, also the totals up to and including that round.

    >>> rows = [
    ...     Row(5, "test", "personal", "accuracy", 0.6),
    ...     Row(10, "test", "personal", "accuracy", 0.8),
    ... ]
    >>> cost_to_reach(0.9, rows)
    {'accuracy': 0.9, 'split': 'test', 'round': None}
    >>> cost_to_reach(0.7, rows)["round"]
    10
    """
    split = "test" if RunningSummary(rows).best is None else "validation"
    for row in rows:
        if row[1:4] == (split, "personal", "accuracy") and row.value >= target:
            before = RunningSummary([one for one in rows if one.round <= row.round])
            return {"accuracy": target, "split": split, "round": row.round, **before.totals()}
    return {"accuracy": target, "split": split, "round": None}
