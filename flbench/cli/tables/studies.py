"""Tables of studies."""

from flbench.cli.console import block, line, notes
from flbench.results.study_folder import Study


def print_study(study: Study) -> None:
    """Print the results of a study: default beside tuned parameters, winners, failures."""
    from flbench.tuning import tables
    from flbench.tuning.failures import troubles
    from flbench.tuning.report import Report

    report = Report(study)
    line(f"{report.heading} ({report.facts['budget']})\n")
    for table in (tables.brought(report), tables.rivals(report), tables.trials(report)):
        if table is not None:
            block(table)
    for method in study.methods:
        if sentence := tables.winner(report, method):
            line(sentence)
    notes([*report.remarks, *troubles(report)])
    page = study.path / "report.html"
    line(str(page if page.is_file() else study.path))
