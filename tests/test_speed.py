"""`benchmarks/speed.py`: engines beside a bare PyTorch loop over the same batches."""

import json

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
