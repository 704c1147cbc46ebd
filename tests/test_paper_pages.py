"""The pages of the five papers, which `benchmarks/paper_pages.py` makes from archives of runs."""

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ROOT / "docs" / "papers"


@pytest.fixture(scope="module")
def pages():
    """The module of the script, which is not part of a package."""
    if not (ROOT / "benchmarks").exists():
        pytest.skip("this is not a checkout: benchmarks/ is missing")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import paper_pages

        yield paper_pages
        sys.modules.pop("paper_pages", None)


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


def test_missing_run_is_an_error_and_is_not_trained(pages, tmp_path):
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(PAPERS / "slapfl.tar.xz", unpacked, filter="data")
    shutil.rmtree(next(unpacked.glob("slapfl-seed1-*")))
    archive = tmp_path / "slapfl.tar.xz"
    pages.fl.pack(sorted(unpacked.iterdir()), archive)

    with pytest.raises(
        SystemExit, match="does not have the run `table 2: SLAPFL on FMNIST, seed 1"
    ):
        pages.page(archive)


def test_run_without_a_command_is_an_error(pages, tmp_path, monkeypatch):
    monkeypatch.setenv("SEEDS", "2")

    with pytest.raises(SystemExit, match="runs that are in no report"):
        pages.page(PAPERS / "slapfl.tar.xz")


def test_page_has_the_footnotes_of_what_it_shows(pages, tmp_path):
    [report] = pages.reports(PAPERS / "slapfl.tar.xz", tmp_path)

    assert "[2.1] FedAvg, FMNIST accuracy" in report.text
    assert "CIFAR10 accuracy:" not in report.text
    assert len(report.content["footnotes"]) == 3
