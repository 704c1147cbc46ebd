"""What a user can get wrong: one message with the cure, exit code 2, no traceback.

What is refused of keys, files and folders is tested beside the code that reads them; these are the
words of the command line, and one case of each kind of input.
"""

import os
import shlex
import shutil

import pytest

from flbench.cli import app
from tests.support import SMALL, interrupted_run

WRONG = {
    # keys and values
    "run train.round=3": "`rounds`",
    "run algorithm.taus=3": "`tau`",
    "run algorithm.name=fedavgg": "`fedavg`",
    "run engine.workers=-1": "`engine.workers`",
    "run train.rounds=0 partition.alpha=0": "`partition.alpha`",
    "run partition.clients=5000": "partition.clients",
    # words and options
    "run --lr 0.1": "train.optimizer.lr=VALUE",
    "run --round 3": "--rounds",
    "run --train.rounds 7": "train.rounds=VALUE",
    "run train.rounds": "key=value",
    "run train.rounds = 7": "key=value",
    "run fedprx": "`fedprox`",
    "run --algo fedavg,nope": "`nope`",
    "run fedprox --algo fedprox": "`fedprox`",
    "run fedavg ''": "empty",
    "tune fedavg --space ''": "empty",
    "run mnist": "--dataset mnist",
    "run x.npz": "key=value",
    "run --rounds 9 train.rounds=8": "train.rounds",
    "run hfcd tau=0.3": "`algorithm.tau`",
    "run --out a output.dir=b": "output.dir",
    "run x --config a.yaml --config=b.yaml": "--config",
    "run --config nope.yaml": "nope.yaml",
    "run --config my.yaml": "my.yaml:1",
    "run --out my.yaml": "output.dir",
    "run --resume .": ".",
    "compare hfcd fedavg algorithm.tauu=1": "algorithm.tauu",
    "tune train.rounds=3": "methods",
    "tune local --resume x --rounds 3": "--resume",
    "algos hfdc": "`hfcd`",
    "data digits mnist": "mnist",
    "data digits --out x.txt": ".npz",
    "data digits --picture x.xyz": ".png",
    "data digits --picture no/such/x.png": "no/such",
    "show": "RUN_DIR",
    "show nowhere": "nowhere",
    "rn": "run",
    "nonsense": "nonsense",
    "--rounds 10": "--rounds",
}
"""Commands, and what their message has."""


def test_a_wrong_command_is_one_error(flbench, tmp_path, subtests):
    (tmp_path / "my.yaml").write_text("seeed: 3\n")

    for command, said in WRONG.items():
        with subtests.test(command):
            code, out, error = flbench(*shlex.split(command))

            assert (code, out) == (2, "")
            assert error.splitlines()[-1].startswith("error: ")
            assert said in " ".join(error.split())
            assert "Traceback" not in error
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    return interrupted_run(tmp_path_factory.mktemp("runs"), "algorithm=fedavg")


@pytest.mark.parametrize("damage", ["config", "metrics", "more options"])
@pytest.mark.slow
def test_resume_of_a_damaged_run_is_one_message(damage, interrupted, capsys, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    arguments = ["run", "--resume", str(folder)]
    if damage == "config":
        (folder / "config.yaml").write_text("a: [")
    elif damage == "metrics":
        (folder / "metrics.csv").write_text("nonsense\n")
    else:
        arguments += ["--algo", "local"]

    assert app.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("error: ") == 1
    assert "Traceback" not in said.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_output_folder_without_permission(flbench, tmp_path):
    tmp_path.chmod(0o500)

    code, _, error = flbench("run", *SMALL, "--out", str(tmp_path / "x"))
    assert code == 2
    assert "--out" in error
