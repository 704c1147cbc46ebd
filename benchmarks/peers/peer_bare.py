"""FedAvg as a bare PyTorch loop: what the other scripts are compared with."""

import sys
import time

import numpy as np
import torch
from settings import Job
from task import StepCounter, accuracy, load, make_net, train


def run(job: Job) -> None:
    """Train and evaluate, and write the result of a job."""
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    draw = np.random.default_rng(job.seed)
    setting, counter = job.setting, StepCounter()
    task = load(job.task)
    data = [task.samples(client) for client in range(setting.clients)]
    net = make_net(setting.net, task).train()
    weights = {name: value.clone() for name, value in net.state_dict().items()}

    begin = time.perf_counter()
    for _ in range(job.rounds):
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        for client in draw.choice(setting.clients, setting.cohort, replace=False):
            net.load_state_dict(weights)
            train(net, *data[client], setting.epochs, setting.batch, setting.lr)
            for name, value in net.state_dict().items():
                total[name] += value
        weights = {name: value / setting.cohort for name, value in total.items()}
    seconds = time.perf_counter() - begin

    counter.close()
    net.load_state_dict(weights)
    job.report(steps=counter.steps, seconds=seconds, accuracy=accuracy(net, task))


if __name__ == "__main__":
    run(Job.read(sys.argv[1]))
