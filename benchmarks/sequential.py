"""Training time of the sequential engine against a bare PyTorch loop over the same batches.

    python benchmarks/sequential.py --root DIR [--repeats 7] [--clients 10] [--threads 1]

Both train LeNet-5 on Fashion-MNIST (DIR holds fashionmnist.npz) in this process, in turn,
clients and batches alike; their weights are compared. Prints the median of the paired ratios.
"""

import argparse
import sys
import time
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from flbench import experiment
from flbench.data.batches import arrange
from flbench.engine.base import RoundSettings
from flbench.layers import from_overrides
from flbench.models.base import build as build_net
from flbench.models.base import net_leaves
from flbench.resolve import resolve
from flbench.rng import Draw
from flbench.rounds import visible
from flbench.tree import take


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    overrides = [
        "algorithm=fedavg",
        "model=lenet5",
        "data.name=fashionmnist",
        f"data.root={options.root}",
        "data.normalize=unit",
        "partition.pool=merged",
        "partition.clients=100",
        "partition.split=[0.5,0,0.5]",
        f"engine.threads={options.threads}",
    ]
    built = experiment.build(resolve([from_overrides(overrides)])[0])
    ids = torch.arange(options.clients)
    ratios, floors = [], []
    for repeat in range(options.repeats + 1):
        begin = time.perf_counter()
        steps, bare = bare_round(built, ids, repeat)
        middle = time.perf_counter()
        results = engine_round(built, ids, repeat)
        end = time.perf_counter()
        if int(results.steps.sum()) != steps:
            sys.exit(f"the engine took {int(results.steps.sum())} steps, the bare loop {steps}")
        for k, leaves in enumerate(bare):
            for name, leaf in leaves.items():
                difference = float(
                    (results.sent.values[name][k].double() - leaf.double()).abs().max()
                )
                if difference > 1e-5:
                    sys.exit(f"client {k}: {name} differs by {difference}")
        if repeat:  # the first warms up
            ratios.append((end - middle) / (middle - begin))
            floors.append((middle - begin) / steps)
    spread = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
    sys.stdout.write(
        f"{steps} steps of {options.clients} clients, {options.threads} thread(s), torch"
        f" {torch.__version__}\nbare loop {median(floors) * 1e3:.2f} ms a step; engine / bare:"
        f" median {median(ratios):.3f} ({spread})\n"
    )
    return 0


def engine_round(built: experiment.Experiment, ids: torch.Tensor, number: int):  # noqa: ANN201
    """One round of the sequential engine."""
    state = built.start()
    program = built.algorithm.program(state)
    return built.engine.run(
        program,
        ids,
        rows=lambda i: take(state.clients, i),
        dispatch=lambda i: built.algorithm.dispatch(visible(state, program), i),
        settings=RoundSettings(built.config.train, Draw(0, (number,), 100)),
    )


def bare_round(
    built: experiment.Experiment, ids: torch.Tensor, number: int
) -> tuple[int, list[dict[str, torch.Tensor]]]:
    """The same by hand: no Fabric, no LightningModule, no terms, no messages."""
    federation, train = built.federation, built.config.train
    net = build_net(built.config.model, federation.shape, federation.classes, 0).train()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    draw, steps, trained = Draw(0, (number,), 100), 0, []
    for client in ids.tolist():
        net.load_state_dict(start)
        optimizer = torch.optim.SGD(net.parameters(), lr=train.optimizer.lr)
        rows = federation.partition.parts["train"][client]
        for epoch in range(train.local_epochs):
            order = rows[arrange(draw.order(client, epoch, len(rows)), train, skip_single=True)]
            for index in torch.from_numpy(order).split(train.batch_size):
                x = federation.x[index].float() * federation.scale
                optimizer.zero_grad()
                cross_entropy(net(x).logits, federation.y[index]).backward()
                optimizer.step()
                steps += 1
        trained.append({name: leaf.detach().clone() for name, leaf in net_leaves(net).items()})
    return steps, trained


if __name__ == "__main__":
    sys.exit(main())
