"""Tables that MLflow's pages show."""

import json

import pytest

from flbench.analysis import text
from flbench.analysis.arrangement import arrange
from flbench.analysis.tables import analyse
from flbench.comparison.collect import collect
from flbench.tracking import mlflow_files
from flbench.tracking.mirror_comparison import TABLES
from tests.comparison.made import matrix
from tests.installed import needs

pytestmark = needs("mlflow")


class Sent:
    """A run of MLflow that keeps the texts that it is sent."""

    def __init__(self):
        self.texts = {}

    def upload_text(self, name, content):
        self.texts[name] = json.loads(content)

    def set_tags(self, tags):
        pass


@pytest.mark.slow
def test_all_tables_of_a_tested_comparison_are_shown(tmp_path):
    """Columns of text are text, and all other cells are numbers or empty."""
    matrix(tmp_path / "runs", {"fedavg": [0.5, 0.6, 0.65], "local": [0.8, 0.85, 0.8]})
    found = analyse(arrange(collect([tmp_path / "runs"]).runs))
    files = [tmp_path / f"{name}.csv" for name in TABLES]
    for file in files:
        file.write_text(text.csv_of(found, file.stem))
    sent = Sent()

    mlflow_files.send_shown(sent, files)

    assert {*sent.texts} == {f"{name}.json" for name in TABLES}
    pairs = sent.texts["pairs.json"]
    assert dict(zip(pairs["columns"], pairs["data"][0], strict=True))["test"] == "paired t-test"
    for name, table in sent.texts.items():
        # No clients join later, and no target was named.
        assert table["data"] or name in ("new_clients.json", "targets.json")


def test_shifts_of_clients_are_text(tmp_path):
    table = tmp_path / "clients.csv"
    table.write_text("moment,client,shift,accuracy\nlast,0,group 0: rotation=90,0.5\n")
    sent = Sent()

    mlflow_files.send_shown(sent, [table])

    assert sent.texts["clients.json"]["data"] == [["last", 0, "group 0: rotation=90", 0.5]]
