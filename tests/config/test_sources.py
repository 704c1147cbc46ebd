import os
from copy import deepcopy

import pytest

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_file, from_overrides, merge
from flbench.core.errors import ConfigError


def refused(tmp_path, text: str) -> str:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        from_file(file)
    return str(caught.value)


def test_yaml_that_runs_code_is_refused(tmp_path):
    witness = tmp_path / "ran"

    said = refused(tmp_path, f"seed: !!python/object/apply:os.system ['touch {witness}']\n")

    assert "no Python objects" in said
    assert not witness.exists()


def test_yaml_key_that_stands_twice_is_refused(tmp_path):
    assert "x.yaml:3: the key `train.rounds` appears twice" in refused(
        tmp_path, "train:\n  rounds: 1\n  rounds: 2\n"
    )


def test_yaml_syntax_error_names_the_line(tmp_path):
    assert "x.yaml:3" in refused(tmp_path, "seed: 1\ntrain: [\n")


def test_yaml_that_is_not_a_mapping_is_refused(tmp_path):
    assert "must contain keys with values" in refused(tmp_path, "- 1\n")


def test_yaml_bomb_of_aliases_is_refused_at_once(tmp_path):
    lines = ["a0: &a0 {x: 1, y: 2}"]
    for k in range(1, 40):
        lines.append(f"a{k}: &a{k} {{l: *a{k - 1}, r: *a{k - 1}}}")

    assert "more than" in refused(tmp_path, "\n".join(lines))


def test_yaml_of_megabytes_is_refused(tmp_path):
    assert "larger than" in refused(tmp_path, "seed: 1\n" + "#" * 1_100_000)


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        from_file(tmp_path / "nope.yaml")


def test_binary_file_is_an_error(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe\x00\x01")

    with pytest.raises(ConfigError, match="UTF-8"):
        from_file(file)


def test_section_without_keys_in_a_file_has_its_defaults(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("train:\nevaluation:\n  common:\n  every: 2\nalgorithm:\npartition: {}\n")

    layer = from_file(file)
    config, origins = resolve([layer, from_overrides(["train.rounds=3", "algorithm=fedper"])])

    assert layer.tree == {"evaluation": {"every": 2}, "partition": {}}
    assert (config.train.rounds, config.algorithm.name) == (3, "fedper")
    assert config.evaluation.common == Config().evaluation.common
    assert origins["train.batch_size"] == "default"
    assert origins["evaluation.every"] == f"{file}:4"


@pytest.mark.parametrize(
    "text", ["train:\n  rounds:\n", "train: []\n", "model:\n  name:\n", "x:\n"]
)
def test_key_without_a_value_in_a_file_is_refused(tmp_path, text):
    file = tmp_path / "x.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"x\.yaml:[12]"):
        resolve([from_file(file)])


@pytest.mark.parametrize("section", ["train", "algorithm", "evaluation.common"])
def test_section_is_not_null_on_the_command_line(section):
    with pytest.raises(ConfigError, match="must be a section"):
        resolve([from_overrides([f"{section}=null"])])


def test_empty_file_is_an_empty_layer(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("# nothing\n")

    assert from_file(file).tree == {}


@pytest.mark.parametrize(
    "item",
    [
        *("rounds", "=3", ".a=3", "a..b=3"),
        *("seed=[1", "seed=!!int x", "seed=[[" * 30_000, "seed=&a [*a]", 'seed="\\0"'),
    ],
)
def test_wrong_override_is_refused(item):
    with pytest.raises(ConfigError, match="command line"):
        from_overrides([item])


def test_overrides_are_yaml_values():
    tree = from_overrides(["a.b=[0.5, 0, 0.5]", "a.c=null", "d=x=y"]).tree

    assert tree == {"a": {"b": [0.5, 0, 0.5], "c": None}, "d": "x=y"}


@pytest.mark.parametrize(
    "items",
    [
        ["algorithm=[1]", "algorithm.name=fedavg"],
        ["algorithm.name=fedavg", "algorithm=[1]"],
        ["train=null", "train.rounds=3"],
        ["train=3", "train={rounds: 3}"],
        ["train.rounds=3", "train.rounds.x=1"],
    ],
)
def test_value_for_a_section_is_not_lost_among_keys(items):
    with pytest.raises(ConfigError, match=r"has the value .* \(command line\), but .* a section"):
        from_overrides(items)
    with pytest.raises(ConfigError, match="makes it a section"):
        merge([from_overrides([item]) for item in items])


def test_later_value_of_a_section_given_by_name_replaces_the_name():
    tree = from_overrides(["algorithm=fedprox", "algorithm.mu=1", "algorithm=fedavg"]).tree

    assert tree["algorithm"] == {"name": "fedavg"}


def test_key_of_many_parts_is_refused():
    with pytest.raises(ConfigError, match="has 100,001 parts"):
        from_overrides(["a." * 100_000 + "b=1"])


def test_pipe_as_a_configuration_is_refused(tmp_path):
    os.mkfifo(tmp_path / "x.yaml")

    with pytest.raises(ConfigError, match="a pipe, a socket or a device"):
        from_file(tmp_path / "x.yaml")


def test_merge_keeps_what_is_not_overridden():
    layers = [
        from_overrides(["train.rounds=1", "train.clip=2"]),
        from_overrides(["train.rounds=3"]),
    ]

    assert merge(layers)[0] == {"train": {"rounds": 3, "clip": 2}}


def test_number_in_a_key_is_the_index_of_a_list():
    layers = [
        from_overrides(["train.terms=[focal, {name: class_balanced, weight: 3}]"]),
        from_overrides(["train.terms.0.gamma=1.5", "train.terms.1.weight=2"]),
    ]
    before = deepcopy(layers[0].tree)

    terms = merge(layers)[0]["train"]["terms"]

    assert terms == [{"name": "focal", "gamma": 1.5}, {"name": "class_balanced", "weight": 2}]
    assert layers[0].tree == before
    layers.append(from_overrides(["train.terms.1=focal"]))
    assert merge(layers)[0]["train"]["terms"][1] == "focal"


def test_element_that_does_not_exist_is_named():
    layers = [from_overrides(["train.terms=[focal]"]), from_overrides(["train.terms.1.weight=2"])]

    with pytest.raises(ConfigError, match=r"`train\.terms\.1` \(command line\).*has 1 elements"):
        merge(layers)
    with pytest.raises(ConfigError, match=r"`train\.terms\.0`.*there are no loss terms"):
        resolve([from_overrides(["train.terms.0.weight=2"])])


@pytest.mark.parametrize("text", ["1: 2\n", "train:\n  yes: 2\n", "? [a]\n: 2\n"])
def test_key_that_is_not_a_string_is_refused(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)

    with pytest.raises(ConfigError, match="a key must be a word"):
        from_file(tmp_path / "x.yaml")
