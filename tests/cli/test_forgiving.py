"""Short forms of keys, methods as words, and what is said about what a user may type instead."""

import json

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
    out = flbench("run", "--help")[1]

    for name, alias in ALIASES.items():
        assert f"--{name} " in out
        assert alias.key in out


@pytest.mark.parametrize("words", ["fedprox fedavg", "fedprox, --algo fedavg"])
def test_a_run_has_one_method_and_several_words_or_options_are_a_comparison(flbench, words):
    code, out, error = flbench("run", *words.split(), "--rounds", "2")

    assert (code, out) == (2, "")
    assert "flbench compare fedprox fedavg" in error


def test_an_option_may_repeat_an_override_and_a_method_may_be_an_option(printed):
    found = printed("--algo", "local", "--rounds", "7", "train.rounds=7")["config"]

    assert (found["algorithm"]["name"], found["train"]["rounds"]) == ("local", 7)


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
