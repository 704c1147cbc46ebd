"""The commands of the guide "From your CSV to the table in your paper" run."""

import glob
import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
import yaml

from flbench.cli import app

pytestmark = pytest.mark.docs

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "from-csv-to-table.md"
TEXT = PAGE.read_text("utf-8")
ALL = "local fedavg ft fedper ditto"


def shorter(command):
    """The command with fewer methods, repetitions and trials, in this process."""
    if command.startswith("flbench compare") and "--tuned" not in command:
        command = command.replace("--seeds 10", "--seeds 1")
    for long, short in (
        (ALL, "local ft"),
        ("--seeds 10", "--seeds 3"),
        ("--trials 12", "--trials 2"),
    ):
        command = command.replace(long, short)
    if command.startswith("flbench compare"):
        command += " --jobs 1"
    if command.startswith("flbench tune"):
        command += " --seeds 0 --jobs 1 tracking.mlflow=false"
    if command.startswith("flbench run"):
        command += " tracking.mlflow=false"
    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder after all commands of the page."""
    folder = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        [(name, script)] = re.findall(r'```python title="(.*?)"\n(.*?)```', TEXT, re.DOTALL)
        [config] = re.findall(r'```yaml title="hospitals.yaml"\n(.*?)```', TEXT, re.DOTALL)
        settings = yaml.safe_load(config)
        settings["train"] |= {"rounds": 2, "local_epochs": 1}
        Path("hospitals.yaml").write_text(yaml.safe_dump(settings))
        commands = [
            line.removeprefix("$ ")
            for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
            for line in block.splitlines()
        ]
        assert commands[0] == f"python {name}"
        exec(compile(script, name, "exec"), {})
        for command in commands[1:]:
            words = [
                found
                for word in shlex.split(shorter(command))[1:]
                for found in (sorted(glob.glob(word)) if "*" in word else [word])
            ]
            assert app.main(words) == 0, command
    return folder


def test_files_of_the_page_are_there(folder):
    mentioned = re.findall(r"`((?:paper|tables)/[\w./-]+)`", TEXT)

    assert len(mentioned) > 12
    for path in mentioned:
        assert (folder / path.replace("tables/", "paper/tables/", path.startswith("t"))).is_file()
    assert (folder / "hospitals.png").is_file()
    assert (folder / "again" / "report.html").is_file()


def test_statements_of_the_methods_section_are_where_the_page_says(folder):
    report = json.loads((folder / "paper" / "report.json").read_text())
    assert report["populations"] == {"hospitals": "over new splits of these clients"}
    assert report["vary"]
    assert "warnings" in report
    pairs = (folder / "paper" / "tables" / "pairs.csv").read_text().splitlines()
    assert {"test", "p", "p_holm", "needed"} <= set(pairs[0].split(","))
    assert "corrected resampled t-test" in pairs[1]
    [study] = folder.glob("studies/*")
    assert {"report.md", "report.json"} <= {path.name for path in study.iterdir()}
    cell = next(folder.glob("tuned/*/cells/*"))
    assert (cell / "provenance.json").is_file()
    assert "best" in json.loads((cell / "summary.json").read_text())
    assert "studies/" in (cell / "config.yaml").read_text()


def test_report_against_the_baseline_tests_no_other_pair(folder):
    answer = " ".join(json.loads((folder / "against-ft" / "report.json").read_text())["answer"])
    assert "ft" in answer
    pairs = pd.read_csv(folder / "against-ft" / "tables" / "pairs.csv")
    assert ((pairs["first"] == "ft") | (pairs["second"] == "ft")).all()
