"""Options of commands and arguments of functions of `fl` that mean the same are declared once."""

import dataclasses
import re
from inspect import signature
from typing import Any

import pytest
import typer

import flbench as fl
from flbench.api import settings, verbs
from flbench.cli import app
from flbench.comparison.design import Design
from flbench.config.schema import Config
from flbench.tuning.request import TuneRequest

COUNTERPARTS = {
    "run": fl.run,
    "compare": fl.compare,
    "ablate": fl.ablate,
    "tune": fl.tune,
    "report": fl.report,
    "export": verbs.ExportSettings,
    "predict": verbs.ModelSettings,
}
"""What declares the options of a command."""
PYTHON_ONLY = {"progress", "callbacks", "logger", "trust", *Config.model_fields} - {"seed"}
"""Arguments without an option. `trust` is `--run-code`, which is there for folders too."""
DEFAULTS = {
    fl.tune: {
        {"concurrent": "jobs", "gpus": "gpus_per_trial"}.get(one.name, one.name): one.default
        for one in dataclasses.fields(TuneRequest)
    },
    fl.compare: {name: one.default for name, one in Design.model_fields.items()}
    | {"out": "comparisons"},
}
"""Defaults of arguments that are None if they are not given."""


@pytest.mark.parametrize("command", COUNTERPARTS)
def test_each_argument_of_a_verb_is_an_option_with_its_description(command: str) -> None:
    group: Any = typer.main.get_command(app.app)
    options = {one.opts[0]: one for one in group.commands[command].params}

    for name, argument in settings.arguments(COUNTERPARTS[command]).items():
        assert argument.about, name
        if name not in PYTHON_ONLY:
            option = options[f"--{name.replace('_', '-')}"]
            assert (option.default or None) == (argument.default or None), name
            assert option.help, name


@pytest.mark.parametrize("verb", [fl.run, fl.federate, fl.compare, fl.ablate, fl.tune])
def test_signature_and_help_of_a_verb_name_its_settings(verb: Any) -> None:
    named = set(signature(verb).parameters) - {"dotted"}

    assert {"config", "seed", "train", "engine", "progress"} <= named
    assert named == set(settings.descriptions(verb.__doc__)) - {"dotted"}


@pytest.mark.parametrize("function", DEFAULTS)
def test_a_default_in_a_description_is_that_of_the_code(function: Any) -> None:
    named = 0
    for name, one in settings.arguments(function).items():
        if name in Config.model_fields:
            continue
        texts = re.findall(r"\(default `?([\w]+)`?[;)]", one.about)
        texts += re.findall(r"\(?`(\w+)`[, (]+default\)", one.about)
        for text in texts:
            assert text == str(DEFAULTS[function][name]), name
            named += 1
    assert named >= 3
