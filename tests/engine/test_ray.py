"""The Ray engine: the sequential engine's results, bit for bit, whatever happens to its workers."""

import os
import signal

import pytest
import torch

from flbench.cli import app
from flbench.client.program import LocalProgram, Transform
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.core.errors import ConfigError
from flbench.core.tree import digest
from flbench.core.types import Dispatch
from flbench.engine.base import LocalWork
from flbench.experiment import lifecycle, rounds
from flbench.testing.setting import NET
from tests.engine.playing import played
from tests.support import SMALL, Silent, build, config_of, summary_of_run

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ray = pytest.importorskip("ray")
from flbench.engine.ray import RayEngine  # noqa: E402  # it needs Ray
from flbench.workers.ray_driver import RayPool  # noqa: E402

KEYS = (*NET, "engine.threads=1")
RANDOM = "model.name=tests.experiment.test_smoke:All"
"""A net with random layers of many kinds."""


@pytest.fixture(scope="module")
def engine(request):
    """Two actors for all methods that train the same net: an engine knows no method."""
    built = build(*KEYS, *getattr(request, "param", ()))
    keys = (*KEYS, "engine.workers=2", *getattr(request, "param", ()))
    config = config_of(*keys, "engine.name=ray").engine
    engine = RayEngine(built.net, built.federation, config)
    yield engine
    engine.close()


def processes_of(engine) -> set[int]:
    """Return the ids of the processes that train clients."""

    def who(context):
        return {"head.bias": torch.full((10,), float(os.getpid()))}

    built = build(*KEYS)
    program = LocalProgram((Transform(who),), sends=frozenset({"head.bias"}))
    settings = rounds.settings_of(built.algorithm, built.start())
    work = LocalWork(program, lambda ids: {}, lambda ids: Dispatch(), settings)
    found = engine.run(work, torch.arange(5))
    return set(found.sent.values["head.bias"][:, 0].int().tolist())


@pytest.mark.parametrize("name", ["fedavg", "fedcpmd", "dispfl", "pfedhn", "floco"])
def test_every_kind_of_state_ends_with_the_sequential_engines_bits(engine, name):
    built = build(*KEYS, f"algorithm.name={name}")

    one, many = played(built, built.engine, 3), played(built, engine, 3)

    assert digest([one.server, one.clients]) == digest([many.server, many.clients])
    assert torch.equal(one.participation_count, many.participation_count)


@pytest.mark.parametrize("engine", [(RANDOM,)], indirect=True)
def test_random_layers_draw_the_same_with_any_number_of_workers(engine):
    """Dropout of all kinds, RReLU, noise, stochastic depth, and draws of NumPy and Python."""
    one, other = (build(*KEYS, RANDOM, "algorithm.name=fedper", f"seed={seed}") for seed in (0, 1))

    states = [played(one, one.engine, number=2)]
    torch.manual_seed(7)
    states += [played(one, engine, number=2), played(other, other.engine, number=2)]

    expected, found, another = (digest([state.server, state.clients]) for state in states)
    assert expected == found != another


def test_killed_worker_is_started_again_and_changes_nothing(engine):
    built = build(*KEYS, "algorithm.name=fedavg")
    expected = played(built, built.engine, 4)
    state = played(built, engine, 2)
    victim = min(processes_of(engine))

    os.kill(victim, signal.SIGKILL)
    while state.round < 4:
        settings = rounds.settings_of(built.algorithm, state)
        trained = rounds.train(built.algorithm, engine, state, settings)
        state = rounds.exchange(built.algorithm, state, trained).state

    assert digest([state.server]) == digest([expected.server])
    assert victim not in processes_of(engine)


def test_nothing_writes_to_the_shared_samples(engine):
    built = build(*KEYS, "algorithm.name=fedproto", "data.augment=[crop, flip]")
    plain = build(*KEYS, "algorithm.name=fedproto")

    played(built, engine, 2)

    found, expected = played(plain, engine, 1), played(plain, plain.engine, 1)
    assert digest([found.server, found.clients]) == digest([expected.server, expected.clients])


def test_more_workers_than_cpus_are_refused(engine):
    built = build(*KEYS)
    config = config_of(*KEYS, "engine.name=ray", "engine.workers=99").engine
    with pytest.raises(ConfigError, match="has 2"):
        RayEngine(built.net, built.federation, config)


@pytest.mark.parametrize("cause", [ConfigError("correct the net"), KeyError("a fault of flbench")])
def test_an_error_of_a_worker_is_raised_as_it_was(engine, cause):
    """The traceback of the worker is a note of it, unless its message is for the user."""

    class Raising:  # a class that actors need not import
        def fail(self, error):
            raise error

    needs = {"CPU": 0.0, "GPU": 0.0}
    pool = RayPool(engine._driver, print, Raising, [], 1, needs, "a worker", 60.0)
    pool.submit("a", "fail", cause)
    with pytest.raises(type(cause)) as found:
        [pool.ended(1.0) for _ in range(60)]
    pool.close()
    notes = "".join(getattr(found.value, "__notes__", ()))
    assert ("in fail" in notes) is isinstance(cause, KeyError)


class TestWithoutAClusterOfTheTests:
    """Ray is down at first, so no later test may use the engine of the tests."""

    @pytest.fixture(autouse=True)
    def _down(self, engine):
        engine.close()

    def test_address_without_a_cluster_is_one_message(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

        code = app.main(["run", *SMALL, "engine.name=ray", "engine.address=127.0.0.1:1"])

        error = capsys.readouterr().err
        assert code == 2
        assert "`engine.address`" in error
        assert "Traceback" not in error

    @pytest.mark.full
    def test_a_callback_reads_the_weights_of_a_run_with_clients_that_join(self, tmp_path):
        """The engine of the run is closed while the new clients are evaluated."""

        class Reading(Silent):
            def on_run_end(self, run):
                found.append(digest([run.weights(0)]))

        found: list[str] = []
        keys = (*SMALL, "algorithm=fedavg", "model.name=mlp", "train.rounds=1")
        keys = (*keys, "partition.new_clients=2", f"output.dir={tmp_path}")
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        try:
            for name in ("sequential", "ray"):
                asked, origins = resolve([from_overrides([*keys, f"engine.name={name}"])])
                lifecycle.run(asked, origins, [Reading()])
        finally:
            ray.shutdown()

        assert found[0] == found[1]

    @pytest.mark.full
    def test_two_nodes_give_the_same_digest(self):
        from ray.cluster_utils import Cluster

        keys = ("algorithm=fedavg", "train.participation=0.6")
        one = summary_of_run(*keys)
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        try:
            cluster.add_node(num_cpus=1)
            many = summary_of_run(*keys, "engine.name=ray", f"engine.address={cluster.address}")
        finally:
            cluster.shutdown()

        assert many["weights_digest"] == one["weights_digest"]
