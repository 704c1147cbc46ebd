"""Folders and archives of strangers: reading them runs no code, and training from them asks."""

import importlib
import json
import os
import re
import shutil
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import yaml

import flbench as fl
from flbench.cli.app import main
from flbench.config import trust
from flbench.core import parts
from flbench.core.errors import ConfigError
from flbench.testing import run
from tests.tuning import studies

EVIL = """\
import pathlib

pathlib.Path("imported").touch()


def load(*args, **kwargs):
    pathlib.Path("called").touch()


class Net:
    def __init__(self, *args, **kwargs):
        load()
"""
SHELL = {"args": "touch called", "shell": True}
NUMBERS = count()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run whose method has learned something to show."""
    return run(tmp_path_factory.mktemp("runs"), "algorithm=fedproto")[0]


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Name of a module in the current folder that leaves a file when it is imported or called."""
    monkeypatch.chdir(tmp_path)
    name = f"evil{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(EVIL)
    yield name
    assert not Path("imported").exists()
    assert not Path("called").exists()
    assert name not in sys.modules


def naming(path: str) -> dict[str, dict]:
    """Return sections of a configuration that name code, by what they show."""
    return {
        "shell command": {"model": {"name": "subprocess:run", "lightning": True, "args": SHELL}},
        "net": {"model": {"name": path}},
        "net of a file": {"model": {"name": f"{path.partition(':')[0]}.py:Net"}},
        "file behind a library": {"model": {"name": f"torch.nn./../{path.replace(':', '.py:')}"}},
        "LightningModule": {"model": {"name": path, "lightning": True}},
        "data": {"data": {"name": "digits", "source": path}},
        "scheme": {"partition": {"scheme": path}},
        "term": {"train": {"terms": [{"name": path}]}},
        "metric": {"evaluation": {"metrics": {"mine": {"source": path}}}},
        "method": {"algorithm": {"name": "mine", "source": path}},
        "cluster": {"engine": {"name": "ray", "address": "127.0.0.1:9"}},
    }


KINDS = tuple(naming("m:Net"))


def strangers(finished: Path, folder: Path, sections: dict, *, ended: bool = True) -> Path:
    """Return a copy of a run whose configuration has other values."""
    shutil.copytree(finished, folder)
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    for name, keys in sections.items():
        if "args" not in keys:
            keys = {key: value for key, value in keys.items() if key != "lightning"} | keys
        tree[name] = {**tree[name], **keys} if name not in ("model", "algorithm") else keys
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    if not ended:
        (folder / "summary.json").unlink()
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_training_from_a_folder_asks_before_it_imports(kind, evil, finished, tmp_path, capsys):
    sections = naming(f"{evil}:Net")[kind]
    path = strangers(finished, tmp_path / "theirs", sections)
    open_one = strangers(finished, tmp_path / "open", sections, ended=False)

    for command in (
        ["export", str(path), "--client", "0", "--out", "x.pt2"],
        ["run", "--resume", str(open_one)],
        ["run", "--config", str(path / "config.yaml")],
    ):
        assert main(command) == 2, command
        said = capsys.readouterr().err
        told = ["--run-code", "trust=True"]
        if kind not in ("shell command", "cluster"):
            told.append(str(tmp_path / f"{evil}.py"))
        assert [words for words in told if words not in said] == [], command


@pytest.mark.slow
def test_all_commands_that_build_ask(evil, finished, tmp_path, capsys):
    path = strangers(finished, tmp_path / "theirs", naming(f"{evil}:Net")["net"])
    config = str(path / "config.yaml")
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 1, 8, 8), np.float32))

    for command in (
        ["predict", str(path), "new.npz", "--client", "0"],
        ["run", "--print-config", "--config", config],
        ["run", "--dry-run", "--config", config],
        ["data", "--config", config],
        ["compare", "fedavg", "ft", "--config", config],
        ["tune", "fedavg", "--config", config],
    ):
        assert main(command) == 2, command
        assert "--run-code" in capsys.readouterr().err, command
    for function in (fl.run, fl.partition):
        with pytest.raises(ConfigError, match="trust=True"):
            function(config=config)
    with pytest.raises(ConfigError, match="trust=True"):
        fl.load(path).model(0)


@pytest.mark.parametrize("linked", ["cells", "trials/fedproto/000"])
@pytest.mark.slow
def test_folders_that_links_lead_to_are_not_packed(linked, finished, tmp_path, capsys):
    """The link of a stranger's study may lead to results which this user does not publish."""
    private, theirs = (tmp_path / name for name in ("private", "theirs"))
    for one in (private, theirs):
        studies.begin(one, "fedproto", seeds=1, trials=1)
        studies.trial(one, "fedproto", 0, 0.5)
        studies.cell(one, finished, "fedproto", 1, {"accuracy": 0.5})
    shutil.rmtree(theirs / linked)
    (theirs / linked).symlink_to(private / linked)

    assert main(["pack", str(theirs), "--out", str(tmp_path / "theirs.tar.xz")]) == 2
    assert str(theirs / linked) in capsys.readouterr().err
    assert not (tmp_path / "theirs.tar.xz").exists()


@pytest.mark.parametrize("linked", ["tables", "pictures"])
@pytest.mark.slow
def test_reports_are_not_written_through_links(linked, finished, tmp_path, capsys):
    (tmp_path / "private").mkdir()
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / linked).symlink_to(tmp_path / "private")

    assert main(["report", str(finished), "--out", str(tmp_path / "report")]) == 2
    assert linked in capsys.readouterr().err
    assert not list((tmp_path / "private").iterdir())


def test_comparisons_and_studies_of_strangers_ask(evil, tmp_path, capsys):
    comparison = tmp_path / "comparison"
    comparison.mkdir()
    layer = {"tree": {"model": {"name": f"{evil}:Net"}}, "origins": {}}
    method = {"label": "fedavg", "tree": {"algorithm": {"name": "fedavg"}}, "origins": {}}
    tree = {"base": layer, "methods": [method], "data": [], "grid": {}, "seeds": 1}
    tree |= {"vary": "training", "tuned": None, "id": "c", "created": "", "command": []}
    (comparison / "comparison.json").write_text(json.dumps(tree))
    asked = {"search": "random", "scheduler": "none", "metric": "accuracy"}
    asked |= {"seeds": 0, "vary": "both"}
    asked |= {"gpus": 0, "retries": 0, "address": None, "batch": 1, "equal": "trials"}
    study = studies.begin(tmp_path / "study", "fedavg", trials=1, **asked)
    studies.trial(study, "fedavg", 0, 0.5, params={"model.name": f"{evil}:Net"})
    (study / "methods").mkdir()
    (study / "methods/fedavg.yaml").write_text(f"model: {{name: '{evil}:Net'}}\n")

    for command in (
        ["compare", "--resume", str(comparison)],
        ["tune", "--resume", str(study)],
        ["compare", "fedavg", "ft", "--tuned", str(study)],
    ):
        assert main(command) == 2, command
        assert "--run-code" in capsys.readouterr().err, command


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Name of a module with a net, in the current folder."""
    monkeypatch.chdir(tmp_path)
    name = f"nets{next(NUMBERS)}"
    Path(f"{name}.py").write_text(
        "from subprocess import run\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(64, classes)\n"
        "    def forward(self, x):\n"
        "        return self.head(x.flatten(1))\n"
    )
    return name


@pytest.mark.slow
def test_own_folders_need_no_option_until_something_changes(own, tmp_path, monkeypatch, capsys):
    path, _ = run(tmp_path, "algorithm=fedavg", f"model.name={own}:Net")
    assert fl.load(path).model(0) is not None
    for place in (path / "config.yaml", path, Path(f"{own}.py")):
        mode = place.stat().st_mode
        place.chmod(mode | 0o002)  # anybody can write to it
        with pytest.raises(ConfigError, match="trust=True"):
            fl.load(path).model(0)
        place.chmod(mode)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
    with pytest.raises(ConfigError, match="trust=True"):
        fl.load(path).model(0)
    assert fl.load(path, trust=True).model(0) is not None
    assert fl.load(path).model(0) is not None  # it is on the list

    module = Path(f"{own}.py")
    module.write_text(module.read_text() + "# edited\n")
    with pytest.raises(ConfigError, match=own):
        fl.load(path, trust=True).model(0)


def test_a_file_that_the_user_edits_is_allowed_once(own, tmp_path, capsys):
    beside = Path(f"beside_{own}.py")
    beside.touch()
    Path(f"{own}.py").write_text(f"import beside_{own}\n{Path(f'{own}.py').read_text()}")
    Path("mine.yaml").write_text(f"model: {{name: '{own}:Net'}}\n")
    command = ["run", "--print-config", "--config", "mine.yaml"]

    assert main(command) == 2
    assert main([*command, "--run-code"]) == 0
    assert main(command) == 0
    module = Path(f"{own}.py")
    module.write_text(module.read_text() + "# edited\n")
    assert main(command) == 0
    for place in (module, tmp_path):
        mode = place.stat().st_mode
        place.chmod(mode | 0o022)  # anybody can write to it
        assert main(command) == 2, place
        place.chmod(mode)
    assert main(command) == 0


@pytest.mark.parametrize("path", ["subprocess:run", "builtins:exec"])
def test_the_standard_library_has_no_parts(path, capsys):
    """Also for a user who has named it himself."""
    for key in ("model.name", "partition.scheme", "data.source", "train.terms"):
        value = f"[{{name: '{path}'}}]" if key == "train.terms" else path
        assert main(["run", f"{key}={value}", "train.rounds=1"]) == 2, key
        assert path in capsys.readouterr().err, key


@pytest.mark.parametrize(
    "method", [{"name": "evil", "source": "object:Evil"}, "object:Evil", "object.py:Evil"]
)
@pytest.mark.parametrize("options", [[], ["--run-code"]])
def test_the_word_for_parts_without_a_path_is_no_module(method, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("object.py").write_text(EVIL)
    Path("theirs.yaml").write_text(yaml.safe_dump({"algorithm": method}))

    assert main(["run", *options, "--config", "theirs.yaml"]) == 2
    assert not Path("imported").exists()
    assert "object" not in sys.modules


def test_others_cannot_see_the_state_folder(own, tmp_path, monkeypatch):
    state = tmp_path / "state"
    (state / "flbench").mkdir(parents=True, mode=0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    trust.record(tmp_path, {"model": {"name": f"{own}:Net"}})

    assert (state / "flbench").stat().st_mode & 0o777 == 0o700
    assert trust.list_file().is_relative_to(state / "flbench")


def test_records_of_others_do_not_count(own, tmp_path, monkeypatch):
    tree = {"model": {"name": f"{own}:Net"}}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("config.yaml").touch()
    trust.record(Path("config.yaml"), tree)
    trust.check(Path("config.yaml"), tree)

    if os.getuid() == 0:
        os.chown("config.yaml", 12345, 12345)
    else:
        monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(ConfigError):
        trust.check(Path("config.yaml"), tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"evaluation": {"metrics": {"origins": {"source": "{own}:f"}}}},
        {"train.terms.0.name": "{own}:f"},
        {"train": {"terms": {"0": "{own}:f"}}},
        {"train.terms.0.name": {"choice": ["focal", "{own}:f"]}},
        {"evaluation": {"metrics": {"choice": "{own}:f"}}},
        {"methods": [{"algorithm": "{own}:f"}]},
        {"engine": {"address": {"choice": ["ray://head:1"]}}},
    ],
    ids=str,
)
def test_code_is_found_wherever_a_file_names_it(tree, own):
    named = json.loads(json.dumps(tree).replace("{own}", own))
    assert len(trust.named_code(named)) == 1


def test_other_texts_are_no_code(own):
    texts = ["object:f", "no_such_module:f", f"{own}", "http://localhost:80", "12:30", f"a {own}:f"]
    assert trust.named_code({"model": {"args": texts}}) == {}


@pytest.mark.parametrize("path", ["{own}.missing:f", "{own}:f", " {own}:f", "{own}.py:f"])
def test_a_package_that_a_name_imports_is_found(path, own):
    assert len(trust.named_code({"data": {"source": path.format(own=own)}})) == 1


def test_code_of_another_place_under_a_known_name_is_asked_about(own, tmp_path, monkeypatch):
    tree = {"model": {"name": f"{own}:Net"}}
    file = tmp_path / "config.yaml"
    file.touch()
    trust.record(file, tree)
    trust.check(file, tree)

    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / f"{own}.py").touch()
    monkeypatch.chdir(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="trust=True"):
        trust.check(file, tree)


def test_nets_of_pytorch_and_torchvision_need_no_trust():
    for path in (
        "torchvision.models:resnet18",
        "torch.nn:Linear",
        "torch.nn.modules.linear:Linear",
    ):
        assert trust.named_code({"model": {"name": path}}) == {}
    for path in ("torchvision.models._api:sys.modules", "torch:load", "torch.hub:load"):
        assert len(trust.named_code({"model": {"name": path}})) == 1


@pytest.mark.parametrize(
    "path",
    [
        "torch.nn.modules/evil:Net",
        "torch.nn./../theirs/evil:Net",
        "../theirs/evil:Net",
        "theirs evil:Net",
        "torchvision.models:get_model",
        "torchvision.models:list_models",
        "torchvision.models.utils:load_state_dict_from_url",
        "torchvision.models._api:BUILTIN_MODELS",
        "torchvision.models._api:WeightsEnum",
        "torchvision.models.resnet:partial",
        "torch.nn:functional",
        "torch.nn.modules.module:OrderedDict",
    ],
)
def test_a_name_of_a_library_is_that_of_a_net(path, own):
    """Also where nobody is asked, because the library needs no trust."""
    with pytest.raises(ConfigError, match=re.escape(path)):
        parts.find(path)


@pytest.mark.slow
def test_commands_search_the_folder_of_a_run_for_no_module(finished, tmp_path, monkeypatch):
    """Libraries import `tabulate`, `lz4` and others only if they are installed."""
    shutil.copytree(finished, tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    Path("planted.py").touch()
    np.savez("new.npz", x=np.zeros((2, 1, 8, 8), np.uint8))

    for command in (
        ["predict", "theirs", "new.npz", "--client", "0"],
        ["export", "theirs", "--client", "0", "--out", "x.pt2"],
        ["run", "--dry-run", "--config", "theirs/config.yaml"],
    ):
        assert main(command) == 0, command
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("planted")
