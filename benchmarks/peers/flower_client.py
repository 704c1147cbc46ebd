"""The client of the script for Flower, in a module of its own: actors of Ray import it by name."""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from settings import Job
from task import StepCounter, Task, load, make_net
from task import train as train_net
from torch import nn

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
    train_net(net, x, y, setting.epochs, setting.batch, setting.lr)
    metrics = MetricRecord({"num-examples": len(y), "steps": counter.steps - before})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
