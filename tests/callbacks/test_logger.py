"""Metrics in Lightning's loggers are those of metrics.csv, also after a crash and a resume."""

import csv
from pathlib import Path

import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import Logger

import flbench as fl
from flbench.callbacks.logger import LoggerCallback
from flbench.config.sources import Layer, leaves
from flbench.core.errors import ConfigError
from flbench.experiment import lifecycle
from flbench.results import metrics_file
from tests.callbacks.support import CrashAfter, CrashError, only_run, run_with

pytestmark = pytest.mark.slow

KEYS = ("train.rounds=5", "evaluation.every=2")


class WandbLike(Logger):
    """A logger with the interface of WandbLogger, whose id is the version."""

    def __init__(self, run_id, store):
        super().__init__()
        self.run_id, self.calls = run_id, store.setdefault(run_id, [])

    @property
    def name(self):
        return "project"

    @property
    def version(self):
        return self.run_id

    def log_hyperparams(self, params):
        self.calls.append(("params", params))

    def log_metrics(self, metrics, step=None):
        self.calls += [("metric", name, step, value) for name, value in metrics.items()]

    def save(self):
        self.calls.append(("save",))

    def finalize(self, status):
        self.calls.append(("finalize", status))


def expected(path):
    """The rows of metrics.csv as (name, step, value)."""
    rows = metrics_file.read(path / "metrics.csv")
    return sorted((row.full_name.replace("@", "-"), row.round, row.value) for row in rows)


def of_csv(folder):
    with (folder / "metrics.csv").open() as file:
        return sorted(
            (name, int(line["step"]), float(value))
            for line in csv.DictReader(file)
            for name, value in line.items()
            if name != "step" and value
        )


def metrics_of(calls):
    return sorted(call[1:] for call in calls if call[0] == "metric")


def crash_and_resume(out, first, second, when=4):
    """A crash after the checkpoint of round 2; a resume with another logger."""
    keys = (*KEYS, "partition.samples=null")
    with pytest.raises(CrashError):
        run_with(out, [CrashAfter(when), LoggerCallback(first)], *keys)
    folder = only_run(out)
    lifecycle.resume(folder, Layer({}), [LoggerCallback(second)])
    return folder


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
@pytest.mark.parametrize("kind", ["same object", "same version", "new version"])
def test_csv_logger_is_complete_after_a_resume(tmp_path, kind):
    """Also with a new version, which does not have the file of the interrupted run."""
    logs, version = tmp_path / "logs", 0 if kind == "same version" else None
    first, second = CSVLogger(logs, version=version), CSVLogger(logs, version=version)
    second = first if kind == "same object" else second
    folder = crash_and_resume(tmp_path / "runs", first, second)

    log = Path(second.log_dir)
    assert of_csv(log) == expected(folder)
    names = {name for name, _, _ in expected(folder)}
    assert {"train/loss", "validation/personal/accuracy", "test/personal-local/accuracy"} <= names
    parameters = yaml.safe_load((log / "hparams.yaml").read_text())
    flat = leaves(yaml.safe_load((folder / "config.yaml").read_text()))
    left_out = ("tracking.", "output.")
    assert parameters == {key: value for key, value in flat.items() if not key.startswith(left_out)}


@pytest.mark.parametrize("second", ["a", "b"])
def test_a_continued_log_gets_each_row_once_and_another_log_is_complete(tmp_path, second):
    store = {}
    folder = crash_and_resume(tmp_path, WandbLike("a", store), WandbLike(second, store))

    calls = store[second]
    assert [call[0] for call in calls].count("params") == 1
    assert ("finalize", "failed") in store["a"]
    assert calls[-2:] == [("save",), ("finalize", "success")]
    if second == "b":
        assert metrics_of(calls) == expected(folder)
    else:  # the rounds after the checkpoint are computed again
        again = calls[calls.index(("finalize", "failed")) :]
        assert min(call[2] for call in again if call[0] == "metric") == 3
        assert sorted(set(metrics_of(calls))) == expected(folder)


@pytest.mark.parametrize("wrong", ["logs", CSVLogger, 3])
def test_what_is_not_a_logger_is_refused_before_anything_is_written(tmp_path, wrong):
    with pytest.raises(ConfigError, match="`logger`"):
        fl.run("fedavg", logger=wrong, output={"dir": tmp_path})
    assert not list(tmp_path.iterdir())
