"""Charts of a view: sections that MLflow's page shows above the charts that it makes by itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_RUNS: Final = 100  # in a chart
UNNAMED: Final = "Model metrics"  # MLflow's section of metrics whose names have no `/`
_FLAGS: Final = {"deleted": False, "isGenerated": False}


@dataclass(frozen=True)
class Section:
    """A section of charts.

    Attributes:
        title: Title of the section. MLflow adds a chart of each metric `A/B` that has none to the
            section titled `A`.
        charts: The charts, see `parallel_coordinates` and `bars`.
        columns: Number of charts beside each other.
        is_open: Whether the charts are shown; otherwise only the title.
    """

    title: str
    charts: Sequence[dict[str, Any]] = ()
    columns: int = 3
    is_open: bool = True


def parallel_coordinates(parameters: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    """Return a chart with a line for each run that has all of these parameters and metrics.

    Args:
        parameters: Parameters that are axes.
        metrics: Metrics that are further axes; the last one colours the lines.
    """
    return {
        "type": "PARALLEL",
        "selectedParams": list(parameters),
        "selectedMetrics": list(metrics),
        "showAllRuns": True,
    }


def bars(metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return a chart for each metric, with a bar for each run."""
    return [{"type": "BAR", "displayName": name, "metricKey": name} for name in metrics]


def folded(metrics: Iterable[str]) -> list[Section]:
    """Return the sections that MLflow makes for these metrics, without their charts shown."""
    titles = {name.rpartition("/")[0] or UNNAMED for name in metrics}
    return [Section(title, is_open=False) for title in sorted(titles)]


def state(sections: Sequence[Section]) -> dict[str, Any]:
    """Return the part of a view's JSON value that describes its charts."""
    cards, entries = [], []
    for number, section in enumerate(sections):
        key = f"flbench-{number}"
        entries.append(
            {
                "uuid": key,
                "name": section.title,
                "display": section.is_open,
                "columns": section.columns,
                "isReordered": False,
                **_FLAGS,
            }
        )
        for index, chart in enumerate(section.charts):
            place = {"uuid": f"{key}-{index}", "metricSectionId": key}
            cards.append({**chart, **place, "runsCountToCompare": MAX_RUNS, **_FLAGS})
    return {
        "compareRunCharts": cards,
        "compareRunSections": entries,
        "isAccordionReordered": True,  # otherwise MLflow sorts the sections by title
        "runsHiddenMode": "SHOW_ALL",  # not the first ten only
    }
