"""`flbench compare --tuned`: how the setting of the search differs from that of the cells."""

import json
import re
import shutil
from pathlib import Path

import pytest

import flbench as fl
from flbench.api import comparing
from flbench.comparison.design import Design, LabelledLayer
from flbench.comparison.folder import TUNING
from flbench.comparison.prepare import prepare
from flbench.comparison.tuned import with_best
from flbench.config.sources import from_overrides, from_values, merge
from flbench.core.errors import ConfigError
from flbench.jobs.samples import LoadedSamples
from flbench.tuning.request import LONG_TAIL
from tests.support import SMALL, run, write_npz
from tests.tuning import studies

HERE = ("output.", "engine.", "tracking.")
BEST = {"train.optimizer.lr": 0.02}
KEYS = dict(item.split("=", 1) for item in SMALL if not item.startswith(HERE))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of FedAvg whose best trial has the small setting of the tests."""
    out = tmp_path_factory.mktemp("study")
    source, _ = run(out / "run", "algorithm=fedavg", "train.optimizer.lr=0.02", "train.rounds=1")
    partition = json.loads((source / "partition.json").read_text())["hash"]
    folder = studies.begin(out / "found", "fedavg", partition_hash=partition, rounds=1, space={})
    shutil.copytree(source, folder / "trials" / "fedavg" / "000")
    (folder / "trials" / "fedavg" / "000" / "summary.json").unlink()
    studies.trial(folder, "fedavg", 0, 0.9, params=BEST)
    return folder


def design(study, *keys, **options):
    values = {**KEYS, "train.rounds": 1, **dict(keys)}
    base = merge([from_overrides([f"{key}={value}" for key, value in values.items()])])
    method = LabelledLayer.of("fedavg", from_values({"algorithm.name": "fedavg", **BEST}, "test"))
    options = {"seeds": 2, "tuned": str(study), **options}
    return Design(base=base, methods=(method,), **options)


def notes(one):
    return prepare(one, LoadedSamples(), 1, force=True).repeated


@pytest.mark.slow
def test_repetitions_with_the_seed_or_the_partition_of_the_search_have_a_note(study):
    assert notes(design(study, ("seed", 1))) == ()
    for one in (
        design(study),
        design(study, ("partition.seed", 1)),
        design(study, ("seed", 1), ("partition.seed", 0)),
        design(study, vary="training"),
    ):
        [sentence] = notes(one)
        assert study.name in sentence


@pytest.mark.slow
def test_the_partition_of_the_search_has_a_note_in_any_place_whatever_the_seeds(study, tmp_path):
    [other] = design(study, ("seed", 2), seeds=1).cells()
    for name, content in zip(("npz", "json"), LoadedSamples().partition(other), strict=True):
        (tmp_path / f"partition.{name}").write_bytes(content)
    searched = [study / "trials/fedavg/000/partition.npz"]
    left = {key: one for key, one in KEYS.items() if not key.startswith("partition.")}
    values = {**left, "train.rounds": 1, "seed": 1, "partition.scheme": "file"}
    base = merge([from_overrides([f"{key}={value}" for key, value in values.items()])])
    found = []
    for more in ([], searched):
        paths = tuple(map(str, [tmp_path / "partition.npz", *more]))
        found.append(notes(design(study).altered(base=base, grid={"partition.path": paths})))

    assert [len(one) for one in found] == [1, 2]  # the first is about the other setting


@pytest.mark.parametrize(
    ("key", "value", "there"),
    [
        ("train.optimizer.momentum", 0.5, "0"),
        ("model.hidden", "[8]", ""),
        ("algorithm.agg_weights", "uniform", "samples"),
    ],
)
@pytest.mark.slow
def test_each_key_that_differs_is_named_with_both_values(study, key, value, there):
    one = design(study, (key, value), ("seed", 1))
    if key.startswith("algorithm."):
        layer = from_values({"algorithm.name": "fedavg", key: value, **BEST}, "test")
        one = design(study, ("seed", 1)).altered(methods=(LabelledLayer.of("fedavg", layer),))

    with pytest.raises(ConfigError) as refused:
        prepare(one, LoadedSamples(), 1)
    [sentence] = notes(one)
    for said in (sentence, str(refused.value)):
        for told in (study.name, f"{key}: {there}", str(value).strip("[]")):
            assert told in said


@pytest.mark.slow
def test_other_data_and_another_metric_are_named(study, tmp_path):
    write_npz(tmp_path / "mine.npz", n=600)
    own = ("data.path", tmp_path / "mine.npz"), ("seed", 1)
    [sentence] = notes(design(study, *own))
    assert re.search(r"digits \(\w{6}\).*mine \(\w{6}\)", sentence)
    shutil.copytree(study, tmp_path / "auroc")
    tree = json.loads((study / "study.json").read_text())
    studies.write(tmp_path / "auroc" / "study.json", tree | {"metric": "macro_f1"})
    other_metric = design(tmp_path / "auroc", ("seed", 1))
    [sentence] = notes(other_metric)
    assert "macro_f1" in sentence
    prepare(other_metric, LoadedSamples(), 1)  # no key of the setting differs


@pytest.mark.parametrize(
    ("given", "seeds"),
    [({}, (1, 1)), ({"seed": 4}, (4, 4)), ({"partition.seed": 0}, (1, 0))],
)
@pytest.mark.slow
def test_repetitions_begin_after_the_search_unless_a_seed_is_given(
    study, given, seeds, monkeypatch
):
    monkeypatch.chdir(study.parent)
    asked = Design.of(comparing.methods_of("fedavg", "test"), [from_values(given, "test")])

    found = with_best(asked, Path(study.name))
    config = found.cells()[0].config
    assert found.tuned == str(study)  # also for other folders
    assert (config.seed, config.partition_seed) == seeds


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, (0.1, 0.5, 30)),
        ({"partition.alpha": 0.2, "train.rounds": 7}, (0.1, 0.2, 7)),
        ({"data.name": "digits"}, (1.0, 0.1, 100)),
    ],
)
@pytest.mark.slow
def test_default_data_of_a_study_are_those_of_its_comparison(study, tmp_path, given, wanted):
    shutil.copytree(study, tmp_path / "study")
    tree = json.loads((study / "study.json").read_text())
    studies.write(tmp_path / "study" / "study.json", tree | {"setting": LONG_TAIL})
    asked = Design.of(comparing.methods_of("fedavg", "test"), [from_values(given, "test")])

    config = with_best(asked, tmp_path / "study").cells()[0].config

    assert (config.data.imbalance, config.partition.alpha, config.train.rounds) == wanted


@pytest.mark.parametrize("key", ["params", "setting"])
def test_code_that_a_foreign_study_names_is_refused(tmp_path, key):
    """Both are merged into the configuration; nothing of them is imported before the refusal."""
    own = tmp_path / f"own_{key}.py"
    own.write_text("raise AssertionError('imported')")
    named = {"model.name": f"{own}:net"}
    study = studies.begin(tmp_path / "study", "fedavg", setting=named if key == "setting" else {})
    studies.trial(study, "fedavg", 0, 0.9, params=named if key == "params" else BEST)

    with pytest.raises(ConfigError, match=rf"model\.name={own}"):
        with_best(Design.of(comparing.methods_of("fedavg", "test"), []), study)


@pytest.mark.slow
def test_variants_of_an_ablation_may_differ_from_the_study(study):
    one = design(study, ("seed", 1))
    variant = {"algorithm.name": "fedavg", "algorithm.agg_weights": "uniform", **BEST}
    methods = (*one.methods, LabelledLayer.of("fedavg uniform", from_values(variant, "test")))

    prepare(one.altered(methods=methods, reference="fedavg"), LoadedSamples(), 1)

    with pytest.raises(ConfigError, match=r"agg_weights: .*fedavg uniform"):
        prepare(one.altered(methods=methods), LoadedSamples(), 1)


@pytest.mark.slow
def test_the_report_repeats_what_the_command_says(study, tmp_path):
    keys = {key: value for key, value in KEYS.items() if key != "partition.clients"}
    plain = from_overrides([f"{key}={value}" for key, value in keys.items()]).tree
    plain["partition"]["clients"] = 6
    plain["train"] |= {"rounds": 1}
    asked = {"seeds": 1, "tuned": study, "out": tmp_path, "jobs": 1, "progress": False, **plain}
    with pytest.raises(ConfigError, match=r"partition\.clients: 5"):
        fl.compare(["fedavg"], **asked)
    assert not list(tmp_path.iterdir())
    found = fl.compare(["fedavg", "local"], force=True, **asked)

    tree = json.loads((found.path / "comparison.json").read_text())
    defaults, sentence = tree[TUNING]
    assert "partition.clients: 5" in sentence
    assert "local" in defaults
    packed = fl.pack(found.path, tmp_path / "packed.tar.xz")
    for told in (defaults, sentence):
        assert told in found.warnings
        assert told in fl.report(packed).warnings
        assert told in (found.path / "report.md").read_text()
    report = fl.report(found.path)
    assert set(report.leaderboard["method"]) == {"fedavg tuned", "local"}
    with pytest.raises(ConfigError, match="`data`"):
        fl.resume(found.path, data="usps", progress=False)
    again = fl.resume(found.path, progress=False)  # what has begun is not refused
    assert again.cells["state"].eq("finished").all()
    assert again.cells["seed"].tolist() == [1, 1]
