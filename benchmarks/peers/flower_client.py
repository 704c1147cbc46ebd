"""The client of the script for Flower, in a module of its own: actors of Ray import it by name."""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from settings import Job
from task import StepCounter, Task, load, make_net
from torch import nn
from torch.nn.functional import cross_entropy

JOB = "FLBENCH_PEERS_JOB"  # environment variable with the path of the job file

app = ClientApp()


@cache
def start(path: str) -> tuple[Job, Task, nn.Module, StepCounter]:
    """Return what an actor needs for all of its clients; it reads the samples once."""
    torch.set_num_threads(1)
    job = Job.read(path)
    torch.manual_seed(job.seed + os.getpid())
    task = load(job.task)
    return job, task, make_net(job.setting.net, task).train(), StepCounter()


@app.query()
def wait(message: Message, context: Context) -> Message:
    """Answer when this actor has imported everything and read the samples."""
    start(os.environ[JOB])
    return Message(content=RecordDict(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train a client."""
    job, task, net, counter = start(os.environ[JOB])
    setting, before = job.setting, counter.steps
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = task.samples(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=setting.lr)
    for _ in range(setting.epochs):
        order = torch.randperm(len(y))
        batches = zip(x[order].split(setting.batch), y[order].split(setting.batch), strict=True)
        for inputs, labels in batches:
            optimizer.zero_grad()
            cross_entropy(net(inputs), labels).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(y), "steps": counter.steps - before})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
