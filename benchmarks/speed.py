"""Measures the speed of engines beside a bare PyTorch loop over the same batches.

    python benchmarks/speed.py [--engines NAME,NAME] [--repeats N] [METHOD] [key=value ...]

Each engine is measured in a process of its own, where its rounds alternate with rounds of the bare
loop: forward pass, cross-entropy, backward pass and optimizer step, one client after the other,
with all cores. If the machine becomes slower or faster meanwhile, both are affected, and their
ratio stays the same. The output is one JSON document: for each engine `ratio`, the time of a round
divided by that of the bare loop (median over the rounds); `step` and `bare`, the seconds of one
step of each; `steps`, those of all measured rounds; and `memory`, the largest size of the process
in bytes, without its workers.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from flbench.client.loss_and_optimizer import make_optimizer
from flbench.config.resolve import resolve
from flbench.config.schema import Config
from flbench.config.sources import from_overrides
from flbench.core.control_groups import available_cores
from flbench.core.errors import UserError
from flbench.core.rng import Draw
from flbench.data import batches
from flbench.engine.base import RoundSettings
from flbench.experiment import assembly, rounds
from flbench.experiment.assembly import Experiment
from flbench.models.base import build as build_net

WARM_UP_SECONDS = 2.0
"""Least time of the rounds before those that count."""


def bare_round(experiment: Experiment, draw: Draw, clients: Sequence[int]) -> int:
    """Train clients for `train.local_epochs` with all cores of the machine.

    Returns:
        Number of optimizer steps.
    """
    federation, train = experiment.federation, experiment.config.train
    device = torch.device(experiment.config.engine.device)
    x, y = federation.x.to(device), federation.y.to(device)
    offset, scale = federation.offset.to(device), federation.scale.to(device)
    net = build_net(experiment.config.model, federation.shape, federation.classes, 0)
    net = net.to(device).train()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    has_batchnorm = bool(experiment.algorithm.setting.net.names("batchnorm"))
    steps = 0
    with all_cores():
        for client in clients:
            net.load_state_dict(start)
            optimizer = make_optimizer(train.optimizer, list(net.parameters()), train.optimizer.lr)
            if federation.owner is not None:  # data.normalize=client
                offset, scale = (
                    t[client].to(device) for t in (federation.offset, federation.scale)
                )
            samples = federation.partition.parts["train"][client]
            for epoch in range(train.local_epochs):
                order = draw.sample_order(client, epoch, len(samples))
                order = samples[batches.arrange(order, train, skip_single=has_batchnorm)]
                for index in torch.split(torch.from_numpy(order).to(device), train.batch_size):
                    optimizer.zero_grad()
                    is_text = federation.dataset.kind == "tokens"
                    inputs = x[index].long() if is_text else (x[index].float() - offset) * scale
                    torch.autograd.backward(cross_entropy(net(inputs).logits, y[index]))
                    optimizer.step()
                    steps += 1
        synchronize(device)
    return steps


@contextmanager
def all_cores() -> Iterator[None]:
    """Let PyTorch use one thread per available core inside the context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(available_cores())
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    config: Config, repeats: int, *, warm_up: float = WARM_UP_SECONDS, is_beside_loop: bool = True
) -> dict[str, Any]:
    """Measure the engine of a configuration in this process.

    Args:
        config: The configuration.
        repeats: Rounds that count.
        warm_up: Least seconds of the rounds before those; one round in any case.
        is_beside_loop: Whether rounds of the bare loop are trained, too.
    """
    experiment = assembly.build(config).with_workers(lambda _: None)
    timings: list[tuple[int, int, float, float]] = []
    try:
        state = experiment.start()
        while len(timings) <= repeats or sum(t[3] for t in timings[:-repeats]) < warm_up:
            train, algorithm = experiment.config.train, experiment.algorithm
            draw = Draw(experiment.config.seed, (len(timings),), algorithm.setting.clients)
            cohort = algorithm.cohort(state, draw)  # [K]
            begin = time.perf_counter()
            bare_steps = bare_round(experiment, draw, cohort.tolist()) if is_beside_loop else 0
            between = time.perf_counter()
            settings = RoundSettings(train, draw)
            trained = rounds.train(algorithm, experiment.engine, state, settings, ids=cohort)
            synchronize(torch.device(experiment.config.engine.device))
            seconds = time.perf_counter() - between
            steps = int(trained.results.steps.sum())
            timings.append((bare_steps, max(1, steps), between - begin, seconds))
    finally:
        experiment.engine.close()
    last = timings[-repeats:]
    beside = {
        "ratio": median(seconds / bare for _, _, bare, seconds in last),
        "bare": median(bare / max(1, steps) for steps, _, bare, _ in last),
    }
    return {
        "engine": config.engine.name,
        "chosen": experiment.config.engine.name,
        "device": str(experiment.config.engine.device),
        **(beside if is_beside_loop else {}),
        "step": median(seconds / steps for _, steps, _, seconds in last),
        "steps": sum(steps for _, steps, _, _ in last),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure engines, print them as JSON, and return the exit code."""
    parser = argparse.ArgumentParser(description="Engines beside a bare PyTorch loop.")
    parser.add_argument("words", nargs="*", metavar="METHOD|key=value")
    parser.add_argument("--engines", default="sequential,vectorized", metavar="NAME[,NAME ...]")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds to measure")
    given = parser.parse_args(arguments)
    keys = [word if "=" in word else f"algorithm.name={word}" for word in given.words]
    keys = keys if any(key.startswith("algorithm") for key in keys) else ["algorithm=fedavg", *keys]
    try:
        engines = [f"engine.name={name}" for name in given.engines.split(",")]
        layers = [from_overrides([*keys, engine], "command line") for engine in engines]
        configs = [resolve([layer])[0] for layer in layers]
        spawn = multiprocessing.get_context("spawn")
        found = []
        for config in configs:
            with ProcessPoolExecutor(1, mp_context=spawn) as process:
                found.append(process.submit(measure, config, given.repeats).result())
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(json.dumps({"cores": available_cores(), "cases": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
