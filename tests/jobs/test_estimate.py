"""The cost of many trainings, from what is measured of one of each method and of each place."""

import pytest

from flbench.core.errors import RunError
from flbench.experiment import estimate
from flbench.experiment.estimate import REPORT
from tests.cli.test_json import document
from tests.support import SMALL

MEASURED = {"local": 2.0, "fedavg": 5.0, "ditto": 9.0}  # seconds with 200 samples


@pytest.mark.slow
@pytest.mark.parametrize("fails", [(), ("ditto",)])
def test_other_places_cost_as_much_more_as_for_the_first_method(fails, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    real, asked = estimate.measure, []

    def measure(experiment):
        name, samples = experiment.config.algorithm.name, experiment.config.partition.samples
        asked.append((name, samples))
        if name in fails:
            raise RunError("no")
        found = vars(real(experiment))
        return estimate.Estimate(**found | {"total": MEASURED[name] * samples / 200})

    monkeypatch.setattr(estimate, "measure", measure)
    grid = ("--grid", "partition.samples=200,600", "--seeds", "2", "--jobs", "1", "--dry-run")
    plan = document("compare", *MEASURED, *SMALL, *grid)

    each = {name: one * (1 + 3) / 2 for name, one in MEASURED.items() if name not in fails}
    assert plan["seconds"]["cell"] == pytest.approx(each | dict.fromkeys(fails))
    assert plan["seconds"]["total"] == pytest.approx(2 * 2 * sum(each.values()) + REPORT)
    assert not list(tmp_path.iterdir())
    assert asked == [("local", 200), ("fedavg", 200), ("ditto", 200), ("local", 600)]
