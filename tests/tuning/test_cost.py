"""What a study will cost: counts by hand, estimates without a trace."""

import pytest

from flbench.experiment.estimate import REPORT, WORKERS
from tests.cli.test_json import document
from tests.support import SMALL

pytestmark = pytest.mark.slow


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
