"""What is a method, a place and a repetition, and which runs are comparable."""

import math
from dataclasses import replace

import pytest

from flbench.analysis.arrangement import arrange
from flbench.comparison.collect import collect
from flbench.core.errors import UserError
from tests.comparison.made import matrix, run_folder

TWO = {"fedavg": [0.5, 0.6, 0.7], "hfcd": [0.8, 0.8, 0.9]}


def arranged(folder, **options):
    return arrange(collect([folder]).runs, **options)


def placed(comparison):
    return {(e.method, e.place, e.repetition): e.run.path.name for e in comparison.entries}


def test_methods_and_repetitions(tmp_path):
    matrix(tmp_path, TWO)

    found = arranged(tmp_path)

    assert placed(found) == {
        (method, "digits", k + 1): f"{method}-{k}" for method in TWO for k in range(3)
    }
    assert (found.methods, found.repetitions, found.vary) == (("fedavg", "hfcd"), 3, "both")
    assert (found.baseline, found.warnings) == ("fedavg", ())


@pytest.mark.parametrize(
    ("keys", "hashes", "vary"),
    [
        (("seed={}", "partition.seed=7"), "0" * 64, "training"),
        (("seed=7", "partition.seed={}"), None, "partition"),
        (("seed={}",), None, "both"),
    ],
)
def test_what_differs_between_repetitions(keys, hashes, vary, tmp_path):
    for k in range(3):
        for method in TWO:
            given = tuple(key.format(k) for key in keys)
            run_folder(
                tmp_path / f"{method}{k}",
                method,
                0.5,
                repetition=k,
                keys=given,
                partition_hash=hashes,
            )

    found = arranged(tmp_path)

    assert found.vary == vary
    assert found.repetitions == 3
    assert placed(found)["hfcd", "digits", 3] == "hfcd2"


def test_one_run_of_each_method_varies_nothing(tmp_path):
    matrix(tmp_path, {name: values[:1] for name, values in TWO.items()})

    found = arranged(tmp_path)

    assert found.vary == "nothing"
    [sentence] = found.warnings
    assert sentence.startswith("Fewer than 3 repetitions")
    assert arranged(tmp_path / "hfcd-0").warnings == ()


def test_partitions_that_differ_between_methods_are_not_repetitions(tmp_path):
    for method, digit in zip(TWO, "01", strict=True):
        run_folder(tmp_path / method, method, 0.5, partition_hash=digit * 64)

    assert arranged(tmp_path, force=True).vary == "nothing"


def test_keys_of_a_method_make_methods(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5)
    run_folder(tmp_path / "b", "hfcd", 0.5)
    run_folder(tmp_path / "c", "hfcd", 0.6, keys=("algorithm.tau=0.25", "train.optimizer.lr=0.1"))

    found = arranged(tmp_path)

    assert found.methods == ("fedavg", "hfcd tau=0.2, lr=0.01", "hfcd tau=0.25, lr=0.1")
    assert found.places == ("digits",)
    assert any("train.optimizer.lr" in sentence for sentence in found.warnings)


def test_default_baseline_is_fedavg_whatever_its_label(tmp_path):
    run_folder(tmp_path / "a", "hfcd", 0.5)
    for k, lr in enumerate(("0.1", "0.2")):
        run_folder(tmp_path / f"b{k}", "fedavg", 0.5, keys=(f"train.optimizer.lr={lr}",))

    assert arranged(tmp_path).baseline == "fedavg lr=0.1"
    assert arranged(tmp_path, baseline="hfcd").baseline == "hfcd"
    with pytest.raises(UserError, match=r"'ditto' is not one of the methods: hfcd, fedavg lr=0\.1"):
        arranged(tmp_path, baseline="ditto")


def test_default_baseline_of_a_study_has_the_default_parameters(tmp_path):
    labels = {tmp_path / "a": "hfcd tuned", tmp_path / "b": "hfcd"}
    for folder, label in labels.items():
        run_folder(folder, "hfcd", 0.5, keys=(f"train.optimizer.lr=0.{len(label)}",))

    assert arranged(tmp_path, labels=labels).baseline == "hfcd"


@pytest.mark.slow
def test_settings_that_all_methods_share_are_places(tmp_path):
    for alpha in ("0.1", "1"):
        matrix(tmp_path / alpha, TWO, keys=(f"partition.alpha={alpha}",))

    found = arranged(tmp_path)

    assert found.places == ("digits, alpha=0.1", "digits, alpha=1")
    assert [len(found.at(place)) for place in found.places] == [6, 6]
    assert found.warnings == ()


@pytest.mark.slow
def test_label_of_a_place_leaves_out_keys_that_follow_others(tmp_path):
    for alpha, hidden in (("0.1", "8"), ("1", "16")):
        matrix(
            tmp_path / alpha, TWO, keys=(f"partition.alpha={alpha}", f"train.batch_size={hidden}")
        )

    assert arranged(tmp_path).places == ("digits, alpha=0.1", "digits, alpha=1")


def test_data_sets_of_one_name_are_told_apart_by_the_beginnings_of_their_hashes(tmp_path):
    for k, sha in enumerate(("ab" * 32, "ab" * 3 + "c" * 58)):
        keys = ("data.name=own", "data.source=object", f"data.sha256={sha}")
        for method in TWO:
            run_folder(tmp_path / f"{method}{k}", method, 0.5, keys=keys)

    found = arranged(tmp_path)

    assert found.places == ("own, sha256=abababa", "own, sha256=abababc")
    assert found.apart is None
    with pytest.raises(UserError, match=r"sha256: abababa and abababc, in "):
        arrange(collect([tmp_path / "fedavg0", tmp_path / "hfcd1"]).runs)


def test_missing_runs_are_named(tmp_path):
    for alpha in ("0.1", "1"):
        matrix(tmp_path / alpha, TWO, keys=(f"partition.alpha={alpha}",))
    matrix(tmp_path / "c", {"ditto": [0.5, 0.5]}, keys=("partition.alpha=1",))

    warnings = arranged(tmp_path).warnings

    assert "digits, alpha=0.1: repetitions are missing: ditto has 0 of 3." in warnings
    assert "digits, alpha=1: repetitions are missing: ditto has 2 of 3." in warnings


@pytest.mark.parametrize(
    ("key", "first", "second"),
    [
        ("partition.alpha", "0.5", "0.1"),
        ("partition.scheme", "dirichlet", "iid"),
        ("partition.split", "[0.6,0.2,0.2]", "[0.5,0.1,0.4]"),
        ("partition.pool", "train", "merged"),
        ("train.batchnorm", "average", "local"),
        ("train.rounds", "3", "5"),
        ("train.participation", "1", "0.5"),
        ("model.name", "mlp", "lenet5"),
        ("evaluation.rare", "lowest", "share"),
        ("evaluation.every", "1", "2"),
        ("engine.precision", "32-true", "bf16-mixed"),
    ],
)
def test_runs_of_different_tasks_are_refused(key, first, second, tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, keys=(f"{key}={first}",))
    run_folder(tmp_path / "b", "hfcd", 0.6, keys=(f"{key}={second}",))

    with pytest.raises(UserError) as error:
        arranged(tmp_path)

    first, second = first.strip("[]"), second.strip("[]")
    reason = f"they differ in {key}: {first} and {second}, in {tmp_path / 'a'} and {tmp_path / 'b'}"
    assert reason in str(error.value)
    assert "--force" in str(error.value)
    found = arranged(tmp_path, force=True)
    assert reason in found.warnings[0]
    assert len(found.at(found.places[0])) == 2


def test_methods_without_a_common_place_are_refused(tmp_path):
    matrix(tmp_path / "x", {"fedavg": [0.5], "hfcd": [0.6]}, keys=("partition.alpha=0.1",))
    matrix(tmp_path / "y", {"fedavg": [0.5], "ditto": [0.6]}, keys=("partition.alpha=1",))

    with pytest.raises(UserError, match=r"partition\.alpha: 0.1 and 1, in .*hfcd-0 and .*ditto-0"):
        arranged(tmp_path)


def test_other_data_and_other_code_are_refused(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5)
    run_folder(tmp_path / "b", "hfcd", 0.6, partition_hash="1" * 64)
    with pytest.raises(UserError, match=r"partition .*: 000000000000 and 111111111111, in"):
        arranged(tmp_path)

    run_folder(tmp_path / "c", "ditto", 0.6, provenance={"git_revision": "fedcba"})
    with pytest.raises(UserError, match=r"version of flbench: .*0123456789ab.*fedcba"):
        arrange(collect([tmp_path / "a", tmp_path / "c"]).runs)


def test_run_that_is_there_twice_counts_once(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5)
    run_folder(tmp_path / "b", "fedavg", 0.5)

    found = arranged(tmp_path)

    assert len(found.entries) == 1
    assert f"{tmp_path / 'b'} has the method and the seeds of {tmp_path / 'a'}" in found.warnings[0]


def test_unfinished_runs_are_left_out(tmp_path):
    matrix(tmp_path, TWO)
    runs = list(collect([tmp_path]).runs)
    runs[0] = replace(runs[0], finished=False)

    warnings = arrange(runs).warnings

    assert warnings[0] == f"not finished, and left out: {runs[0].path}."
    assert "fedavg has 2 of 3" in warnings[1]
    with pytest.raises(UserError, match="no finished run"):
        arrange([runs[0]])


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("loss", "no test metric `loss`. It has accuracy, "),
        ("rare_recall", "has no rare class, so `rare_recall` ranks no methods"),
        ("client_std", "`client_std` ranks no methods"),
    ],
)
def test_metric_must_rank_methods(metric, words, tmp_path):
    matrix(tmp_path, TWO)
    runs = collect([tmp_path]).runs
    for run in runs:
        run.summary["best"]["test"] |= {"rare_recall": 0.5, "client_std": 0.1}

    with pytest.raises(UserError, match=words):
        arrange(runs, metric=metric)


def test_run_whose_metric_is_no_number_is_left_out(tmp_path):
    matrix(tmp_path, TWO)
    runs = collect([tmp_path]).runs
    runs[0].summary["best"]["test"]["accuracy"] = math.nan

    assert [one.run.path for one in arrange(runs).entries] == [run.path for run in runs[1:]]


def test_runs_on_other_samples_are_kept_apart(tmp_path):
    for name, sha, seeds in (("mine", "a" * 64, (0, 1)), ("colleague", "b" * 64, (1, 2))):
        for method in TWO:
            for seed in seeds:
                folder = tmp_path / name / f"{method}-{seed}"
                run_folder(folder, method, 0.5, repetition=seed, data_hash=sha)

    found = arranged(tmp_path)

    assert found.places == ("digits, samples=bbbbbb", "digits, samples=aaaaaa")
    assert [len(found.at(place)) for place in found.places] == [4, 4]
    [said] = [one for one in found.warnings if "samples" in one and "SHA-256" in one]
    assert str(tmp_path / "mine") in said
    assert str(tmp_path / "colleague") in said
    strangers = [tmp_path / "colleague" / "fedavg-1", tmp_path / "mine" / "hfcd-1"]
    runs = collect(strangers).runs
    with pytest.raises(UserError, match=r"differ in samples: bbbbbb and aaaaaa, in "):
        arrange(runs)


def test_partitions_of_the_same_samples_are_repetitions_and_unknown_samples_join_them(tmp_path):
    for seed, sha in enumerate(("a" * 64, None, "a" * 64)):
        for method in TWO:
            folder = tmp_path / f"{method}-{seed}"
            run_folder(folder, method, 0.5, repetition=seed, data_hash=sha)

    found = arranged(tmp_path)

    assert (found.places, found.repetitions, found.vary) == (("digits",), 3, "both")
    assert not any("samples" in sentence for sentence in found.warnings)


def test_other_repetitions_of_a_method_are_missing_ones(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, repetition=1)
    run_folder(tmp_path / "b", "hfcd", 0.5, repetition=2)

    assert (
        "digits: repetitions are missing: fedavg has 1 of 2, hfcd has 1 of 2."
        in arranged(tmp_path).warnings
    )
