"""The bare PyTorch loop that engines are compared with.

It trains the same clients on the same batches as an engine, one client after the other: forward
pass, cross-entropy, backward pass, optimizer step, and nothing else.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flbench.algorithms.base import Algorithm
from flbench.bench import roofline
from flbench.client.loss_and_optimizer import make_optimizer
from flbench.client.program import Phase
from flbench.core.control_groups import available_cores
from flbench.core.rng import Draw
from flbench.core.types import State
from flbench.data import batches
from flbench.experiment.assembly import Experiment
from flbench.models.base import build as build_net


def bare_round(experiment: Experiment, draw: Draw, clients: Sequence[int]) -> int:
    """Train clients for `train.local_epochs` with all cores of the machine.

    Args:
        experiment: The experiment whose net, samples and settings are used.
        draw: Random streams of the round.
        clients: Ids of the cohort's clients.

    Returns:
        Number of optimizer steps.
    """
    federation, train = experiment.federation, experiment.config.train
    device = torch.device(experiment.config.engine.device)
    x, y = federation.x.to(device), federation.y.to(device)
    offset, scale = federation.offset.to(device), federation.scale.to(device)
    net = build_net(experiment.config.model, federation.shape, federation.classes, 0)
    net = net.to(device).train()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    has_batchnorm = bool(experiment.algorithm.setting.net.names("batchnorm"))
    steps = 0
    with all_cores():
        for client in clients:
            net.load_state_dict(start)
            optimizer = make_optimizer(train.optimizer, list(net.parameters()), train.optimizer.lr)
            if federation.owner is not None:  # data.normalize=client
                offset, scale = (
                    t[client].to(device) for t in (federation.offset, federation.scale)
                )
            samples = federation.partition.parts["train"][client]
            for epoch in range(train.local_epochs):
                order = draw.sample_order(client, epoch, len(samples))
                order = samples[batches.arrange(order, train, skip_single=has_batchnorm)]
                for index in torch.split(torch.from_numpy(order).to(device), train.batch_size):
                    optimizer.zero_grad()
                    if federation.dataset.kind == "tokens":
                        inputs = x[index].long()  # [B, L]
                    else:
                        inputs = (x[index].float() - offset) * scale  # [B, ...]
                    torch.autograd.backward(cross_entropy(net(inputs).logits, y[index]))
                    optimizer.step()
                    steps += 1
        roofline.synchronize(device)
    return steps


def count_steps(experiment: Experiment, state: State, rounds: int) -> int:
    """Return the number of steps that the bare loop would take in `rounds` rounds."""
    train, setting = experiment.config.train, experiment.algorithm.setting
    phase = Phase("*", (), train.optimizer, epochs=train.local_epochs)
    client_steps = steps_of(experiment.algorithm, [phase])  # [N]
    draws = (Draw(experiment.config.seed, (number,), setting.clients) for number in range(rounds))
    cohorts = (experiment.algorithm.cohort(state, draw) for draw in draws)
    return sum(int(client_steps[cohort].sum()) for cohort in cohorts)


@contextmanager
def all_cores() -> Iterator[None]:
    """Let PyTorch use one thread per available core inside the context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(available_cores())
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def steps_of(algorithm: Algorithm, phases: list[Phase]) -> Tensor:
    """Return the number of optimizer steps [N] float64 that each client takes in a round.

    Args:
        algorithm: The method, with the sizes of the clients and the section `train`.
        phases: Phases of the local program.
    """
    config = algorithm.setting.train
    has_batchnorm = bool(algorithm.setting.net.names("batchnorm"))
    counts = torch.zeros(len(algorithm.setting.sizes), dtype=torch.float64)
    for phase in phases:
        single, share = has_batchnorm and phase.batchnorm == "train", phase.samples
        for client, size in enumerate(algorithm.setting.sizes.tolist()):
            size = round(share.high * size) - round(share.low * size)
            size = size if share.limit is None else min(size, share.limit)
            arranged = len(batches.arrange(np.arange(size), config, skip_single=single))
            epoch = -(-arranged // config.batch_size)
            counts[client] += phase.steps or (phase.epochs or 0) * epoch
    return counts
