"""What is a method, a place and a repetition, and which runs are comparable."""

import math
from dataclasses import replace

import pytest

from flbench.analysis.arrangement import arrange
from flbench.comparison.collect import collect
from flbench.core.errors import UserError
from tests.comparison.made import matrix, run_folder

TWO = {"fedavg": [0.5, 0.6, 0.7], "hfcd": [0.8, 0.8, 0.9]}


def arranged(*folders, **options):
    return arrange(collect([*folders]).runs, **options)


def placed(comparison):
    return {(e.method, e.place, e.repetition): e.run.path.name for e in comparison.entries}


def about(comparison, *names):
    """The warnings that have all of some names."""
    return [one for one in comparison.warnings if all(str(name) in one for name in names)]


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
            folder = tmp_path / f"{method}{k}"
            run_folder(folder, method, 0.5, repetition=k, keys=given, partition_hash=hashes)

    found = arranged(tmp_path)

    assert (found.vary, found.repetitions) == (vary, 3)
    assert placed(found)["hfcd", "digits", 3] == "hfcd2"


def test_one_run_of_each_method_varies_nothing(tmp_path):
    matrix(tmp_path, {name: values[:1] for name, values in TWO.items()})

    found = arranged(tmp_path)

    assert (found.vary, len(found.warnings)) == ("nothing", 1)
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
    assert about(found, "train.optimizer.lr")


def test_default_baseline_is_fedavg_and_of_a_study_that_with_default_parameters(tmp_path):
    for k, lr in enumerate(("0.1", "0.2")):
        run_folder(tmp_path / f"b{k}", "fedavg", 0.5, keys=(f"train.optimizer.lr={lr}",))
    run_folder(tmp_path / "a", "hfcd", 0.5)
    labels = {tmp_path / "b0": "fedavg tuned", tmp_path / "b1": "fedavg"}

    assert arranged(tmp_path).baseline == "fedavg lr=0.1"
    assert arranged(tmp_path, baseline="hfcd").baseline == "hfcd"
    assert arranged(tmp_path / "b0", tmp_path / "b1", labels=labels).baseline == "fedavg"


@pytest.mark.slow
def test_settings_that_all_methods_share_are_places_without_keys_that_follow_others(tmp_path):
    for alpha, size in (("0.1", "8"), ("1", "16")):
        keys = (f"partition.alpha={alpha}", f"train.batch_size={size}")
        matrix(tmp_path / alpha, TWO, keys=keys)

    found = arranged(tmp_path)

    assert found.places == ("digits, alpha=0.1", "digits, alpha=1")
    assert [len(found.at(place)) for place in found.places] == [6, 6]
    assert found.warnings == ()


def test_data_sets_of_one_name_are_told_apart_by_the_beginnings_of_their_hashes(tmp_path):
    for k, sha in enumerate(("ab" * 32, "ab" * 3 + "c" * 58)):
        keys = ("data.name=own", "data.source=object", f"data.sha256={sha}")
        for method in TWO:
            run_folder(tmp_path / f"{method}{k}", method, 0.5, keys=keys)

    found = arranged(tmp_path)

    assert found.places == ("own, sha256=abababa", "own, sha256=abababc")
    assert found.apart is None
    with pytest.raises(UserError, match=r"sha256: abababa and abababc, in "):
        arranged(tmp_path / "fedavg0", tmp_path / "hfcd1")


def test_missing_runs_are_named(tmp_path):
    for alpha in ("0.1", "1"):
        matrix(tmp_path / alpha, TWO, keys=(f"partition.alpha={alpha}",))
    matrix(tmp_path / "c", {"ditto": [0.5, 0.5]}, keys=("partition.alpha=1",))

    found = arranged(tmp_path)

    assert about(found, "alpha=0.1", "ditto has 0 of 3")
    assert about(found, "alpha=1:", "ditto has 2 of 3")


@pytest.mark.parametrize(
    ("key", "first", "second"),
    [
        ("partition.alpha", "0.5", "0.1"),
        ("partition.split", "[0.6,0.2,0.2]", "[0.5,0.1,0.4]"),
        ("train.rounds", "3", "5"),
        ("model.name", "mlp", "lenet5"),
        ("evaluation.rare", "lowest", "share"),
        ("evaluation.every", "1", "2"),
        ("engine.precision", "32-true", "bf16-mixed"),
    ],
)
def test_runs_of_different_tasks_are_refused(key, first, second, tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, keys=(f"{key}={first}",))
    run_folder(tmp_path / "b", "hfcd", 0.6, keys=(f"{key}={second}",))
    reason = f"{key}: {first} and {second}, in {tmp_path / 'a'} and {tmp_path / 'b'}"

    with pytest.raises(UserError) as error:
        arranged(tmp_path)
    found = arranged(tmp_path, force=True)

    assert reason.replace("[", "").replace("]", "") in str(error.value)
    assert about(found, key, tmp_path / "a", tmp_path / "b")
    assert len(found.at(found.places[0])) == 2


def test_runs_of_other_places_data_and_code_are_refused(tmp_path):
    a, b, c, d = (tmp_path / name for name in "abcd")
    run_folder(a, "fedavg", 0.5)
    run_folder(b, "hfcd", 0.6, partition_hash="1" * 64)
    run_folder(c, "ditto", 0.6, provenance={"git_revision": "fedcba"})
    matrix(d / "x", {"fedavg": [0.5], "hfcd": [0.6]}, keys=("partition.alpha=0.1",))
    matrix(d / "y", {"fedavg": [0.5], "ditto": [0.6]}, keys=("partition.alpha=1",))

    for folders, key in {
        (a, b): "000000000000 and 111111111111, in",
        (a, c): r"0123456789ab.*fedcba",
        (d,): r"partition\.alpha: 0.1 and 1, in .*hfcd-0 and .*ditto-0",
    }.items():
        with pytest.raises(UserError, match=key):
            arranged(*folders)


def test_runs_that_are_there_twice_unfinished_or_no_number_are_left_out(tmp_path):
    matrix(tmp_path, TWO)
    twice = run_folder(tmp_path / "z", "fedavg", 0.5)
    runs = collect([tmp_path]).runs
    by_name = {run.path.name: run for run in runs}
    by_name["hfcd-1"].summary["best"]["test"]["accuracy"] = math.nan
    by_name["hfcd-2"] = replace(by_name["hfcd-2"], finished=False)

    found = arrange([*by_name.values()])

    names = {one.run.path.name for one in found.entries}
    assert names == {"fedavg-0", "fedavg-1", "fedavg-2", "hfcd-0"}
    for path in (twice, tmp_path / "hfcd-1", tmp_path / "hfcd-2"):
        assert len(about(found, path)) == 1
    packed = arrange([*by_name.values()], shown={run.path: f"a: {run.path.name}" for run in runs})
    assert len(packed.warnings) == len(found.warnings)
    assert not about(packed, tmp_path)  # an archive is unpacked elsewhere
    assert about(found, "hfcd has 1 of 3")
    for lost in ("hfcd-1", "hfcd-2"):
        with pytest.raises(UserError):
            arrange([by_name[lost]])


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"metric": "loss"}, "`loss`"),
        ({"metric": "acuracy"}, "`accuracy`"),
        ({"metric": "accuracy,macro_f2"}, "`macro_f1`"),
        ({"metric": "rare_recall"}, "`rare_recall`"),
        ({"metric": "client_std"}, "`client_std`"),
        ({"metric": "bytes"}, "`bytes`"),
        ({"metric": " , "}, "metric=' , '"),
        ({"metric": None}, "metric=None"),
        ({"targets": "0.5,x"}, "targets='0.5,x'"),
        ({"targets": 90}, "targets=90"),
        ({"targets": True}, "targets=True"),
        ({"targets": (0.5, math.nan)}, "targets="),
        ({"baseline": "FedAvg"}, "`fedavg`"),
    ],
)
def test_what_no_table_can_be_made_of_is_refused(arguments, key, tmp_path):
    runs = collect([run_folder(tmp_path / "a", "fedavg", 0.5)]).runs
    runs[0].summary["best"]["test"] |= {"rare_recall": 0.5, "client_std": 0.1}

    with pytest.raises(UserError) as error:
        arrange(runs, **arguments)

    assert key in str(error.value)


def test_runs_on_other_samples_are_kept_apart(tmp_path):
    for name, sha, seeds in (("mine", "a" * 64, (0, 1)), ("colleague", "b" * 64, (1, 2))):
        for method in TWO:
            for seed in seeds:
                folder = tmp_path / name / f"{method}-{seed}"
                run_folder(folder, method, 0.5, repetition=seed, data_hash=sha)

    found = arranged(tmp_path)

    assert found.places == ("digits, samples=bbbbbb", "digits, samples=aaaaaa")
    assert [len(found.at(place)) for place in found.places] == [4, 4]
    assert about(found, "SHA-256", tmp_path / "mine", tmp_path / "colleague")
    with pytest.raises(UserError, match=r"samples: bbbbbb and aaaaaa, in "):
        arranged(tmp_path / "colleague" / "fedavg-1", tmp_path / "mine" / "hfcd-1")


def test_partitions_of_the_same_samples_are_repetitions_and_unknown_samples_join_them(tmp_path):
    for seed, sha in enumerate(("a" * 64, None, "a" * 64)):
        for method in TWO:
            folder = tmp_path / f"{method}-{seed}"
            run_folder(folder, method, 0.5, repetition=seed, data_hash=sha)

    found = arranged(tmp_path)

    assert (found.places, found.repetitions, found.vary) == (("digits",), 3, "both")
    assert not about(found, "samples")


def test_other_repetitions_of_a_method_are_missing_ones(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, repetition=1)
    run_folder(tmp_path / "b", "hfcd", 0.5, repetition=2)

    assert about(arranged(tmp_path), "fedavg has 1 of 2, hfcd has 1 of 2")
