"""What a study will cost: counts by hand, estimates without a trace."""

from dataclasses import replace

import pytest

from flbench.config.sources import Layer, from_overrides
from flbench.tuning import cost
from flbench.tuning.cost import StudyCost
from tests.cli.test_json import document
from tests.support import SMALL

PLAN = StudyCost(
    methods=("a", "b"),
    trials=27,
    rounds=27,
    seeds=3,
    concurrent=2,
    grace=1,
    seconds={"a": 1.5, "b": 3.5},
    measured=("a", "b"),
    memory=10**9,
    engine="sequential",
    varying=(),
)


def layers(*methods):
    return {name: [from_overrides(SMALL), Layer({"algorithm": {"name": name}})] for name in methods}


def test_share_is_that_of_halving_trial_by_trial():
    last_rounds = [27] * 1 + [9] * 2 + [3] * 6 + [1] * 18  # a third continues at rounds 1, 3, 9

    assert pytest.approx(sum(last_rounds) / (27 * 27)) == PLAN.share
    assert replace(PLAN, grace=None).share == 1
    assert replace(PLAN, grace=27).share == 1


def test_trainings_and_seconds_by_hand():
    plan = replace(PLAN, grace=None)

    assert (plan.search, plan.finals) == (54, (6, 12))
    least, most = plan.total
    assert least == pytest.approx(cost.WORKERS + (27 + 3) * (1.5 + 3.5) / 2)
    assert most == pytest.approx(cost.WORKERS + (27 + 6) * (1.5 + 3.5) / 2)
    assert PLAN.total[0] < least
    assert PLAN.total[1] == most
    # More places than trainings do not make a training faster.
    assert replace(plan, concurrent=1000).total[1] == cost.WORKERS + 3.5


@pytest.mark.slow
def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    plan = document("tune", "local", "fedavg", *SMALL, "--trials", "4", "--seeds", "2", "--dry-run")

    assert plan["trainings"] == {"search": 8, "finals": [4, 8]}
    assert plan["seconds"]["measured"] == ["local", "fedavg"]
    assert 0 < plan["seconds"]["total"][0] < plan["seconds"]["total"][1]
    assert plan["memory"]["total"] > 10**7
    assert not list(tmp_path.iterdir())
