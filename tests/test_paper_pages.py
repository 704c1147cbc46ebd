"""The pages of the papers, which `benchmarks/paper_pages.py` makes from archives of runs."""

import re
import shutil
from pathlib import Path
from statistics import stdev

import pytest
from scipy.stats import t

from tests.support import benchmark_script

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ROOT / "docs" / "papers"


@pytest.fixture(scope="module")
def pages():
    """The module of the script."""
    with benchmark_script("paper_pages") as module:
        yield module


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "slapfl",
        *(
            pytest.param(file.name.removesuffix(".tar.xz"), marks=pytest.mark.full)
            for file in sorted(PAPERS.glob("*.tar.xz"))
            if file.name != "slapfl.tar.xz"
        ),
    ],
)
def test_page_can_be_made_again_from_the_runs(pages, name):
    page = pages.page(PAPERS / f"{name}.tar.xz")

    assert page == (PAPERS / f"measured-{name}.md").read_text("utf-8")


def test_every_archive_has_a_page_and_commands(pages, tmp_path):
    archives = {file.name.removesuffix(".tar.xz") for file in PAPERS.glob("*.tar.xz")}

    assert archives == set(pages.commands(tmp_path, tmp_path))
    assert archives == {
        file.stem.removeprefix("measured-") for file in PAPERS.glob("measured-*.md")
    }


@pytest.mark.slow
def test_missing_run_is_an_error_and_is_not_trained(pages, tmp_path):
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(PAPERS / "slapfl.tar.xz", unpacked, filter="data")
    shutil.rmtree(unpacked / "fmnist-0" / "cells" / "SLAPFL-fashionmnist-seed1")
    archive = tmp_path / "slapfl.tar.xz"
    pages.fl.pack(sorted(unpacked.iterdir()), archive)

    with pytest.raises(SystemExit, match="does not have the run `SLAPFL-fashionmnist-seed1`"):
        pages.page(archive)


@pytest.mark.slow
def test_page_of_slapfl_has_both_accuracies_of_its_runs(pages, tmp_path):
    """Both are read here from the last lines of the runs' metrics.csv."""
    [report] = pages.reports(PAPERS / "slapfl.tar.xz", tmp_path)
    of_row = {c["row"]: c for c in report.tree()["cells"] if c["column"] == "FMNIST accuracy"}

    for method in ("FedAvg", "FedALA", "SLAPFL"):
        for row, protocol in (
            (method, "personal"),
            (f"{method}, right after local training", "personal@local"),
        ):
            assert len(of_row[row]["runs"]) == 3
            for seed, run in of_row[row]["runs"].items():
                lines = [
                    line.split(",") for line in (Path(run) / "metrics.csv").read_text().split()
                ]
                [value] = (
                    float(line[4])
                    for line in lines
                    if line[:4] == ["200", "test", protocol, "accuracy_mean"]
                )
                assert of_row[row]["values"][seed] == pytest.approx(100 * value)
    [column] = [c for c in pages.columns([report]) if c[0]["column"] == "FMNIST accuracy"]
    others = [(own["row"], other["row"]) for own, other in pages.own_to_all(column)]
    assert others == [
        ("SLAPFL", "FedAvg"),
        ("SLAPFL", "FedALA"),
        ("SLAPFL", "SLAPFL, right after local training"),
    ]


def test_interval_uses_the_mean_ratio_of_test_to_training_samples_over_seeds(pages, tmp_path):
    """By the formula of Nadeau and Bengio: one run has a ratio of 1/4, two have 1/2."""
    runs = {}
    for seed, train in enumerate((40, 20, 20)):
        runs[str(seed)] = tmp_path / str(seed)
        runs[str(seed)].mkdir()
        table = f"client,train_size,test_size,accuracy\n0,{train},10,0.5\n0,{train},10,0.6\n"
        (runs[str(seed)] / "clients.csv").write_text(table)
    gaps = [1.0, 2.0, 4.0]

    mean, interval, seeds = pages.interval(
        dict(enumerate(gaps)), {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}, [{"runs": runs}]
    )

    half = t.ppf(0.975, 2) * stdev(gaps) * (1 / 3 + (1 / 4 + 1 / 2 + 1 / 2) / 3) ** 0.5
    assert (mean, seeds) == ("+2.33", "3")
    assert interval == f"{7 / 3 - half:+.2f} to {7 / 3 + half:+.2f}"


def test_orders_are_ranks_from_the_highest_number_without_the_papers_own_rows(pages):
    """Two equal numbers share a rank; a row without a published number has none."""
    published = [10, 20, 30, 40, 50, 60, 70, 70, 99, None]
    measured = [2, 1, 3, 4, 5, 6, 7, 8, 99, 50]
    column = [
        {
            "table": "1",
            "column": "easy",
            "substitute": None,
            "paper": "P",
            "row": f"M{i}",
            "algorithm": "p" if p == 99 else f"m{i}",
            "published": p,
            "measured": m,
        }
        for i, (p, m) in enumerate(zip(published, measured, strict=True))
    ]

    heading, _, correlations, _, ranks = pages.orders([column, column[:4]])
    [without_own, *_] = pages.orders([column[:8]])

    assert heading == "## Order of the other methods"
    assert without_own == "## Order of the methods"
    # Of 28 pairs, one is reversed, and one is a tie of the published numbers.
    assert f"| 1 | easy | 8 | {25 / (27 * 28) ** 0.5:.2f} |" in correlations
    assert ranks.splitlines()[0] == "| row | 1, easy |"
    assert ranks.splitlines()[2:] == [
        *("| M0 | 8 / 7 |", "| M1 | 7 / 8 |", "| M2 | 6 / 6 |", "| M3 | 5 / 5 |"),
        *("| M4 | 4 / 4 |", "| M5 | 3 / 3 |", "| M6 | 1 / 2 |", "| M7 | 1 / 1 |"),
    ]


@pytest.mark.parametrize("name", ["index", "fedcpmd", "pfllib"])
def test_differences_in_the_text_are_on_a_measured_page(name):
    """A difference with its interval, such as `-2.4 (-15.6 to 10.8)`, of either sign.

    The differences over rounds 101 to 200 are those of an example on SLAPFL's page.
    """
    number = r"([+-]?\d[\d.]*)"
    measured = []
    for file in PAPERS.glob("measured-*.md"):
        pattern = rf"\| {number}(?: ± [\d.]+)?(?: \S+)? \| {number} to {number} \|"
        for mean, low, high in re.findall(pattern, file.read_text("utf-8")):
            measured += [(float(mean), float(low), float(high))]
            measured += [(-float(mean), -float(high), -float(low))]

    lines = (PAPERS / f"{name}.md").read_text("utf-8").splitlines()
    quoted = re.findall(
        r"([+-]\d[\d.]*)(?: points)? \(([+-]?[\d.]+) to ([+-]?[\d.]+)\)",
        "\n".join(line for line in lines if "rounds 101 to 200" not in line),
    )

    assert quoted
    for numbers in quoted:
        steps = [0.5 * 10 ** -len(text.partition(".")[2]) + 1e-9 for text in numbers]
        assert any(
            all(
                abs(float(text) - value) <= step
                for text, value, step in zip(numbers, line, steps, strict=True)
            )
            for line in measured
        ), numbers
