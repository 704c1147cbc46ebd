"""The models of finished runs as MLflow's logged models, which `search_logged_models` ranks.

A finished run has one for each evaluation that its summary.json keeps: `last`, after the last
round, and `best`, at the best round by validation, if that is another one. Their metrics have the
names of the run's curves, such as `test/accuracy`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flbench.core.documents import as_data_error, read_json
from flbench.tracking.mlflow_run import RUN_TAG, MetricPoint, MlflowRun

MODELS_TAG: Final = "mlflow.flbench.models"
"""Tag of a run with MLflow's ids of its models, by evaluation."""
COPIED_TAGS: Final = (
    *("flbench.comparison", "flbench.study", "kind", "algorithm", "method", "dataset", "setting"),
    *("model", "seed", "repetition", "partition", "git_revision"),
)
"""Tags of the run that its models have too."""
EVALUATIONS: Final = {"best": "best/", "last": "final/"}
"""Beginning of the names of a summary's metrics, by evaluation."""
MODEL_TYPE: Final = "flbench"
_NOT_IN_NAME: Final = re.compile(r"[/:.%\"'\x00-\x1f]")  # MLflow allows them in no model's name


def send(run: MlflowRun, folder: Path, metrics: Mapping[str, float]) -> None:
    """Send the models of a finished run, unless MLflow has them.

    Args:
        run: Run in MLflow, to which the metrics of its curves were sent.
        folder: The run folder.
        metrics: Metrics of its summary.json; see `mlflow_names.summary_metrics`.

    Raises:
        DataError: summary.json is damaged.
    """
    file = folder / "summary.json"
    summary = read_json(file)
    with as_data_error(file):
        rounds = {name: int(summary[name]["round"]) for name in EVALUATIONS}
        about = {name: str(summary[name]) for name in ("config_hash", "weights_digest")}
    if rounds["best"] == rounds["last"]:
        del rounds["best"]
    sent: dict[str, str] = json.loads(run.tags.get(MODELS_TAG, "{}"))
    if not set(rounds) - set(sent):
        return
    there = _models_of(run)
    for name, number in rounds.items():
        if name in sent:
            continue
        model = there.get(name) or _make(run, name, {**about, "round": str(number)})
        prefix = EVALUATIONS[name]
        points = [
            MetricPoint(metric.removeprefix(prefix), value, number, 1000 * number)
            for metric, value in metrics.items()
            if metric.startswith(prefix)
        ]
        run.log_model(model, points, number)
        sent[name] = model
        run.set_tags({MODELS_TAG: json.dumps(sent)})


def _models_of(run: MlflowRun) -> dict[str, str]:
    """Return the ids of the models that MLflow has of a run, by evaluation.

    A mirror may have ended after it made a model and before the run's tag named it.
    """
    found = run.client.search_logged_models([run.experiment], f"source_run_id = '{run.id}'")
    return {model.tags["evaluation"]: model.model_id for model in found}


def _make(run: MlflowRun, evaluation: str, about: Mapping[str, str]) -> str:
    """Make a model, and return its id."""
    copied = {name: run.tags[name] for name in COPIED_TAGS if name in run.tags}
    own = {RUN_TAG: run.tags[RUN_TAG], "evaluation": evaluation}
    model = run.client.create_logged_model(
        run.experiment,
        _NOT_IN_NAME.sub("_", f"{evaluation} {run.name}"),
        source_run_id=run.id,
        tags=copied | dict(about) | own,
        params=run.parameters,
        model_type=MODEL_TYPE,
    )
    return str(model.model_id)
