"""The section on clients that join later: table, page, picture, LaTeX and JSON."""

import json

import numpy as np
import pytest

from flbench.analysis.arrangement import arrange
from flbench.analysis.page import page_of
from flbench.analysis.report import json_of, latex_of
from flbench.analysis.shown import TABLES
from flbench.analysis.tables import Analysis
from flbench.api.runs import Run
from flbench.reports import render
from flbench.reports import run as run_report
from flbench.results import reading
from tests.support import pictures_in_pages, run

METHODS = ("local", "fedper")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    keys = (
        "partition.clients=7",
        "partition.new_clients=0.3",
        "evaluation.adapt.finetune_epochs=[0,2]",
    )
    keys += ("train.rounds=2", "model.name=mlp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "render", lambda run: "")  # the pages of single runs
        return {
            (method, seed): run(out, f"algorithm={method}", f"seed={seed}", *keys)[0]
            for method in METHODS
            for seed in (1, 2)
        }


@pytest.fixture(scope="module")
def analysis(folders):
    return Analysis(arrange([reading.read(path) for path in folders.values()]))


@pytest.mark.slow
def test_table_has_the_means_of_the_clients_of_each_run(analysis, folders):
    table = analysis.new_clients.set_index(["method", "epochs"])

    for method in METHODS:
        for epochs in (0, 2):
            means, worst = [], []
            for seed in (1, 2):
                rows = Run(folders[method, seed]).new_clients
                mine = rows[(rows["moment"] == "best") & (rows["epochs"] == epochs)]
                assert list(mine["client"]) == [5, 6]
                means.append(mine["accuracy"].mean())
                worst.append(mine["accuracy"].min())
            found = table.loc[method, epochs]
            assert found["mean"] == pytest.approx(np.mean(means))
            assert found["worst10"] == pytest.approx(np.mean(worst))
            assert found["gap"] == pytest.approx(found["mean"] - found["seen"])
            assert found["n"] == 2
    assert table.loc[("local", 2), "received_bytes"] == 0 < table.loc[("local", 2), "steps"]


@pytest.mark.slow
def test_section_is_in_page_markdown_latex_and_json(analysis):
    [place] = analysis.comparison.places
    [block] = TABLES["new_clients"](analysis, place)

    assert [row["method"] for row in block.cells()] == list(METHODS)
    assert len(json.loads(json_of(analysis))["new_clients"]) == 4
    assert latex_of(analysis)["new_clients"]
    with pictures_in_pages():
        page = page_of(analysis)
    for source in (page.html(), render.page(page)):
        assert block.title in source
