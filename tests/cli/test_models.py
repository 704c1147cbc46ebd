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


def test_export_prints_how_to_load_the_file(flbench, tmp_path, finished_run):
    code, out, err = flbench("export", finished_run, "--client", 2, "--out", "two.pt2")
    assert (code, err) == (0, "")
    file = tmp_path / "two.pt2"
    assert file.is_file()
    assert f"torch.export.load('{file.name}')" in out

    code, _, err = flbench("export", finished_run, "--client", 2, "--out", "two.pt2")
    assert code == 2
    assert "exists" in err
    more = ("--out", "two.pt2", "--overwrite", "--json")
    code, out, _ = flbench("export", finished_run, "--client", 2, *more)
    assert code == 0
    assert json.loads(out)["client"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--client", "5"), "no client `5`. Its clients are 0 to 4"),
        (("--client", "north"), "no client `north`"),
        (("--client", "1", "--checkpoint", "bset"), "Did you mean `best`"),
        (("--client", "1", "--deployment", "ft"), "has no model `ft`"),
    ],
)
def test_wrong_options_are_explained(flbench, finished_run, arguments, words):
    code, out, err = flbench("export", finished_run, "--out", "model.pt2", *arguments)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


def test_a_folder_that_is_not_a_run(flbench, tmp_path):
    code, _, err = flbench("export", tmp_path / "nothing", "--client", 1, "--out", "x.pt2")
    assert code == 2
    assert "does not exist" in err


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
    model = loading.load(finished_run, 1)
    scores = model.predict(federation.dataset.x[rows])
    assert [row["file"] for row in found] == [f"images/{row:04}.png" for row in rows]
    assert [row["class"] for row in found] == [str(k) for k in scores.argmax(dim=1).tolist()]
    if model.net.scores == "logits":
        wanted = torch.softmax(scores.double(), dim=1).max(dim=1).values
        assert [row["probability"] for row in found] == pytest.approx(wanted.tolist())

    one = f"images/{rows[0]:04}.png"
    code, out, _ = flbench("predict", finished_run, "--client", 1, one, "--out", "p.csv")
    assert code == 0
    assert one in out
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
    code, out, _ = flbench("predict", finished_run, "--client", 0, "x.npz")
    assert "and 20 more" in out


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

    (tmp_path / "bad.csv").write_text("weight,color,size\n0.5,red,1.5\n")
    code, _, err = flbench("predict", path, "--client", "c3", "bad.csv")
    assert code == 2
    assert err.startswith("error: bad.csv")
    assert "`colour`" in err
    (tmp_path / "bad.csv").write_text("weight,colour,size\nlow,red,1.5\n")
    code, _, err = flbench("predict", path, "--client", "c3", "bad.csv")
    assert (code, "column `weight`: 'low'" in " ".join(err.split())) == (2, True)
    code, out, _ = flbench("predict", path, "--client", "c3", "new.csv")
    assert (code, "client c3," in out) == (0, True)
    code, out, _ = flbench("export", path, "--client", "c3", "--out", "c3.safetensors")
    assert (code, (tmp_path / "c3.safetensors").is_file()) == (0, True)
    code, _, err = flbench("predict", path, "--client", "c4x", "bad.csv")
    assert (code, "Did you mean `c4`" in err) == (2, True)


def test_samples_of_another_kind_are_refused(flbench, tmp_path, finished_run):
    Image.fromarray(np.zeros((9, 8), np.uint8)).save(tmp_path / "tall.png")
    Image.fromarray(np.zeros((8, 8), np.uint8) + 200).save(tmp_path / "bright.png")
    colour = np.zeros((8, 8, 3), np.uint8)
    colour[..., 0] = 9
    Image.fromarray(colour).save(tmp_path / "colour.png")
    (tmp_path / "text.png").write_bytes(b"no image")
    np.savez(tmp_path / "wide.npz", x=np.zeros((2, 8, 9), np.uint8))
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    there = "in uint8 with values in [0, 0], and those of the data set [1, 8, 8]"
    for file, words in {
        "tall.png": f"shape [1, 9, 8] {there}",
        "bright.png": "values in [200, 200]",
        "colour.png": "grey",
        "text.png": "text.png cannot be decoded",
        "wide.npz": f"shape [1, 8, 9] {there}",
        "table.csv": ".npz",
        "none.png": "none.png",
    }.items():
        code, out, err = flbench("predict", finished_run, "--client", 0, file)
        assert (code, out) == (2, "")
        assert words in " ".join(err.split())
        assert err.startswith(f"error: {file}")
