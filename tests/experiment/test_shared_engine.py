"""The engine that a study or a comparison chooses for all of its trainings."""

from dataclasses import replace

import pytest

from flbench.core.errors import ConfigError, RunError
from flbench.experiment import assembly, engine_choice, estimate, shared_engine
from flbench.experiment.engine_choice import Candidate
from flbench.experiment.shared_engine import choose
from tests.support import config_of

CLIENTS = 3


@pytest.fixture(scope="module")
def case():
    config = config_of(f"partition.clients={CLIENTS}", "partition.samples=60")
    federation = assembly.load_federation(config)
    return config, lambda: federation


@pytest.fixture
def measured(monkeypatch):
    """Replace measured seconds by given ones; an exception is raised in their place."""
    asked = []

    def give(total, **seconds):
        def of_engine(name, algorithm, *rest):
            asked.append((algorithm.name, name))
            found = seconds[name]
            if isinstance(found, Exception):
                raise found
            return Candidate(name, 0.0, found)

        real = estimate.measure
        monkeypatch.setattr(engine_choice, "measured", of_engine)
        monkeypatch.setattr(estimate, "measure", lambda built: replace(real(built), total=total))
        return asked

    return give


@pytest.mark.slow
def test_short_trainings_have_the_sequential_engine_and_nothing_is_measured(case, measured):
    asked = measured(1.0, sequential=9.0, vectorized=1.0)
    assert choose([case], 19, 1, asked=False) == shared_engine.EngineChoice("sequential")
    assert asked == []
    assert choose([case], 21, 1, asked=False).name == "vectorized"
    assert choose([case], 1, 1, asked=True).name == "vectorized"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vectorized", "name", "block"), [(4.0, "vectorized", CLIENTS), (4.9, "sequential", None)]
)
def test_the_vectorized_engine_must_be_clearly_faster(case, measured, vectorized, name, block):
    measured(100.0, sequential=5.0, vectorized=vectorized)
    choice = choose([case, case], 9, 2, asked=False)
    assert (choice.name, choice.block) == (name, block)
    assert f"{5.0 / vectorized:.2g} times" in choice.note


@pytest.mark.slow
def test_seconds_of_all_cases_decide_together(case, measured, monkeypatch):
    totals = iter([10.0, 1.0, 1.0, 8.0])
    measured(100.0, sequential=0.0, vectorized=0.0)
    monkeypatch.setattr(
        engine_choice, "measured", lambda name, *rest: Candidate(name, 0.0, next(totals))
    )
    assert choose([case, case], 9, 1, asked=False).name == "sequential"  # 11 against 9 seconds


@pytest.mark.slow
def test_what_the_vectorized_engine_cannot_train_is_said(case, measured):
    measured(100.0, sequential=1.0, vectorized=ConfigError("no vmap"))
    choice = choose([case], 9, 1, asked=False)
    assert (choice.name, choice.block) == ("sequential", None)
    assert "cannot train hfcd" in choice.note


@pytest.mark.slow
def test_methods_that_diverge_are_left_out(case, measured):
    measured(100.0, sequential=RunError("diverged"), vectorized=1.0)
    assert choose([case], 9, 1, asked=False) == shared_engine.EngineChoice("sequential")


@pytest.mark.slow
def test_costs_are_those_of_the_chosen_engine(case, measured):
    config, samples = case
    measured(100.0, sequential=0.0, vectorized=0.0)
    slow = shared_engine.estimated(config, samples())
    engine = config.engine.altered(name="vectorized", block=CLIENTS)
    fast = shared_engine.estimated(config.altered(engine=engine), samples())
    assert slow.total == 100.0
    assert fast.training == 0.0
    assert 0.0 < fast.total < 100.0


def test_gpus_of_a_cluster_are_not_measured_here(case, measured):
    asked = measured(99.0, sequential=9.0, vectorized=1.0)

    found = choose([case], 19, 1, asked=False, on_cluster=True)

    assert (found.name, found.block, asked) == ("sequential", None, [])
    assert found.note is not None
    with pytest.raises(ConfigError, match=r"engine\.name"):
        choose([case], 19, 1, asked=True, on_cluster=True)
