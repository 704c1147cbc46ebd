"""The three settings in which platforms are compared, and the job file that a script reads."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """One federation, trained with FedAvg and plain SGD.

    All clients have the same number of samples, drawn at random. The number of steps does not
    depend on which clients a platform draws, the accuracy hardly does, and weights by samples
    equal uniform weights.

    Attributes:
        name: Letter of the setting.
        title: What is trained, in words.
        data: Data set, by the name that flbench knows.
        net: `lenet5` or `logistic`.
        clients: Number N of clients.
        samples: Training samples of each client.
        cohort: Number K of clients in a round, drawn without replacement.
        epochs: Local epochs.
        batch: Batch size; the last batch of an epoch is smaller.
        lr: Learning rate.
        rounds: Rounds at scale 1.
        tolerance: Largest difference between the mean accuracy of a platform and that of the bare
            loop, in [0, 1].
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
    tolerance: float

    def steps(self, rounds: int) -> int:
        """Return the optimizer steps of a number of rounds."""
        return rounds * self.cohort * self.epochs * -(-self.samples // self.batch)


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
