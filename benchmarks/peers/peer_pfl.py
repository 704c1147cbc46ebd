"""FedAvg with pfl: its simulated backend, in one process or, as its guide advises, by torchrun.

pfl cuts a client's samples into batches once per round, so that all local epochs have the same
batches; the order of the samples is drawn anew in each round. It always evaluates the cohort of
the first round.
"""

import itertools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from settings import Job, Setting
from task import StepCounter, accuracy, load, make_net
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Classifier(nn.Module):
    """A net with the loss and the metrics that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of a batch."""
        return cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return the summed loss of a batch."""
        loss = cross_entropy(self.net(x), y, reduction="sum").item()
        return {"loss": Weighted(loss, len(y))}


def draw_clients(setting: Setting, seed: int) -> Iterator[int]:
    """Yield the clients of cohort after cohort, each drawn without replacement."""
    draw = np.random.default_rng(seed)
    while True:
        yield from draw.choice(setting.clients, setting.cohort, replace=False).tolist()


def run(job: Job) -> None:
    """Train and evaluate, and write the result of a job."""
    rank = int(os.environ.get("RANK", 0))
    torch.set_num_threads(1 if job.variant else job.threads)
    torch.manual_seed(job.seed)
    np.random.seed(job.seed)
    setting, counter = job.setting, StepCounter()
    task = load(job.task)

    def dataset(client: int) -> PyTorchTensorDataset:
        x, y = task.samples(client)
        order = torch.randperm(len(y))
        return PyTorchTensorDataset((x[order], y[order]), user_id=str(client))

    stream = draw_clients(setting, job.seed)
    training = FederatedDataset(dataset, lambda: next(stream))
    never = FederatedDataset(dataset, itertools.repeat(0).__next__)
    net = make_net(setting.net, task)
    module = Classifier(net)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    begin = time.perf_counter()
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=training, val_data=never),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds,
            train_cohort_size=setting.cohort,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=setting.epochs,
            local_learning_rate=setting.lr,
            local_batch_size=setting.batch,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        send_metrics_to_platform=False,
    )
    seconds = time.perf_counter() - begin
    counter.close()
    # The optimizer of the server has taken one step per round.
    steps = torch.tensor(counter.steps - job.rounds)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(steps)
    if rank == 0:
        job.report(steps=int(steps), seconds=seconds, accuracy=accuracy(net, task))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def main(path: str) -> int:
    """Run a job in this process, or start the processes of torchrun."""
    job = Job.read(path)
    if job.variant != "torchrun" or "RANK" in os.environ:
        run(job)
        return 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={job.workers}", __file__, path]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv[1]))
