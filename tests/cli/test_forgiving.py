"""Short forms of keys, methods as words, and what is said about what a user may type instead."""

import json
import re
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.completion import completing, names
from flbench.cli.options import ALIASES
from flbench.config.schema import Config
from flbench.config.sources import leaves
from flbench.core.registry import ALGORITHMS, MODELS
from flbench.data.known_sets import known


@pytest.fixture
def printed(flbench):
    """Return the configuration and origins that `flbench run ARGUMENTS` would have."""

    def of(*arguments: str) -> dict:
        code, out, error = flbench("run", *arguments, "--print-config", "--json")
        assert code == 0, error
        return json.loads(out)

    return of


SHORT = {
    "dataset": "mnist",
    "partition": "pathological",
    "clients": "7",
    "alpha": "0.3",
    "model": "lenet5",
    "rounds": "10",
    "participation": "0.5",
    "engine": "vectorized",
    "device": "cpu",
    "seed": "3",
}


def test_short_forms_are_their_keys(printed):
    short = [word for name, text in SHORT.items() for word in (f"--{name}", text)]
    keys = [f"{ALIASES[name].key}={text}" for name, text in SHORT.items()]

    by_option, by_key = printed(*short), printed(*keys)

    assert SHORT.keys() == ALIASES.keys()
    assert by_option["config"] == by_key["config"]
    assert Config.model_fields.keys() == by_option["config"].keys()
    for name in SHORT:
        key = ALIASES[name].key
        assert leaves(by_option["config"])[key] != leaves(Config().tree())[key] or name == "device"
        assert by_option["origins"][key] == f"--{name}"
        assert by_key["origins"][key] == "command line"


def test_help_lists_every_short_form_with_its_key(flbench):
    out = " ".join(flbench("run", "--help")[1].replace("│", " ").split())

    for name, alias in ALIASES.items():
        assert f"--{name} " in out
        assert f"Sets {alias.key}:" in out


def test_help_fills_the_lines_of_each_paragraph(flbench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = flbench("tune", "--help")[1]
    assert text.count("<bool>") <= 1  # of `--help`, which Typer adds
    text = text.partition("\n\u256d")[0]
    paragraphs = [one.split("\n") for one in re.split(r"\n *\n", text.strip())]
    for lines in paragraphs:
        for line, after in pairwise(map(str.strip, lines)):
            assert len(line) + len(after.split()[0]) > 70


@pytest.mark.parametrize(
    "arguments",
    [
        ("fedprox", "fedavg"),
        ("fedprox,fedavg",),
        ("fedprox,", "--algo", "fedavg"),
        ("--algo", "fedprox", "--algo", "fedavg"),
    ],
    ids=" ".join,
)
def test_a_run_has_one_method_and_several_words_or_options_are_a_comparison(flbench, arguments):
    code, out, error = flbench("run", *arguments, "model.hidden=[2, 3]", "--rounds", "2")

    typed = "fedprox fedavg 'model.hidden=[2, 3]' --rounds 2"
    assert (code, out) == (2, "")
    assert f"flbench compare {typed} --seeds 1" in error


@pytest.mark.parametrize("arguments", [("fedprox",), ("--algo", "fedprox")], ids=" ".join)
def test_a_method_is_a_word_or_an_option(printed, arguments):
    found = printed(*arguments, "algorithm.mu=0.5")["config"]["algorithm"]

    assert (found["name"], found["mu"]) == ("fedprox", 0.5)


def test_short_form_drops_no_key_that_stands_beside_it(printed, tmp_path):
    """A file names another method and net, whose keys do not belong to the new ones."""
    file = tmp_path / "mine.yaml"
    file.write_text("algorithm: {name: hfcd, tau: 0.7}\nmodel: {name: mlp, hidden: [9]}\n")

    found = printed(
        "fedprox", "--config", str(file), "algorithm.mu=0.5", "--model", "vgg11",
        "model.classifier=4096",
    )  # fmt: skip

    assert found["config"]["algorithm"] == {
        "name": "fedprox",
        "mu": 0.5,
        "agg_weights": "samples",
        "source": None,
        "sha256": None,
        "finetune_epochs": found["config"]["algorithm"]["finetune_epochs"],
    }
    assert found["config"]["model"]["classifier"] == 4096


@pytest.mark.parametrize(
    "arguments", [("train.rounds=7",), ("--rounds", "7", "train.rounds=7")], ids=" ".join
)
def test_an_option_may_repeat_an_override(printed, arguments):
    assert printed("local", *arguments)["config"]["train"]["rounds"] == 7


def test_completion_knows_the_names_without_importing_their_modules():
    assert names("methods") == ALGORITHMS.load()
    assert names("models") == MODELS.load()
    assert completing("data sets")("") == list(known())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("flbench ru", ["run"]),
        ("flbench run fedpro", ["fedproto", "fedprox"]),
        ("flbench tune hfcd,fedb", ["hfcd,fedbabu", "hfcd,fedbn"]),
        ("flbench run partition.al", ["partition.alpha="]),
        ("flbench run nonsense --datas", ["--dataset"]),
        ("flbench run --dataset mni", ["mnist"]),
        ("flbench run --engine v", ["vectorized"]),
        ("flbench algos dispfl-", ["dispfl-hp"]),
    ],
)
def test_bash_completes(typed, offered):
    words = typed.split(" ")
    asked = {
        "_FLBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }

    result = CliRunner().invoke(app.app, prog_name="flbench", env=asked)

    assert result.output.split() == offered
