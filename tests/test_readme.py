"""What the README promises is true."""

import re
from pathlib import Path

import pytest
import yaml

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.sources import Layer
from tests.support import build, run

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.fixture
def firstlayer():
    """The method that the README writes, registered for one test."""
    exec(compile(block("python"), "README.md", "exec"), {"__name__": "readme"})
    yield
    del ALGORITHMS["firstlayer"]


@pytest.mark.slow
def test_example_method_runs_and_keeps_its_first_layer(firstlayer, tmp_path):
    path, summary = run(tmp_path, "algorithm=firstlayer", "train.participation=1", "train.rounds=2")

    algorithm = build("algorithm=firstlayer").algorithm
    lower = {"backbone.fc1.weight", "backbone.fc1.bias"}
    upper = 4 * (128 * 64 + 64 + 64 * 10 + 10)
    assert algorithm.split() == (lower, algorithm.setting.net.names("all") - lower)
    assert summary["communication"]["up_bytes"] == 2 * 5 * upper
    assert summary["communication"]["down_bytes"] == 5 * upper
    assert (path / "report.html").exists()


@pytest.mark.slow
def test_example_method_with_one_client_is_that_client(firstlayer, tmp_path):
    keys = ("partition.clients=1", "train.participation=1")

    _, example = run(tmp_path, "algorithm=firstlayer", *keys)
    _, local = run(tmp_path, "algorithm=local", *keys)

    assert example["weights_digest"] == local["weights_digest"]


def test_example_configuration_is_valid():
    config, _ = resolve([Layer(yaml.safe_load(block("yaml")))])

    assert config.algorithm.name == "hfcd"
    assert config.train.rounds == 100


def test_every_method_and_net_is_named():
    from flbench.models import MODELS

    for name in (*ALGORITHMS.load(), *MODELS.load()):
        assert f"`{name}`" in README
