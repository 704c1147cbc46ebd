"""`fl.help`: what it says of each public name is what Python says of the object."""

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
from torch import nn

import flbench as fl
from flbench.algorithms import ALGORITHMS, Dispatch
from flbench.api import reference
from flbench.losses import CrossEntropy
from flbench.models import MODELS

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = [
    (place, name)
    for topic in reference.TOPICS
    for place in reference._places(topic)
    for name in reference._public(place)
]


def said(capsys, *name):
    fl.help(*name)
    return capsys.readouterr().out


def parameters(thing):
    """Names of the parameters; None for what cannot be called with any."""
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):
        return None
    if inspect.isclass(thing) and (
        issubclass(thing, BaseException | nn.Module) or getattr(thing, "_is_protocol", False)
    ):
        return None
    if inspect.isclass(thing) and issubclass(thing, pydantic.BaseModel):
        return list(thing.model_fields)
    if dataclasses.is_dataclass(thing):
        return list(inspect.signature(thing.__init__).parameters)[1:]
    return list(inspect.signature(thing).parameters)


def test_it_says_what_python_says(capsys, subtests):
    for place, name in NAMES:
        with subtests.test(f"{place}.{name}"):
            assert_said(place, name, capsys)


def assert_said(place, name, capsys):
    thing = getattr(importlib.import_module(place), name)
    if inspect.ismodule(thing):
        assert said(capsys, f"{place}.{name}").startswith(thing.__name__)
        return

    text = said(capsys, f"{place}.{name}")

    assert text.startswith(f"fl.{name}\n" if place == "flbench" else f"{place}.{name}\n")
    assert "Guide: " in text
    if inspect.isfunction(thing) or inspect.isclass(thing):
        assert inspect.cleandoc(thing.__doc__) in text
    if (expected := parameters(thing)) is not None:
        signature = text.split("\n\n")[1].partition("\nBases")[0].replace("class ", "def ")
        tree = ast.parse(f"{signature if '(' in signature else signature + '()'}: ...")
        given = tree.body[0].args
        found = [one.arg for one in [*given.posonlyargs, *given.args]]
        found += [given.vararg.arg] if given.vararg else []
        found += [one.arg for one in given.kwonlyargs]
        found += [given.kwarg.arg] if given.kwarg else []
        assert found == expected


def test_list_has_every_name_and_its_guide(capsys):
    text = said(capsys)

    words = set(text.replace(",", " ").split())
    shown = {name for name in fl.__all__ if name[0] != "_"} - {"tuning"}
    assert shown <= words
    assert set(fl.algorithms.__all__) <= words
    assert set(fl.testing.__all__) <= words


def test_pages_exist_under_their_titles():
    pages = {(topic.page, topic.page_title) for topic in reference.TOPICS}
    for page, title in pages | set(reference.PAGES.values()):
        assert (DOCS / page).read_text("utf-8").startswith(f"# {title}\n")
    for name, (page, _) in reference.PAGES.items():
        assert name in fl.__all__
        text = (DOCS / page).read_text("utf-8")
        assert f"fl.{name}" in text or name in ("Comparison", "Callback")


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("Dispatch", "flbench.algorithms.Dispatch\nfrom flbench.algorithms import Dispatch\n"),
        ("fl.run", "fl.run\n"),
        ("testing.run", "flbench.testing.run\n"),
        ("flbench.core.types.Dispatch", "flbench.algorithms.Dispatch\n"),
        ("Algorithm.dispatch", "flbench.algorithms.Algorithm.dispatch\n"),
        ("dispatch", "flbench.algorithms.Algorithm.dispatch\n"),
        ("lifecycle", "flbench.experiment.lifecycle\n"),
        ("losses", "flbench.losses\n"),
        ("losses.similarity.unit", "flbench.losses.similarity.unit\n"),
        ("fedprox", "flbench.algorithms.fedprox.FedProx\n"),
        ("lenet5", "flbench.models.lenet5.LeNet5\n"),
        ("logit_adjustment", "flbench.losses.logit_adjustment.LogitAdjustment\n"),
        ("tuning", "flbench.tuning\n"),
        ("RunSettings", None),
        (Dispatch, "flbench.algorithms.Dispatch\n"),
        (fl.Run.model, "fl.Run.model\n"),
        (fl.losses, "flbench.losses\n"),
        (" Dispatch ", "flbench.algorithms.Dispatch\n"),
    ],
)
def test_names_are_found_in_every_form(name, begin, capsys):
    if begin is None:
        with pytest.raises(fl.ConfigError, match="Did you mean `RoundSettings`"):
            fl.help(name)
    else:
        assert said(capsys, name).startswith(begin)


def test_further_meanings_and_keys_are_named(capsys):
    assert "Also: flbench.testing.run" in said(capsys, "run")
    assert "flbench algos fedprox" in said(capsys, "fedprox")
    assert "aggregate(state, results): Return the entries" in said(capsys, "Algorithm")


def test_registered_names_are_those_of_the_registries():
    assert {*ALGORITHMS.load(), *MODELS.load()} <= set(reference._registered())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Dispetch", "Did you mean `Dispatch`"),
        ("DISPATCH", "Did you mean `Dispatch`"),
        ("Algorithm.Dispetch", "no public name `Algorithm.Dispetch`"),
        ("train.rounds", "no public name"),
        ("..", "no public name"),
        ("", "no public name"),
        ("a/../b", "no public name"),
        (3, "got int"),
        (ast.parse, "got function"),
        (CrossEntropy(), "got CrossEntropy"),
    ],
)
def test_unknown_names_are_errors(name, message):
    with pytest.raises(fl.ConfigError, match=message.replace(".", r"\.")):
        fl.help(name)


@pytest.mark.slow
def test_it_imports_nothing_heavy_and_no_code_of_others(tmp_path):
    (tmp_path / "Trap.py").write_text("raise SystemExit('imported')")
    code = (
        "import sys, time; begin = time.perf_counter(); import flbench as fl; fl.help('Dispatch');"
        "\ntry: fl.help('Trap')\nexcept fl.ConfigError: pass\n"
        "print(time.perf_counter() - begin, {'torch', 'numpy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    seconds, loaded = done.stdout.splitlines()[-1].split(maxsplit=1)

    assert loaded == "set()"
    assert float(seconds) < 3  # about 0.4; a loaded machine needs a margin
