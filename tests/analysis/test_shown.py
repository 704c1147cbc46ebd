"""Each table has the same numbers in all of its forms, and those of the CSV files."""

import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from math import isfinite

import pandas as pd
import pytest

from flbench.analysis.arrangement import arrange
from flbench.analysis.report import FRAMES, NOT_IN_LATEX, csv_of, latex_of
from flbench.analysis.shown import TABLES
from flbench.analysis.tables import Analysis
from flbench.comparison.collect import collect
from flbench.core.text import in_latex
from flbench.reports import render
from flbench.reports.shown import Column, Shown, card, is_missing, score
from tests.comparison.made import matrix, run_folder

ACCURACIES = {
    "fedavg": [0.50, 0.52, 0.51, 0.50],
    "hfcd": [0.80, 0.83, 0.81, 0.79],
    "ditto": [0.79, 0.82, 0.82, 0.78],
    "local": [0.71, 0.74, 0.70, 0.75],
}
NUMBER = re.compile(r"[+-]?\d+\.\d+(?:e[+-]?\d+)?")


class Cells(HTMLParser):
    """The cells of the tables of a page."""

    def __init__(self, source):
        super().__init__()
        self.rows = []
        self.is_in = False
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.is_in = True

    def handle_endtag(self, tag):
        self.is_in = self.is_in and tag not in ("td", "th")

    def handle_data(self, data):
        if self.is_in:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    """Two places, of which one has fixed clients with names; a class is rare; a target."""
    folder = tmp_path_factory.mktemp("runs")
    fixed = {"keys": ("partition.seed=0",), "partition_hash": "a" * 64}
    matrix(folder / "a", ACCURACIES, is_rare=True, names=True, **fixed)
    matrix(folder / "b", ACCURACIES, is_rare=True, keys=("partition.alpha=5",))
    return Analysis(arrange(collect([folder]).runs, targets=[0.5]))


@pytest.fixture(scope="module")
def shown(analysis):
    return [
        one
        for place in analysis.comparison.places
        for name, table in TABLES.items()
        for one in table(analysis, place)
        if name != "ranks" or place == analysis.comparison.places[0]
    ]


def flat(value):
    """The numbers of a value of a table."""
    if isinstance(value, tuple):
        return [number for one in value for number in flat(one)]
    return [float(value)] if isinstance(value, int | float) and isfinite(value) else []


def in_cells(source):
    """The rows of a table of LaTeX, with plain text in their cells."""
    lines = [line for line in source.splitlines() if line.endswith(" \\\\") and " & " in line]
    rows = []
    for line in lines:
        line = re.sub(r"\\(?:textbf|underline)\{(.*?)\}(?= &| \\\\$)", r"\1", line)
        for written, mark in (("$-$", "-"), ("$\\pm$", "±"), ("{[}", "["), ("{*}", "*")):
            line = line.replace(written, mark)
        rows.append(re.split(r"(?<!\\) & ", line.removesuffix(" \\\\")))
    return rows


def test_there_is_a_table_of_each_name(shown, analysis):
    place = analysis.comparison.places[0]

    assert {name for name in TABLES if not [*TABLES[name](analysis, place)]} == {"new_clients"}
    assert all(one.rows and one.used for one in shown)
    assert TABLES.keys() - latex_of(analysis).keys() == {*NOT_IN_LATEX, "new_clients"}


def test_numbers_are_those_of_the_csv_files(shown, analysis):
    """Each number of a table is in a CSV file; ranks over places have none."""
    known = set()
    for name in FRAMES:
        frame = pd.read_csv(StringIO(csv_of(analysis, name)))
        for column in frame.select_dtypes("number"):
            known |= {round(float(value), 9) for value in frame[column].dropna()}
    for one in shown:
        if one.title.startswith("Ranks"):
            continue
        for row in one.rows:
            for key in one.used:
                for number in flat(row.get(key)):
                    assert round(number, 9) in known, (one.heading, key, number)


def test_all_forms_have_the_same_cells(shown, capsys):
    for one in shown:
        headings = [column.heading for column in one.used.values()]
        cells = [list(row.values()) for row in one.cells()]
        lines = render.markdown(one).splitlines()
        grid = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")]
        plain = [[unescape(re.sub(r"\\(.)", r"\1", c.strip())) for c in line] for line in grid]
        assert plain == [headings, ["---"] * len(headings), *cells], one.heading
        assert Cells(card("t", one)).rows == [headings, *cells], one.heading
        capsys.readouterr()
        render.console(one, is_whole=True)
        said = capsys.readouterr().out.splitlines()
        split = [re.split(" {2,}", line.strip()) for line in said]
        whole = [row for row in split if len(row) == len(headings)]
        assert whole[-len(cells) :] == cells  # headings are wrapped at words


def test_latex_has_the_same_numbers_with_fewer_decimals(shown):
    for one in shown:
        source = render.latex(one)
        keys, whole = [key for key in one.used if key not in one.screen], one.cells(is_paper=True)
        headings, *rows = in_cells(source)
        found = [dict(zip(headings, row, strict=True)) for row in rows]
        assert headings == [in_latex(one.columns[key].heading) for key in keys]
        for row, exact, short in zip(found, one.cells(), whole, strict=True):
            for key, written in zip(keys, row.values(), strict=True):
                assert written.removesuffix("*") == in_latex(short[key]).replace("{[}", "[")
                numbers = [list(map(float, NUMBER.findall(one[key]))) for one in (exact, short)]
                if "[" not in exact[key]:
                    assert numbers[1][: len(numbers[0])] == pytest.approx(numbers[0], abs=6e-4)


def test_best_is_bold_and_what_is_like_it_underlined(analysis):
    source = latex_of(analysis)["leaderboard"]

    assert re.search(r"hfcd & \\textbf\{0\.80\d ", source)
    assert re.search(r"ditto & \\underline\{0\.80\d ", source)
    assert re.search(r"fedavg & 0\.50\d ", source)


def test_empty_columns_are_left_out():
    columns = {"a": Column("a"), "b": Column("b", score), "c": Column("c", score)}
    rows = [{"a": "x", "b": float("nan"), "c": 1.0}, {"a": "", "b": None, "c": float("nan")}]
    table = Shown("t", columns, rows)

    assert list(table.used) == ["a", "c"]
    assert table.cells() == [{"a": "x", "c": "1.0000"}, {"a": "-", "c": "-"}]
    assert [is_missing(one) for one in ((), (None, 1), 0, "0")] == [True, True, False, False]


def test_long_tables_are_over_several_pages():
    columns = {"name": Column("name"), "c": Column("c", score)}
    rows = [{"name": f"r{k}", "c": k / 10} for k in range(60)]

    short, long = (render.latex(Shown("t", columns, some)) for some in (rows[:3], rows))

    assert (short.count("\\begin{tabular}"), long.count("\\begin{longtable}")) == (1, 1)
    assert len(in_cells(short)) == 4


def test_names_are_text(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0.5, names=True)
    found = Analysis(arrange(collect([tmp_path]).runs, labels={tmp_path / "a": "50 % of a_b {#1}"}))

    source = "".join(latex_of(found).values())

    assert r"50 \% of a\_b \{\#1\}" in source
    assert "a_b" not in source


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no LaTeX")
def test_latex_compiles(analysis, tmp_path):
    tables = latex_of(analysis)
    packages = render.PACKAGES.removeprefix("% ")
    body = "\n\\clearpage\n".join(tables.values())
    source = f"\\documentclass{{article}}\n{packages}\\begin{{document}}\n{body}\\end{{document}}\n"
    (tmp_path / "all.tex").write_text(source)

    made = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )

    assert made.returncode == 0, made.stdout.decode(errors="replace")[-2000:]
