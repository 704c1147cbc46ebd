"""Run folders with chosen results, without any training."""

import json
from io import BytesIO
from pathlib import Path

import numpy as np

from flbench.config.resolve import changed, resolve
from flbench.config.sources import from_overrides
from flbench.core.plain_yaml import to_yaml
from flbench.core.registry import ALGORITHMS
from flbench.core.text import csv_text
from flbench.results import metrics_file
from flbench.results.metrics_file import Row

SCORES = ("accuracy", "balanced_accuracy", "macro_f1", "worst10_accuracy")


def run_folder(
    folder: Path,
    method: str,
    accuracy: float,
    *,
    repetition: int = 0,
    classes: int = 4,
    clients: int = 6,
    rounds: int = 3,
    sent: int = 1000,
    seconds: float = 2.0,
    is_rare: bool = False,
    validation: bool = True,
    names: bool = False,
    keys: tuple[str, ...] = (),
    partition_hash: str | None = None,
    data_hash: str | None = None,
    provenance: dict | None = None,
    samples: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write the folder of a finished run, and return it.

    The test accuracy is that of the last round, which is the best one; it grows linearly. The
    repetition is the seed of the run and of the partition, and `sent` the bytes that all clients
    send in a round.

    Args:
        is_rare: Whether the first class is rare.
        keys: Overrides `key=value` of the configuration.
        partition_hash: Hash of the partition; by default it follows from the repetition.
        data_hash: Hash of the samples in partition.json; None for a run without that file.
        provenance: Values of provenance.json that differ from the usual ones.
        samples: Arrays `index`, `client` and `part` of partition.npz; by default it lacks them.
    """
    rng = np.random.default_rng([repetition, len(method)])
    given = [f"algorithm={method}", f"seed={repetition}", f"train.rounds={rounds}", *keys]
    config, origins = resolve([from_overrides([f"partition.clients={clients}", *given])])
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(config.tree(), origins))

    counts = rng.integers(0, 9, (clients, classes)) * (rng.random((clients, classes)) < 0.7)
    counts[:, 0] = [1, *[0] * (clients - 1)] if is_rare else 20
    counts[:, 1:] += 20
    content = BytesIO()
    np.savez(content, train_counts=counts.astype(np.int32), **(samples or {}))
    (folder / "partition.npz").write_bytes(content.getvalue())

    if data_hash is not None:
        (folder / "partition.json").write_text(json.dumps({"data": data_hash}))

    rows = []
    for number in range(1, rounds + 1):
        rows += [
            Row(number, "train", "", "up_bytes", sent),
            Row(number, "train", "", "down_bytes", 0),
            Row(number, "train", "", "trainings", clients),
        ]
        for split in ("validation", "test") if validation else ("test",):
            rows += [
                Row(number, split, "personal", score, accuracy * number / rounds)
                for score in SCORES
            ]
            if is_rare:
                rows.append(Row(number, split, "personal", "rare_recall", accuracy / 2))
    (folder / "metrics.csv").write_text(metrics_file.header_line() + metrics_file.to_text(rows))

    recall = np.clip(accuracy + rng.normal(0, 0.05, classes), 0, 1)
    (folder / "per_class.csv").write_text(
        csv_text(
            (
                *("moment", "class", "name", "train_support", "test_support", "precision"),
                *("recall", "f1", "rare", "confusable"),
            ),
            [
                (
                    *("last", k, f"class {k}", int(counts[:, k].sum()), 10, recall[k], recall[k]),
                    *(recall[k], int(is_rare and k == 0), int(k == 1)),
                )
                for k in range(classes)
            ],
        )
    )
    own = np.clip(accuracy + rng.normal(0, 0.1, clients), 0, 1)
    header = ["moment", "client", "train_size", "test_size", "classes", "trainings"]
    header += ["accuracy", "balanced_accuracy", "macro_f1"]
    lines = [
        ["last", k, int(counts[k].sum()), 12, int((counts[k] > 0).sum()), rounds, *[own[k]] * 3]
        for k in range(clients)
    ]
    if names:
        header.insert(2, "name")
        lines = [[*line[:2], f"client <b>{line[1]}</b>", *line[2:]] for line in lines]
    (folder / "clients.csv").write_text(csv_text(tuple(header), lines))

    usual = {"flbench": "0.1.0", "git_revision": "0123456789ab", "processor": "p", "threads": 1}
    (folder / "provenance.json").write_text(json.dumps(usual | (provenance or {})))
    moment = {
        "round": rounds,
        "validation": dict.fromkeys(SCORES, accuracy) if validation else {},
        "test": dict.fromkeys(SCORES, accuracy),
    }
    if is_rare:
        moment["test"]["rare_recall"] = accuracy / 2
    summary = {
        "algorithm": method,
        "paper": ALGORITHMS.find(method).paper.citation,
        "changed": changed(config),
        "dataset": config.data.title,
        "model": "mlp",
        "seed": repetition,
        "rounds": rounds,
        "clients": clients,
        "partition_hash": partition_hash or f"{repetition:064x}",
        "config_hash": config.hash(),
        "weights_digest": "0" * 64,
        "last": moment,
        "best": moment,
        "best_by": "validation accuracy",
        "communication": {
            "up_bytes": sent * rounds,
            **dict.fromkeys(("down_bytes", "peer_bytes", "setup_bytes"), 0),
        },
        "client_trainings": clients * rounds,
        "trainings_without_step": 0,
        "diverged": 0,
        "seconds": {"train": seconds, "evaluate": 0.0, "write": 0.0, "total": seconds},
        "notes": [],
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def matrix(
    folder: Path, accuracies: dict[str, list[float]], **keywords: object
) -> dict[tuple[str, int], Path]:
    """Write a run folder for each method and repetition, and return the folders."""
    return {
        (method, k): run_folder(folder / f"{method}-{k}", method, value, repetition=k, **keywords)
        for method, values in accuracies.items()
        for k, value in enumerate(values)
    }
