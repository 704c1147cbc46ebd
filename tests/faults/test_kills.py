"""Runs that are killed at random moments: the resumed run ends with the bytes of the straight one.

`FLBENCH_FAULTS_SEED` sets the seed, and `FLBENCH_FAULTS_METHODS` the methods (default: all).
"""

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from flbench import __version__
from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.sources import from_file
from flbench.experiment import checkpoint
from flbench.results import metrics_file
from flbench.testing import SMALL, reproducible, summary_of, with_method
from tests.faults.forking import PHASES, Ended, Forks, Kill

SEED = os.environ.get("FLBENCH_FAULTS_SEED", "0")
METHODS = os.environ.get("FLBENCH_FAULTS_METHODS", ",".join(ALGORITHMS.load())).split(",")
ROUNDS = 4
KILLS = 3  # of each method on each engine
RAY_KILLS = 3
WORKERS = 2
TABLES = ("metrics.csv", "clients.csv", "per_class.csv", "confusion.csv")

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


@dataclass
class Chain:
    """A run that is killed, resumed and killed again, and at last resumed to its end.

    Attributes:
        method: Name of the method.
        engine: Name of the engine.
        keys: Overrides.
        moments: Where SIGKILL falls, one draw for each kill: `time` or `change`, and a share in
            [0, 1) of the straight run's time or of its changes of files that are left.
        phases: What the run was doing when it was killed, for each kill that was followed by a
            resume.
        early: The same for kills before the run could be resumed; it began again.
        missed: Number of processes that ended before they were to be killed.
        faults: What went wrong.
    """

    method: str
    engine: str
    keys: tuple[str, ...]
    moments: list[tuple[str, float]]
    phases: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    missed: int = 0
    faults: list[str] = field(default_factory=list)


def chains() -> Iterator[Chain]:
    """Draw the chains: every method on both engines, and some on Ray."""
    for method in METHODS:
        for engine in ("sequential", "vectorized"):
            yield drawn(method, engine, KILLS)
    draw = random.Random(f"{SEED} ray")
    for method in draw.sample(METHODS, min(RAY_KILLS, len(METHODS))):
        yield drawn(method, "ray", 1)


def drawn(method: str, engine: str, kills: int) -> Chain:
    draw = random.Random(f"{SEED} {method} {engine}")
    keys = [
        f"engine.name={engine}",
        f"train.rounds={ROUNDS}",
        f"output.checkpoint_every={draw.choice((1, 2))}",
    ]
    if draw.random() < 0.3:
        keys.append("engine.state_memory=0")  # the clients' state is a mapped file
    if engine == "ray":
        keys.append("engine.workers=2")
    if engine == "ray":  # few, and starting for seconds: never before the run can be resumed
        moments = [("change", draw.uniform(0.45, 0.95)) for _ in range(kills)]
    else:
        moments = [(draw.choice(("time", "change")), draw.random()) for _ in range(kills)]
    return Chain(method, engine, (*SMALL, *with_method(method), *keys), moments)


def play(chain: Chain, forks: Forks, folder: Path) -> None:
    """Run a chain, and note its faults."""
    straight_out, out = folder / "straight", folder / "killed"
    straight_out.mkdir(parents=True)
    out.mkdir()
    begin = ["run", *chain.keys]
    # Ray's workers compute what the sequential engine does, bit for bit, and start for seconds.
    quicker = ["engine.name=sequential"] if chain.engine == "ray" else []
    straight = forks.call([*begin, *quicker, f"output.dir={straight_out}"], straight_out)
    if straight.code != 0:
        chain.faults.append(f"the straight run ended with {straight.code}: {straight.err[-600:]}")
        return
    [reference] = straight_out.glob("*/*/")
    arguments = [*begin, f"output.dir={out}"]
    left = 1.0  # share of the run that a resume still has to do
    for kind, share in chain.moments:
        kill = (
            Kill(seconds=share * left * straight.seconds)
            if kind == "time"
            else Kill(change=1 + int(share * left * straight.changes))
        )
        ended = forks.call(arguments, out, kill)
        check_messages(chain, ended)
        run = resumable(out)
        if not ended.is_killed:
            chain.missed += not ended.is_stopped
            if ended.code != 0:
                chain.faults.append(f"exit code {ended.code}: {ended.err[-600:]}")
                return
        elif run is None:
            chain.early.append(ended.phase)
            check_is_refused(chain, forks, out)
        else:
            chain.phases.append(ended.phase)
            check_nothing_is_lost(chain, run, reference)
        if run is not None:
            arguments = ["run", "--resume", str(run)]
            left *= 1 - share
    ended = forks.call(arguments, out)
    check_messages(chain, ended)
    if ended.code != 0:
        chain.faults.append(f"the last resume ended with {ended.code}: {ended.err[-600:]}")
        return
    check_is_like(chain, resumable(out), reference)


def resumable(out: Path) -> Path | None:
    """The run folder that can be resumed, if there is one."""
    found = [file.parent for file in out.glob("*/*/config.yaml")]
    assert len(found) <= 1, found
    return found[0] if found else None


def check_messages(chain: Chain, ended: Ended) -> None:
    if ended.is_stopped:
        chain.faults.append(f"hang in {ended.phase}")
    if "Traceback (most recent call last)" in ended.err:
        chain.faults.append(f"traceback: {ended.err[-1500:]}")


def check_is_refused(chain: Chain, forks: Forks, out: Path) -> None:
    """A folder without config.yaml, killed during the preparation, is refused by a message."""
    for folder in out.glob("*/*/"):
        ended = forks.call(["run", "--resume", str(folder)], out)
        check_messages(chain, ended)
        if ended.code != 2:
            chain.faults.append(f"resuming {folder.name} ended with {ended.code}: {ended.err}")


def check_nothing_is_lost(chain: Chain, run: Path, reference: Path) -> None:
    """What was written is the beginning of what the straight run wrote."""
    metrics, last = run / "metrics.csv", run / "checkpoints" / "last.safetensors"
    config, _ = resolve([from_file(run / "config.yaml")])
    done = 0
    if last.exists():
        state, extra = checkpoint.load(last, config.hash())
        done = state.round
        if len(metrics_file.read(metrics)) < extra["rows"]:
            chain.faults.append(f"metrics.csv has fewer rows than the checkpoint of round {done}")
    if not metrics.exists():
        return
    text = metrics.read_bytes()
    if not (reference / "metrics.csv").read_bytes().startswith(text):
        chain.faults.append("metrics.csv is not the beginning of the straight run's")
    if b"\n" in text and (rows := metrics_file.read(metrics)):
        lost = max(row.round for row in rows) - done
        # A run in its next round has not saved it yet.
        if lost > config.output.checkpoint_every:
            chain.faults.append(f"{lost} rounds are lost")


def check_is_like(chain: Chain, run: Path | None, reference: Path) -> None:
    """Digest, summary and tables are those of the straight run."""
    if run is None:
        chain.faults.append("there is no run folder")
        return
    a, b = reproducible(summary_of(run)), reproducible(summary_of(reference))
    if different := [key for key in a.keys() | b.keys() if a.get(key) != b.get(key)]:
        chain.faults.append(f"summary.json differs in {', '.join(sorted(different))}")
    for name in TABLES:
        if (run / name).read_bytes() != (reference / name).read_bytes():
            chain.faults.append(f"{name} differs")
    if left := [file.name for file in run.rglob("*.part")]:
        chain.faults.append(f"{', '.join(left)} was left behind")


@pytest.fixture(scope="module")
def forks():
    made = [Forks() for _ in range(WORKERS)]
    yield made
    for each in made:
        each.close()


def test_fork_runs_the_command_line_and_dies_by_the_signal(forks, tmp_path):
    """The harness itself: the call is the real one, and so is the kill."""
    assert [each.threads for each in forks] == [1] * WORKERS

    version = forks[0].call(["--version"], tmp_path)
    wrong = forks[0].call(["run", "train.rounds=x"], tmp_path)
    killed = forks[0].call(["run", *SMALL, "train.rounds=9999"], tmp_path, Kill(seconds=2.0))
    (tmp_path / "x").mkdir()
    early = forks[0].call(["run", *SMALL, f"output.dir={tmp_path}/x"], tmp_path, Kill(change=1))

    assert (version.code, version.out.strip()) == (0, __version__)
    assert wrong.code == 2
    assert "train.rounds" in wrong.err
    assert killed.is_killed
    assert 2.0 <= killed.seconds < 9.0
    assert list(tmp_path.glob("runs/*/*/config.yaml"))
    assert (early.is_killed, early.changes) == (True, 1)
    assert not list(tmp_path.glob("x/*/*"))


def test_killed_runs_are_resumed_and_end_like_straight_ones(forks, tmp_path, capsys):
    free: SimpleQueue[Forks] = SimpleQueue()
    for each in forks:
        free.put(each)
    todo = list(chains())

    def work(numbered: tuple[int, Chain]) -> None:
        mine = free.get()
        try:
            play(numbered[1], mine, tmp_path / str(numbered[0]))
        finally:
            free.put(mine)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, enumerate(todo)))

    report(todo, capsys)
    faults = [
        f"{chain.method} on {chain.engine}, {chain.moments}: {fault}"
        for chain in todo
        for fault in chain.faults
    ]
    assert not faults, "\n".join(faults)
    assert sum(len(chain.phases) for chain in todo) >= KILLS * len(todo) / 2


def report(todo: list[Chain], capsys: Any) -> None:
    """Print the counts."""
    engines = Counter(chain.engine for chain in todo for _ in chain.phases)
    phases = Counter(phase for chain in todo for phase in chain.phases)
    early = sum(len(chain.early) for chain in todo)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{sum(phases.values())} kills and resumes (seed {SEED}) of"
            f" {len({chain.method for chain in todo})} methods:"
            f" {', '.join(f'{count} {engine}' for engine, count in engines.items())}."
            f" Killed in {', '.join(f'{name} {phases[name]}' for name in PHASES if phases[name])}."
            f" Besides, {early} were killed before they could be resumed and began again, and"
            f" {sum(chain.missed for chain in todo)} ended before their kill."
            f" {sum(len(chain.faults) for chain in todo) or 'No'} faults.\n"
        )
