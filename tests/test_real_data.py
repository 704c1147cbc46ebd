"""The scripts for the tables of real data."""

import json

import numpy as np
import pytest

import flbench as fl
from tests.support import benchmark_script, run


@pytest.fixture(scope="module")
def training():
    with benchmark_script("real_data") as module:
        yield module


@pytest.fixture(scope="module")
def page(training):
    with benchmark_script("real_data_page") as module:
        yield module


def test_kept_windows_share_no_value(training, tmp_path):
    """Windows of sequences of 1, 2 and 5 windows, in any order."""
    rng = np.random.default_rng(0)
    windows, persons, places = [], [], []
    for sequence, length in enumerate((1, 2, 5)):
        signal = rng.normal(size=(9, 64 * (length + 1))).astype(np.float16)
        windows += [signal[:, 64 * k : 64 * k + 128] for k in range(length)]
        persons += [sequence % 2] * length
        places += [(sequence, k) for k in range(length)]
    order = rng.permutation(len(windows))
    source = {"windows": np.stack(windows)[order], "subject": np.array(persons)[order]}
    labels = np.arange(len(windows))[order]
    np.savez(tmp_path / "all.npz", labels=labels, class_names=np.arange(8), **source)
    training.write_activities(tmp_path / "all.npz", tmp_path / "har.npz")

    found = np.load(tmp_path / "har.npz")
    kept = {places[k] for k in found["train_labels"]}
    assert kept == {(0, 0), (1, 0), (2, 0), (2, 2), (2, 4)}
    for label, window in zip(found["train_labels"], found["train_images"], strict=True):
        assert (window == windows[label]).all()


@pytest.mark.slow
def test_the_page_has_the_figures_of_the_report(page, tmp_path):
    runs = [
        run(tmp_path / "runs", f"algorithm={method}", f"seed={seed}")[0]
        for method in ("local", "ft")
        for seed in range(3)
    ]
    folder = tmp_path / "out"
    folder.mkdir()
    fl.pack(runs, folder / "har.tar.xz")
    found = {"har": {"optimizer": {"name": "sgd", "lr": 0.1}, "validation": [0.5, 0.9, 0.8]}}
    (folder / "search.json").write_text(json.dumps(found))

    text = page.block("har", folder)
    scores = fl.report(folder / "har.tar.xz", baseline="ft").scores
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    for method in ("local", "ft"):
        rows = scores[(scores["method"] == method) & (scores["metric"] == "accuracy")]
        mean = float(rows["mean"].iloc[0])
        assert f"{100 * mean:.1f} (" in lines[method]
        assert "| 3 |" in lines[method]
    assert page.UNMEASURED in lines["fedavg"]
    assert "sgd 0.1 90.0" in text
    assert "Chosen: sgd 0.1." in text
