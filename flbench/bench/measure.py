"""What engines cost: client steps per second beside a bare PyTorch loop over the same batches.

Each engine is measured in a process of its own, where its rounds alternate with rounds of the bare
loop: a machine that drifts drifts for both, and the ratio stays. The bare loop is the floor that
every framework pays against: no module of Lightning, no loss terms, no messages, no checks.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from flbench.bench import roofline
from flbench.client.program import Phase
from flbench.client.step import make_optimizer
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_file
from flbench.config.yaml_text import to_yaml
from flbench.core.errors import RunError, UserError
from flbench.core.rng import Draw
from flbench.core.types import State
from flbench.data import batches
from flbench.engine.base import RoundSettings
from flbench.experiment import assembly, lifecycle, rounds
from flbench.experiment.engine_choice import steps_of
from flbench.experiment.loop import Reporter
from flbench.models.base import build as build_net
from flbench.results import reading

WARM = 2.0
"""Seconds of an engine's first rounds that do not count: it writes short steps down."""


@dataclass(frozen=True)
class Case:
    """What one engine was measured to do; times in seconds, medians over rounds.

    Attributes:
        engine: its name, as it was asked for.
        chosen: its name, where that was `auto`.
        threads: of each of its processes.
        startup: until it could train its first client, imports included.
        steps: optimiser steps of the measured rounds.
        bare: a step of the bare loop with all cores.
        step: a client's step of the engine.
        ratio: of a round, engine / bare loop.
        operations: floating-point operations that the rounds need (see `flbench.bench.roofline`).
        moved: bytes that they must move.
        best: of the device: operations and bytes per second.
        run: of a whole run: `train`, `evaluate`, `other` (files, checkpoints) and `total`; `bare`
            is what the bare loop would take for `train.local_epochs` in each round.
        memory: most bytes of the process, without those of its workers.
        report: what the engine tells of itself, as the share of rows that were padding.
    """

    engine: str
    chosen: str
    threads: int
    startup: float
    steps: int
    bare: float
    step: float
    ratio: float
    operations: float
    moved: float
    best: tuple[float, float]
    run: dict[str, float]
    memory: int
    report: dict[str, float]

    @property
    def speed(self) -> float:
        """Client steps per second."""
        return 1 / self.step

    def tree(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        derived = ("speed", "arithmetic", "bandwidth", "whole")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    @property
    def arithmetic(self) -> float:
        """Share of the device's best arithmetic that the engine reaches."""
        return self.operations / self.best[0] / (self.step * self.steps)

    @property
    def bandwidth(self) -> float:
        """Share of its best bandwidth; above 1 where a net stays in a cache."""
        return self.moved / self.best[1] / (self.step * self.steps)

    @property
    def whole(self) -> float | None:
        """Of the whole run, total / bare loop; None where none was measured."""
        return self.run["total"] / self.run["bare"] if self.run else None


def compare(configs: Sequence[Config], *, repeats: int, run_rounds: int) -> list[Case]:
    """Measure one configuration after the other, each in a process of its own.

    Args:
        configs: alike but for `engine`.
        repeats: rounds that are measured, after one or more that warm up.
        run_rounds: rounds of the whole run; 0 leaves it out.
    Raises: UserError or RunError with what a process said before it failed.
    """
    cases = []
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.yaml"
            file.write_text(to_yaml(config.tree(), {}), encoding="utf-8")
            command = [sys.executable, "-m", "flbench.bench.measure", str(file), str(repeats)]
            begin = time.time()
            done = subprocess.run(
                [*command, str(run_rounds), str(begin)], capture_output=True, text=True, check=False
            )
        if done.returncode:
            said = done.stderr.strip()
            if done.returncode == 2:
                raise UserError(said)
            last = said.splitlines()[-1] if said else "it said nothing"
            raise RunError(f"engine.name={config.engine.name} could not be measured: {last}")
        cases.append(Case(**json.loads(done.stdout.splitlines()[-1])))
    return cases


def measure(config: Config, *, repeats: int, run_rounds: int, begin: float) -> Case:
    """Measure one configuration in this process, which began at `begin` (seconds of the epoch)."""
    built = assembly.build(config)
    try:
        state, setting = built.start(), built.algorithm.setting
        settings = rounds.settings_of(built.config, built.algorithm, state)
        smallest = torch.argsort(setting.sizes)[:1]
        rounds.train(built.algorithm, built.engine, state, settings, ids=smallest)
        startup = time.time() - begin
        found: list[Measured] = []
        while len(found) <= repeats or sum(one.own for one in found[:-repeats]) < WARM:
            found.append(_round(built, state, len(found)))
        report = built.engine.report()
        best = _best(torch.device(built.config.engine.device))
        measured = found[-repeats:]
        steps = sum(one.steps for one in measured)
        operations, moved = _need(built).of(sum(one.samples for one in measured), steps)
        bare = median(one.bare / one.bare_steps for one in measured)
        bare_run = bare * _bare_steps(built, state, run_rounds)
    finally:
        built.engine.close()  # before the whole run starts workers of its own
    return Case(
        engine=config.engine.name,
        chosen=built.config.engine.name,
        threads=built.config.engine.threads or 1,
        startup=startup,
        steps=steps,
        bare=bare,
        step=median(one.own / one.steps for one in measured),
        ratio=median(one.own / one.bare for one in measured),
        operations=operations,
        moved=moved,
        best=best,
        run=_whole_run(config, run_rounds) | {"bare": bare_run} if run_rounds else {},
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        report=report,
    )


@dataclass(frozen=True)
class Measured:
    """One round: samples trained on, steps, and seconds, of the bare loop and of the engine."""

    samples: int
    bare_steps: int
    steps: int
    bare: float
    own: float


def _round(built: assembly.Experiment, state: State, number: int) -> Measured:
    """Let the bare loop and the engine take a round, one after the other."""
    train, setting = built.config.train, built.algorithm.setting
    draw = Draw(built.config.seed, (number,), setting.clients)
    ids = built.algorithm.cohort(state, draw)
    begin = time.perf_counter()
    bare_steps = bare_round(built, draw, ids.tolist())
    between = time.perf_counter()
    settings = RoundSettings(train, draw)
    trained = rounds.train(built.algorithm, built.engine, state, settings, ids=ids)
    return Measured(
        samples=int(setting.sizes[ids].sum()) * train.local_epochs,
        bare_steps=max(1, bare_steps),
        steps=max(1, int(trained.results.steps.sum())),
        bare=between - begin,
        own=time.perf_counter() - between,
    )


def _bare_steps(built: assembly.Experiment, state: State, number: int) -> int:
    """Return the steps that the bare loop would take in so many rounds of one phase each."""
    train, setting = built.config.train, built.algorithm.setting
    phase = Phase("*", (), train.optimizer, epochs=train.local_epochs)
    steps = steps_of(built.algorithm, [phase])
    draws = (Draw(built.config.seed, (k,), setting.clients) for k in range(number))
    return sum(int(steps[built.algorithm.cohort(state, draw)].sum()) for draw in draws)


def bare_round(built: assembly.Experiment, draw: Draw, ids: Sequence[int]) -> int:
    """Train these clients by hand with all cores; return the number of steps."""
    federation, train = built.federation, built.config.train
    device = torch.device(built.config.engine.device)
    x, y = federation.x.to(device), federation.y.to(device)
    shift, scale = federation.shift.to(device), federation.scale.to(device)
    net = build_net(built.config.model, federation.shape, federation.classes, 0).to(device).train()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    has_batchnorm = bool(built.algorithm.setting.net.names("batchnorm"))
    threads, steps = torch.get_num_threads(), 0
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for client in ids:
        net.load_state_dict(start)
        optimizer = make_optimizer(train.optimizer, list(net.parameters()), train.optimizer.lr)
        rows = federation.partition.parts["train"][client]
        for epoch in range(train.local_epochs):
            order = draw.sample_order(client, epoch, len(rows))
            order = rows[batches.arrange(order, train, skip_single=has_batchnorm)]
            for index in torch.split(torch.from_numpy(order).to(device), train.batch_size):
                optimizer.zero_grad()
                inputs = (x[index].float() - shift) * scale
                torch.autograd.backward(cross_entropy(net(inputs).logits, y[index]))
                optimizer.step()
                steps += 1
    roofline.wait(device)
    torch.set_num_threads(threads)
    return steps


def _need(built: assembly.Experiment) -> roofline.Need:
    """Return what the net's training needs, counted on one batch."""
    federation = built.federation
    net = build_net(built.config.model, federation.shape, federation.classes, 0).train()
    rows = torch.arange(min(built.config.train.batch_size, len(federation.y)))
    return roofline.need(net, federation.inputs(rows, torch.float32), federation.y[rows])


def _best(device: torch.device) -> tuple[float, float]:
    """Return the operations and bytes per second of a device with all cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    best = roofline.best_arithmetic(device, torch.float32), roofline.best_bandwidth(device)
    torch.set_num_threads(threads)
    return best


def _whole_run(config: Config, number: int) -> dict[str, float]:
    """Return the seconds of a whole run by purpose, evaluated once and saved once."""
    with tempfile.TemporaryDirectory() as folder:
        train = config.train.model_copy(update={"rounds": number})
        output = config.output.model_copy(update={"dir": Path(folder)})
        short = config.model_copy(update={"train": train, "output": output})
        path = lifecycle.run(short, {}, _Quiet())
        seconds = reading.read(path).summary["seconds"]
    other = seconds["total"] - seconds["train"] - seconds["evaluate"]
    return {**seconds, "other": max(0.0, other)}


class _Quiet(Reporter):
    """Is told how a run goes, and tells nobody."""

    def begin(self, done: int, rounds: int) -> None:
        """Say nothing."""

    def round_done(self, done: int, loss: float) -> None:
        """Say nothing."""

    def evaluated(self, done: int, figures: Any) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""


def main(arguments: Sequence[str]) -> None:
    """Measure one configuration; print the case as the last line of standard output."""
    file, repeats, run_rounds, begin = arguments
    config, _ = resolve([from_file(Path(file))])
    case = measure(config, repeats=int(repeats), run_rounds=int(run_rounds), begin=float(begin))
    sys.stdout.write(json.dumps(asdict(case)) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
