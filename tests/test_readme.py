"""What the README promises is true."""

import re
from pathlib import Path

import yaml

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.sources import Layer

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert len(found) == 1
    return found[0]


def test_example_configuration_is_valid():
    config, _ = resolve([Layer(yaml.safe_load(block("yaml")))])

    assert config.algorithm.name == "hfcd"
    assert config.train.rounds == 100


def test_every_method_and_net_is_named():
    from flbench.models import MODELS

    for name in (*ALGORITHMS.load(), *MODELS.load()):
        assert f"`{name}`" in README
