"""The settings that are measured, and the job file that a script reads."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Setting:
    """One federation, trained with FedAvg and plain SGD.

    Attributes:
        name: Letter of the setting.
        title: What is trained, in words.
        data: Data set, by the name that flbench knows.
        net: `lenet5` without normalization, `logistic`, or another net for flbench alone.
        clients: Number N of clients.
        samples: Training samples of each client, or their mean; see `spread`.
        cohort: Number K of clients in a round, drawn without replacement.
        epochs: Local epochs.
        batch: Batch size; the last batch of an epoch is smaller.
        lr: Learning rate.
        rounds: Rounds at scale 1.
        tolerance: Largest difference between the mean accuracy of a platform and that of the bare
            loop, in [0, 1].
        every: Rounds between two evaluations of the global model (default: one in the end).
        shards: Pieces of the samples in the order of the classes that a client has; 0 for samples
            drawn at random.
        spread: Standard deviation of the clients' numbers of samples over their mean.
        keys: Further keys of flbench.
    """

    name: str
    title: str
    data: str
    net: str
    clients: int
    samples: int
    cohort: int
    epochs: int
    batch: int
    lr: float
    rounds: int
    tolerance: float = 1.0
    every: int | None = None
    shards: int = 0
    spread: float = 0.0
    keys: tuple[str, ...] = ()

    def steps(self, rounds: int) -> int:
        """Return the optimizer steps of a number of rounds, for clients of equal sizes."""
        return rounds * self.cohort * self.epochs * -(-self.samples // self.batch)

    def sizes(self) -> np.ndarray:
        """Return the number of training samples of each client."""
        drawn = np.random.default_rng(0).normal(1, self.spread, self.clients)
        return (self.samples * drawn.clip(0.1, 2)).round().astype(int)

    def scaled(self, factor: float) -> "Setting":
        """Return the setting with fewer rounds.

        If one round is too many, it has fewer clients too, and if one client is, fewer samples.
        """
        share = min(1.0, factor * self.rounds)
        clients, cohort = (max(1, round(n * share)) for n in (self.clients, self.cohort))
        samples = max(self.batch, round(self.samples * min(1.0, share * self.clients)))
        rounds = max(1, round(factor * self.rounds))
        fewer = {"clients": clients, "cohort": min(cohort, clients), "samples": samples}
        return replace(self, rounds=rounds, **fewer)


TITLES = {
    "a": "LeNet-5 on Fashion-MNIST, 10 of 100 clients a round, 5 local epochs",
    "b": "logistic regression on MNIST, 10 of 1,000 clients a round, 1 local epoch",
    "c": "LeNet-5 on CIFAR-100 (every second image), all 100 clients, 5 local epochs",
}
SETTINGS = {
    "a": Setting("a", TITLES["a"], "fashionmnist", "lenet5", 100, 600, 10, 5, 32, 0.05, 20, 0.03),
    "b": Setting("b", TITLES["b"], "mnist", "logistic", 1000, 60, 10, 1, 10, 0.03, 100, 0.02),
    "c": Setting("c", TITLES["c"], "cifar100", "lenet5", 100, 250, 100, 5, 50, 0.1, 5, 0.02),
}
"""Settings of several platforms. All clients have the same number of samples, drawn at random: the
number of steps does not depend on which clients a platform draws, the accuracy hardly does, and
weights by samples equal uniform weights."""

SIMPLE_CNN = f"{Path(__file__).with_name('nets.py')}:simple_cnn"
BLAZEFL = Setting(
    *("e", "BlazeFL: its CNN on CIFAR-10, all 100 clients, 5 local epochs", "cifar10", "lenet5"),
    *(100, 500, 100, 5, 50, 0.1, 5),
    every=1,
    shards=2,
)
PUBLISHED = {
    "d": Setting(
        *("d", "pfl-research: its CNN on CIFAR-10, 50 of 1,000 clients a round", "cifar10"),
        *(SIMPLE_CNN, 1000, 50, 50, 1, 10, 0.1, 1500),
        every=10,
        keys=("model.args.glorot=true",),
    ),
    "e": BLAZEFL,
    "e18": replace(
        BLAZEFL,
        name="e18",
        title=BLAZEFL.title.replace("its CNN", "ResNet-18"),
        net="torchvision.models:resnet18",
    ),
    "f": Setting(
        *("f", "FLUTE: its CNN on Federated EMNIST, 10 of 3,400 clients a round", "femnist"),
        *(SIMPLE_CNN, 3400, 198, 10, 1, 20, 0.1, 1500),
        every=50,
        spread=0.4,
    ),
}
"""Settings that other platforms have published, which flbench trains alone.

BlazeFL's CNN is LeNet-5 without normalization. FLUTE's README states 1,500 rounds, its
configuration 800. Its clients are writers of different numbers of images.
"""
SHAPES = {"cifar10": (10_000, (32, 32, 3), 10), "femnist": (77_483, (28, 28), 62)}
"""Test samples, shape of an image and classes of the data sets of published settings."""


@dataclass(frozen=True)
class Job:
    """What one script does once; read from a JSON file whose path is the script's argument.

    Attributes:
        setting: The federation.
        variant: Way in which the platform executes it, such as an engine of flbench.
        task: NPZ file of the samples; see `task.load`.
        rounds: Rounds to train.
        seed: Seed of weights, cohorts and batches.
        threads: Threads of PyTorch in a process that trains alone.
        workers: Processes of a variant that trains in several.
        result: JSON file that the script writes.
    """

    setting: Setting
    variant: str
    task: Path
    rounds: int
    seed: int
    threads: int
    workers: int
    result: Path

    def write(self, path: Path) -> None:
        """Write the job to a file."""
        path.write_text(json.dumps(asdict(self), default=str, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: str) -> "Job":
        """Read a job from a file."""
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        setting = Setting(**values.pop("setting"))
        task, result = Path(values.pop("task")), Path(values.pop("result"))
        return cls(setting=setting, task=task, result=result, **values)

    def report(
        self, *, steps: int, seconds: float, accuracy: float, notes: tuple[str, ...] = ()
    ) -> None:
        """Write what the script has measured.

        Args:
            steps: Optimizer steps that were taken.
            seconds: Time of the rounds: local training, aggregation and what the platform does
                between them, without imports, loading of data and the final evaluation.
            accuracy: Accuracy of the global model on the test samples, in [0, 1].
            notes: What a reader must know.
        """
        measured = {"steps": steps, "seconds": seconds, "accuracy": accuracy, "notes": notes}
        self.result.write_text(json.dumps(measured), encoding="utf-8")
