"""What notebooks show of a run."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from flbench.api import html
from flbench.core.own_names import SUFFIXES
from flbench.reports.run import PROBABILITY_TITLES, RANKING_TITLES
from flbench.reports.shown import run_score, size
from flbench.results.reading import StoredRun
from flbench.results.summary import ended_after

SHOWN = ("accuracy", "balanced_accuracy", "macro_f1", "rare_recall", "worst10_accuracy")


def card(run: StoredRun) -> str:
    """Return the HTML that notebooks show of a run."""
    summary, sent = run.summary, run.summary["communication"]
    facts = {
        "seed": str(run.config.seed),
        "rounds": str(ended_after(summary)) + (" (stopped)" if "stopped" in summary else ""),
        "best round": str(summary["best"]["round"]) + " (by validation)",
        "clients": str(run.config.partition.clients),
        "model": run.config.model.name,
        "sent by clients": size(sent["up_bytes"] + sent["peer_bytes"]),
        "sent by the server": size(sent["down_bytes"] + sent["setup_bytes"]),
    }
    if run.finished:
        facts["seconds"] = f"{summary['seconds']['total']:.1f}"
    else:
        facts["state"] = f"unfinished: fl.resume({str(run.path)!r})"
    if "positive_class" in run.summary:
        facts["positive class"] = str(run.summary["positive_class"])
    facts["folder"] = str(run.path)
    return html.card(
        f"{summary['algorithm']} on {summary['dataset']}",
        html.facts(facts),
        html.heading("Metrics of the personal models"),
        html.table(_moments(run)),
        html.notes(list(summary.get("notes", ()))),
    )


def _moments(run: StoredRun) -> pd.DataFrame:
    """Return the main metrics at the best and at the last round, a row for each metric."""
    columns: dict[str, Mapping[str, Any]] = {}
    best_is_last = run.summary["best"]["round"] == run.summary["last"]["round"]
    for moment in ("last",) if best_is_last else ("best", "last"):
        for split in ("validation", "test"):
            found = run.summary[moment][split]
            columns[f"{split}, {moment} round ({run.summary[moment]['round']})"] = found
    names = [*SHOWN, *RANKING_TITLES, *PROBABILITY_TITLES]
    if not run.config.has_classes:
        own = run.config.evaluation.metrics or {}
        names = [f"{name}{suffix}" for name in own for suffix in ("", *SUFFIXES)]
        columns = {
            title: {
                name: run_score(found.get(name), has_classes=False)
                for name in names
                if name in found
            }
            for title, found in columns.items()
        }
    there = [name for name in names if any(name in found for found in columns.values())]
    return pd.DataFrame(
        {"metric": there}
        | {title: [found.get(name) for name in there] for title, found in columns.items()}
    )
