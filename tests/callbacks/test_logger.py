"""Metrics in Lightning's loggers are those of metrics.csv, also after a crash and a resume."""

import csv

import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger

from flbench.config.sources import Layer, leaves
from flbench.core.errors import CallbackError, ConfigError
from flbench.experiment import lifecycle
from flbench.results import metrics_file
from tests.callbacks.support import CrashAfter, CrashError, config, only_run, run_with

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


def of_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return sorted(
        (name, event.step, event.value)
        for name in events.Tags()["scalars"]
        if name != "hp_metric"
        for event in events.Scalars(name)
    )


def of_mlflow(uri, run_id):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    names = client.get_run(run_id).data.metrics
    return sorted(
        (name, point.step, point.value)
        for name in names
        for point in client.get_metric_history(run_id, name)
    )


def metrics_of(calls):
    return sorted(call[1:] for call in calls if call[0] == "metric")


def crash_and_resume(out, first, second, when=4):
    """A crash after the checkpoint of round 2; a resume with another logger."""
    keys = (*KEYS, "partition.samples=null")
    with pytest.raises(CrashError):
        run_with(out, [CrashAfter(when)], *keys, loggers=[first])
    folder = only_run(out)
    lifecycle.resume(folder, Layer({}), loggers=[second])
    return folder


def test_csv_logger_has_all_metrics_and_parameters(tmp_path):
    path, _ = run_with(tmp_path / "runs", [], *KEYS, loggers=[CSVLogger(tmp_path / "logs")])

    log = tmp_path / "logs" / "lightning_logs" / "version_0"
    assert of_csv(log) == expected(path)
    names = {name for name, _, _ in expected(path)}
    assert {"train/loss", "validation/personal/accuracy", "test/personal-local/accuracy"} <= names
    with (log / "hparams.yaml").open() as file:
        parameters = yaml.safe_load(file)
    with (path / "config.yaml").open() as file:
        flat = leaves(yaml.safe_load(file))
    left_out = ("tracking.", "output.")
    assert parameters == {key: value for key, value in flat.items() if not key.startswith(left_out)}


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
@pytest.mark.parametrize("version", [0, None])
def test_csv_logger_is_complete_after_a_resume(tmp_path, version):
    """Also with a new version, which does not have the file of the interrupted run."""
    logs = tmp_path / "logs"
    first, second = CSVLogger(logs, version=version), CSVLogger(logs, version=version)
    folder = crash_and_resume(tmp_path / "runs", first, second)

    log = logs / "lightning_logs" / ("version_0" if version == 0 else f"version_{second.version}")
    assert of_csv(log) == expected(folder)
    assert (log / "hparams.yaml").read_text().count("train.rounds: 5") == 1


def test_the_same_logger_object_continues_after_an_interrupt(tmp_path):
    logger = CSVLogger(tmp_path / "logs")
    folder = crash_and_resume(tmp_path / "runs", logger, logger)

    assert of_csv(tmp_path / "logs" / "lightning_logs" / "version_0") == expected(folder)


@pytest.mark.parametrize("version", [0, None])
def test_tensorboard_logger_continues_or_begins_a_complete_log(tmp_path, version):
    def logger():
        return TensorBoardLogger(tmp_path / "logs", version=version)

    first, second = logger(), logger()
    folder = crash_and_resume(tmp_path / "runs", first, second)

    found = of_tensorboard(second.log_dir)
    wanted = expected(folder)
    if version == 0:  # the rounds after the checkpoint were sent twice, with the same values
        found = sorted(set(found))
    assert [entry[:2] for entry in found] == [entry[:2] for entry in wanted]
    assert [entry[2] for entry in found] == pytest.approx([entry[2] for entry in wanted])


@pytest.mark.mlflow
def test_mlflow_logger_continues_by_its_run_id(tmp_path, recwarn):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def logger(run_id=None):
        return MLFlowLogger("mine", tracking_uri=uri, run_id=run_id)

    first = logger()
    with pytest.raises(CrashError):
        run_with(tmp_path / "runs", [CrashAfter(3)], *KEYS, loggers=[first])
    folder = only_run(tmp_path / "runs")
    lifecycle.resume(folder, Layer({}), loggers=[logger(first.run_id)])

    assert sorted(set(of_mlflow(uri, first.run_id))) == expected(folder)
    run = first.experiment.get_run(first.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.name"] == "fedavg"
    assert not [warning for warning in recwarn if "special characters" in str(warning.message)]


def test_wandb_like_logger_gets_each_row_once_and_its_end(tmp_path):
    store = {}
    path, _ = run_with(tmp_path, [], *KEYS, loggers=[WandbLike("a", store), WandbLike("b", store)])

    for calls in store.values():
        assert metrics_of(calls) == expected(path)
        assert [call[0] for call in calls].count("params") == 1
        assert calls[-2:] == [("save",), ("finalize", "success")]


def test_continued_log_gets_parameters_once_and_no_earlier_rounds_again(tmp_path):
    store = {}
    folder = crash_and_resume(tmp_path, WandbLike("a", store), WandbLike("a", store))

    calls = store["a"]
    end = calls.index(("finalize", "failed"))
    assert [call[0] for call in calls].count("params") == 1
    assert min(call[2] for call in calls[end:] if call[0] == "metric") == 3
    assert sorted(set(metrics_of(calls))) == expected(folder)


def test_another_log_is_complete_after_a_resume(tmp_path):
    store = {}
    folder = crash_and_resume(tmp_path, WandbLike("a", store), WandbLike("b", store))

    assert metrics_of(store["b"]) == expected(folder)
    assert [call[0] for call in store["b"]].count("params") == 1


def test_failing_logger_is_named(tmp_path):
    class Broken(WandbLike):
        def log_metrics(self, metrics, step=None):
            raise ConnectionError("no network")

    with pytest.raises(CallbackError, match=r"LoggerCallback failed .*no network"):
        run_with(tmp_path, [], *KEYS, loggers=[Broken("a", {})])


@pytest.mark.parametrize("wrong", ["logs", CSVLogger, 3])
def test_what_is_not_a_logger_is_refused_before_anything_is_written(tmp_path, wrong):
    with pytest.raises(ConfigError, match=r"is not a logger.*CSVLogger"):
        lifecycle.run(*config(tmp_path), loggers=[wrong])
    assert not list(tmp_path.iterdir())
