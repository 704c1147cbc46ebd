"""The page of a comparison, made from run folders with chosen results."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from flbench.analysis import report
from flbench.analysis.arrangement import arrange
from flbench.analysis.page import page_of
from flbench.analysis.shown import TABLES
from flbench.analysis.tables import analyse
from flbench.comparison.collect import collect
from flbench.core.errors import UserError
from tests.comparison.made import matrix, run_folder
from tests.support import pictures_in_pages

METHODS = {
    "fedavg": [0.60, 0.62, 0.61, 0.64],
    "hfcd": [0.80, 0.81, 0.83, 0.82],
    "local": [0.79, 0.82, 0.82, 0.83],
}


class Page(HTMLParser):
    """What a page loads, and the text of each of its elements."""

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
        if self._silent and tag not in ("svg",):
            return
        self.loads += [found[key] for key in ("src", "href") if key in found]
        self.ids += [found["id"]] if "id" in found else []

    def handle_endtag(self, tag):
        self._silent -= tag in ("style", "script", "svg")

    def handle_data(self, data):
        if not self._silent:
            self.words += data


def analysis_of(folder, **keywords):
    found = collect([folder])
    return analyse(arrange(found.runs, labels=found.labels, **keywords))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    matrix(folder, METHODS, is_rare=True, names=True)
    return analysis_of(folder)


@pytest.fixture(scope="module")
def source(analysis):
    with pictures_in_pages():
        return page_of(analysis).html()


@pytest.mark.slow
def test_page_has_the_answer_the_figures_and_the_runs(analysis, source):
    words = Page(source).words

    for sentence in analysis.answer:
        assert sentence in words
    for row in analysis.leaderboard.itertuples():
        assert f"{row.mean:.4f} [{row.low:.4f}, {row.high:.4f}]" in words
    for entry in analysis.comparison.entries:
        assert str(entry.run.path) in words
    assert "rare recall" in words
    assert "the seed of the training and the partition differ" in words
    assert "train.rounds" in words.partition("Keys that differ")[2].partition("Versions")[0]
    assert "McMahan" in words
    assert "Local training without a federation (reference line)." in words


@pytest.mark.slow
def test_page_loads_nothing(source):
    found = Page(source)

    assert all(address.startswith("#") for address in found.loads)
    assert {address.removeprefix("#") for address in found.loads} <= set(found.ids)
    assert not re.search(r"url\((?!#)|@import|<link|<img", source)


@pytest.mark.slow
def test_names_are_escaped(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, keys=("data.path=<b>x.npz",))

    source = page_of(analysis_of(tmp_path)).html()

    assert "<b>x" not in source
    assert "&lt;b&gt;x" in source


@pytest.mark.slow
def test_same_runs_give_the_same_bytes(analysis, tmp_path):
    with pictures_in_pages():
        report.write(tmp_path / "a", analysis)
        report.write(tmp_path / "b", analysis)

    names = sorted(file.relative_to(tmp_path / "a") for file in (tmp_path / "a").rglob("*.*"))
    assert {name.suffix for name in names} == {*(".html", ".md", ".tex", ".json", ".csv", ".svg")}
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.slow
def test_several_places_have_ranks_and_a_section_each(tmp_path):
    for k in range(2):
        for alpha in ("0.1", "1"):
            some = {name: values[k : k + 2] for name, values in METHODS.items()}
            matrix(tmp_path / alpha / str(k), some, keys=(f"partition.alpha={alpha}",))
    found = analysis_of(tmp_path)

    with pictures_in_pages():
        page = page_of(found)
    words = Page(page.html()).words

    assert found.comparison.places == ("digits, alpha=0.1", "digits, alpha=1")
    assert found.across is not None
    assert "Ranks over 2 places" in words
    names = [one.name for chapter in page.chapters for one in chapter.pictures()]
    assert len(names) == len({*names}) == Page(page.html()).tags["figure"] == 2 + 2 * 9


@pytest.mark.slow
def test_warnings_of_force_are_everywhere(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, keys=("partition.alpha=0.1",))
    run_folder(tmp_path / "b", "hfcd", 0.6, keys=("partition.alpha=0.5",))
    with pytest.raises(UserError, match=r"partition\.alpha: 0\.1 and 0\.5, in .*a and .*b"):
        analysis_of(tmp_path)

    report.write(tmp_path / "out", analysis_of(tmp_path, force=True))

    written = [*(tmp_path / "out").glob("report.*"), *(tmp_path / "out" / "tables").iterdir()]
    # No run has new clients, no class is rare, no target was named, and there is one place.
    assert len(written) == 3 + len(report.FRAMES) - 1 + len(TABLES) - 4
    for file in written:
        assert "not comparable" in file.read_text() or file.name == "targets.csv", file
    with pictures_in_pages():
        page = page_of(analysis_of(tmp_path, force=True))
    for one in (one for chapter in page.chapters for one in chapter.pictures()):
        assert "Not comparable" in one.figure.get_suptitle()


@pytest.mark.slow
def test_page_of_many_methods_and_classes_stays_small(tmp_path):
    rng = np.random.default_rng(0)
    many = ("local", "fedavg", "ft", "fedper", "fedproto", "ditto", "pfedsim", "fedcpmd", "hfcd")
    accuracies = {name: list(0.5 + 0.3 * rng.random(5)) for name in many}
    matrix(tmp_path, accuracies, classes=62, clients=50, rounds=20, is_rare=True)

    with pictures_in_pages():
        source = page_of(analysis_of(tmp_path)).html()

    assert len(source) < 2_000_000
    assert Page(source).tags["figure"] == 10


def test_names_in_pictures_are_text(tmp_path):
    name = '</style>]]><script>"*/'
    labels = {run_folder(tmp_path / "a", "fedavg", 0.5): name}

    with pictures_in_pages():
        source = page_of(analyse(arrange(collect([tmp_path]).runs, labels=labels))).html()

    assert "<script>&quot;" not in source.replace('"', "&quot;")
    assert "&lt;script&gt;" in source


def test_rare_classes_come_first(source):
    titles = re.findall(r"<h3>(.*?)</h3>", source)

    assert titles[:5] == ["Leaderboard", "Test accuracy", "Rare classes", *titles[3:5]]
    assert titles[3:6] == ["The rarest classes", "F1 by class", "Recall by class"]
