"""`flbench export` and `flbench predict` as a user meets them."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from flbench.deploy import loading
from flbench.testing import run
from tests.deploy.test_models import federation_of, tables
from tests.support import SMALL

pytestmark = pytest.mark.slow


def test_export_writes_a_file_and_overwrites_none(flbench, tmp_path, finished_run):
    words = ("export", finished_run, "--client", 2, "--out", "two.pt2")
    code, out, err = flbench(*words)
    assert (code, err) == (0, "")
    assert (tmp_path / "two.pt2").is_file()
    assert "torch.export.load('two.pt2')" in out

    assert flbench(*words)[0] == 2
    code, out, _ = flbench(*words, "--overwrite", "--json")
    assert code == 0
    assert json.loads(out)["client"] == 2


def test_wrong_words_are_named(flbench, tmp_path, finished_run):
    for named, folder, *options in (
        ("`5`", finished_run, "--client", "5"),
        ("`north`", finished_run, "--client", "north"),
        ("`best`", finished_run, "--client", "1", "--checkpoint", "bset"),
        ("`ft`", finished_run, "--client", "1", "--deployment", "ft"),
        ("nothing", tmp_path / "nothing", "--client", "1"),
    ):
        code, out, err = flbench("export", folder, "--out", "model.pt2", *options)
        assert (code, out) == (2, "")
        assert named in err


def write_digits(folder, path, client):
    """Write the first test images of a client as PNG files; return their rows."""
    federation = federation_of(path)
    rows = federation.partition.parts["test"][client][:6]
    folder.mkdir()
    for row in rows:
        Image.fromarray(federation.dataset.x[row, 0]).save(folder / f"{row:04}.png")
    return federation, sorted(rows)


def test_images_are_predicted_as_in_the_evaluation(flbench, tmp_path, finished_run):
    federation, rows = write_digits(tmp_path / "images", finished_run, 1)
    code, out, err = flbench("predict", finished_run, "--client", 1, "images", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    scores = loading.load(finished_run, 1).predict(federation.dataset.x[rows])
    assert [row["file"] for row in found] == [f"images/{row:04}.png" for row in rows]
    assert [row["class"] for row in found] == [str(k) for k in scores.argmax(dim=1).tolist()]
    wanted = torch.softmax(scores.double(), dim=1).max(dim=1).values
    assert [row["probability"] for row in found] == pytest.approx(wanted.tolist())

    one = f"images/{rows[0]:04}.png"
    assert flbench("predict", finished_run, "--client", 1, one, "--out", "p.csv")[0] == 0
    [row] = csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text()))
    assert row["class"] == found[0]["class"]


def test_arrays_are_predicted_with_their_rows(flbench, tmp_path, finished_run):
    federation = federation_of(finished_run)
    x = federation.dataset.x[:120, 0]
    np.savez(tmp_path / "x.npz", test_images=x, test_labels=np.zeros(120))
    code, out, _ = flbench("predict", finished_run, "--client", 0, "x.npz", "--json")
    predicted = loading.load(finished_run, 0).predict(x).argmax(dim=1)
    assert code == 0
    assert [row["row"] for row in json.loads(out)] == list(range(120))
    assert [row["class"] for row in json.loads(out)] == [str(k) for k in predicted.tolist()]


def test_tables_are_predicted_by_the_names_of_columns(flbench, tmp_path):
    data = tables(tmp_path / "x")
    overrides = ("model.name=mlp", "partition.scheme=natural", f"data.path={data}")
    path, _ = run(tmp_path / "runs", *SMALL, "algorithm=fedper", *overrides)
    federation = federation_of(path)
    code, out, _ = flbench("predict", path, "--client", "c3", "x/c3.csv", "--json")
    rows = np.flatnonzero(federation.dataset.groups == 3)
    scores = loading.load(path, 3).predict(federation.dataset.x[rows])
    classes = federation.dataset.classes
    assert code == 0
    found = json.loads(out)
    assert [row["class"] for row in found] == [classes[k] for k in scores.argmax(dim=1).tolist()]

    # Columns in another order, without a label, with a missing value and a word never seen.
    (tmp_path / "new.csv").write_text("weight,colour,size\n0.5,violet,1.5\n,red,\n")
    code, out, _ = flbench("predict", path, "--client", "c3", "new.csv", "--json")
    x = np.array([[1.5, -1, 0.5], [np.nan, 2, np.nan]], dtype=np.float32)
    wanted = loading.load(path, 3).predict(x).argmax(dim=1).tolist()
    assert [row["class"] for row in json.loads(out)] == [classes[k] for k in wanted]

    for named, text in (
        ("`colour`", "weight,color,size\n0.5,red,1.5\n"),
        ("`weight`", "weight,colour,size\nlow,red,1.5\n"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        code, _, err = flbench("predict", path, "--client", "c3", "bad.csv")
        assert code == 2
        assert err.startswith("error: bad.csv")
        assert named in err
