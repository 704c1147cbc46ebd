"""The page report.html of a run, which needs no server and no network."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from flbench.config.sources import leaves
from flbench.metrics import names as metric_names
from flbench.reports import figures, tables
from flbench.results.reading import StoredRun, client_scores

if TYPE_CHECKING:
    from jinja2 import Template


def render(run: StoredRun) -> str:
    """Return report.html of a finished run."""
    summary = run.summary
    classes, about = tables.shown_classes(
        [line for line in run.classes if line["moment"] == "last"]
    )
    moments = [(name, split) for name in ("best", "last") for split in ("validation", "test")]
    return _template().render(
        summary=summary,
        metrics=_metrics(summary, moments),
        moments=moments,
        cohort=tables.cohort_block(summary["cohort"]) if "cohort" in summary else None,
        joining=tables.new_clients_block(summary, "best", run.config.client_metric),
        clients=tables.clients_block(run.clients, client_scores(run.config)),
        has_classes=run.config.has_classes,
        classes=classes,
        about_classes=about,
        score=tables.class_score,
        curves=figures.svg(
            figures.curves([(summary["algorithm"], run.rows)], run.config.evaluation.best)
        ),
        settings={key: json.dumps(value) for key, value in leaves(run.config.tree()).items()},
    )


@cache  # compiling it takes longer than filling it
def _template() -> "Template":
    """Return the template of the page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"share": _share, "size": _size, "target": tables.target_text}
    source = files("flbench.reports").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source)


def _metrics(
    summary: Mapping[str, Any], moments: list[tuple[str, str]]
) -> list[tuple[str, list[float | None]]]:
    """Return name and values by moment of every metric; nested ones are named `protocol: name`."""
    table: dict[str, list[float | None]] = {}
    positive = summary.get("positive_class")
    for column, (moment, split) in enumerate(moments):
        for name, value in summary[moment][split].items():
            nested = value if isinstance(value, dict) else {"": value}
            for key, number in nested.items():
                title = f"{name}: {key}" if key else name
                if positive is not None and (key or name) in metric_names.RANKING_WITH_MEANS:
                    title += f" (positive class {positive})"
                table.setdefault(title, [None] * len(moments))[column] = number
    return list(table.items())


def _share(value: float | str | None, *, has_classes: bool = True) -> str:
    number = None if value in (None, "") else float(value)
    return tables.score(number, has_classes=has_classes)


def _size(count: float) -> str:
    return f"{count:,.0f} B"
