"""Options of commands and arguments of functions of `fl` that mean the same are declared once."""

import dataclasses
import re
from inspect import signature
from typing import Any

import pytest
import typer

import flbench as fl
from flbench.cli import app
from flbench.cli.declared import arguments, for_command
from flbench.comparison.design import Design
from flbench.config.schema import Config
from flbench.core.errors import ConfigError
from flbench.tuning.request import TuneRequest, check

COUNTERPARTS = {
    "run": [fl.run],
    "compare": [fl.compare],
    "ablate": [fl.ablate, fl.compare],
    "tune": [fl.tune],
    "report": [fl.report],
    "export": [fl.Run.trained, fl.Run.export],
    "predict": [fl.Run.trained],
}
"""The functions of `fl` that do what a command does."""
WORDS = {"algorithm", "methods", "method", "runs", "path", "file"}
"""Arguments that the command line takes as words, and the file that it has a name for."""
PYTHON_ONLY = {"self", "progress", "callbacks", "logger", "trust"}
"""`trust` is `--run-code`, which is there for folders too."""
DEFAULTS = {
    fl.tune: {one.name: one.default for one in dataclasses.fields(TuneRequest)},
    fl.compare: {name: one.default for name, one in Design.model_fields.items()}
    | {"out": "comparisons"},
}
"""Defaults of arguments that are None if they are not given."""


def options(command: str) -> dict[str, Any]:
    group: Any = typer.main.get_command(app.app)
    return {one.opts[0]: one for one in group.commands[command].params}


@pytest.mark.parametrize(
    ("command", "function"),
    [(command, one) for command, several in COUNTERPARTS.items() for one in several],
)
def test_an_option_is_the_argument_of_the_function(command: str, function: Any) -> None:
    declared = arguments(f"{function.__module__}:{function.__qualname__}")
    of_command = options(command)
    real = signature(function).parameters
    left = set(Config.model_fields) | WORDS | PYTHON_ONLY
    for name, argument in declared.items():
        assert argument.default == real[name].default or not argument.default  # read from the text
        if name in left or "see `trained`" in argument.about.lower():
            continue
        option = of_command[f"--{name.replace('_', '-')}"]
        about = for_command(argument.about, of_command)
        assert option.help == about or option.help == f"{about} Can be given several times."
        assert argument.about
        assert (option.default or None) == (argument.default or None)
        assert name in real


@pytest.mark.parametrize("function", DEFAULTS)
def test_a_default_in_a_description_is_that_of_the_code(function: Any) -> None:
    named = 0
    for name, one in arguments(f"{function.__module__}:{function.__qualname__}").items():
        if name in Config.model_fields:
            continue
        texts = re.findall(r"\(default `?([\w]+)`?[;)]", one.about)
        texts += re.findall(r"\(?`(\w+)`[, (]+default\)", one.about)
        for text in texts:
            assert text == str(DEFAULTS[function][name]), name
            named += 1
    assert named >= 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"trials": 0},
        {"trials": "4"},
        {"seeds": -1},
        {"retries": -1},
        {"concurrent": 0},
        {"gpus": -0.5},
        {"gpus": float("nan")},
    ],
)
def test_a_study_refuses_numbers_by_the_name_that_the_user_gave(wrong: dict[str, Any]) -> None:
    option = next(iter(wrong)).replace("gpus", "gpus_per_trial")
    with pytest.raises(ConfigError, match=f"`{option}` must be .* of at least"):
        check(TuneRequest(("fedavg",), **wrong))


def test_an_empty_path_is_not_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["tune", "fedavg", "--space", ""]) == 2
    assert "--space is empty" in capsys.readouterr().err
