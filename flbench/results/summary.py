"""The summary of a run: what metrics.csv says about one round, and totals over all rounds."""

from typing import Any

from flbench.results.metrics_file import Row

Summary = dict[str, Any]


def best_round(rows: list[Row]) -> int | None:
    """Return the earliest round with the best validation accuracy; None without any."""
    found = [row for row in rows if row[1:4] == ("validation", "personal", "accuracy")]
    return max(found, key=lambda row: (row.value, -row.round)).round if found else None


def last_round(rows: list[Row]) -> int | None:
    """Return the last round in which models were evaluated; None before the first."""
    evaluated = [
        row.round
        for row in rows
        if row.protocol == "personal" and row.split in ("validation", "test")
    ]
    return max(evaluated, default=None)


def metrics_at(rows: list[Row], number: int) -> Summary:
    """Return what the summary says of one round: `round, validation{...}, test{...}`.

    Figures of the evaluated model stand by their names; those of other models under their protocol's
    name (`head`, `ft`); of the common test set, under `test`: gm, pm_v, pm_l as bare accuracies,
    and pm_v@local, pm_l@local of the cohort right after local training.
    """
    found: Summary = {"round": number, "validation": {}, "test": {}}
    for row in rows:
        if row.round != number or row.split not in ("validation", "test", "common"):
            continue
        if row.split == "common":
            bare = row.protocol.removesuffix("@local") in ("gm", "pm_v", "pm_l")
            if bare and row.metric == "accuracy":
                found["test"][row.protocol] = row.value
            elif row.protocol == "personal":
                found["test"].setdefault("common", {})[row.metric] = row.value
        elif row.protocol == "personal":
            found[row.split][row.metric] = row.value
        else:
            found[row.split].setdefault(row.protocol, {})[row.metric] = row.value
    for split in ("validation", "test"):  # the evaluated model's own figures first
        found[split] = dict(
            sorted(found[split].items(), key=lambda item: isinstance(item[1], dict))
        )
    return found


def totals(rows: list[Row]) -> Summary:
    """Return bytes, and counts of trainings and failures, summed over the rounds so far."""
    sums: dict[str, float] = {}
    for row in rows:
        if row.split in ("train", "setup"):
            sums[row.metric] = sums.get(row.metric, 0) + row.value
    kinds = ("up_bytes", "down_bytes", "peer_bytes", "setup_bytes")
    return {
        "communication": {kind: int(sums.get(kind, 0)) for kind in kinds},
        "client_trainings": int(sums.get("trainings", 0)),
        "trainings_without_step": int(sums.get("without_step", 0)),
        "diverged": int(sums.get("diverged", 0)),
    }


def cost_to_reach(target: float, rows: list[Row]) -> Summary | None:
    """Return the first round whose validation accuracy reaches a target, and its cost so far."""
    for row in rows:
        if row[1:4] == ("validation", "personal", "accuracy") and row.value >= target:
            before = [earlier for earlier in rows if earlier.round <= row.round]
            return {"accuracy": target, "round": row.round, **totals(before)}
    return None
