"""The page of a comparison, made from run folders with chosen results."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from flbench.analysis import report
from flbench.analysis.arrangement import arrange
from flbench.analysis.page import page_of
from flbench.analysis.tables import Analysis
from flbench.comparison.collect import collect
from tests.comparison.made import matrix, run_folder
from tests.support import pictures_in_pages

METHODS = {
    "fedavg": [0.60, 0.62, 0.61, 0.64],
    "hfcd": [0.80, 0.81, 0.83, 0.82],
    "local": [0.79, 0.82, 0.82, 0.83],
}


class Page(HTMLParser):
    """What a page loads, its ids and headings, the number of its tags, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: dict[str, int] = {}
        self.words = ""
        self._silent = 0
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self._silent += tag in ("style", "script", "svg")
        if not self._silent or tag == "svg":
            self.loads += [found[key] for key in ("src", "href") if key in found]
            self.ids += [found["id"]] if "id" in found else []

    def handle_endtag(self, tag):
        self._silent -= tag in ("style", "script", "svg")

    def handle_data(self, data):
        if not self._silent:
            self.words += data


def analysis_of(folder, **keywords):
    found = collect([folder])
    return Analysis(arrange(found.runs, labels=found.labels, **keywords))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    matrix(folder, METHODS, is_rare=True, names=True)
    return analysis_of(folder)


@pytest.fixture(scope="module")
def written(analysis, tmp_path_factory):
    """The folder of the report."""
    folder = tmp_path_factory.mktemp("written") / "report"
    with pictures_in_pages():
        report.write(folder, analysis)
    return folder


@pytest.mark.slow
def test_page_has_the_answer_the_figures_and_the_runs_and_loads_nothing(analysis, written):
    source = (written / "report.html").read_text()
    found = Page(source)

    for sentence in analysis.answer:
        assert sentence in found.words
    for row in analysis.leaderboard.itertuples():
        assert f"{row.mean:.4f} [{row.low:.4f}, {row.high:.4f}]" in found.words
    for entry in analysis.comparison.entries:
        assert str(entry.run.path) in found.words
    assert "McMahan" in found.words  # the author of a paper
    differing, *_ = page_of(analysis).chapters[-1].parts
    assert "train.rounds" in differing.parts[0]
    assert "model.name" not in differing.parts[0]
    assert all(address.startswith("#") for address in found.loads)
    assert {address.removeprefix("#") for address in found.loads} <= set(found.ids)
    assert not re.search(r"url\((?!#)|@import|<link|<img", source)
    titles = re.findall(r"<h3>(.*?)</h3>", source)
    assert titles.index("Rare classes") < titles.index("F1 by class")


@pytest.mark.slow
def test_names_are_text_in_pages_and_pictures(tmp_path):
    name = '</style>]]><script>"*/'
    labels = {run_folder(tmp_path / "a", "fedavg", 0.5, keys=("data.path=<b>x.npz",)): name}

    with pictures_in_pages():
        source = page_of(Analysis(arrange(collect([tmp_path]).runs, labels=labels))).html()

    for text, escaped in (("<b>x", "&lt;b&gt;x"), ('<script>"', "&lt;script&gt;")):
        assert text not in source
        assert escaped in source


@pytest.mark.slow
def test_same_runs_give_the_same_bytes(analysis, written, tmp_path):
    with pictures_in_pages():
        report.write(tmp_path, analysis)

    names = sorted(file.relative_to(written) for file in written.rglob("*.*"))
    assert {name.suffix for name in names} == {*(".html", ".md", ".tex", ".json", ".csv", ".svg")}
    for name in names:
        assert (written / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.slow
def test_several_places_have_ranks_and_a_section_each(tmp_path):
    for alpha in ("0.1", "1"):
        some = {name: values[:2] for name, values in METHODS.items()}
        matrix(tmp_path / alpha, some, keys=(f"partition.alpha={alpha}",))
    found = analysis_of(tmp_path)

    with pictures_in_pages():
        page = page_of(found)

    assert found.across is not None
    assert len(page.chapters) == 4  # all places, each of two, and how it was done
    names = [one.name for chapter in page.chapters for one in chapter.pictures()]
    assert len(names) == len({*names}) == Page(page.html()).tags["figure"] == 2 + 2 * 9


@pytest.mark.slow
def test_warnings_of_force_are_everywhere(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, keys=("partition.alpha=0.1",))
    run_folder(tmp_path / "b", "hfcd", 0.6, keys=("partition.alpha=0.5",))
    found = analysis_of(tmp_path, force=True)

    report.write(tmp_path / "out", found)

    written = [*(tmp_path / "out").glob("report.*"), *(tmp_path / "out" / "tables").iterdir()]
    assert len(written) == 3 + len(report.FRAMES) - 1 + len(report.latex_of(found))
    for file in written:  # no target was named
        assert "0.1 and 0.5, in" in file.read_text() or file.name == "targets.csv", file
    with pictures_in_pages():
        page = page_of(found)
    for one in (one for chapter in page.chapters for one in chapter.pictures()):
        assert one.figure.get_suptitle()


@pytest.mark.slow
def test_page_of_many_methods_and_classes_stays_small(tmp_path):
    rng = np.random.default_rng(0)
    many = ("local", "fedavg", "ft", "fedper", "fedproto", "ditto", "pfedsim", "fedcpmd", "hfcd")
    accuracies = {name: list(0.5 + 0.3 * rng.random(3)) for name in many}
    matrix(tmp_path, accuracies, classes=62, clients=50, rounds=20, is_rare=True)

    with pictures_in_pages():
        source = page_of(analysis_of(tmp_path)).html()

    assert len(source) < 2_000_000
    assert Page(source).tags["figure"] == 10
