"""Measuring engines: what `bench` writes."""

import json
import os
import subprocess
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch

from flbench.bench import measure
from flbench.bench.bare_loop import bare_round, steps_of
from flbench.cli import app
from flbench.client.program import Phase, shortened
from flbench.core.errors import RunError
from flbench.core.rng import Draw
from flbench.engine.base import RoundSettings
from flbench.experiment import rounds
from tests.support import SMALL, build, config_of

pytestmark = pytest.mark.slow


@pytest.fixture
def _one_core():
    """Measure on one core: the bare loop takes all cores, and other tests use them."""
    if not hasattr(os, "sched_setaffinity"):  # macOS: the test takes longer
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


class SameProcess:
    """What `measure` needs of `subprocess`, without the seconds that importing PyTorch takes.

    An error of the measurement reaches the test with its traceback.
    """

    @staticmethod
    def run(command, **_):
        assert command[1:3] == ["-m", "flbench.bench.measure"]
        written = StringIO()
        with redirect_stdout(written):
            measure.main(command[3:])
        return subprocess.CompletedProcess(command, 0, written.getvalue(), "")


@pytest.mark.usefixtures("_one_core")
@pytest.mark.parametrize("other", ["sequential", pytest.param("ray", marks=pytest.mark.full)])
def test_bench_writes_figures_and_a_page(capsys, tmp_path, other, monkeypatch):
    if other != "ray":  # with Ray, as a user starts it
        monkeypatch.setattr(measure, "subprocess", SameProcess)
    keys = (*SMALL, "--engines", f"auto,{other}", "--repeats", "2", "--rounds", "1")

    code = app.main(["bench", *keys, "--out", str(tmp_path / "b")])

    out, error = capsys.readouterr()
    assert code == 0, error
    assert all(engine in out for engine in ("auto", other))
    found, built = json.loads((tmp_path / "b" / "bench.json").read_text()), build("model=mlp")
    for case in found["cases"]:
        assert case["steps"] > 0
        assert case["ratio"] > 0
        rows = 2 * int(built.federation.sizes.sum())  # two rounds of one epoch of all clients
        assert case["operations"] == 85_760 * rows  # of the mlp: see test_roofline
        assert case["moved"] == 2_048 * rows + 5 * 4 * 17_226 * case["steps"]
        seconds = case["steps"] * case["step"]
        assert case["arithmetic"] * seconds * case["best"][0] == pytest.approx(case["operations"])
        assert case["bandwidth"] * seconds * case["best"][1] == pytest.approx(case["moved"])
        assert case["speed"] == pytest.approx(1 / case["step"])
        # One round has half of the steps that were measured.
        assert case["run"]["bare"] == pytest.approx(case["steps"] / 2 * case["bare"])
        assert case["whole"] == pytest.approx(case["run"]["total"] / case["run"]["bare"])
        parts = ("train", "evaluate", "other")
        assert sum(case["run"][key] for key in parts) == pytest.approx(
            case["run"]["total"], abs=0.01
        )
    auto, named = found["cases"]
    assert (auto["engine"], named["engine"], named["chosen"]) == ("auto", other, other)
    assert auto["chosen"] in ("sequential", "vectorized")
    assert f"auto chose {auto['chosen']}." in out
    page = (tmp_path / "b" / "bench.html").read_text()
    assert "<script" not in page
    assert auto["chosen"] in page


def test_bench_of_what_a_user_can_mend_is_one_message(capsys, tmp_path):
    code = app.main(["bench", "data.path=nowhere.npz", "--out", str(tmp_path / "b")])

    error = capsys.readouterr().err
    assert code == 2
    assert "nowhere.npz does not exist" in error
    assert "Traceback" not in error


def test_bench_of_an_engine_that_would_not_be_measured_is_refused(capsys, tmp_path):
    code = app.main(["bench", "engine.name=ray", "--out", str(tmp_path / "b")])

    assert code == 2
    assert "--engines sequential,vectorized,ray" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_bench_names_the_engine_that_failed(monkeypatch):
    monkeypatch.setattr(measure.sys, "executable", "/bin/false")

    with pytest.raises(RunError, match=r"engine.name=sequential could not be measured"):
        measure.compare([config_of()], repeats=1, run_rounds=0)


@pytest.mark.parametrize("net", ["mlp", "lenet5"])
def test_bare_loop_takes_the_steps_and_batches_of_the_engine(net):
    built = build("algorithm=fedavg", f"model.name={net}")
    draw = Draw(built.config.seed, (3,), 5)
    ids = torch.arange(5)

    steps = bare_round(built, draw, ids.tolist())

    settings = RoundSettings(built.config.train, draw)
    trained = rounds.train(built.algorithm, built.engine, built.start(), settings, ids=ids)
    assert steps == int(trained.results.steps.sum())


def test_steps_of_a_round_are_counted_without_training():
    built = build("algorithm=hfcd", "model.name=lenet5")
    state = built.start()
    program = built.algorithm.program(state)
    phases = [step for step in program.steps if isinstance(step, Phase)]
    settings = rounds.settings_of(built.algorithm, state)

    trained = rounds.train(built.algorithm, built.engine, state, settings, ids=torch.arange(5))
    short = rounds.train(
        built.algorithm,
        built.engine,
        state,
        settings,
        ids=torch.arange(5),
        program=shortened(program, 2),
    )

    expected = steps_of(built.algorithm, phases)
    assert trained.results.steps.tolist() == expected.tolist()
    assert set(short.results.steps.tolist()) == {2}
