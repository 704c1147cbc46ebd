"""`benchmarks/speed.py`: engines beside a bare PyTorch loop over the same batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flbench.core.rng import Draw
from flbench.engine.base import RoundSettings
from flbench.experiment import rounds
from tests.support import SMALL, benchmark_script, build


@pytest.fixture(scope="module")
def speed():
    with benchmark_script("speed") as module:
        yield module


@pytest.mark.slow
@pytest.mark.parametrize("net", ["mlp", "lenet5"])
def test_bare_loop_takes_the_steps_and_batches_of_the_engine(speed, net):
    built = build("algorithm=fedavg", f"model.name={net}")
    draw = Draw(built.config.seed, (3,), 5)
    ids = torch.arange(5)

    steps = speed.bare_round(built, draw, ids.tolist())

    settings = RoundSettings(built.config.train, draw)
    trained = rounds.train(built.algorithm, built.engine, built.start(), settings, ids=ids)
    assert steps == int(trained.results.steps.sum())


@pytest.mark.full
def test_engines_are_measured_in_processes_of_their_own(speed, capsys):
    assert speed.main(["--repeats", "2", "--engines", "sequential,vectorized", *SMALL]) == 0

    found = json.loads(capsys.readouterr().out)["cases"]
    assert [case["chosen"] for case in found] == ["sequential", "vectorized"]
    assert all(case["ratio"] > 0 and case["steps"] > 0 for case in found)
    assert all(case["memory"] > 2**27 for case in found)


@pytest.mark.full
def test_gpu_script_has_a_line_for_each_figure(speed, tmp_path):
    script = Path(speed.__file__).with_name("gpu.sh")
    variables = os.environ | {"DEVICE": "cpu", "SIZE": "tiny", "PYTHON": sys.executable}
    subprocess.run(
        [script, tmp_path, "table"], env=variables, stdout=subprocess.DEVNULL, check=True
    )

    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    rates = {one["net"]: one["client_steps_per_s"] for one in lines if "net" in one}
    assert rates.keys() == {"lenet5", "mlp", "simple_cnn", "resnet18"}
    assert all(rate > 0 for rate in rates.values())
    assert [one["exit_code"] for one in lines if "ended" in one] == [0]
