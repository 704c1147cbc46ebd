"""Measures one part of what `benchmarks/gpu.sh` measures on a GPU.

    python benchmarks/gpu.py PART [--device cpu] [--tiny] [key=value ...]

Each figure is a line of JSON on standard output as soon as it is known. The samples are random. A
measurement that fails has a line with its error, and the next one follows.

- `table`: client steps per second of the vectorized engine for four nets.
- `weights`: methods and nets with CUDA graphs and without: seconds of a round, whether two runs and
  a resumed one have equal digests, and how far the weights are from those of a CPU in float64.
- `engines`: the default beside both engines for six nets.
- `patches`: client steps per second by the largest patch of a convolution that is a product with
  patches: none, `LARGEST_PATCH` of `engine/stacked_layers.py`, and any.
- `rounds`: seconds of a round of 50 clients of five steps, and of those that are no steps.
- `start`: seconds until a command trains its first round, beside the import of its libraries.
- `trials`: a training, four at the same time, and one of four times the clients.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from speed import measure

import flbench as fl
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.engine import captured_step, stacked_layers
from flbench.experiment import lifecycle

HERE: Final = Path(__file__).parent
IMAGES: Final = {"grey": (28, 28), "color": (32, 32, 3)}
"""Shapes of random images; `tokens` are sequences of 20 tokens of 40 kinds."""
SIMPLE_CNN: Final = f"{HERE / 'peers' / 'nets.py'}:simple_cnn"
TABLE: Final = {
    "lenet5": ("grey", 100, 352, "model.name=lenet5 model.norm=none train.local_epochs=5"),
    "mlp": ("grey", 100, 352, "model.name=mlp model.hidden=[200] train.local_epochs=5"),
    "simple_cnn": ("color", 50, 100, f"model.name={SIMPLE_CNN} train.batch_size=10"),
    "resnet18": ("color", 10, 96, "model.name=resnet18 model.norm=group"),
}
"""Samples, clients, samples of a client, and keys. All clients train in each round: those of
LeNet-5 and the MLP take 55 steps of 32 samples, those of simple_cnn ten steps of ten."""
NETS: Final = {
    "mlp": ("grey", "model.name=mlp"),
    "lenet5": ("grey", "model.name=lenet5 model.norm=none"),
    "cnn": ("color", "model.name=cnn"),
    "resnet18": ("color", "model.name=resnet18 model.norm=group"),
    "gru": ("tokens", "model.name=gru"),
    "transformer": ("tokens", "model.name=transformer"),
}
CONVOLUTIONAL: Final = {
    "lenet5": NETS["lenet5"],
    "simple_cnn": ("color", f"model.name={SIMPLE_CNN}"),
    "resnet18": NETS["resnet18"],
    "mobilenet_v2": ("color", "model.name=torchvision.models:mobilenet_v2"),
}
METHODS: Final = {
    **{one: (one, *NETS["lenet5"]) for one in ("hfcd", "ditto", "scaffold", "fedrep")},
    "hfcd, BatchNorm": ("hfcd", "grey", "model.name=lenet5 model.norm=batch"),
    "gru": ("fedavg", *NETS["gru"]),
    "transformer": ("fedavg", *NETS["transformer"]),
}
"""Method, samples and keys of the net, by what the lines call them."""


def emit(asked: argparse.Namespace, **values: Any) -> None:
    """Print a figure."""
    keys = {"keys": asked.keys} if asked.keys else {}
    print(json.dumps({"part": asked.part, **keys, **values}), flush=True)


def tried(asked: argparse.Namespace, function: Callable[..., Any], **names: Any) -> None:
    """Print what a function returns as a figure, or its error."""
    begin = time.perf_counter()
    try:
        found = function()
    except Exception as error:  # noqa: BLE001 - whatever fails, the next measurement follows
        found = {"error": f"{type(error).__name__}: {error}"[:500]}
    emit(asked, **names, **found, wall=round(time.perf_counter() - begin, 1))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def federation(folder: Path, kind: str, clients: int, samples: int) -> list[str]:
    """Write random samples with natural clients, and return the keys of a run on them."""
    file = folder / f"{kind}-{clients}-{samples}.npz"
    if not file.exists():
        draw = np.random.default_rng(0)
        count, is_text = clients * samples, kind == "tokens"
        shape = (20,) if is_text else IMAGES[kind]
        type_, largest = (np.int64, 40) if is_text else (np.uint8, 256)
        np.savez(
            file,
            train_images=draw.integers(0, largest, (count, *shape), dtype=type_),
            train_labels=draw.permutation(count) % 10,
            train_groups=np.arange(count) // samples,
        )
    parts = "[0.8,0,0.2]" if kind == "tokens" else "[1,0,0]"
    keys = [f"data.path={file}", "partition.scheme=natural", f"partition.split={parts}"]
    return [*keys, *(["data.kind=tokens"] if kind == "tokens" else []), "tracking.mlflow=false"]


def rate(asked: argparse.Namespace, *keys: str) -> dict[str, Any]:
    """Return client steps per second, and the chosen engine, of a configuration."""
    common = ["algorithm=fedavg", f"engine.device={asked.device}", "engine.compile=off"]
    layer = from_overrides([*common, *keys, *asked.keys], "command line")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    warm_up, repeats = (0.0, 1) if asked.tiny else (0.5, 3)
    found = measure(resolve([layer])[0], repeats, warm_up=warm_up, is_beside_loop=False)
    rates = {"client_steps_per_s": float(f"{1 / found['step']:.4g}"), "chosen": found["chosen"]}
    rates["round_s"] = round(found["step"] * found["steps"] / repeats, 4)
    if torch.cuda.is_available():
        rates["gpu_memory_mib"] = torch.cuda.max_memory_allocated() >> 20
    return rates


def table(asked: argparse.Namespace, folder: Path) -> None:
    """Measure the nets of TABLE."""
    for net, (kind, clients, samples, keys) in TABLE.items():
        if asked.tiny:
            clients, samples = 2, 40
        data = federation(folder, kind, clients, samples)
        common = "train.participation=1", "train.local_epochs=1", "train.batch_size=32"
        every = *data, *common, "engine.name=vectorized", *keys.split()
        tried(asked, lambda every=every: rate(asked, *every), net=net)


def engines(asked: argparse.Namespace, folder: Path) -> None:
    """Measure the default and both engines for the nets of NETS."""
    for net, (kind, keys) in NETS.items():
        data = federation(folder, kind, *((2, 40) if asked.tiny else (20, 120)))
        for engine in ("auto", "vectorized", "sequential"):
            common = "train.participation=1", "train.local_epochs=1", f"engine.name={engine}"
            every = *data, *keys.split(), *common
            tried(asked, lambda every=every: rate(asked, *every), net=net, engine=engine)


def patches(asked: argparse.Namespace, folder: Path) -> None:
    """Measure the nets of CONVOLUTIONAL with other bounds of `stacked_layers.has_small_patches`."""
    rule = stacked_layers.LARGEST_PATCH
    sizes = (2,) if asked.tiny else (10, 50, 100)
    for (net, (kind, keys)), clients, bound in product(
        CONVOLUTIONAL.items(), sizes, (0, rule, 10**6)
    ):
        data = federation(folder, kind, clients, 20 if asked.tiny else 60)
        common = "train.participation=1", "train.local_epochs=1", "train.batch_size=20"
        every = *data, *keys.split(), *common, "engine.name=vectorized"
        stacked_layers.LARGEST_PATCH = bound  # type: ignore[misc]
        tried(asked, lambda every=every: rate(asked, *every), net=net, clients=clients, bound=bound)
    stacked_layers.LARGEST_PATCH = rule  # type: ignore[misc]


class Kept(fl.Callback):
    """Keeps the weights of all clients' models after the last round."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_run_end(self, run: Any) -> None:
        every = map(run.weights, range(run.clients))
        self.weights = [{name: one.cpu() for name, one in tree.items()} for tree in every]


class Clock(fl.Callback):
    """Keeps the time at which each round has ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round_end(self, run: Any, metrics: Any) -> None:
        self.times.append(time.perf_counter())


class Interrupt(fl.Callback):
    """Interrupts a run after its first round."""

    def on_round_end(self, run: Any, metrics: Any) -> None:
        if run.round == 1:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def graphs_on(*devices: str) -> Iterator[None]:
    """Take steps by CUDA graphs on these types of devices alone; on a CPU a graph is a call."""
    before, captured_step.DEVICES = captured_step.DEVICES, devices
    try:
        yield
    finally:
        captured_step.DEVICES = before


def weights(asked: argparse.Namespace, folder: Path) -> None:
    """Compare what the methods and nets of METHODS compute in several ways."""
    for name, (method, kind, keys) in METHODS.items():
        data = federation(folder, kind, *((3, 40) if asked.tiny else (10, 80)))
        every = [f"algorithm={method}", *data, *keys.split(), "engine.name=vectorized"]
        every += ["train.local_epochs=5", "evaluation.every=6", "engine.workers=1"]
        every += ["engine.compile=off", *asked.keys]
        tried(asked, lambda every=every: compared(asked, folder, every), name=name)


def compared(asked: argparse.Namespace, folder: Path, keys: list[str]) -> dict[str, Any]:
    """Return seconds, digests and distances of several trainings of one configuration."""

    def trained(
        *more: str, rounds: int = 6, device: str = asked.device, callback: Any = None
    ) -> dict[str, Any]:
        """Return the summary of a run, and the seconds of its rounds from the third one on."""
        clock = Clock()
        with TemporaryDirectory(dir=folder) as out:
            layer = [*keys, f"train.rounds={rounds}", f"engine.device={device}", *more]
            config, origins = resolve([from_overrides([*layer, f"output.dir={out}"])])
            try:
                path = lifecycle.run(config, origins, [clock, *([callback] if callback else [])])
            except KeyboardInterrupt:
                path = lifecycle.resume(next(Path(out).glob("*/*")), from_overrides([]), [callback])
            summary = json.loads((path / "summary.json").read_text())
        return summary | {"rounds": np.diff(clock.times)[1:-1].tolist()}  # the last one evaluates

    with graphs_on(torch.device(asked.device).type):
        trained()  # kernels are chosen
        runs = {"first": trained(), "second": trained(), "resumed": trained(callback=Interrupt())}
    with graphs_on():
        runs["without graphs"] = trained()
    digests = {one: summary["weights_digest"][:12] for one, summary in runs.items()}
    of_cpu, of_gpu = Kept(), Kept()
    with graphs_on():
        trained("engine.precision=64-true", rounds=2, device="cpu", callback=of_cpu)
    with graphs_on(torch.device(asked.device).type):
        trained("engine.precision=64-true", rounds=2, callback=of_gpu)
    gaps = [
        float((mine[name] - value).abs().max() / value.abs().max().clamp(min=1))
        for mine, all_ in zip(of_gpu.weights, of_cpu.weights, strict=True)
        for name, value in all_.items()
        if value.is_floating_point()
    ]
    return {
        "round_s": {
            name: round(median(runs[name]["rounds"]), 4) for name in ("first", "without graphs")
        },
        "digests": digests,
        "is_repeated": digests["first"] == digests["second"] == digests["resumed"],
        "cpu_difference": max(gaps),
    }


def rounds(asked: argparse.Namespace, folder: Path) -> None:
    """Measure rounds of five and of 25 steps of 50 clients, without evaluations.

    The difference of both is the time of 20 steps of these clients.
    """
    clients, length = (4, 8) if asked.tiny else (1000, 60)

    def measured(epochs: int) -> float:
        """Return the median seconds from the end of a round to that of the next one."""
        every = ["algorithm=fedavg", *federation(folder, "color", clients, 50)]
        every += ["train.batch_size=10", f"train.local_epochs={epochs}", f"train.rounds={length}"]
        every += [f"model.name={SIMPLE_CNN}", f"train.participation={min(1, 50 / clients)}"]
        every += [f"evaluation.every={length}", f"output.dir={folder}", "engine.name=vectorized"]
        every += [f"engine.device={asked.device}", "engine.compile=off", *asked.keys]
        clock = Clock()
        lifecycle.run(*resolve([from_overrides(every)]), [clock])
        return median(np.diff(clock.times)[length // 2 : -1])

    def both() -> dict[str, Any]:
        short, long = measured(1), measured(5)
        around = short - (long - short) / 4
        return {"round_s": round(short, 5), "around_steps_s": round(around, 5)}

    tried(asked, both, clients=min(clients, 50), steps=5)


def start(asked: argparse.Namespace, folder: Path) -> None:
    """Measure the time until a command trains, and that of an import."""
    keys = [*federation(folder, "grey", 10, 40), f"engine.device={asked.device}", *asked.keys]
    command = ["-m", "flbench", "run", "fedavg", "--rounds", "1", "--out", str(folder), *keys]
    programs = {"import": ["-c", "import torch, lightning"], "command": command}
    for name, arguments in programs.items():
        begin = time.perf_counter()
        seconds, line = None, ""
        with subprocess.Popen(
            [sys.executable, *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        ) as process:
            for line in process.stderr or ():
                if line.startswith("round 1") and seconds is None:
                    seconds = time.perf_counter() - begin
        whole = time.perf_counter() - begin
        failed = {"error": line.strip()} if process.returncode else {}
        emit(asked, name=name, first_round=seconds, whole=whole, **failed)


def trials(asked: argparse.Namespace, folder: Path) -> None:
    """Measure a training, four at the same time, and one of four times the clients.

    The last one has the steps of four trials whose clients are stacked in one process.
    """
    clients, samples, length = (4, 40, 2) if asked.tiny else (50, 320, 40)

    def trained(clients: int, count: int) -> dict[str, Any]:
        """Train at the same time; return seconds of all, and of the rounds of each."""
        data = federation(folder, "grey", clients, samples)
        command = [sys.executable, "-m", "flbench", "run", "fedavg", "--json", *data, *asked.keys]
        command += ["model.name=lenet5", "model.norm=none", "train.participation=1"]
        command += [f"train.rounds={length}", "evaluation.every=10"]
        command += [f"engine.device={asked.device}", "engine.name=vectorized"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begin = time.perf_counter()
        outs = [["--out", str(folder / f"{clients}-{count}-{k}")] for k in range(count)]
        started = [subprocess.Popen([*command, *out], **pipes) for out in outs]
        printed = [one.communicate() for one in started]
        whole = time.perf_counter() - begin
        if errors := [printed[k][1][-400:] for k, one in enumerate(started) if one.returncode]:
            raise RuntimeError(errors[0])
        runs = [json.loads(output)["runs"][0] for output, _ in printed]
        return {
            "steps": sum(one["steps"] for one in runs),
            "whole": round(whole, 2),
            "train": [one["seconds"]["train"] for one in runs],
        }

    cases = {
        "one trial": (clients, 1),
        "four trials at the same time": (clients, 4),
        "one run of four times the clients": (4 * clients, 1),
    }
    for name, case in cases.items():
        tried(asked, lambda case=case: trained(*case), name=name)


PARTS: Final = {
    one.__name__: one for one in (table, weights, engines, patches, rounds, start, trials)
}


def main() -> None:
    """Measure the part that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=[*PARTS])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few clients, to try the script")
    parser.add_argument("keys", nargs="*", metavar="key=value")
    asked = parser.parse_intermixed_args()
    emit(asked, torch=torch.__version__, cuda=torch.version.cuda)
    with TemporaryDirectory() as folder:
        PARTS[asked.part](asked, Path(folder))


if __name__ == "__main__":
    main()
