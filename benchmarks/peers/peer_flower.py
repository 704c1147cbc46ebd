"""FedAvg with Flower: its simulation on Ray with the grid in memory, one CPU for each actor.

Evaluation by the clients is switched off. The clock of the training starts when all actors have
answered a first message, for which they import PyTorch and read the samples.
"""

import os
import sys
import time
from pathlib import Path

import flower_client
import torch
from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from settings import Job
from task import accuracy, load, make_net


def run(job: Job) -> None:
    """Train and evaluate, and write the result of a job."""
    torch.manual_seed(job.seed)
    setting = job.setting
    task = load(job.task)
    net = make_net(setting.net, task)
    server = ServerApp()

    def total(replies: list[RecordDict], _: str) -> MetricRecord:
        return MetricRecord({"steps": sum(int(one["metrics"]["steps"]) for one in replies)})

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=setting.cohort / setting.clients,
            fraction_evaluate=0.0,
            min_train_nodes=setting.cohort,
            min_available_nodes=setting.clients,
            train_metrics_aggr_fn=total,
        )
        while len(nodes := list(grid.get_node_ids())) < setting.clients:
            time.sleep(0.05)
        asked = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes[: job.workers]]
        list(grid.send_and_receive(asked))
        begin = time.perf_counter()
        result = strategy.start(
            grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=job.rounds
        )
        seconds = time.perf_counter() - begin
        net.load_state_dict(result.arrays.to_torch_state_dict())
        steps = sum(int(one["steps"]) for one in result.train_metrics_clientapp.values())
        job.report(steps=steps, seconds=seconds, accuracy=accuracy(net, task))

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=setting.clients,
        backend_config={
            "init_args": {"num_cpus": job.workers, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    os.environ |= {
        flower_client.JOB: str(Path(sys.argv[1]).resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    run(Job.read(sys.argv[1]))
