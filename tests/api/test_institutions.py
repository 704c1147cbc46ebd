"""From the CSV files of institutions to the table of a comparison, without a change to a file."""

import ast
import csv
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
import torch

import flbench as fl
from flbench.cli import app
from flbench.experiment.assembly import load_federation
from tests.support import config_of

pytestmark = pytest.mark.slow

NAMES = ("Bern", "R&D Clinic", "St. Mary", "Köln")
DROP = "data.drop=[patient,note]"


def write(folder, unit=10.0):
    """Tables with identifiers, free text, missing values and words, each in units of its own.

    The unit of institution k is `unit**k`.
    """
    rng = np.random.default_rng(0)
    folder.mkdir()
    for k, name in enumerate(NAMES):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(["patient", "pressure", "pain", "age", "note", "diagnosis"])
            for row in range(40):
                is_ill = bool(row % 2)
                pressure = f"{unit**k * (rng.normal() + 2 * is_ill) + 7 * k:.4f}"
                lines.writerow(
                    [
                        f"P{1000 * k + row}",
                        "" if row % 9 == 0 else pressure,
                        ["none", "chest"][is_ill ^ (row % 7 == 0)] if row % 11 else "?",
                        int(rng.integers(20, 90)) if k else 50,
                        f"seen on day {rng.integers(10**6)}",
                        "ill" if is_ill else "healthy",
                    ]
                )
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("institutions")


@pytest.fixture(scope="module")
def data(place):
    return write(place / "hospitals")


@pytest.fixture(scope="module")
def compared(place, data):
    words = ("fedavg", "local", f"data.path={data}", "partition.scheme=natural", DROP)
    grid = ("--grid", "data.normalize=standard,client", "--seeds", "2", "--jobs", "1")
    keys = ("train.rounds=3", "train.batch_size=8", "engine.name=sequential", "engine.threads=1")
    assert app.main(["compare", *words, *keys, *grid, "--out", str(place / "out")]) == 0
    [folder] = (place / "out").iterdir()
    return folder


def test_error_names_all_columns_to_leave_out(data, capsys):
    words = ["data", f"data.path={data}", "partition.scheme=natural"]
    assert app.main(words) == 2
    [cure] = re.findall('"data.drop=.*?"', capsys.readouterr().err)
    assert app.main([*words, *shlex.split(cure)]) == 0
    table = pd.DataFrame({"n,m": list("abcd"), "id: p": list("efgh"), "y": [0, 1, 0, 1]})
    with pytest.raises(fl.DataError) as caught:
        fl.Data(table)
    [cure] = re.findall(r"drop=(\[.*?\])", str(caught.value))
    assert ast.literal_eval(cure) == ["n,m", "id: p"]


def test_pooled_and_client_wise_normalization_stand_side_by_side(compared):
    report = fl.report(compared)

    means = report.leaderboard.set_index(["place", "method"])["mean"].unstack()
    assert list(means.index) == [f"hospitals, normalize={kind}" for kind in ("client", "standard")]
    assert set(means.columns) == {"fedavg", "local"}
    assert set(report.clients["name"]) == set(NAMES)
    runs = [fl.load(path) for path in sorted((compared / "cells").iterdir())]
    by_kind = {run.config.data.normalize: run for run in runs if run.config.seed == 0}
    assert by_kind["client"].config.hash() != by_kind["standard"].config.hash()
    for kind in by_kind:
        for method in ("fedavg", "local"):
            name = f"{method}-hospitals-normalize={kind}-seed"
            mine = [run for run in runs if run.path.name.startswith(name)]
            scores = [run.summary["best"]["test"]["accuracy"] for run in mine]
            shown = means.loc[f"hospitals, normalize={kind}", method]
            assert (len(scores), shown) == (2, pytest.approx(np.mean(scores)))
    for run in runs:
        assert run.config.data.drop == ("note", "patient")


def test_client_wise_inputs_do_not_depend_on_the_units_of_the_institutions(data, tmp_path):
    paths = (data, write(tmp_path / "hospitals", unit=1.0))
    keys = ("partition.scheme=natural", "partition.clients=null", DROP)
    for kind, are_equal in (("client", True), ("standard", False)):
        one, other = (
            load_federation(config_of(f"data.path={path}", f"data.normalize={kind}", *keys))
            for path in paths
        )
        inputs = [made.inputs(np.arange(160), torch.float64) for made in (one, other)]
        assert torch.allclose(*inputs, atol=1e-3) == are_equal


def test_files_with_and_without_dropped_columns_have_the_same_predictions(
    compared, data, tmp_path, capsys
):
    run = compared / "cells" / "fedavg-hospitals-normalize=client-seed0"
    whole, short = data / "St. Mary.csv", tmp_path / "short.csv"
    columns = ["pressure", "pain", "age"]
    pd.read_csv(whole, dtype=str)[columns].to_csv(short, index=False)
    words = ["predict", str(run), "--client", "St. Mary", "--json"]
    found = []
    for file in (whole, short):
        assert app.main([*words, str(file)]) == 0
        captured = capsys.readouterr()
        assert not captured.err
        found.append([(row["class"], row["probability"]) for row in json.loads(captured.out)])
    assert found[0] == found[1]
    card = fl.load(run).trained("St. Mary").card
    assert card["input"]["columns"] == columns
    assert card["input"]["dropped"] == ["note", "patient"]
    assert card["client_name"] == "St. Mary"

    # A word of its own, and the global model, which has no normalization of its own.
    short.write_text("pressure,pain,age\n1,cehst,2\n")
    assert app.main(["predict", str(run), str(short)]) == 2
    assert "data.normalize=client" in capsys.readouterr().err
    assert app.main([*words, "--deployment", "gm", str(short)]) == 0
    assert "`pain`" in capsys.readouterr().err
