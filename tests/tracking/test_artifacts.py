"""Tables that MLflow's pages show."""

import json

import pytest

from flbench.analysis import report
from flbench.analysis.arrangement import arrange
from flbench.analysis.tables import analyse
from flbench.comparison.collect import collect
from flbench.tracking.artifacts import SHOWN_OF_CAMPAIGN, Files
from tests.comparison.made import matrix
from tests.installed import needs

pytestmark = needs("mlflow")


def shown(tables):
    """Return the tables that MLflow's pages show of some files, by their names."""
    files = Files()
    files.add_shown(tables)
    return {file.name: json.loads(file.content) for file in files.found}


@pytest.mark.slow
def test_all_tables_of_a_tested_comparison_are_shown(tmp_path):
    """Columns of text are text, and all other cells are numbers or empty."""
    matrix(tmp_path / "runs", {"fedavg": [0.5, 0.6, 0.65], "local": [0.8, 0.85, 0.8]})
    found = analyse(arrange(collect([tmp_path / "runs"]).runs))
    files = [tmp_path / f"{name}.csv" for name in SHOWN_OF_CAMPAIGN if name != "trials"]
    for file in files:
        file.write_text(report.csv_of(found, file.stem))

    found = shown(files)

    assert {*found} == {file.with_suffix(".json").name for file in files}
    pairs = found["pairs.json"]
    assert dict(zip(pairs["columns"], pairs["data"][0], strict=True))["test"] == "paired t-test"
    for name, table in found.items():
        # No clients join later, and no target was named.
        assert table["data"] or name in ("new_clients.json", "targets.json")


def test_shifts_of_clients_are_text(tmp_path):
    table = tmp_path / "clients.csv"
    table.write_text("moment,client,shift,accuracy\nlast,0,group 0: rotation=90,0.5\n")

    assert shown([table])["clients.json"]["data"] == [["last", 0, "group 0: rotation=90", 0.5]]
