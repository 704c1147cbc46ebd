"""`flbench ablate` and `fl.ablate`: the variants of a method, and their differences from it."""

from math import sqrt
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pandas as pd
import pytest
import yaml
from scipy import stats

import flbench as fl
from flbench.algorithms import ALGORITHMS, Paper
from flbench.algorithms.fedavg import FedAvg
from flbench.analysis.arrangement import arrange
from flbench.analysis.tables import Analysis
from flbench.cli import app
from flbench.comparison.ablation import variants
from flbench.config.resolve import resolve
from flbench.config.schema import AlgorithmConfig
from flbench.config.sources import from_overrides, from_values, leaves
from flbench.results import reading
from flbench.results.differences import text_of
from tests.comparison import made
from tests.support import SMALL

TINY = [item for item in SMALL if not item.startswith(("engine.", "tracking.", "train.rounds"))]
ONE = [*TINY, "train.rounds=1", "algorithm.last_only=true"]
FULL = "slapfl"
EQUAL = "slapfl name=cosine"  # the first round has the full learning rate
RATE = "slapfl lr=0.3"
VALUES = ["--values", "train.schedule.name=cosine", "--values", "train.optimizer.lr=0.3"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ablation of a key of SLAPFL, of the learning rate and its schedule; three repetitions."""
    out = tmp_path_factory.mktemp("ablations")
    words = ["--keys", "last_only", *VALUES]
    code = app.main(
        ["ablate", FULL, *words, "--seeds", "3", "--jobs", "1", *ONE, "--out", str(out)]
    )
    assert code == 0
    (path,) = out.iterdir()
    assert path.name.startswith("slapfl-digits-")
    return path


@pytest.mark.slow
def test_each_variant_differs_from_the_method_in_one_key(small: Path):
    trees = {}
    for row in fl.load(small).cells.itertuples():
        tree = leaves(yaml.safe_load((Path(row.path) / "config.yaml").read_text()))
        trees[row.method, row.repetition] = {
            key: value for key, value in tree.items() if not key.startswith("output.")
        }
    assert {method for method, _ in trees} == {FULL, EQUAL, RATE}
    expected = {
        FULL: set(),
        EQUAL: {("train.schedule.name", "cosine")},
        RATE: {("train.optimizer.lr", 0.3)},
    }
    for (method, repetition), tree in trees.items():
        full = trees[FULL, repetition]
        assert {(key, tree[key]) for key in tree if tree[key] != full[key]} == expected[method]


def accuracies(path: Path) -> "pd.Series[float]":
    """Return the test accuracy of each cell by method and repetition, from its metrics.csv."""
    found = {}
    for row in fl.load(path).cells.itertuples():
        table = pd.read_csv(Path(row.path) / "metrics.csv")
        test = table.query("split == 'test' and protocol == 'personal' and metric == 'accuracy'")
        found[row.method, row.repetition] = test["value"].item()
    return pd.Series(found)


@pytest.mark.slow
def test_the_report_has_the_differences_from_the_method_and_no_others(small: Path):
    """The statistics are calculated by SciPy from the metrics of the cells."""
    pairs = fl.report(small).pairs.set_index(["first", "second"])
    assert set(pairs.index) == {(EQUAL, FULL), (RATE, FULL)}
    measured = accuracies(small)
    gaps = measured[RATE] - measured[FULL]
    row = pairs.loc[RATE, FULL]
    assert row["difference"] == pytest.approx(gaps.mean())
    assert row["paired_t"] == pytest.approx(stats.ttest_rel(measured[RATE], measured[FULL]).pvalue)

    assert row["p"] == row["paired_t"] < row["corrected"]
    half = stats.t.ppf(0.975, 2) * sqrt(gaps.var(ddof=1) / 3)
    assert [row["low"], row["high"]] == pytest.approx([gaps.mean() - half, gaps.mean() + half])
    assert row["p_holm"] == row["p"]  # a difference of zero in each repetition is not tested
    assert pairs.loc[(EQUAL, FULL), "difference"] == 0


@pytest.mark.slow
def test_an_archive_has_the_same_pairs_and_other_runs_name_methods_by_their_keys(
    small: Path, tmp_path: Path
):
    archive = fl.pack(small, tmp_path / "one.tar.xz")
    pd.testing.assert_frame_equal(fl.report(archive).pairs, fl.report(small).pairs)
    # A label of the ablation could stand for a run of another configuration.
    made.run_folder(tmp_path / "other", FULL, 0.5, keys=("algorithm.agg_weights=samples",))
    found = fl.report([small, tmp_path / "other"], force=True)
    assert FULL not in set(found.runs["method"])
    assert len(set(found.runs["method"])) == 4


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("hfcd fedavg", "flbench ablate"),
        ("hfcd --keys contrats", "`contrats`"),
        ("hfcd --keys tau", "tau`"),
        ("hfcd --values tau=2,2", "tau=2"),
        ("hfcd --values tau=minus", "algorithm.tau"),
        ("hfcd --values partition.alpha=1", "partition.alpha"),
        ("hfcd --grid algorithm.tau=1,2", "algorithm.tau"),
        ("hfcd --keys tau --values tau=0.5 algorithm.tau=0.5", "hfcd"),
    ],
)
def test_wrong_arguments_are_refused(
    tmp_path: Path, words: str, named: str, monkeypatch: Any, capsys: Any
):
    monkeypatch.chdir(tmp_path)
    assert app.main(["ablate", *words.split()]) == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_method_has_variants_with_one_other_value_each(subtests: pytest.Subtests):
    for name in ALGORITHMS.names():
        with subtests.test(method=name):
            assert_variants_have_one_other_value(name)


def assert_variants_have_one_other_value(name: str) -> None:
    layers = [from_overrides([f"algorithm={name}"])]
    section = resolve(layers)[0].algorithm
    full = section.model_dump()
    found = variants(name, layers, None, {})
    assert len({one.label for one in found}) == len(found)
    tried: dict[str, list[Any]] = {}
    for one in found:
        assert one.is_optional
        ((key, value),) = one.layer.tree["algorithm"].items()
        tried.setdefault(key, []).append(value)
        assert one.label == f"{name} {key}={text_of(value)}"
        assert value != full[key]
    for key, field in type(section).model_fields.items():
        if field.annotation is bool:
            assert tried[key] == [not full[key]]
        if get_origin(field.annotation) is Literal:
            assert {full[key], *tried.get(key, [])} == {*get_args(field.annotation)}


class Choices(FedAvg):
    """FedAvg with keys of many types."""

    paper = Paper("Choices", "nobody", "invented")

    class Config(AlgorithmConfig):
        """Keys that are choices, and others that are not."""

        flag: bool | None = None
        word: Literal["a", "b"] | None = "a"
        mixed: Literal["auto"] | int = 3
        number: Literal[1, 2] = 2
        fixed: Literal[True] = True
        scale: float | None = None


def section_of(method: type) -> Any:
    return [from_values({"algorithm": ALGORITHMS.section(method)}, "test")]


def test_types_of_keys_of_a_method_of_the_user():
    def found(*given: Any) -> list[tuple[str, bool]]:
        these = variants("choices", section_of(Choices), *given)
        return [(one.label.removeprefix("choices "), one.is_optional) for one in these]

    assert [label for label, _ in found(None, {})] == [
        *("agg_weights=uniform", "flag=true", "flag=false", "word=b", "word=-", "mixed=auto"),
        *("number=1",),
    ]
    # Given values replace those of the types, and must be right.
    assert found(["flag", "scale"], {"scale": [0.5, None]}) == [
        ("flag=true", True),
        ("flag=false", True),
        ("scale=0.5", False),
    ]
    assert found(["word"], {"algorithm.word": ["b"]}) == [("word=b", False)]


@pytest.mark.slow
def test_holm_is_for_the_pairs_of_each_place_with_the_reference(tmp_path: Path):
    """Without training: also methods that lack a place, and one without the reference."""
    scores = {"fedavg": 0.5, "fedper": 0.7, "ditto": 0.52, "ft": 0.5}
    for alpha in (0.1, 1):
        for method, score in scores.items():
            for seed, noise in enumerate((0.0, 0.02, 0.05, 0.01)):
                if (method, alpha) != ("ditto", 1):
                    own = (seed + len(method)) ** 2 % 7 / 100 * (method != "fedavg")
                    found = score + noise + own
                    folder = tmp_path / f"{method}-{alpha}-{seed}"
                    keys = (f"partition.alpha={alpha}", "partition.seed=0")
                    same = "a" * 64
                    made.run_folder(
                        folder, method, found, repetition=seed, keys=keys, partition_hash=same
                    )
    runs = [reading.read(path) for path in sorted(tmp_path.iterdir())]
    found = Analysis(arrange(runs, reference="fedavg"))
    by_place = found.pairs.groupby("place")
    assert {place: [*rows["first"]] for place, rows in by_place} == {
        "digits, alpha=0.1": ["ditto", "fedper", "ft"],
        "digits, alpha=1": ["fedper", "ft"],
    }
    for _, rows in by_place:  # Holm's correction by its definition
        p, largest = rows.loc[rows["p"].notna(), "p"].sort_values(), 0.0
        for k, (row, value) in enumerate(p.items()):
            largest = max(largest, min(1.0, (len(p) - k) * value))
            assert rows.loc[row, "p_holm"] == pytest.approx(largest)
    assert found.pairs["p"].notna().any()
    assert set(found.pairs["second"]) == {"fedavg"}
    assert arrange(runs, reference="nobody").reference is None
    assert arrange(runs, reference="fedavg", baseline="ft").reference == "ft"
