"""The comparison with other platforms in `benchmarks/peers`: the work of its scripts, its table.

The platforms themselves are not installed here; only the bare loop and flbench are run.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from flbench.cli import app
from flbench.core.errors import DataError
from flbench.models.base import build, net_leaves
from flbench.models.lenet5 import LeNet5Config

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "peers"


@pytest.fixture(scope="module")
def peers():
    """Modules of the harness, which are scripts and not a package."""
    if not FOLDER.exists():
        pytest.skip("this is not a checkout: benchmarks/ is missing")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import peer_bare
        import peer_flbench
        import run
        import settings
        import table
        import task

        modules = {"bare": peer_bare, "flbench": peer_flbench, "run": run}
        yield modules | {"settings": settings, "table": table, "task": task}
        for module in (peer_bare, peer_flbench, run, settings, table, task):
            sys.modules.pop(module.__name__, None)


@pytest.fixture(scope="module")
def job(peers, tmp_path_factory):
    """A small federation of random images: 6 clients of 13 samples, 3 in each of 2 rounds."""
    folder = tmp_path_factory.mktemp("peers")
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (100, 16, 16), dtype=np.uint8)
    labels = draw.permutation(np.arange(100) % 3)
    np.savez(
        folder / "noise.npz",
        train_images=images[:80],
        train_labels=labels[:80],
        test_images=images[80:],
        test_labels=labels[80:],
    )
    setting = replace(
        peers["settings"].SETTINGS["a"],
        data="noise",
        clients=6,
        samples=13,
        cohort=3,
        epochs=2,
        batch=5,
    )
    path = peers["run"].export(setting, folder, folder)
    return peers["settings"].Job(setting, "", path, 2, 0, 1, 2, folder / "result.json")


@pytest.mark.slow
def test_bare_loop_and_flbench_do_the_same_work(peers, job, tmp_path):
    peers["bare"].run(job)
    bare = json.loads(job.result.read_text())
    ours = replace(job, variant="sequential", result=tmp_path / "ours.json")
    arguments = peers["flbench"].arguments(ours, tmp_path / "runs")
    printed = CliRunner().invoke(app.app, arguments, prog_name="flbench")
    assert printed.exit_code == 0, printed.output
    peers["flbench"].report(ours, printed.stdout, tmp_path)
    measured = json.loads(ours.result.read_text())
    # 2 rounds of 3 clients, 2 epochs of batches of 5, 5 and 3 samples
    assert bare["steps"] == measured["steps"] == job.setting.steps(2) == 2 * 3 * 2 * 3
    for one in (bare, measured):
        assert one["seconds"] > 0
        assert 0 <= one["accuracy"] <= 1


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_net_of_the_scripts_is_that_of_flbench(peers, shape):
    x = torch.randn(4, *shape)
    module = peers["task"]
    task = module.Task(x, torch.arange(4), (), x, torch.arange(4), 7)
    net = module.make_net("lenet5", task)
    ours = build(LeNet5Config(name="lenet5", norm="none"), shape, 7, 0).eval()
    leaves = net_leaves(ours).values()
    for value, leaf in zip(net.parameters(), leaves, strict=True):
        value.data.copy_(leaf)
    torch.testing.assert_close(net(x), ours(x).logits)


def test_samples_are_normalized_per_channel(peers, job):
    task = peers["task"].load(job.task)
    assert [len(rows) for rows in task.clients] == [13] * 6
    torch.testing.assert_close(task.x.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(task.x.std(), torch.tensor(1.0))


def test_clients_share_no_sample(peers):
    setting = replace(peers["settings"].SETTINGS["a"], clients=20, samples=50)
    clients = peers["run"].partition(1000, setting)
    assert sorted(np.concatenate(clients)) == list(range(1000))
    assert all(len(rows) == 50 for rows in clients)
    with pytest.raises(DataError, match="needs 1000 training samples, but fashionmnist has 999"):
        peers["run"].partition(999, setting)


def test_interval_is_that_of_the_logarithms(peers):
    values = [0.5, 0.7, 0.6, 0.9]
    value, *ends = peers["table"].estimate(values)
    expected = stats.ttest_1samp(np.log(values), 0).confidence_interval(0.95)
    assert value == pytest.approx(geometric_mean(values))
    assert np.log(ends) == pytest.approx(list(expected))
    # two values have no useful interval: its half width would be 9 standard deviations
    table = peers["table"]
    assert table.text(table.estimate([2.0, 8.0])) == "4"
    assert table.text(table.spread([2.0, 8.0])) == "4 (2 to 8)"


def measurement(label, repeat, seconds, setting, **other):
    return {
        "setting": setting.name,
        "label": label,
        "repeat": repeat,
        "rounds": 2,
        "seconds": seconds,
        "process_seconds": seconds + 3,
        # not measured of pfl, and only in the first repeat of the others
        **({"cpu_seconds": 2 * seconds} if label != "pfl" and not repeat else {}),
        "steps": setting.steps(2),
        "accuracy": 0.8,
        "load_before": 1.0 + repeat,
    } | other


def test_ratios_are_paired_within_a_repeat(peers):
    setting = peers["settings"].SETTINGS["a"]
    # The machine becomes slower from repeat to repeat, for all platforms.
    times = {"bare": 10, "flbench sequential": 9, "fluke": 15, "pfl": 12}
    measured = [
        measurement(label, repeat, seconds * (1 + repeat), setting)
        for repeat in range(3)
        for label, seconds in times.items()
    ]
    found = peers["table"].compare(measured, setting)
    assert found.fastest == {"training": "pfl", "process": "pfl", "CPU": "fluke"}
    assert found.loads == (1.0, 3.0)
    assert found.problems == {}
    for label, seconds in times.items():
        for ratios, reference in ((found.to_bare, 10), (found.to_peer, 12)):
            assert ratios[label]["training"] == pytest.approx([seconds / reference] * 3)
        if label != "pfl":
            assert found.to_bare[label]["CPU"][0] == pytest.approx(seconds / 10)
    # what is not measured or did other work is named
    [first, *others] = measured
    failed = measurement("flower", 0, 1.0, setting, error="no network")
    others = [*others, failed, {**first, "label": "pfl x", "steps": 7}]
    others += [{**first, "label": "fluke x", "accuracy": 0.9}]
    problems = peers["table"].compare(others, setting).problems
    assert problems["flower"] == "no network"
    assert "took 7 steps instead of" in problems["pfl x"]
    assert "differs from the bare loop's 0.800" in problems["fluke x"]
    head, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in peers["table"].markdown(measured).splitlines()
        if line.startswith("| ")
    ]
    ours = dict(zip(head, next(row for row in rows if row[0] == "flbench sequential"), strict=True))
    assert ours["training / pfl"] == "0.75 (0.75 to 0.75)"
