"""FedAvg with fluke: its algorithm class, with its tensor loader and models kept in memory.

fluke trains one client after the other on a CPU; it uses several processes only with several GPUs.
Evaluations during the rounds are switched off.
"""

import sys
import time

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from settings import Job
from task import StepCounter, accuracy, load, make_net


class Clock:
    """Observer that notes when the first round begins and when the last one ends."""

    def __init__(self) -> None:
        self.begin = self.end = 0.0

    def __getattr__(self, name: str) -> object:
        """Ignore all other events."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def start_round(self, round: int, global_model: torch.nn.Module) -> None:
        """Note the time of the first round."""
        self.begin = self.begin or time.perf_counter()

    def end_round(self, round: int) -> None:
        """Note the time of the last round so far."""
        self.end = time.perf_counter()


def run(job: Job) -> None:
    """Train and evaluate, and write the result of a job."""
    torch.set_num_threads(job.threads)
    setting, counter, clock = job.setting, StepCounter(), Clock()
    environment = FlukeENV()
    environment.set_seed(job.seed)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    task = load(job.task)
    optimizer = DDict(name="SGD", lr=setting.lr)
    clients = [
        Client(
            index=client,
            train_set=FastDataLoader(
                *task.samples(client),
                num_labels=task.classes,
                batch_size=setting.batch,
                shuffle=True,
                skip_singleton=False,
            ),
            test_set=None,
            optimizer_cfg=OptimizerConfigurator(optimizer),
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=setting.epochs,
            persistency=False,
        )
        for client in range(setting.clients)
    ]
    server = Server(
        model=make_net(setting.net, task), test_set=None, clients=clients, weighted=True
    )
    method = FedAVG(
        n_clients=setting.clients,
        data_splitter=None,
        hyper_params={},
        clients=clients,
        server=server,
    )
    server.attach(clock)
    method.attach(clock)
    method.run(n_rounds=job.rounds, eligible_perc=setting.cohort / setting.clients)
    counter.close()
    job.report(
        steps=counter.steps,
        seconds=clock.end - clock.begin,
        accuracy=accuracy(server.model, task),
    )


if __name__ == "__main__":
    run(Job.read(sys.argv[1]))
