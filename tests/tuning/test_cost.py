"""What a study will cost: counts by hand, estimates without a trace."""

import pytest

from flbench.cli.app import main
from flbench.experiment import estimate
from flbench.experiment.estimate import REPORT, WORKERS
from tests.cli.test_json import document
from tests.support import SMALL


@pytest.mark.slow
def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ("--trials", "4", "--seeds", "2", "--jobs", "1", "--dry-run")

    plan = document("tune", "local", "fedavg", *SMALL, *more)

    assert plan["trainings"] == {"search": 8, "cells": [4, 8]}
    seconds = plan["seconds"]
    assert [*seconds["trial"]] == ["local", "fedavg"]
    # Of four trials the first one and half of the others do all three rounds, and the others two;
    # then two cells with default and with tuned parameters of each method, and the report.
    trainings = 1 + 3 * (2 / 3 + 1 / 3 * 0.5) + 4
    extra = WORKERS + 2 * REPORT
    assert seconds["total"] == pytest.approx(trainings * sum(seconds["trial"].values()) + extra)
    assert plan["memory"]["total"] == plan["memory"]["trial"] > 10**7
    assert plan["asha_stops_from_round"] == {"local": 2, "fedavg": 2}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_trials_of_equal_steps_are_fewer_if_they_take_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ("--trials", "5", "--seeds", "0", "--equal", "steps", "--dry-run")
    real, asked = estimate.measure, []

    def measure(experiment):
        asked.append(experiment.config.algorithm.name)
        return real(experiment)

    monkeypatch.setattr(estimate, "measure", measure)

    plan = document("tune", "fedavg", "ditto", "local", *SMALL, *more)

    assert asked == ["fedavg", "ditto", "local"]  # the plan uses what counted the steps
    assert plan["trials_of"] == {"fedavg": 5, "ditto": 2, "local": 5}
    assert plan["trainings"] == {"search": 12, "cells": [0, 0]}


@pytest.mark.slow
def test_each_default_of_the_data_of_a_study_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    more = ("data.imbalance=1", "train.rounds=2", "--seeds", "0", "--dry-run")

    assert main(["tune", "local", "engine.name=sequential", *more]) == 0

    said = "".join(capsys.readouterr())
    assert "partition.alpha=0.5" in said
    assert "data.imbalance" not in said
    assert "train.rounds" not in said
