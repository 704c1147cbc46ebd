"""Texts of pictures: literal, in legends whatever they begin with, and none over another."""

from io import BytesIO
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from flbench.analysis import figures as comparison_figures
from flbench.reports import data_figures
from flbench.reports.picture import Picture

UGLY = [
    *("$x$", "a_b^{2}", "{\\frac", "\\alpha $", "line\nbreak", "_under", "\u0645\u0631", "x" * 60),
    *("\U0001f600", "W" * 14, "\u65e5\u672c\u8a9e", "100% $5 & $6", "<b>", "[red]"),
]
N = len(UGLY)


def drawn() -> dict[str, Picture]:
    counts = np.arange(N * N).reshape(N, N)
    values = np.linspace(0, 1, N)
    return {
        "partition": data_figures.partition_table(counts, UGLY, "$da_{ta\n", UGLY),
        "classes": data_figures.classes(UGLY, {"_recall": values, "$F_": values}, "$\\title", "x"),
        "confusion": data_figures.confusion(counts.astype(float), UGLY, "$ti^tle_{"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["png", "svg"])
def test_names_are_no_formulas(form, recwarn):
    with mpl.rc_context({"text.usetex": True}):  # as a matplotlibrc of the folder may say
        figures = drawn()
    for figure in figures.values():
        figure.savefig(BytesIO(), format=form)
        texts = {text.get_text(): text for text in figure.findobj(Text)}
        assert any("$x$" in text for text in texts)
        assert not any(text.get_parse_math() for one, text in texts.items() if "$x$" in one)
        assert not any(text.get_usetex() for text in texts.values())
    assert not [one for one in recwarn if "Glyph" in str(one.message)]
    legend = figures["classes"].axes[0].get_legend()  # matplotlib leaves out `_recall`
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_recall", "$F_"]


def test_partition_of_a_comparison_has_the_names_of_the_clients():
    run = SimpleNamespace(summary={"dataset": "d"}, client_counts=np.array([[1, 2], [3, 4]]))
    entry = SimpleNamespace(repetition=0, run=run)
    clients = pd.DataFrame(
        {"place": "p", "method": "m", "repetition": 0, "client": [1, 0], "name": ["$b", "_a"]}
    )
    analysis = SimpleNamespace(
        comparison=SimpleNamespace(at=lambda place: [entry]),
        classes=pd.DataFrame({"place": "p", "class": [0, 1], "name": ["x", "y"]}),
        clients=clients,
    )

    figure = comparison_figures.partition(analysis, "p", 9.0)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["_a", "$b"]
