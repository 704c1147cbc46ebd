"""Configurations that are read as data, without the code that they name."""

import importlib
import sys

import pytest
from pydantic import Field

from flbench.algorithms.fedavg import FedAvg
from flbench.config import resolve as resolving
from flbench.config.schema import ModelConfig, TermConfig
from flbench.config.sources import Layer, from_file, from_overrides
from flbench.core.errors import ConfigError
from flbench.core.plain_yaml import to_yaml
from flbench.core.registry import ALGORITHMS, MODELS, TERMS
from flbench.deploy import loading
from flbench.experiment import lifecycle


class PullConfig(FedAvg.Config):
    tau: float = Field(1, ge=0)
    layers: tuple[int, ...] = (2, 3)


class Pull(FedAvg):
    Config = PullConfig


class WideConfig(ModelConfig):
    width: int | None = None


class Wide:
    Config = WideConfig


class SoftConfig(TermConfig):
    epsilon: float = 0.5


class Soft:
    Config = SoftConfig


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The config.yaml of a run with parts of a package that is not there any more."""
    (tmp_path / "site").mkdir()
    file = tmp_path / "site" / "pulling.py"
    file.write_text("from tests.config import test_read\nclass Pull(test_read.Pull): pass\n")
    monkeypatch.syspath_prepend(str(file.parent))
    method = importlib.import_module("pulling").Pull
    keys = ("algorithm=pull", "algorithm.tau=2", "model=wide", "train.terms=[soft]")
    with monkeypatch.context() as patch:
        for registry, name, part in (
            (ALGORITHMS, "pull", method),
            (MODELS, "wide", Wide),
            (TERMS, "soft", Soft),
        ):
            patch.setitem(registry, name, part)
        config, origins = resolving.resolve([from_overrides(keys)])
    (tmp_path / "config.yaml").write_text(to_yaml(config.tree(), origins))
    assert config.algorithm.source == "pulling:Pull"
    del sys.modules["pulling"]
    file.unlink()
    return tmp_path, config


def test_parts_of_packages_that_are_not_installed_are_data(written):
    path, config = written

    found = resolving.read(path / "config.yaml")

    assert found.tree() == config.tree()
    assert found.hash() == config.hash()
    assert found.algorithm.tau == 2.0


NETS = [name for name in MODELS.load() if "pretrained" not in name]
TERM = "train.terms=[{name: focal, gamma: 1.5}, label_smoothing]"


def test_a_configuration_is_the_same_as_data(tmp_path, subtests):
    """Also where a method has no key `agg_weights`, as FedAMP, or another default of it."""
    for keys in (
        *((f"algorithm={one}", TERM) for one in ALGORITHMS.load()),
        *((f"model={one}",) for one in NETS),
        ("algorithm=fedavg", "train.terms=[{name: own_losses:sharpness, tau: 0.5}]"),
    ):
        with subtests.test(keys=keys):
            config, origins = resolving.resolve([from_overrides(keys)])
            file = tmp_path / "config.yaml"
            file.write_text(to_yaml(config.tree(), origins))

            for found in (resolving.read(file), resolving.resolve([from_file(file)])[0]):
                assert found.tree() == config.tree()
                assert found.hash() == config.hash()


def test_keys_that_differ_from_the_defaults_of_method_and_net_are_known():
    keys = ("algorithm=hfcd", "model=lenet5", "algorithm.tau=2", "train.rounds=3", "seed=0")
    config, _ = resolving.resolve([from_overrides(keys)])

    assert resolving.changed(config) == ["algorithm.tau", "train.rounds"]


def test_a_part_that_is_registered_is_read_like_one_that_is_not(written, monkeypatch):
    """What a folder says does not depend on the version of the package that is installed."""
    path, config = written

    class Stranger(FedAvg):  # without the key `tau`
        __module__ = "other_package.pull"

    monkeypatch.setitem(ALGORITHMS, "pull", Stranger)

    assert resolving.read(path / "config.yaml").tree() == config.tree()


@pytest.mark.parametrize(
    "go_on",
    [
        lambda path: resolving.resolve_written(path / "config.yaml"),
        lambda path: loading.load(path),
        lambda path: lifecycle.resume(path, Layer({})),
    ],
    ids=["resolve", "predict", "resume"],
)
@pytest.mark.slow
def test_going_on_asks_for_the_code(written, go_on):
    path, _ = written

    with pytest.raises(ConfigError) as caught:
        go_on(path)

    lines = str(caught.value).splitlines()
    for line, name in zip(lines, ("wide", "pull", "soft"), strict=True):
        assert name in line
        assert str(path / "config.yaml") in line


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": {"name": "stranger:Method"}},
        {"model": {"name": "stranger:net"}},
        {"data": {"source": "stranger:data"}},
        {"partition": {"scheme": "stranger:scheme"}},
        {"train": {"terms": [{"name": "stranger", "x": [1], "weight": "any"}]}},
        {"evaluation": {"metrics": {"mine": {"source": "stranger:metric"}}}},
    ],
    ids=str,
)
def test_reading_imports_nothing_that_a_file_names(keys, tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(keys, {}))

    found = resolving.read(file).tree()

    (section, values), *_ = keys.items()
    for key, value in values.items():
        assert str(value if isinstance(value, str) else "stranger") in str(found[section][key])
    assert "stranger" not in sys.modules


def test_keys_that_do_not_exist_any_more_are_left_out_of_what_is_read(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("gone: 1\nengine:\n  gone: true\n  threads: 2\nold:\n  key: 1\n")

    found = resolving.read(file)

    assert found.engine.threads == 2
    assert "gone" not in str(found.tree())
    with pytest.raises(ConfigError, match=r"engine\.gone"):
        resolving.resolve([from_file(file)])
