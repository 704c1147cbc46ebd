import json
import os
from copy import deepcopy

import pytest

from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_file, from_overrides, merge, value_at
from flbench.core.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "train.rounds: 5\ntrain.optimizer.lr: 0.5\nalgorithm: ditto\nalgorithm.lam: 2\n",
        "train:\n  rounds: 5\ntrain.optimizer:\n  lr: 0.5\nalgorithm.lam: 2\nalgorithm: ditto\n",
    ],
)
def test_yaml_keys_may_be_dotted(tmp_path, text):
    nested = tmp_path / "nested.yaml"
    nested.write_text(
        "algorithm: {name: ditto, lam: 2}\ntrain: {rounds: 5, optimizer: {lr: 0.5}}\n"
    )
    dotted = tmp_path / "dotted.yaml"
    dotted.write_text(text)

    layer = from_file(dotted)

    assert layer.tree == from_file(nested).tree
    for key, line in (("algorithm.lam", "algorithm.lam"), ("train.rounds", "rounds:")):
        number = next(k for k, one in enumerate(text.splitlines(), 1) if line in one)
        assert layer.origins[key] == f"{dotted}:{number}"


BOMB = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{k}: &a{k} {{l: *a{k - 1}, r: *a{k - 1}}}\n" for k in range(1, 40)
)
REFUSED_FILES = {
    "seed: !!python/object/apply:os.system ['touch ran']\n": 1,
    "train:\n  rounds: 1\n  rounds: 2\n": 3,
    "train.rounds: 1\ntrain:\n  rounds: 2\n": "`train.rounds`",
    "seed: 1\ntrain: [\n": 3,
    "- 1\n": "",
    BOMB: 2,
    "seed: 1\n" + "#" * 1_100_000: "",
    "seed: \udcff\n": "",
    **dict.fromkeys(("1: 2\n", "? [a]\n: 2\n", "train: []\n", "x:\n"), 1),
    **dict.fromkeys(("train:\n  true: 2\n", "train:\n  rounds:\n"), 2),
}


@pytest.mark.parametrize("text", REFUSED_FILES, ids=lambda text: repr(text[:40]))
def test_wrong_file_is_refused_by_its_line(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    place = REFUSED_FILES[text]

    with pytest.raises(ConfigError, match=rf"x\.yaml{f':{place}' if place in (1, 2, 3) else ''}"):
        resolve([from_file(tmp_path / "x.yaml")])
    assert not (tmp_path / "ran").exists()


def test_pipes_and_files_that_are_not_there_are_refused(tmp_path):
    os.mkfifo(tmp_path / "x.yaml")
    for name in ("x.yaml", "nope.yaml"):
        with pytest.raises(ConfigError, match=name):
            from_file(tmp_path / name)


def test_section_without_keys_in_a_file_has_its_defaults(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("train:\nevaluation:\n  common:\n  every: 2\nalgorithm:\npartition: {}\n")

    layer = from_file(file)
    config, origins = resolve([layer, from_overrides(["train.rounds=3", "algorithm=fedper"])])

    assert (config.train.rounds, config.algorithm.name) == (3, "fedper")
    assert config.evaluation.common == Config().evaluation.common
    assert origins["train.batch_size"] == "default"
    assert origins["evaluation.every"] == f"{file}:4"


@pytest.mark.parametrize(
    "item",
    [
        *("rounds", "=3", ".a=3", "a..b=3", "seed=[1", "seed=[!!int x]", "seed=" + "[" * 30_000),
        *("seed=[&a [*a]]", "train={1: 2}", "train={[1]: 2}"),
        *("data.label=", "data.label=  ", "train.clip=", "partition.args.x=", "train="),
    ],
)
def test_wrong_override_is_refused(item):
    with pytest.raises(ConfigError, match="command line"):
        from_overrides([item])


def test_overrides_are_texts_lists_sections_and_null():
    tree = from_overrides(["a.b=[0.5, 0, 0.5]", "a.c=null", "d=x=y", "e={f: 1e-3}", "a.g=1"]).tree

    assert tree == {
        "a": {"b": [0.5, 0, 0.5], "c": None, "g": "1"},
        "d": "x=y",
        "e": {"f": 0.001},
    }


TEXTS = [
    *("trial #3", "no", "2024-01-01", "010", "1:30", "&a", "!x", "a: b", "1e3", "NULL", "a=b"),
]


@pytest.mark.parametrize("word", TEXTS)
def test_word_for_a_key_of_type_text_is_the_word_that_was_typed(word, tmp_path):
    assert resolve([from_overrides([f"data.label={word}"])])[0].data.label == word
    file = tmp_path / "x.yaml"
    file.write_text(f"data:\n  label: {json.dumps(word)}\n")
    assert resolve([from_file(file)])[0].data.label == word


@pytest.mark.parametrize(
    ("item", "value"),
    [
        *(("seed=010", 10), ("seed=-0", 0), ("seed=9007199254740993", 2**53 + 1)),
        *(
            ("partition.alpha=010", 10.0),
            ("train.optimizer.lr=1e-3", 0.001),
            ("train.clip=~", None),
        ),
        *(("evaluation.probabilities=true", True), ("tracking.mlflow=false", False)),
        *(
            ("tracking.mlflow=auto", "auto"),
            ("engine.workers=3", 3),
            ("engine.workers=auto", "auto"),
        ),
        *(("data.label=null", None), ('data.label="null"', "null"), ("data.label='a '", "a ")),
        *(
            ("train.local_epochs= 2 ", 2),
            ("partition.new_clients=0.25", 0.25),
            ("data.resize=8", 8),
        ),
        *(("partition.args.x=1e-3", 0.001), ('partition.args.x="010"', "010")),
        *(
            ("partition.args.x=no", "no"),
            ("partition.args.x=#3", "#3"),
            ("model.args.x=true", True),
        ),
        *(("partition.main_classes=[1, 2]", [1, 2]), ("evaluation.positive=1", "1")),
    ],
)
def test_type_of_the_key_decides_how_a_word_is_read(item, value):
    given = from_overrides([item, *(["model=a:b"] if item.startswith("model") else [])][::-1])
    tree = resolve([given])[0].tree()

    assert value_at(tree, item.partition("=")[0]) == value


@pytest.mark.parametrize(
    "item",
    [
        *("partition.alpha=1:30", "seed=0x10", "seed=1:30", "seed=1.5", "seed=9223372036854775808"),
        *("train.rounds=ten", "seed=0b11", "train.clip=on", "seed=true"),
        *("partition.scheme=010", "train.optimizer.lr=nan", "train.optimizer.lr=.inf"),
    ],
)
def test_word_that_is_no_number_is_refused_as_it_was_typed(item):
    key, _, word = item.partition("=")
    with pytest.raises(ConfigError) as caught:
        resolve([from_overrides([item])])

    assert key in str(caught.value)
    assert word in str(caught.value)


def test_scalars_of_a_file_are_those_of_yaml_1_2(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(
        "data: {label: null, root: 2024-01-01}\ntrain:\n  clip:\npartition:\n"
        "  args: {country: no, up: true, day: 2024-01-01, some: [010, 0x10, 1e-3, .5, off]}\n"
    )

    tree = from_file(file).tree
    assert tree["data"] == {"label": None, "root": "2024-01-01"}
    assert tree["partition"]["args"] == {
        "country": "no",
        "up": True,
        "day": "2024-01-01",
        "some": ["010", "0x10", 0.001, 0.5, "off"],
    }
    assert tree["train"] == {"clip": None}


@pytest.mark.parametrize(
    "items", [["algorithm.name=fedavg", "algorithm=[1]"], ["train.rounds=3", "train.rounds.x=1"]]
)
def test_value_for_a_section_is_not_lost_among_keys(items):
    with pytest.raises(ConfigError, match="command line"):
        resolve([from_overrides(items)])


def test_later_value_replaces_a_section_and_a_later_section_a_value():
    given = "data.normalize={mean: [0.5], std: [0.2]}"

    assert resolve([from_overrides([given, "data.normalize=client"])])[0].data.normalize == "client"
    found = resolve([from_overrides(["data.normalize=client"]), from_overrides([given])])[0]
    assert found.data.normalize.mean == (0.5,)


def test_later_value_of_a_section_given_by_name_replaces_the_name():
    tree = from_overrides(["algorithm=fedprox", "algorithm.mu=1", "algorithm=fedavg"]).tree

    assert tree["algorithm"] == {"name": "fedavg"}


def test_number_in_a_key_is_the_index_of_a_list():
    layers = [
        from_overrides(["train.terms=[focal, {name: class_balanced, weight: 3}]"]),
        from_overrides(["train.terms.0.gamma=1.5", "train.terms.1.weight=2"]),
    ]
    before = deepcopy(layers[0].tree)

    terms = merge(layers).tree["train"]["terms"]

    assert terms == [{"name": "focal", "gamma": 1.5}, {"name": "class_balanced", "weight": 2}]
    assert layers[0].tree == before
    layers.append(from_overrides(["train.terms.1=focal"]))
    assert merge(layers).tree["train"]["terms"][1] == "focal"
    one = [from_overrides(["train.terms=[focal]"]), from_overrides(["train.terms.1.weight=2"])]
    with pytest.raises(ConfigError, match=r"`train\.terms\.1"):
        merge(one)


@pytest.mark.parametrize("section", ["train", "algorithm", "evaluation.common"])
def test_section_that_is_null_has_its_defaults(section):
    below = from_overrides(["train.rounds=3", "algorithm=fedavg", "evaluation.common.limit=5"])

    config, _ = resolve([below, from_overrides([f"{section}=null"])])

    assert value_at(config.tree(), section) == value_at(resolve([])[0].tree(), section)
