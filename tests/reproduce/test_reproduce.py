"""`flbench reproduce` from the command line: tiny tables, end to end."""

import csv
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from flbench.cli import app
from flbench.jobs import campaign
from flbench.metrics.classes import confusable_classes, read_confusion
from tests.support import REAL_DATA

pytestmark = pytest.mark.slow

# Two methods of HFCD's ablation, two rounds of five clients: a run takes a fraction of a second.
TINY = (
    *("partition.clients=5", "partition.alpha=0.5", "partition.samples=null", "train.rounds=2"),
    *("train.local_epochs=1", "model=mlp", "engine.threads=1", "evaluation.common.limit=200"),
)
TABLE = ("hfcd", "--dataset", "digits", "--algo", "HFCD share=full,fedavg", "--seeds", "2", *TINY)


@pytest.fixture
def reproduce(capsys, tmp_path, monkeypatch):
    """Run the command in an empty folder; return exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = app.main(["reproduce", *arguments, "--jobs", "1"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@dataclass(frozen=True)
class Finished:
    """A table that was measured once, in a folder that tests only read."""

    root: Path
    code: int
    out: str
    err: str

    @property
    def tree(self):
        [file] = self.root.glob("reproduce/hfcd-2-digits-*.json")
        return json.loads(file.read_text())

    def run(self, label: str, seed: int) -> Path:
        [folder] = self.root.glob(f"reproduce/hfcd/*/cells/{label}*-seed{seed}")
        return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out, err, root = StringIO(), StringIO(), tmp_path_factory.mktemp("finished")
    with chdir(root), redirect_stdout(out), redirect_stderr(err):
        code = app.main(["reproduce", *TABLE, "--jobs", "1"])
    return Finished(root, code, out.getvalue(), err.getvalue())


def cell(tree, row: str, column: str):
    return next(c for c in tree["cells"] if (c["row"], c["column"]) == (row, column))


def metric_of(folder: Path, *key: str) -> list[float]:
    """The lines of a metrics.csv with this split, protocol and metric."""
    with (folder / "metrics.csv").open() as file:
        return [float(row[4]) for row in csv.reader(file) if tuple(row[1:4]) == key]


def test_table_is_measured_as_its_run_folders_say(finished):
    assert finished.code == 0, finished.err
    for label, row in (("HFCD", "HFCD share=full"), ("FedAvg", "FedAvg")):
        folders = [finished.run(label, seed) for seed in (0, 1)]
        for column, metric in (("global accuracy", "accuracy_mean"), *F1):
            values = [100 * metric_of(f, "common", "personal", metric)[-1] for f in folders]
            found = cell(finished.tree, row, column)
            assert found["values"] == {"0": pytest.approx(values[0]), "1": pytest.approx(values[1])}
            assert found["measured"] == pytest.approx(np.mean(values))
            assert found["std"] == pytest.approx(np.std(values, ddof=1))
            assert found["difference"] == pytest.approx(np.mean(values) - found["published"])
    assert cell(finished.tree, "FedAvg", "global accuracy")["published"] == 59.7
    assert cell(finished.tree, "B+C share=full", "global accuracy")["measured"] is None


F1 = [("high-confusion F1", "confusable_f1")]


def test_confusable_classes_are_those_of_the_reference_of_the_same_seed(finished):
    for seed in (0, 1):
        reference = confusable_classes(read_confusion(finished.run("FedAvg", seed), 10))
        for label in ("FedAvg", "HFCD"):
            table = pd.read_csv(finished.run(label, seed) / "per_class.csv")
            assert table.loc[table["confusable"] == 1, "class"].unique().tolist() == reference


def test_claims_compare_the_measured_rows(finished):
    tree = finished.tree
    claims = {claim["claim"]: claim for claim in tree["claims"]}
    mine, other = (cell(tree, row, "global accuracy") for row in ("HFCD share=full", "FedAvg"))

    claim = claims["HFCD's accuracy is 6.7 points above FedAvg's"]

    assert claim["published"] == pytest.approx(6.7)
    assert claim["measured"] == pytest.approx(mine["measured"] - other["measured"])
    assert claim["verdict"] == ("held" if claim["measured"] >= 6.7 else "did not hold")
    assert claims["without dual-granularity aggregation (A) accuracy falls by 4.3 points"][
        "verdict"
    ] == ("cannot be decided")


def test_report_names_the_changed_settings_and_agrees_in_all_forms(finished):
    [text] = finished.root.glob("reproduce/*.md")

    changed = finished.tree["changed"]
    assert changed["train.rounds"] == [200, 2]
    assert changed["data.name"] == ["cifar100", "digits"]
    assert not {"engine.threads", "seed"} & changed.keys()
    measured = cell(finished.tree, "FedAvg", "global accuracy")["measured"]
    for said in (text.read_text(), finished.out):
        assert f"{measured:.2f}" in said
        assert "train.rounds 2 (paper: 200)" in " ".join(said.split())


def test_same_command_trains_nothing_again_and_other_keys_are_refused(finished, reproduce):
    summaries = [*finished.root.glob("reproduce/hfcd/*/cells/*/summary.json")]
    before = {file: file.stat().st_mtime_ns for file in summaries}
    with chdir(finished.root):
        code, _, err = reproduce(*TABLE)
        other, _, refused = reproduce(*TABLE, "algorithm.tau=0.9")
        dry, out, _ = reproduce(*TABLE, "algorithm.tau=0.9", "--dry-run", "--json")

    assert code == 0, err
    assert len(before) == 4
    assert {file: file.stat().st_mtime_ns for file in summaries} == before
    assert (other, "HFCD share=full" in refused) == (2, True)
    # What was trained with other keys is not reported for these.
    assert dry == 0
    assert cell(json.loads(out), "HFCD share=full", "global accuracy")["measured"] is None
    assert cell(json.loads(out), "FedAvg", "global accuracy")["measured"] is not None


def test_dry_run_lists_what_is_asked_and_trains_nothing(reproduce, tmp_path):
    code, out, _ = reproduce(*TABLE, "--dry-run", "--json")

    assert code == 0
    assert not (tmp_path / "reproduce").exists()
    assert json.loads(out)["asked"] == {"CIFAR-100": ["FedAvg", "HFCD share=full"]}


def test_rounds_to_target_are_counted_by_the_test_accuracy(reproduce, tmp_path):
    """The preset has no validation part. One target is reached, the other is not."""
    keys = ("--table", "rounds-dirichlet", "--dataset", "digits", "--algo", "dfedavg")
    keys = (*keys, "--seeds", "1", *TINY, "train.rounds=4", "train.optimizer.lr=0.05")

    code, out, err = reproduce("dfedhp", *keys, "evaluation.every=1", "--json")
    reached = reproduce(
        "dfedhp", *keys, "evaluation.every=1", "evaluation.target_accuracy=0.2", "--json"
    )

    assert code == 0, err
    unreached, found = (cell(json.loads(one), "DFedAvg", "CIFAR10") for one in (out, reached[1]))
    assert (unreached["measured"], unreached["at_least"]) == (None, {"0": 5.0})
    [run] = found["runs"].values()
    values = metric_of(tmp_path / run, "test", "personal", "accuracy")
    first = next((k + 1 for k, value in enumerate(values) if value >= 0.2), None)
    assert found["measured"] == first


def test_statistics_of_one_run_are_read_beside_each_other(reproduce, tmp_path):
    keys = ("--dataset", "digits", "--algo", "fedcpmd", "--seeds", "1", *TINY, "--json")

    code, out, err = reproduce("fedcpmd", *keys, "algorithm.k_p=1", "train.rounds=3")

    assert code == 0, err
    [run] = tmp_path.glob("reproduce/fedcpmd/*/cells/*")
    for label, protocol in (
        ("FedCPMD", "personal@local"),
        ("FedCPMD, before local training", "personal@before"),
        ("FedCPMD, after mixing", "personal@aggregated"),
    ):
        values = metric_of(run, "test", protocol, "accuracy_group_mean")
        assert cell(json.loads(out), label, "CIFAR10")["measured"] == pytest.approx(
            100 * np.mean(values)
        )
    deployed = metric_of(run, "test", "personal", "accuracy")[-1]
    label = "FedCPMD, all clients as deployed"
    assert cell(json.loads(out), label, "CIFAR10")["measured"] == pytest.approx(100 * deployed)


def test_missing_data_are_named_with_the_cure_and_available_ones_measured(reproduce, tmp_path):
    code, _, err = reproduce("fedcpmd", "--algo", "local", "--seeds", "1", *TINY, "data.root=.")

    assert code == 2
    assert "`mnist` is not in" in err
    assert "Traceback" not in err
    np.savez(
        tmp_path / "mnist.npz",
        **{f"{p}_images": np.zeros((400, 8, 8), dtype=np.uint8) for p in ("train", "test")},
        **{f"{p}_labels": np.arange(400) % 10 for p in ("train", "test")},
    )
    keys = ("--algo", "local-only,fedprox", "--seeds", "1", *TINY, "partition.samples=1000")

    code, _, err = reproduce("fedcpmd", *keys, "data.root=.")

    assert code == 0, err
    assert "tinyimagenet" in err
    [prox] = tmp_path.glob("reproduce/fedcpmd/*/cells/FedProx*/config.yaml")
    assert yaml.safe_load(prox.read_text())["algorithm"]["mu"] == 1.0


def test_wrong_names_and_trainings_that_all_fail_are_errors_of_the_user(reproduce):
    one = ("--dataset", "digits", "--algo", "fedavg", "--seeds", "1", *TINY)
    for arguments in (
        ("hfdc",),
        ("hfcd", "--table", "9"),
        ("hfcd", "--algo", "fedfoo"),
        ("hfcd", "train.round=2"),
        ("--table", "2"),
        ("hfcd", *one, "train.optimizer.lr=1e36"),
    ):
        code, _, err = reproduce(*arguments)
        assert (code, "Traceback" in err) == (2, False), arguments


def test_further_seeds_wait_for_the_runs_of_the_reference(reproduce, tmp_path, monkeypatch):
    at = TABLE.index("--seeds") + 1
    code, _, err = reproduce(*TABLE[:at], "1", *TABLE[at + 1 :])
    assert code == 0, err
    trained, carry_out = [], campaign.carry_out

    def recorded(cells, *given, **more):
        trained.append({one.method for one in cells})
        return carry_out(cells, *given, **more)

    monkeypatch.setattr(campaign, "carry_out", recorded)
    code, _, err = reproduce(*TABLE)

    assert code == 0, err
    assert trained == [{"FedAvg"}, {"HFCD share=full"}]
    assert len([*tmp_path.glob("reproduce/hfcd/*/cells/*/summary.json")]) == 4


@pytest.mark.real_data
def test_real_data_are_found_by_the_papers_names(reproduce):
    keys = ("--dataset", "fmnist", "--algo", "fedavg", "--seeds", "1", *TINY)

    code, out, err = reproduce("fedcpmd", *keys, f"data.root={REAL_DATA}")

    assert code == 0, err
    assert "Table 7, FMNIST" in out
