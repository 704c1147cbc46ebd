"""Tables of studies."""

from pathlib import Path

from flbench.cli.console import block, line, notes
from flbench.tuning.report import StudyReport


def print_study(report: StudyReport, path: Path) -> None:
    """Print the results of a study: default beside tuned parameters, winners, failures.

    Args:
        report: The results.
        path: The study folder as users know it.
    """
    from flbench.tuning import tables
    from flbench.tuning.failures import find_failures

    line(f"{report.heading} ({report.facts['budget']})\n")
    for table in (*tables.comparison(report), tables.trials(report)):
        block(table)
    for sentence in report.answer:
        line(sentence)
    for method in report.study.methods:
        if sentence := tables.winner(report, method):
            line(sentence)
    notes([*report.notes, *find_failures(report)])
    page = path / "report.html"
    line(str(page if page.is_file() else path))
