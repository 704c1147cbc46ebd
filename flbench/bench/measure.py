"""Measuring the speed of engines beside a bare PyTorch loop over the same batches.

Each engine is measured in a process of its own (`python -m flbench.bench.measure`), where its
rounds alternate with rounds of the bare loop. If the machine becomes slower or faster meanwhile,
both are affected, and their ratio stays the same.
"""

import json
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

from flbench.bench import roofline
from flbench.bench.bare_loop import all_cores, bare_round, count_steps
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_file
from flbench.core import startup
from flbench.core.errors import RunError, UserError
from flbench.core.plain_yaml import to_yaml
from flbench.core.rng import Draw
from flbench.core.types import State
from flbench.engine.base import RoundSettings
from flbench.engine.local import LocalEngine
from flbench.experiment import assembly, lifecycle, rounds
from flbench.models.base import build as build_net
from flbench.results import reading

WARM_UP_SECONDS = 2.0
"""Least time of the rounds before those that count: an engine records short steps first."""
EXIT_USER_ERROR = 2


@dataclass(frozen=True)
class Case:
    """The measurements of one engine. Times are in seconds, and medians over the measured rounds.

    Attributes:
        engine: Engine that was asked for.
        chosen: Engine that was measured; another one than `engine` if that is `auto`.
        processes: Processes of this machine that train at the same time, without those of Ray.
        threads: Threads of each process of the engine.
        startup: Time from the start of the process, imports included, until the first client was
            trained.
        steps: Optimizer steps of all measured rounds.
        bare: Time of one step of the bare loop with all cores.
        step: Time of one client step of the engine.
        ratio: Time of a round with the engine, divided by that of the bare loop.
        operations: Floating-point operations that the measured rounds need, see
            `flbench.bench.roofline`.
        moved: Bytes that the measured rounds must move.
        best: Floating-point operations per second and bytes per second that the device reaches.
        run: Times of a complete run: `train`, `evaluate`, `other` (files, checkpoints), `total`;
            and `bare`, the time of the bare loop for the local epochs of all rounds. Empty if no
            complete run was measured.
        memory: Largest size of the process in bytes, without its workers.
        report: What the engine reports of itself, for example the share of padded samples.
    """

    engine: str
    chosen: str
    processes: int
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
    def title(self) -> str:
        """The engine, and the number of processes if there are several."""
        return self.engine + (f", {self.processes} processes" if self.processes > 1 else "")

    @property
    def speed(self) -> float:
        """Client steps per second."""
        return 1 / self.step

    @property
    def arithmetic(self) -> float:
        """Share of the device's operations per second that the engine reaches, in [0, 1]."""
        return self.operations / self.best[0] / (self.step * self.steps)

    @property
    def bandwidth(self) -> float:
        """Share of the device's bandwidth that the engine reaches; above 1 if caches help."""
        return self.moved / self.best[1] / (self.step * self.steps)

    @property
    def whole(self) -> float | None:
        """Time of the complete run, divided by that of the bare loop; None without such a run."""
        return self.run["total"] / self.run["bare"] if self.run else None

    def tree(self) -> dict[str, Any]:
        """Return all attributes and derived numbers as a dict, for JSON."""
        derived = ("speed", "arithmetic", "bandwidth", "whole")
        return asdict(self) | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True)
class RoundTiming:
    """One round of the bare loop and one of the engine with the same cohort.

    Attributes:
        samples: Samples that were trained on, each counted once per epoch.
        bare_steps: Steps of the bare loop, at least 1.
        engine_steps: Steps of the engine, at least 1.
        bare_seconds: Time of the bare loop.
        engine_seconds: Time of the engine.
    """

    samples: int
    bare_steps: int
    engine_steps: int
    bare_seconds: float
    engine_seconds: float


def compare(configs: Sequence[Config], *, repeats: int, run_rounds: int) -> list[Case]:
    """Measure one configuration after the other, each in a process of its own.

    Args:
        configs: Configurations that differ in `engine` only.
        repeats: Number of rounds that count, after the warm-up.
        run_rounds: Rounds of the complete run; 0 measures no such run.

    Returns:
        One case per configuration.

    Raises:
        UserError: A configuration is wrong.
        RunError: A process failed; the message is the last line that it wrote.
    """
    cases = []
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.yaml"
            file.write_text(to_yaml(config.tree(), {}), encoding="utf-8")
            command = [sys.executable, "-m", "flbench.bench.measure"]
            arguments = [str(file), str(repeats), str(run_rounds), str(time.time())]
            process = subprocess.run(
                [*command, *arguments],
                env=startup.environment(),
                capture_output=True,
                text=True,
                check=False,
            )
        if process.returncode:
            message = process.stderr.strip()
            if process.returncode == EXIT_USER_ERROR:
                raise UserError(message)
            reason = message.splitlines()[-1] if message else "its process wrote no message"
            raise RunError(f"engine.name={config.engine.name} could not be measured: {reason}")
        cases.append(Case(**json.loads(process.stdout.splitlines()[-1])))
    return cases


def measure(config: Config, *, repeats: int, run_rounds: int, begin: float) -> Case:
    """Measure one configuration in this process.

    Args:
        config: The configuration.
        repeats: Number of rounds that count, after the warm-up.
        run_rounds: Rounds of the complete run; 0 measures no such run.
        begin: Time at which the process was started, in seconds since 1970.
    """
    experiment = assembly.build(config).with_workers(lambda _: None)
    try:
        uses_local = isinstance(experiment.engine, LocalEngine)
        state = experiment.start()
        _train_smallest_client(experiment, state)
        startup = time.time() - begin
        timings = _time_rounds(experiment, state, repeats)
        report = experiment.engine.report()
        best = _device_limits(torch.device(experiment.config.engine.device))
        steps = sum(timing.engine_steps for timing in timings)
        samples = sum(timing.samples for timing in timings)
        operations, moved = _training_cost(experiment).total(samples, steps)
        bare_step = median(timing.bare_seconds / timing.bare_steps for timing in timings)
        bare_run = bare_step * count_steps(experiment, state, run_rounds)
    finally:
        experiment.engine.close()  # the complete run starts workers of its own
    return Case(
        engine=config.engine.name,
        processes=int(report.get("workers", 1)) if uses_local else 1,
        chosen=experiment.config.engine.name,
        threads=experiment.config.engine.threads,
        startup=startup,
        steps=steps,
        bare=bare_step,
        step=median(timing.engine_seconds / timing.engine_steps for timing in timings),
        ratio=median(timing.engine_seconds / timing.bare_seconds for timing in timings),
        operations=operations,
        moved=moved,
        best=best,
        run=_complete_run(config, run_rounds) | {"bare": bare_run} if run_rounds else {},
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        report=report,
    )


def _train_smallest_client(experiment: assembly.Experiment, state: State) -> None:
    """Train the client with the fewest samples, which shows that the engine is ready."""
    algorithm = experiment.algorithm
    settings = rounds.settings_of(algorithm, state)
    smallest = torch.argsort(algorithm.setting.sizes)[:1]
    rounds.train(algorithm, experiment.engine, state, settings, ids=smallest)


def _time_rounds(experiment: assembly.Experiment, state: State, repeats: int) -> list[RoundTiming]:
    """Time rounds, and return the last `repeats` of them.

    At least one round, and at least `WARM_UP_SECONDS` of the engine's time, come before those.
    """
    timings: list[RoundTiming] = []
    while (
        len(timings) <= repeats
        or sum(timing.engine_seconds for timing in timings[:-repeats]) < WARM_UP_SECONDS
    ):
        timings.append(_time_round(experiment, state, len(timings)))
    return timings[-repeats:]


def _time_round(experiment: assembly.Experiment, state: State, number: int) -> RoundTiming:
    """Train the cohort of a round with the bare loop, then with the engine."""
    train, algorithm = experiment.config.train, experiment.algorithm
    draw = Draw(experiment.config.seed, (number,), algorithm.setting.clients)
    cohort = algorithm.cohort(state, draw)  # [K]
    begin = time.perf_counter()
    bare_steps = bare_round(experiment, draw, cohort.tolist())
    between = time.perf_counter()
    settings = RoundSettings(train, draw)
    trained = rounds.train(algorithm, experiment.engine, state, settings, ids=cohort)
    end = time.perf_counter()
    return RoundTiming(
        samples=int(algorithm.setting.sizes[cohort].sum()) * train.local_epochs,
        bare_steps=max(1, bare_steps),
        engine_steps=max(1, int(trained.results.steps.sum())),
        bare_seconds=between - begin,
        engine_seconds=end - between,
    )


def _training_cost(experiment: assembly.Experiment) -> roofline.TrainingCost:
    """Return what the training of the experiment's net costs, counted on one batch."""
    federation, config = experiment.federation, experiment.config
    net = build_net(config.model, federation.shape, federation.classes, 0).train()
    samples = torch.arange(min(config.train.batch_size, len(federation.y)))
    inputs = federation.inputs(samples, torch.float32)
    return roofline.training_cost(net, inputs, federation.y[samples])


def _device_limits(device: torch.device) -> tuple[float, float]:
    """Return the operations and bytes per second that a device reaches with all cores."""
    with all_cores():
        return roofline.best_arithmetic(device, torch.float32), roofline.best_bandwidth(device)


def _complete_run(config: Config, number: int) -> dict[str, float]:
    """Return the seconds of a complete run by purpose.

    Args:
        config: The configuration.
        number: Rounds of the run.
    """
    with tempfile.TemporaryDirectory() as folder:
        train, output = config.train.altered(rounds=number), config.output.altered(dir=Path(folder))
        short = config.altered(train=train, output=output)
        path = lifecycle.run(short, {})
        seconds = reading.read(path).summary["seconds"]
    other = seconds["total"] - seconds["train"] - seconds["evaluate"]
    return {**seconds, "other": max(0.0, other)}


def main(arguments: Sequence[str]) -> None:
    """Measure one configuration, and print the case as JSON in the last line.

    Args:
        arguments: Configuration file, and the arguments `repeats`, `run_rounds` and `begin` of
            `measure`.
    """
    file, repeats, run_rounds, begin = arguments
    config, _ = resolve([from_file(Path(file))])
    case = measure(config, repeats=int(repeats), run_rounds=int(run_rounds), begin=float(begin))
    sys.stdout.write(json.dumps(asdict(case)) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_USER_ERROR)
