"""`fl.diff` and `flbench diff` state what differs between two runs, and nothing else."""

import json
import shutil

import pytest

import flbench as fl
from flbench.cli import app
from flbench.results import reading


@pytest.fixture(scope="module")
def other(finished_run, tmp_path_factory):
    """A folder whose run has another learning rate, test accuracy and version of Python."""
    path = tmp_path_factory.mktemp("diff") / "other"
    shutil.copytree(finished_run, path)
    config = (path / "config.yaml").read_text()
    lines = [
        line.partition("lr:")[0] + "lr: 0.5" if line.strip().startswith("lr:") else line
        for line in config.splitlines()
    ]
    (path / "config.yaml").write_text("\n".join(lines))
    for name, change in (
        ("summary.json", lambda s: s["best"]["test"].update(accuracy=0.25)),
        ("provenance.json", lambda p: p.update(python="2.7.18")),
    ):
        content = json.loads((path / name).read_text())
        change(content)
        (path / name).write_text(json.dumps(content))
    return path


def test_differences_are_those_of_the_files(finished_run, other):
    found = fl.diff(finished_run, fl.load(other))
    run = reading.read(finished_run)
    accuracy = run.summary["best"]["test"]["accuracy"]

    lr = run.config.train.optimizer.lr
    assert found.configuration.to_numpy().tolist() == [["train.optimizer.lr", lr, 0.5]]
    assert found.provenance["name"].tolist() == ["python"]
    metrics = found.metrics.set_index("metric")
    assert metrics.loc["test.accuracy"].tolist() == [accuracy, 0.25, 0.25 - accuracy]
    assert (metrics.drop("test.accuracy")["difference"].dropna() == 0).all()
    rare = {name for name in metrics.index if "rare" in name}
    assert not rare  # the digits are balanced
    assert "two single runs" in found.warnings[0]
    assert "2.7.18" in found._repr_html_()


def test_a_run_and_itself_have_equal_weights(finished_run):
    found = fl.diff(finished_run, finished_run)

    assert found.configuration.empty
    assert found.provenance.empty
    assert found.warnings == ["the runs have the same configuration and equal weights."]


def test_command_prints_tables_json_and_errors(finished_run, other, capsys, tmp_path):
    assert app.main(["diff", str(finished_run), str(other)]) == 0
    printed = capsys.readouterr()
    assert "train.optimizer.lr" in printed.out
    assert "single runs" in " ".join(printed.err.split())

    assert app.main(["diff", str(finished_run), str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["configuration"]["train.optimizer.lr"][1] == 0.5
    assert found["metrics"]["test.accuracy"][1] == 0.25

    assert app.main(["diff", str(finished_run), str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    (tmp_path / "study.json").touch()
    assert app.main(["diff", str(finished_run), str(tmp_path)]) == 2
    assert "is a study. Name one of the run folders" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("file", "key", "name"),
    [
        ("partition.json", "data", "samples"),
        ("summary.json", "partition_hash", "partition"),
    ],
)
def test_other_samples_are_no_equal_configuration(finished_run, tmp_path, capsys, file, key, name):
    path = tmp_path / "colleague"
    shutil.copytree(finished_run, path)
    content = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(content | {key: "f" * 64}))

    found = fl.diff(finished_run, path)

    assert found.configuration["key"].tolist() == [name]
    assert found.configuration["second"].tolist()[0].startswith("ffffff")
    assert not any("same configuration" in sentence for sentence in found.warnings)
    assert any(name in sentence and "not comparable" in sentence for sentence in found.warnings)
    assert app.main(["diff", str(finished_run), str(path)]) == 0
    assert "configurations are equal" not in capsys.readouterr().out
