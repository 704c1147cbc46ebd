"""What a user can get wrong: one message with the cure, exit code 2, no traceback.

What is refused of keys, files and folders is tested beside the code that reads them; these are the
words of the command line, and one case of each kind of input.
"""

import os
import shlex

import pytest

from flbench.cli import app
from tests.support import SMALL, interrupted_run, write_npz

WRONG = {
    # keys and values
    "run train.round=3": "Did you mean `rounds`",
    "run algorithm.taus=3": "Did you mean `tau`",
    "run algorithm.name=fedavgg": "Did you mean `fedavg`",
    "run data.name=mnits": "Did you mean `mnist`",
    "run train.rounds=many": "`train.rounds` must be a valid integer",
    "run engine.workers=-1": "`engine.workers` must be 'auto' or >= 1, got '-1' (command line).",
    "run train.rounds=0 partition.alpha=0": "`partition.alpha`",
    "run partition.clients=5000": "Lower one of the two",
    "run model.name=lenet5 data.path=table.csv": "takes images",
    "run data.path=cut.npz": "not an intact NPZ",
    # words and options
    "run --lr 0.1": "train.optimizer.lr=VALUE",
    "run --round 3": "--rounds",
    "run --zzz 3": "--zzz",
    "run --trials 3": "--trials",
    "run --train.rounds 7": "train.rounds=VALUE",
    "run train.rounds": "key=value",
    "run =3": "key=value",
    "run train.rounds = 7": "key=value",
    "run train.rounds:10": "`train.rounds:10`",
    "run fedprx": "Did you mean `fedprox`",
    "run --algo fedavg,nope": "`nope` is neither a method",
    "run fedprox --algo fedprox": "`fedprox` is named twice",
    "run fedavg ''": "an argument is empty",
    "run mnist": "--dataset mnist",
    "run x.npz": "key=value",
    "run --rounds 9 train.rounds=8": "given twice",
    "run hfcd tau=0.3": "`algorithm.tau`",
    "run --out a output.dir=b": "given twice",
    "run --config nope.yaml": "nope.yaml",
    "run --config my.yaml": "my.yaml:1",
    "run --out my.yaml": "output.dir",
    "run --resume .": "not a run folder",
    "compare ft --repetitions 3": "--seeds",
    "compare hfcd fedavg algorithm.tauu=1": "algorithm.tauu",
    "tune train.rounds=3": "name the methods",
    "tune local --resume x --rounds 3": "--resume",
    "algos hfdc": "Did you mean `hfcd`",
    "data digits mnist": "one data set",
    "data digits partition.clients=9999": "Lower one of the two",
    "data digits --out x.txt": "ends with .npz",
    "data digits --out no/such/folder/x.npz": "no/such/folder: this folder does not",
    "data digits --picture x.xyz": "must end with .png",
    "data digits --picture no/such/x.png": "no/such: this folder does not exist",
    "data mnits": "Did you mean `mnist`",
    "show": "RUN_DIR",
    "show nowhere": "does not exist",
    "rn": "run",
    "nonsense": "No such command",
    "train.rounds=3": "No such command",
    "--rounds 10": "No such option",
}
"""Commands, and what their message has."""


def test_a_wrong_command_is_one_error(flbench, tmp_path, subtests):
    (tmp_path / "my.yaml").write_text("seeed: 3\n")
    (tmp_path / "table.csv").write_text("a,b,y\n" + "1,2,0\n3,4,1\n" * 300)
    whole = write_npz(tmp_path / "cut.npz", n=40)
    whole.write_bytes(whole.read_bytes()[:-300])

    for command, said in WRONG.items():
        with subtests.test(command):
            code, out, error = flbench(*shlex.split(command))

            assert (code, out) == (2, "")
            assert error.splitlines()[-1].startswith("error: ")
            assert said in " ".join(error.split())
            assert "Traceback" not in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("damage", ["config", "checkpoint", "metrics", "rounds", "more options"])
@pytest.mark.slow
def test_resume_of_a_damaged_run_is_one_message(damage, capsys, tmp_path):
    folder = interrupted_run(tmp_path / "runs", "algorithm=fedavg")
    arguments = ["run", "--resume", str(folder)]
    if damage == "config":
        (folder / "config.yaml").write_text("a: [")
    elif damage == "checkpoint":
        checkpoint = folder / "checkpoints" / "last.safetensors"
        checkpoint.write_bytes(checkpoint.read_bytes()[:300])
    elif damage == "metrics":
        (folder / "metrics.csv").write_text("nonsense\n")
    elif damage == "rounds":
        arguments.append("train.rounds=99")
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
