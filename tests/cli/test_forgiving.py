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
    """Return the configurations and origins that `flbench run ARGUMENTS` would have."""

    def of(*arguments: str) -> list[dict]:
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

    [by_option], [by_key] = printed(*short), printed(*keys)

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
def test_methods_are_words_or_an_option(printed, arguments):
    found = printed(*arguments, "algorithm.mu=0.5")

    assert [one["config"]["algorithm"]["name"] for one in found] == ["fedprox", "fedavg"]
    assert found[0]["config"]["algorithm"]["mu"] == 0.5


def test_short_form_drops_no_key_that_stands_beside_it(printed, tmp_path):
    """A file names another method and net, whose keys do not belong to the new ones."""
    file = tmp_path / "mine.yaml"
    file.write_text("algorithm: {name: hfcd, tau: 0.7}\nmodel: {name: mlp, hidden: [9]}\n")

    [found] = printed(
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
    assert printed("local", *arguments)[0]["config"]["train"]["rounds"] == 7


WRONG = [
    "run --lr 0.1",
    "run --zzz 3",
    "run --trials 3",
    "run fedprx",
    "run --train.rounds 7",
    "run train.rounds = 7",
    "run fedprox --algo fedprox",
    "run mnist",
    "run x.npz",
    "run train.rounds:10",
    "run train.rounds",
    "run --rounds 9 train.rounds=8",
    "run --out a output.dir=b",
    "data mnist --dataset digits",
    "tune train.rounds=3",
    "tune local --resume x --rounds 3",
    "rn",
    "train.rounds=3",
    "--rounds 10",
]


def test_wrong_commands_are_one_error(flbench):
    for command in WRONG:
        code, out, error = flbench(*command.split(" "))
        assert code == 2, command
        assert not out, command
        assert error.startswith("error: "), command


def test_an_error_says_what_to_type_instead(flbench):
    for command, hint in (
        ("run --lr 0.1", "train.optimizer.lr=VALUE"),
        ("run --round 3", "--rounds"),
        ("run --train.rounds 3", "train.rounds=VALUE"),
        ("compare ft --repetitions 3", "--seeds"),
        ("run fedprx", "`fedprox`"),
        ("run mnist", "--dataset mnist"),
        ("rn", "run"),
        ("show", "RUN_DIR"),
    ):
        assert hint in flbench(*command.split(" "))[2], command


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
