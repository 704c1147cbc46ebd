"""The comparison with other platforms in `benchmarks/peers`: the work of its scripts, its table.

The platforms themselves are not installed here; only the bare loop and flbench are run.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from flbench.cli import app
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.core.rng import Draw
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


@pytest.mark.parametrize("name", ["d", "e", "f", pytest.param("e18", marks=pytest.mark.slow)])
def test_published_settings_are_trained_with_their_samples(peers, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, ours = peers["settings"], peers["flbench"]
    setting = settings.PUBLISHED[name].scaled(0.02 / settings.PUBLISHED[name].rounds)
    setting = replace(setting, epochs=1, samples=min(setting.samples, 2 * setting.batch))
    task, is_random = ours.samples(setting, 0.0, tmp_path, tmp_path)
    job = settings.Job(setting, "default", task, 1, 0, 1, 1, tmp_path / "result.json")
    printed = CliRunner().invoke(app.app, ours.arguments(job, tmp_path), prog_name="flbench")
    assert printed.exit_code == 0, printed.output
    ours.report(job, printed.stdout, tmp_path)

    with np.load(task) as arrays:
        labels, owners = arrays["train_labels"], arrays["train_groups"]
        assert arrays["train_images"].shape[1:] == settings.SHAPES[setting.data][1]
    sizes = np.bincount(owners)
    classes = [len(np.unique(labels[owners == client])) for client in range(setting.clients)]
    assert is_random
    assert len(sizes) == setting.clients
    assert len(set(sizes)) == 1 or name == "f"
    assert max(classes) <= 6 or not setting.shards
    steps = -(-sizes // setting.batch)
    measured = json.loads(job.result.read_text())["steps"]
    assert setting.cohort * min(steps) <= measured <= setting.cohort * max(steps)


@dataclass(frozen=True)
class Published:
    """What the authors state, the steps that follow, and what a hundredth takes.

    FLUTE's clients have 198 samples in the mean, and different numbers of batches.
    """

    clients: int
    cohort: int
    rounds: int
    epochs: int
    batch: int
    every: int
    steps: int
    hundredth: int
    is_equal: bool = True


STATED = {
    "d": Published(1000, 50, 1500, 1, 10, 10, 375_000, 3750),
    "e": Published(100, 100, 5, 5, 50, 1, 25_000, 250),
    "e18": Published(100, 100, 5, 5, 50, 1, 25_000, 250),
    "f": Published(3400, 10, 1500, 1, 20, 50, 154_000, 1540, is_equal=False),
}


@pytest.mark.parametrize("name", STATED)
def test_published_settings_are_those_of_their_authors(peers, name, tmp_path):
    stated, setting = STATED[name], peers["settings"].PUBLISHED[name]
    job = peers["settings"].Job(setting, "default", tmp_path, setting.rounds, 0, 1, 1, tmp_path)
    keys = [word for word in peers["flbench"].arguments(job, tmp_path) if "=" in word]
    config = resolve([from_overrides(["algorithm=fedavg", *keys])])[0]
    train, sizes = config.train, setting.sizes()
    cohort = len(Draw(0, (0,), len(sizes)).cohort(train.participation))
    assert (len(sizes), cohort) == (stated.clients, stated.cohort)
    assert (train.rounds, train.local_epochs) == (stated.rounds, stated.epochs)
    assert (train.batch_size, train.optimizer.lr) == (stated.batch, 0.1)
    assert config.evaluation.common.every == stated.every
    steps = np.ceil(sizes / train.batch_size).mean() * train.rounds * cohort * train.local_epochs
    assert steps == pytest.approx(stated.steps, rel=0 if stated.is_equal else 0.01)


@pytest.mark.full
@pytest.mark.timeout(900)  # ResNet-18 takes 250 steps
@pytest.mark.parametrize("name", STATED)
def test_a_hundredth_of_published_settings_ends_on_a_cpu(peers, name, tmp_path):
    folder = ["--data-root", str(tmp_path)]
    found = peers["flbench"].published([name, "--device", "cpu", "--scale", "0.01", *folder])
    stated = STATED[name]
    assert found["steps"] == pytest.approx(stated.hundredth, rel=0 if stated.is_equal else 0.1)
    assert found["process_seconds"] > found["seconds"] > 0


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


def test_interval_is_that_of_the_logarithms(peers):
    values = [0.5, 0.7, 0.6, 0.9]
    value, *ends = peers["table"].estimate(values)
    expected = stats.ttest_1samp(np.log(values), 0).confidence_interval(0.95)
    assert value == pytest.approx(geometric_mean(values))
    assert np.log(ends) == pytest.approx(list(expected))


def test_ratios_are_paired_within_a_repeat(peers):
    setting = peers["settings"].SETTINGS["a"]
    # The machine becomes slower from repeat to repeat, for all platforms.
    times = {"bare": 10, "flbench sequential": 9, "fluke": 15, "pfl": 12}
    plain = {"setting": setting.name, "rounds": 2, "steps": setting.steps(2), "accuracy": 0.8}
    measured = [
        {**plain, "label": label, "repeat": repeat, "load_before": 1.0}
        | {"seconds": seconds * (1 + repeat), "process_seconds": seconds * (1 + repeat)}
        for repeat in range(3)
        for label, seconds in times.items()
    ]
    found = peers["table"].compare(measured, setting)

    assert found.fastest["training"] == "pfl"
    assert found.problems == {}
    for label, seconds in times.items():
        for ratios, reference in ((found.to_bare, 10), (found.to_peer, 12)):
            assert ratios[label]["training"] == pytest.approx([seconds / reference] * 3)
    # what is not measured or did other work is named
    other = [{**measured[0], "label": "flower", "error": "no network"}]
    other += [{**measured[0], "label": "pfl x", "steps": 7}]
    other += [{**measured[0], "label": "fluke x", "accuracy": 0.9}]
    problems = peers["table"].compare(measured + other, setting).problems
    assert problems.keys() == {"flower", "pfl x", "fluke x"}
