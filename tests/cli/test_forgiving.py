"""Short forms of keys, methods as words, and what is said about what a user may type instead."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from flbench.cli import app, completion
from flbench.cli.aliases import ALIASES
from flbench.config.schema import Config
from flbench.config.sources import leaves
from flbench.core.registry import ALGORITHMS, MODELS
from flbench.data.known_sets import known


@pytest.fixture
def flbench(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder; return exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = app.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return command


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("fedprox", "fedavg"),
        ("fedprox,fedavg",),
        ("fedprox,", "fedavg"),
        ("--algo", "fedprox", "--algo", "fedavg"),
        ("fedprox", "fedavg", "--algo", "fedavg,fedprox"),
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
    "arguments",
    [
        ("train.rounds", "=", "7"),
        ("train.rounds=", "7"),
        ("train.rounds", "=7"),
        ("--train.rounds", "7"),
        ("--train.rounds=7",),
        ("--rounds", "7", "train.rounds=7"),
    ],
    ids=" ".join,
)
def test_other_spellings_of_an_override(printed, arguments):
    assert printed("local", *arguments)[0]["config"]["train"]["rounds"] == 7


WRONG = {
    "run --lr 0.1": "Did you mean train.optimizer.lr=0.1?",
    "run --epochs 5 local": "Did you mean train.local_epochs=5?",
    "run --epochs=5": "Did you mean train.local_epochs=5?",
    "run --batch-size": "Did you mean train.batch_size=VALUE?",
    "run --batch_size 64": "Did you mean train.batch_size=64?",
    "run --num-clients 9": "Did you mean --clients 9 (partition.clients=9)?",
    "data --num-clients 9": "Did you mean --clients 9 (partition.clients=9)?",
    "run --algorithm local": "Did you mean --algo local?",
    "bench --algorithm local": "Did you mean algorithm.name=local?",
    "run --gpu 1": "Did you mean --device cuda:1 (engine.device=cuda:1)?",
    "run --mu 0.1": "Did you mean algorithm.mu=0.1?",
    "run --classifier 512": "Did you mean model.classifier=512?",
    "run --round 3": "Did you mean --rounds 3?",
    "run --zzz 3": "every key of the configuration is set by key=value",
    "run --trials 3": "No such option: --trials. It is an option of flbench tune.",
    "show --epochs 3": "No such option: --epochs. --help lists the options.",
    "run fedprx": "`fedprx` is neither a method nor key=value. Did you mean `fedprox`?",
    "tune fedprx": "Did you mean `fedprox`?",
    "run mnist": "`mnist` is a data set: --dataset mnist.",
    "run lenet5": "`lenet5` is a net: --model lenet5.",
    "run ray": "`ray` is an engine: --engine ray.",
    "run x.yaml": "--config x.yaml",
    "run x.npz": "data.path=x.npz",
    "run nonsense": "`flbench algos` lists the methods",
    "run train.rounds:10": "Write train.rounds=10 (key=value).",
    "run train.rounds": "Write train.rounds=VALUE (key=value)",
    "run --train.rounds": "--train.rounds has no value. Write train.rounds=VALUE.",
    "run local --algo fedavg": "`local` and --algo fedavg name different methods",
    "run local algorithm=fedavg": "`local` and algorithm.name=fedavg give `algorithm.name` two",
    "run --algo local algorithm=fedavg": "--algo local and algorithm.name=fedavg give",
    "run --rounds 9 train.rounds=8": "--rounds 9 and train.rounds=8 give `train.rounds` two",
    "run --dataset mnist data=digits": "--dataset mnist and data.name=digits give `data.name` two",
    "run --out a output.dir=b": "--out a and output.dir=b give `output.dir` two",
    "run --rounds 0": "`train.rounds` must be >= 1, got '0' (--rounds).",
    "run local local": "`local` is named twice. Name it once.",
    "data mnist --dataset digits": "`mnist` and --dataset digits name different data sets",
    "bench local fedavg": "give one method, got local, fedavg.",
    "tune train.rounds=3": "name the methods to tune, for example flbench tune hfcd fedavg.",
    "bench --engine ray": "reproduce, compare, ablate and tune. Did you mean --engines?",
    "run --no-mlflow": "Did you mean tracking.mlflow=false?",
    "run lr:0.1": "Write train.optimizer.lr=0.1 (key=value).",
    "run help": "Did you mean --help?",
    "help": "Did you mean flbench --help or flbench COMMAND --help?",
    "run local --resume x": "local cannot be used with --resume",
    "tune local --resume x --rounds 3": "local, --rounds cannot be used with --resume",
    "rn": "Did you mean flbench run?",
    "train local": "Did you mean flbench run?",
    "local --rounds 3": "`local` is a method. Did you mean flbench run local --rounds 3?",
    "train.rounds=3": "Did you mean flbench run train.rounds=3?",
    "--rounds 10": "Options follow the command",
}


@pytest.mark.parametrize("command", WRONG)
def test_wrong_command_says_what_to_type(flbench, command):
    code, out, error = flbench(*command.split(" "))

    assert code == 2
    assert not out
    assert error.startswith("error: ")
    assert WRONG[command] in error


@pytest.mark.parametrize(
    ("file", "command"),
    [("config.yaml", "run"), ("study.json", "tune"), ("comparison.json", "compare")],
)
def test_folder_in_the_place_of_a_method_says_how_to_resume(flbench, tmp_path, file, command):
    (tmp_path / "mine(1)").mkdir()
    (tmp_path / "mine(1)" / file).touch()

    _, _, error = flbench("run", "mine(1)")

    assert f"flbench {command} --resume 'mine(1)' continues it." in error


def test_completion_knows_the_names_without_importing_their_modules():
    assert ALGORITHMS.names() == ALGORITHMS.load()
    assert MODELS.names() == MODELS.load()
    assert completion.words("fedpro") == ["fedproto", "fedprox"]
    assert completion.words("fedavg,dispfl") == ["fedavg,dispfl", "fedavg,dispfl-hp"]
    assert completion.words("partition.al") == ["partition.alpha="]
    assert completion.data_sets("") == list(known())
    assert "vectorized" in completion.engines("v")
    assert completion.schemes("dir") == ["dirichlet"]


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


def test_print_config_names_short_forms_as_origins(flbench):
    code, out, _ = flbench("run", "local", "--rounds", "3", "--print-config")

    assert code == 0
    assert yaml.safe_load(out)["train"]["rounds"] == 3
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "rounds: 3 # --rounds" in lines
    assert "name: local # command line" in lines
