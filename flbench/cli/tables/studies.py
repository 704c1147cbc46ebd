"""Tables of studies."""

from flbench.cli.console import block, line, notes
from flbench.results.study_folder import StoredStudy


def print_study(study: StoredStudy) -> None:
    """Print the results of a study: default beside tuned parameters, winners, failures."""
    from flbench.tuning import tables
    from flbench.tuning.failures import find_failures
    from flbench.tuning.report import StudyReport

    report = StudyReport(study)
    line(f"{report.heading} ({report.facts['budget']})\n")
    for table in (*tables.comparison(report), tables.trials(report)):
        block(table)
    for sentence in report.answer:
        line(sentence)
    for method in study.methods:
        if sentence := tables.winner(report, method):
            line(sentence)
    notes([*report.notes, *find_failures(report)])
    page = study.path / "report.html"
    line(str(page if page.is_file() else study.path))
