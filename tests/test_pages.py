"""The pages of docs/ that `benchmarks/pages.py` makes from archives of runs and measurements."""

import re
import shutil
from math import nan
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

import flbench as fl
from flbench.core.errors import UserError
from tests.support import benchmark_script

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAPERS = DOCS / "papers"


@pytest.fixture(scope="module")
def script():
    """The module of the script; the modules that it imports are its attributes."""
    with benchmark_script("pages") as module:
        yield module


SLOW = ("papers/measured-slapfl", "real-data", "board/digits-path", "board/new-clients")
LONG = [f"papers/{file.stem}" for file in sorted(PAPERS.glob("measured-*.md"))]
LONG += [f"board/{file.stem}" for file in sorted((DOCS / "board").glob("*.md"))]
LONG.remove("board/method-costs")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(SLOW[0], marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.full) for name in SLOW[1:]),
        *(pytest.param(name, marks=pytest.mark.full) for name in LONG if name not in SLOW),
    ],
)
def test_page_is_what_its_results_say(script, name, monkeypatch, tmp_path):
    drawn = SimpleNamespace(savefig=lambda *_, **__: None)
    monkeypatch.setattr(script.new_clients, "picture", lambda _: drawn)

    assert script.pages()[name]() == (DOCS / f"{name}.md").read_text("utf-8")


def test_every_archive_has_a_page_and_the_papers_have_commands(script, tmp_path):
    written = {file.relative_to(DOCS).with_suffix("").as_posix() for file in DOCS.rglob("*.md")}

    assert script.pages().keys() <= written
    measured = {file.stem.removeprefix("measured-") for file in PAPERS.glob("measured-*.md")}
    assert {*script.papers.names()} == measured == {*script.papers.commands(tmp_path, tmp_path)}


# The board.


def test_accuracy_at_equal_work_is_that_when_the_budget_is_spent(script, monkeypatch):
    rows = [
        (f"{method} tuned", k, n, n * size, "test", "personal", "accuracy", (n + k) * scale)
        for method, size, scale in (("fedavg", 6, 0.01), ("double", 6, 0.02), ("large", 80, 0.03))
        for k in (1, 2, 3)
        for n in (10, 20, 30)
    ]
    names = ["method", "repetition", "round", "bytes", "split", "deployment", "metric", "value"]
    made = SimpleNamespace(
        methods=["fedavg", "double", "large"], long=pd.DataFrame(rows, columns=names), overlap=0
    )
    monkeypatch.setattr(script.board, "setting", lambda name: made)
    work = script.board_work.Work(
        "one", {"fedavg": [40, 80, 120], "double": [80, 160, 240], "large": [50, 100, 150]}
    )

    # 20 rounds of FedAvg: 80 steps, which `double` takes in 10 rounds and `large` in 16; 120 bytes.
    means = work.means.to_dict("index")
    assert means["fedavg"] == pytest.approx({"rounds": 0.22, "steps": 0.22, "bytes": 0.22})
    assert means["double"] == pytest.approx({"rounds": 0.44, "steps": 0.24, "bytes": 0.44})
    assert means["large"] == pytest.approx(
        {"rounds": 0.66, "steps": 0.54, "bytes": nan}, nan_ok=True
    )


def test_differences_are_corrected_as_one_family(script):
    values = ((1, 0.02), (-1, 0.03), (-1, 0.001)), ((1, 0.03), (1, 0.03), (1, 0.001))
    for family, verdicts in zip(values, ("better worse worse", "- - better"), strict=True):
        gaps = {k: script.board.Gap(mean, -1, 1, p) for k, (mean, p) in enumerate(family)}
        found = script.board.corrected(gaps).values()
        assert " ".join(gap.verdict or "-" for gap in found) == verdicts


# Real data.


def test_kept_windows_share_no_value(script, tmp_path):
    """Windows of sequences of 1, 2 and 5 windows, in any order."""
    rng = np.random.default_rng(0)
    windows, persons, places = [], [], []
    for sequence, length in enumerate((1, 2, 5)):
        signal = rng.normal(size=(9, 64 * (length + 1))).astype(np.float16)
        windows += [signal[:, 64 * k : 64 * k + 128] for k in range(length)]
        persons += [sequence % 2] * length
        places += [(sequence, k) for k in range(length)]
    order = rng.permutation(len(windows))
    source = {"windows": np.stack(windows)[order], "subject": np.array(persons)[order]}
    labels = np.arange(len(windows))[order]
    np.savez(tmp_path / "all.npz", labels=labels, class_names=np.arange(8), **source)
    script.real_data.write_activities(tmp_path / "all.npz", tmp_path / "har.npz")

    found = np.load(tmp_path / "har.npz")
    kept = {places[k] for k in found["train_labels"]}
    assert kept == {(0, 0), (1, 0), (2, 0), (2, 2), (2, 4)}
    for label, window in zip(found["train_labels"], found["train_images"], strict=True):
        assert (window == windows[label]).all()


# The papers.


@pytest.mark.slow
def test_missing_runs_are_refused(script, tmp_path):
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(PAPERS / "slapfl.tar.xz", unpacked, filter="data")
    shutil.rmtree(unpacked / "fmnist-0/cells/SLAPFL-fashionmnist-seed1")
    fl.pack(sorted(unpacked.iterdir()), tmp_path / "slapfl.tar.xz")

    with pytest.raises(UserError, match="SLAPFL-fashionmnist-seed1"):
        script.papers.page("slapfl", tmp_path)


def test_interval_uses_the_mean_ratio_of_test_to_training_samples_over_seeds(script, tmp_path):
    """By the formula of Nadeau and Bengio: one run has a ratio of 1/4, two have 1/2."""
    runs = {}
    for seed, train in enumerate((40, 20, 20)):
        runs[str(seed)] = tmp_path / str(seed)
        runs[str(seed)].mkdir()
        table = f"client,train_size,test_size,accuracy\n0,{train},10,0.5\n0,{train},10,0.6\n"
        (runs[str(seed)] / "clients.csv").write_text(table)
    gaps = [1.0, 2.0, 4.0]

    mean, interval, seeds = script.papers.interval(
        dict(enumerate(gaps)), {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}, [{"runs": runs}]
    )

    half = t.ppf(0.975, 2) * stdev(gaps) * (1 / 3 + (1 / 4 + 1 / 2 + 1 / 2) / 3) ** 0.5
    assert (mean, seeds) == ("+2.33", "3")
    assert interval == f"{7 / 3 - half:+.2f} to {7 / 3 + half:+.2f}"


def test_orders_are_ranks_from_the_highest_number_without_the_papers_own_rows(script):
    """Two equal numbers share a rank; a row without a published number has none."""
    published = [10, 20, 30, 40, 50, 60, 70, 70, 99, None]
    measured = [2, 1, 3, 4, 5, 6, 7, 8, 99, 50]
    column = [
        {"place": ("1", "easy"), "paper": "P", "row": f"M{i}", "published": p, "measured": m}
        | {"algorithm": "p" if p == 99 else f"m{i}"}
        for i, (p, m) in enumerate(zip(published, measured, strict=True))
    ]

    found = script.papers.orders([column, column[:4]])

    assert found["others"]
    assert not script.papers.orders([column[:8]])["others"]
    assert script.papers.orders([column[:4]]) == {}
    # Of 28 pairs, one is reversed, and one is a tie of the published numbers.
    [(*place, count, tau, _)] = found["correlations"]
    assert (place, count, tau) == (["1", "easy"], "8", f"{25 / (27 * 28) ** 0.5:.2f}")
    assert found["head"] == ("row", "1, easy")
    ranks = ["8 / 7", "7 / 8", "6 / 6", "5 / 5", "4 / 4", "3 / 3", "1 / 2", "1 / 1"]
    assert found["ranks"] == [(f"M{k}", rank) for k, rank in enumerate(ranks)]


@pytest.mark.parametrize("name", ["index", "fedcpmd", "pfllib"])
def test_differences_in_the_text_are_on_a_measured_page(name):
    """A difference with its interval, such as `-2.4 (-15.6 to 10.8)`, of either sign.

    The differences over rounds 101 to 200 are those of an example on SLAPFL's page.
    """
    number = r"([+-]?\d[\d.]*)"
    pattern = rf"\| {number}(?: ± [\d.]+)?(?: \S+)? \| {number} to {number} \|"
    measured = []
    for file in PAPERS.glob("measured-*.md"):
        for mean, low, high in re.findall(pattern, file.read_text("utf-8")):
            measured += [(float(mean), float(low), float(high))]
            measured += [(-float(mean), -float(high), -float(low))]

    lines = (PAPERS / f"{name}.md").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if "rounds 101 to 200" not in line)
    quoted = re.findall(r"([+-]\d[\d.]*)(?: points)? \(([+-]?[\d.]+) to ([+-]?[\d.]+)\)", text)

    assert quoted
    for numbers in quoted:
        steps = np.array([0.5 * 10 ** -len(text.partition(".")[2]) + 1e-9 for text in numbers])
        near = np.abs(np.array(measured) - np.array(numbers, dtype=float)) <= steps
        assert near.all(axis=1).any(), numbers
