"""Actors whose nodes are lost, and calls that wait for resources which no node has."""

import json
import time
from importlib import import_module
from threading import Thread

import pytest

import flbench as fl
from flbench.config.resolve import resolve
from flbench.config.sources import from_file, from_overrides
from flbench.core.tree import digest
from flbench.experiment import lifecycle
from flbench.testing.setting import NET
from flbench.workers import actor_pool as pools
from flbench.workers.pool import CouldNotBeginError, LostError
from tests.engine.playing import played
from tests.support import Silent, build, config_of
from tests.tuning.test_prepare import layers_of

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]

KEYS = (*NET, "engine.threads=1", "algorithm.name=fedavg")
SMALLEST = {
    "data": "digits",
    "train": {"rounds": 1},
    "engine": {"name": "sequential"},
    "progress": False,
}
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def nodes():
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def pool_of(*given, cpus: int, patience: float = 60.0) -> pools.ActorPool:
    class Doubles:  # a class of a function travels by value
        def __init__(self, *given):
            pass

        def doubled(self, number):
            return 2 * number

    needs = {"CPU": cpus, "GPU": 0.0}
    return pools.ActorPool(Doubles, given, 2, needs, "a cell", patience)


def all_ended(pool: pools.ActorPool, count: int, notes: list[str] | None = None) -> dict[int, int]:
    found: dict[int, int] = {}
    while len(found) < count:
        ended, note, _ = pool.ended(1.0)
        found |= {one.key: one.value for one in ended}
        if notes is not None and note:
            notes.append(note)
    return found


def engine_at(address: str, notes: list[str]):
    from flbench.engine.ray import RayEngine

    built = build(*KEYS)
    config = config_of(
        *KEYS, "engine.name=ray", "engine.workers=2", f"engine.address={address}"
    ).engine
    return RayEngine(built.net, built.federation, config, notes.append)


def test_the_workers_that_are_left_train_the_clients_of_a_lost_node(nodes):
    node, notes = nodes.add_node(**NODE), []
    built = build(*KEYS)
    engine = engine_at(nodes.address, notes)
    try:
        before = 0
        while before < 2:
            played(built, engine, 1)
            before = engine.report()["workers"]
        nodes.remove_node(node)

        found = played(built, engine, 3)

        assert digest([found.server]) == digest([played(built, built.engine, 3).server])
        assert (before, engine.report()["workers"]) == (2, 1)
        assert ["trained again" in note for note in notes if "lost" in note] == [True]
    finally:
        engine.close()


def test_a_smaller_cluster_is_used_with_a_note(nodes):
    """This is a resumed run: the configuration names the workers of the larger cluster."""
    notes: list[str] = []
    engine_at(nodes.address, notes).close()

    assert "engine.workers=2" in notes[0]
    assert "has 1 CPU" in notes[0]


def test_an_idle_actor_takes_the_calls_of_one_that_never_begins(nodes):
    """The cluster has one CPU, which the first actor keeps; two may run at the same time."""
    if not ray.is_initialized():
        ray.init(address=nodes.address, log_to_driver=False)
    pool = pool_of(cpus=1)

    for number in range(4):
        pool.submit(number, "doubled", number)

    assert all_ended(pool, 4) == {number: 2 * number for number in range(4)}
    pool.close()


def test_a_wait_for_what_no_node_has_is_told_and_ends(nodes, monkeypatch):
    if not ray.is_initialized():
        ray.init(address=nodes.address, log_to_driver=False)
    monkeypatch.setattr(pools, "NOTICE", 0.2)
    notes: list[str] = []
    pool = pool_of(cpus=7, patience=2.5)
    pool.submit("first", "doubled", 1)

    with pytest.raises(LostError, match=r"7 CPUs.*engine\.wait_seconds"):
        all_ended(pool, 1, notes)

    pool.close()
    assert len(notes) == 1


class NeedsModule:
    """Pickles as an object of a module that no other process finds."""

    def __reduce__(self):
        return import_module, ("module_of_this_process",)


def test_an_actor_that_cannot_begin_is_no_loss(nodes):
    """Another one could not begin either."""
    if not ray.is_initialized():
        ray.init(address=nodes.address, log_to_driver=False)

    pool = pool_of(NeedsModule(), cpus=1)
    pool.submit("first", "doubled", 1)

    with pytest.raises(CouldNotBeginError, match="module_of_this_process"):
        all_ended(pool, 1)

    pool.close()


@pytest.mark.filterwarnings("ignore:.*")  # notes about the data
def test_a_study_goes_on_with_what_is_left_of_a_cluster(nodes, tmp_path, monkeypatch):
    """One of two nodes is lost, on which a trial may be."""
    from flbench.tuning import prepare, search
    from flbench.tuning.request import TuneRequest

    attempts = []
    monkeypatch.setattr(search, "quiet", lambda: None)  # the environment is that of later tests
    keys = ["train.rounds=30", "evaluation.every=1"]
    budget = {"trials": 2, "seeds": 0, "concurrent": 2, "scheduler": "none", "retries": 1}
    asked = TuneRequest(("fedavg",), **budget, address=nodes.address, out=tmp_path / "study")
    node = nodes.add_node(**NODE)

    def lose_node():
        while len(files := list(tmp_path.glob("study/*/trials/fedavg/*/metrics.csv"))) < 2:
            time.sleep(0.1)
        while any(len(file.read_text().splitlines()) < 20 for file in files):
            time.sleep(0.1)
        began = [json.loads((file.parent / "trial.json").read_text()) for file in sorted(files)]
        attempts.extend(2 if one["node"] == node.node_id else 1 for one in began)
        nodes.remove_node(node)

    losing = Thread(target=lose_node, daemon=True)
    losing.start()
    if not ray.is_initialized():
        ray.init(address=nodes.address, log_to_driver=False)
    prepared = prepare.prepare(asked, layers_of("fedavg", more=keys))
    study = prepare.create(prepared, ["flbench", "tune"])
    search.train(study, prepared)
    study.close()
    losing.join()
    assert sorted(attempts) == [1, 2]
    assert [one.attempts for one in study.trials()] == attempts
    [trial] = [one.index for one in study.trials() if one.attempts == 2]
    folder = study.path / "trials" / "fedavg" / f"{trial:03d}"
    own = [f"output.dir={tmp_path / 'run'}"]
    twin = lifecycle.run(
        *resolve([from_file(folder / "config.yaml"), from_overrides(own)]), [Silent()]
    )
    rows = [
        [line for line in (path / "metrics.csv").read_text().splitlines() if ",validation," in line]
        for path in (folder, twin)
    ]
    assert [row for row in rows[0] if row in rows[1]] == rows[1]  # a trial has its loss too


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*")  # notes about the data
def test_cells_of_a_comparison_are_trained_on_a_cluster(nodes, tmp_path):
    """Two cells at once are asked of one CPU."""
    fl.compare(
        "local", seeds=2, jobs=2, address=nodes.address, out=tmp_path / "compared", **SMALLEST
    )

    here = fl.run("local", **SMALLEST, output={"dir": str(tmp_path / "run")})
    cells = [fl.load(folder) for folder in sorted((tmp_path / "compared").glob("*/cells/*"))]
    assert [cell.digest == here.digest for cell in cells] == [True, False]


def test_an_engine_whose_workers_do_not_begin_says_so(nodes):
    """The one CPU of the cluster is in use."""
    from flbench.engine.ray import RayEngine

    if not ray.is_initialized():
        ray.init(address=nodes.address, log_to_driver=False)
    holder = pool_of(cpus=1)
    holder.submit(0, "doubled", 0)
    all_ended(holder, 1)
    built = build(*KEYS)
    config = config_of(
        *(*KEYS, "engine.name=ray", "engine.workers=1", "engine.wait_seconds=1"),
        f"engine.address={nodes.address}",
    )

    engine = RayEngine(built.net, built.federation, config.engine)
    with pytest.raises(LostError, match=r"1 CPU.*engine\.wait_seconds"):
        played(built, engine, 1)

    engine.close()
    holder.close()
