"""`flbench reproduce` from the command line: tiny tables, end to end."""

import csv
import json
import os
import re
import signal
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from flbench.api import caller
from flbench.cli import app
from flbench.core.errors import DataError
from flbench.data import sources
from flbench.data.sources import digits
from flbench.experiment import assembly
from flbench.experiment.engines import with_device
from flbench.reproduce import library
from flbench.reproduce.configurations import fingerprint
from tests.support import REAL_DATA, Silent, config_of

pytestmark = pytest.mark.slow

# Two methods of HFCD's ablation, two rounds of five clients: a run takes a fraction of a second.
TINY = (
    *("partition.clients=5", "partition.alpha=0.5", "train.rounds=2", "train.local_epochs=1"),
    *("model=mlp", "engine.threads=1"),
)
ROWS = "HFCD share=full,fedavg"
TABLE = ("hfcd", "--dataset", "digits", "--algo", ROWS, "--seeds", "2", *TINY)


@pytest.fixture
def reproduce(capsys, tmp_path, monkeypatch):
    """Run the command in an empty folder; return exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = app.main(["reproduce", *arguments])
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

    def text(self, ending: str) -> str:
        [file] = self.root.glob(f"reproduce/hfcd-table-2-small-CIFAR-100-digits-changed-*{ending}")
        return file.read_text()

    @property
    def tree(self):
        return json.loads(self.text(".json"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out, err, root = StringIO(), StringIO(), tmp_path_factory.mktemp("finished")
    with chdir(root), redirect_stdout(out), redirect_stderr(err):
        code = app.main(["reproduce", *TABLE])
    return Finished(root, code, out.getvalue(), err.getvalue())


def runs(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("reproduce/*/*/config.yaml"))


def cell(tree, row: str, column: str):
    return next(c for c in tree["cells"] if (c["row"], c["column"]) == (row, column))


def metric_of(folder: Path, *key: str) -> float:
    """The last line of a metrics.csv with this split, protocol and metric."""
    with (folder / "metrics.csv").open() as file:
        return [float(row[4]) for row in csv.reader(file) if tuple(row[1:4]) == key][-1]


def test_table_is_measured_as_its_run_folders_say(finished):
    folders, tree = runs(finished.root), finished.tree

    assert finished.code == 0, finished.err
    assert len(folders) == 4
    # Mean and standard deviation over seeds, by numpy, of what the run folders say.
    for method, row in (("hfcd", "HFCD share=full"), ("fedavg", "FedAvg")):
        mine = [folder for folder in folders if folder.name.startswith(method)]
        values = [100 * metric_of(folder, "common", "personal", "accuracy_mean") for folder in mine]
        found = cell(tree, row, "global accuracy")
        assert sorted(found["values"].values()) == pytest.approx(sorted(values))
        assert found["measured"] == pytest.approx(np.mean(values))
        assert found["std"] == pytest.approx(np.std(values, ddof=1))
        assert found["difference"] == pytest.approx(np.mean(values) - found["published"])
    assert cell(tree, "HFCD share=full", "global accuracy")["published"] == 66.4
    assert cell(tree, "HFCD share=full", "global accuracy")["substitute"] == "digits"
    what = cell(tree, "HFCD share=full", "global accuracy")["metric"]
    assert "accuracy" in what


def test_ceiling_is_computed_from_the_partition_of_the_runs_without_averaging(reproduce, tmp_path):
    """The row needs no run of its own, and has a cell in one column alone."""
    code, out, err = reproduce(*(item.replace(ROWS, "HFCD share=none") for item in TABLE))
    assert code == 0, err
    [file] = (tmp_path / "reproduce").glob("*.json")
    tree, data = json.loads(file.read_text()), digits()

    common = np.bincount(data.y[data.train :], minlength=10)
    shares = [
        100
        * np.mean((np.load(folder / "partition.npz")["train_counts"] > 0) @ common / sum(common))
        for folder in runs(tmp_path)
        if folder.name.startswith("hfcd")  # not the reference runs of FedAvg
    ]
    [found] = [c for c in tree["cells"] if c["row"] == "ceiling of share=none"]
    assert len(shares) == 2
    assert found["column"] == "global accuracy"
    # The common test set is a sample of 200 images, stratified by class.
    assert sorted(found["values"].values()) == pytest.approx(sorted(shares), abs=0.5)
    assert "ceiling of share=none" in out
    [claim] = [c for c in tree["claims"] if "share=none" in c["claim"]]
    assert claim["verdict"] == "cannot be decided"
    assert "not measurable" in claim["why"]


def test_changes_name_the_papers_value_and_their_origin(finished):
    changed, scaled = (
        {c["key"]: (c["paper"], c["here"]) for c in finished.tree[part]}
        for part in ("changed", "scaled")
    )

    assert changed["train.rounds"] == (200, 2)
    assert scaled["partition.samples"] == (50000, 1000)
    assert not set(changed) & set(scaled)
    assert "train.rounds 2 (paper: 200)" in finished.err


def test_every_cell_has_a_line_of_csv_measured_or_not(finished):
    lines = list(csv.DictReader(finished.text(".csv").splitlines()))

    assert len(lines) == 11 * 4 + 1
    # Global accuracy and the F1 of confusable classes; digits have no rare class.
    assert sum(bool(line["measured"]) for line in lines) == 2 * 2
    assert all(line["why"] for line in lines if not line["measured"])
    assert {line["scale"] for line in lines} == {"small"}


def test_claims_have_one_of_three_verdicts_and_their_numbers(finished):
    tree = finished.tree

    by_text = {claim["claim"]: claim for claim in tree["claims"]}
    assert len(by_text) == len(library.load("hfcd").claims)
    assert {claim["verdict"] for claim in tree["claims"]} <= {
        *("held", "did not hold", "cannot be decided")
    }
    claim = by_text["HFCD's accuracy is 6.7 points above FedAvg's"]
    mine = cell(tree, "HFCD share=full", "global accuracy")["values"]
    others = cell(tree, "FedAvg", "global accuracy")["values"]
    gaps = [mine[seed] - others[seed] for seed in mine]
    assert claim["measured"] == pytest.approx(np.mean(gaps))
    assert claim["std"] == pytest.approx(np.std(gaps, ddof=1))
    assert list(claim["values"].values()) == pytest.approx(gaps)
    assert claim["published"] == pytest.approx(6.7)
    assert claim["verdict"] == ("held" if np.mean(gaps) >= 6.7 else "did not hold")
    rare = by_text["HFCD's rare-class recall is 20.7 points above FedAvg's (ablation)"]
    assert rare["verdict"] == "cannot be decided"  # digits have no rare class
    missing = by_text["without dual-granularity aggregation (A) accuracy falls by 4.3 points"]
    assert missing["verdict"] == "cannot be decided"
    assert "B+C share=full" in missing["why"]


def test_confusable_classes_are_those_of_the_reference_run(finished):
    found = {}
    for folder in runs(finished.root):
        text = (folder / "config.yaml").read_text()
        method, seed = folder.name.split("-")[:2]
        found[method, seed] = re.search(r"confusable: (\S+)", text)[1], folder
    for seed in ("seed0", "seed1"):
        assert found["fedavg", seed][0] == "own"
        assert found["hfcd", seed][0] == str(found["fedavg", seed][1])


def test_second_call_trains_nothing_and_prints_the_same(finished, reproduce, monkeypatch):
    first = finished.text(".json")
    monkeypatch.chdir(finished.root)

    def no(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(assembly, "build", no)
    code, out, err = reproduce(*TABLE)

    assert code == 0
    assert "4 runs: 4 finished" in err
    assert finished.text(".json") == first
    assert out == finished.out


def test_report_shows_finished_runs_that_were_not_requested(finished, reproduce, monkeypatch):
    monkeypatch.chdir(finished.root)

    _, out, err = reproduce(*(item.replace(ROWS, "fedavg") for item in TABLE))

    assert "2 runs: 2 finished" in err
    assert finished.out.split("claims of")[0] == out.split("claims of")[0]


def test_filled_in_defaults_are_the_same_run():
    asked = config_of("evaluation.every=null")
    every = asked.evaluation.altered(every=asked.evaluation_period)
    seed = asked.partition.altered(seed=asked.partition_seed)
    complete = asked.altered(evaluation=every, partition=seed, engine=with_device(asked.engine))

    assert fingerprint(asked) == fingerprint(complete)
    assert fingerprint(asked) != fingerprint(config_of("evaluation.every=2"))


def test_changed_settings_are_other_runs(reproduce, tmp_path):
    one = ("hfcd", "--dataset", "digits", "--algo", "fedavg", "--seeds", "1", *TINY)
    reproduce(*one)

    for key in ("train.batch_size=16", "evaluation.rare=share", "data.normalize=unit"):
        _, _, err = reproduce(*one, key, "--dry-run")
        assert "1 runs: 1 new" in err
    for key in ("engine.threads=1", "output.checkpoint_every=1"):
        _, _, err = reproduce(*one, key, "--dry-run")
        assert "1 runs: 1 finished" in err
    assert len(runs(tmp_path)) == 1


def test_interrupted_call_saves_and_the_next_one_resumes(reproduce, tmp_path, monkeypatch):
    calls = []

    class Interrupting(Silent):
        def on_round_end(self, run, metrics):
            if run.round == 1 and len(calls) == 2:
                os.kill(os.getpid(), signal.SIGINT)

    @contextmanager
    def display(title):
        calls.append(title)
        yield Interrupting()

    with monkeypatch.context() as patch:
        patch.setattr(caller, "display", display)
        code, out, _ = reproduce(*TABLE)
    assert code == 130
    assert calls[1].startswith("run 2 of 4, table 2: FedAvg on CIFAR-100 (digits)")
    assert "Table 2, global accuracy" in out
    cut = [folder for folder in runs(tmp_path) if not (folder / "summary.json").exists()]
    assert len(cut) == 1
    assert (cut[0] / "checkpoints" / "last.safetensors").exists()

    _, _, err = reproduce(*TABLE)

    assert "1 finished" in err
    assert "1 to resume" in err
    assert "2 new" in err
    assert (cut[0] / "summary.json").exists()
    assert len(runs(tmp_path)) == 4
    # A resumed run has the same results as an uninterrupted one.
    reproduce(*TABLE, "--out", "straight")
    [other] = tmp_path.glob(f"straight/*/{cut[0].name[: cut[0].name.index('seed') + 5]}-*")
    assert (other / "metrics.csv").read_bytes() == (cut[0] / "metrics.csv").read_bytes()


def test_round_of_a_curve_stands_for_the_papers(reproduce, tmp_path):
    keys = ("--dataset", "digits", "--algo", "fedavg", "--seeds", "1", *TINY)

    code, out, _ = reproduce("hfcd", "--table", "curves-cifar100", *keys)

    assert code == 0
    assert "after round 1, which corresponds to the paper's round 100" in out
    assert "after round 2, which corresponds to the paper's round 200" in out
    [folder], [file] = runs(tmp_path), (tmp_path / "reproduce").glob("*.json")
    with (folder / "metrics.csv").open() as lines:
        values = {
            int(row[0]): 100 * float(row[4])
            for row in csv.reader(lines)
            if row[1:4] == ["common", "personal", "accuracy_mean"]
        }
    tree = json.loads(file.read_text())
    assert cell(tree, "FedAvg", "round 100")["measured"] == pytest.approx(values[1])
    assert cell(tree, "FedAvg", "round 200")["measured"] == pytest.approx(values[2])


def test_rounds_to_target_are_counted_by_the_test_accuracy_and_say_so(reproduce, tmp_path):
    """The preset has no validation part. One target is reached, the other is not."""
    keys = ("--dataset", "CIFAR10=digits", "--algo", "dfedhp,dfedavg,dfedalt", *TINY)
    keys = (*keys, "train.rounds=4", "train.optimizer.lr=0.05", "evaluation.every=1")

    code, out, err = reproduce("dfedhp", "--table", "rounds-dirichlet", *keys)
    reached = reproduce(
        "dfedhp", "--table", "rounds-dirichlet", *keys, "evaluation.target_accuracy=0.2"
    )

    assert code == 0, err
    assert "by the test accuracy, since there is no validation part" in " ".join(out.split())
    assert out.count("> 4") == 3
    assert out.count("0 of 1") == 3
    assert "means over the seeds that reach it" in err
    said = "test accuracy (there is no validation part) never reached 0.8 in 4 rounds"
    assert said in " ".join(out.split())
    assert "DFedHP needs fewer rounds than DFedAvg and DFedAlt" in out
    bounded = []
    for folder in runs(tmp_path):
        if "target_accuracy: 0.2" not in (folder / "config.yaml").read_text():
            continue
        with (folder / "metrics.csv").open() as lines:
            values = {
                int(row[0]): float(row[4])
                for row in csv.reader(lines)
                if row[1:4] == ["test", "personal", "accuracy"]
            }
        first = min((number for number, value in values.items() if value >= 0.2), default=None)
        method = json.loads((folder / "summary.json").read_text())["algorithm"]
        row = {"dfedhp": "DFedHP", "dfedavg": "DFedAvg", "dfedalt": "DFedAlt"}[method]
        line = next(line for line in reached[1].splitlines() if line.split()[:1] == [row])
        assert line.split()[2:4] == ([">", "4"] if first is None else [f"{first:.2f}", "-"])
        bounded.append(first is None)
    assert len(bounded) == 3
    assert not all(bounded)


def test_fedcpmds_statistics_of_one_run_are_printed_beside_each_other(reproduce, tmp_path):
    keys = ("--dataset", "FMNIST=digits", "--algo", "fedcpmd", "--seeds", "1", *TINY)

    code, out, err = reproduce("fedcpmd", *keys, "algorithm.k_p=1", "train.rounds=3")

    assert code == 0, err
    [folder], [file] = runs(tmp_path), (tmp_path / "reproduce").glob("*.json")
    tree = json.loads(file.read_text())
    with (folder / "metrics.csv").open() as lines:
        rows = [row for row in csv.reader(lines) if row[1] == "test"]
    for label, protocol in (
        ("FedCPMD", "personal@local"),
        ("FedCPMD, before local training", "personal@before"),
        ("FedCPMD, after mixing", "personal@aggregated"),
    ):
        values = [float(r[4]) for r in rows if r[2:4] == [protocol, "accuracy_group_mean"]]
        assert len(values) == 3
        assert cell(tree, label, "FMNIST")["measured"] == pytest.approx(100 * np.mean(values))
    deployed = 100 * metric_of(folder, "test", "personal", "accuracy")
    label = "FedCPMD, all clients as deployed"
    assert cell(tree, label, "FMNIST")["measured"] == pytest.approx(deployed)
    assert cell(tree, "FedCPMD", "FMNIST")["published"] == 97.803
    assert cell(tree, label, "FMNIST")["published"] is None
    words = " ".join(out.split())
    assert "Measured for FedCPMD: accuracy on the test parts of a cluster's clients" in words
    assert "Measured for FedCPMD, all clients as deployed: correct predictions" in words


def test_run_of_another_command_is_used(reproduce, tmp_path):
    keys = [*TINY, "partition.samples=1000", "evaluation.common.every=1", "evaluation.every=1"]
    preset = ["--config", str(library.preset("hfcd")), "--algo", "fedavg"]
    more = ["data=", "data.name=digits", f"data.root={tmp_path / 'data'}"][1:]
    more += ["evaluation.common.limit=200", "evaluation.confusable=own"]
    assert app.main(["run", *preset, *keys, *more, "--out", "reproduce"]) == 0

    _, _, err = reproduce(*TABLE[:4], "fedavg", "--seeds", "1", *TINY, "--dry-run")

    assert "1 runs: 1 finished" in err


def test_dry_run_lists_runs_and_trains_nothing(reproduce, tmp_path):
    code, out, _ = reproduce(*TABLE, "--dry-run")

    assert code == 0
    assert not (tmp_path / "reproduce").exists()
    assert out.count("(digits), seed") == 4
    assert "convergence round" in out
    assert "not run yet" not in out


def test_best_test_round_of_pfllib_is_printed_beside_the_last_one(reproduce, tmp_path):
    keys = ("--dataset", "FMNIST=digits", "--algo", "FedAvg,FedDBE", "--seeds", "1", *TINY)

    code, out, err = reproduce("pfllib", *keys, "train.rounds=3", "evaluation.every=1")

    assert code == 0, err
    assert "best test rounds" in out
    [text] = (tmp_path / "reproduce").glob("pfllib-*.md")
    assert "Measured for FedAvg, FedDBE: correct" in text.read_text("utf-8")
    assert "Measured for the rows `..., last round`: correct" in text.read_text("utf-8")
    [file] = (tmp_path / "reproduce").glob("pfllib-*.json")
    tree = json.loads(file.read_text())
    folders = {path.name: path for path in runs(tmp_path)}
    assert len(folders) == 4
    for entry in (e for e in tree["cells"] if e["runs"]):
        with (Path(entry["runs"]["0"]) / "metrics.csv").open() as table:
            mine = [
                float(row[4])
                for row in csv.reader(table)
                if row[1:4] == ["test", "personal", "accuracy"]
            ]
        assert len(mine) == 3
        wanted = mine[-1] if entry["row"].endswith("last round") else max(mine)
        assert entry["values"]["0"] == pytest.approx(100 * wanted)


def test_missing_data_are_listed_with_the_cure(reproduce, tmp_path):
    code, _, err = reproduce("hfcd")

    assert code == 2
    for said in (
        *("no cell of HFCD, Table 2", "`cifar100` is not in data", "data.root=DIR", "--download"),
        "--dataset CIFAR-100=digits",
    ):
        assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "reproduce").exists()


def test_download_is_tried_only_with_the_option(reproduce, monkeypatch):
    def offline(config):
        raise DataError("could not be downloaded")

    monkeypatch.setattr(sources, "load", offline)
    keys = ("slapfl", "--dataset", "cifar10", "--algo", "fedavg", "--seeds", "1")

    assert "could not be downloaded" not in reproduce(*keys)[2]
    code, _, err = reproduce(*keys, "--download")

    assert code == 2
    assert "FedAvg on CIFAR10: could not be downloaded" in err


def test_available_data_are_measured_and_missing_data_listed(reproduce, tmp_path):
    """Of nine data sets one is there, of fourteen methods those that exist."""
    np.savez(
        tmp_path / "mnist.npz",
        **{f"{p}_images": np.zeros((400, 8, 8), dtype=np.uint8) for p in ("train", "test")},
        **{f"{p}_labels": np.arange(400) % 10 for p in ("train", "test")},
    )
    keys = ("data.root=.", "--algo", "local-only,fedprox", "--seeds", "1", *TINY)

    code, out, err = reproduce("fedcpmd", *keys)

    assert code == 0, err
    [report] = (tmp_path / "reproduce").glob("*.md")
    text = report.read_text()
    for said in (out, text):
        assert "Table 7, MNIST" in said
        assert "CIFAR10" in said
        assert "tinyimagenet.npz" in said
    assert "93.470" in out
    [prox] = [path for path in runs(tmp_path) if path.name.startswith("fedprox")]
    assert "mu: 1.0" in (prox / "config.yaml").read_text()
    assert "MNIST: the clients have 800 samples, not 1,000" in err

    code, _, err = reproduce("fedcpmd", "--dataset", "mnist", *keys)

    assert code == 0
    assert "2 finished" in err
    assert report.read_text() == text
    assert len(list((tmp_path / "reproduce").glob("fedcpmd-table-7-small-MNIST*.md"))) == 1


def test_other_data_may_stand_for_a_named_one(reproduce, tmp_path):
    keys = ("--algo", "local", "--seeds", "1", *TINY)

    code, out, _ = reproduce("fedcpmd", "--dataset", "svhn=digits", *keys)
    assert code == 0
    assert "Table 7, SVHN, % [small scale; digits instead of SVHN" in out
    code, out, err = reproduce("fedcpmd", "--dataset", "digits", *keys, "--dry-run")
    assert code == 0
    assert "digits is used instead of CIFAR10, the first of" in err
    assert "local-only on cifar10 (digits)" in out.lower()


def test_file_may_stand_for_a_data_set_and_is_called_a_substitute(reproduce, tmp_path):
    np.savez(
        tmp_path / "mine.npz",
        **{f"{p}_images": np.zeros((200, 8, 8), dtype=np.uint8) for p in ("train", "test")},
        **{f"{p}_labels": np.arange(200) % 10 for p in ("train", "test")},
    )
    keys = ("data.path=mine.npz", "--algo", "fedavg", "--seeds", "1", *TINY)

    code, out, _ = reproduce("hfcd", *keys)
    again = reproduce("hfcd", *keys, "--dry-run")[2]

    assert code == 0
    assert "mine.npz instead of CIFAR-100" in out
    assert "1 finished" in again


def test_method_whose_trainings_all_fail_has_no_numbers(reproduce, tmp_path):
    code, _, err = reproduce(*TABLE[:4], "fedavg", *TABLE[5:], "train.optimizer.lr=1e36")

    assert code == 2
    assert "no client finished a training" in err


@pytest.mark.real_data
def test_real_data_are_found_by_the_papers_names(reproduce):
    keys = ("--dataset", "fmnist", "--algo", "fedavg", "--seeds", "1", *TINY)

    code, out, err = reproduce("fedcpmd", *keys, f"data.root={REAL_DATA}")

    assert code == 0, err
    assert "Table 7, FMNIST, % [small scale; settings changed]" in out
    assert "incomplete" not in err
