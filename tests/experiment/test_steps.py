"""Optimizer steps in the files of a run, against a count by hand."""

import json
import math

import pandas as pd
import pytest

import flbench as fl

EPOCHS = 3
PASSES = {  # over the samples of a client in a round, with three epochs
    **dict.fromkeys(["fedavg", "hfcd"], 3),
    "apfl": 3,  # both models in one phase
    "fedrep": 2 + 1,  # the head, then the body
    "ditto": 3 + 3,  # the global model, then the personal one
}
STEPS = {"apfl": 1}  # beside those passes: the weight alpha, at the beginning of a round


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("method", PASSES)
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_steps_are_those_of_a_count_by_hand(method, engine, tmp_path):
    run = fl.run(
        method,
        data="digits",
        partition={"clients": 4, "alpha": 0.5, "samples": 400},
        train={"rounds": 2, "local_epochs": EPOCHS, "participation": 0.5},
        engine={"name": engine},
        tracking={"mlflow": False},
        output={"dir": tmp_path},
        progress=False,
    )

    clients = pd.read_csv(run.path / "clients.csv")
    clients = clients[clients["moment"] == "last"]
    more = STEPS.get(method, 0)
    own = [math.ceil(size / 32) * PASSES[method] + more for size in clients["train_size"]]
    assert (clients["steps"] == clients["trainings"] * own).all()
    rows = pd.read_csv(run.path / "metrics.csv")
    steps = rows[(rows["split"] == "train") & (rows["metric"] == "steps")]
    assert list(steps["round"]) == [1, 2]
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["steps"] == steps["value"].sum() == clients["steps"].sum() > 0
    assert (summary["passes"] > 0) == (method in ("hfcd",))
