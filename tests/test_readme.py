"""What the README promises is true."""

import re
from pathlib import Path

import pytest
import yaml

from flbench.algorithms import ALGORITHMS
from flbench.layers import Layer
from flbench.resolve import resolve
from tests.support import build, run

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.fixture
def fedper():
    """The method that the README writes, registered for one test."""
    if "fedper" in ALGORITHMS:
        pytest.skip("fedper is part of flbench now: the README needs another example")
    exec(compile(block("python"), "README.md", "exec"), {"__name__": "readme"})
    yield
    del ALGORITHMS["fedper"]


def test_example_method_runs_and_keeps_its_heads(fedper, tmp_path):
    path, summary = run(tmp_path, "algorithm=fedper", "train.participation=1", "train.rounds=2")

    algorithm = build("algorithm=fedper").algorithm
    head = algorithm.setting.net.names("head")
    body = 4 * (algorithm.setting.net.size - 650)
    assert algorithm.split() == (head, algorithm.setting.net.names("all") - head)
    assert summary["communication"]["up_bytes"] == 2 * 5 * body
    assert summary["communication"]["down_bytes"] == 5 * body
    assert (path / "report.html").exists()


def test_example_method_with_one_client_is_that_client(fedper, tmp_path):
    keys = ("partition.clients=1", "train.participation=1")

    _, fedper_run = run(tmp_path, "algorithm=fedper", *keys)
    _, local = run(tmp_path, "algorithm=local", *keys)

    assert fedper_run["weights_digest"] == local["weights_digest"]


def test_example_configuration_is_valid():
    config, _ = resolve([Layer(yaml.safe_load(block("yaml")))])

    assert config.algorithm.name == "hfcd"
    assert config.train.rounds == 100


def test_every_method_and_net_is_named():
    from flbench.models import MODELS

    for name in (*ALGORITHMS.load(), *MODELS.load()):
        assert f"`{name}`" in README
