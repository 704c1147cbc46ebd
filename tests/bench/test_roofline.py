"""What training needs, counted by hand, and what a device was measured to do."""

import torch

from flbench.bench import roofline
from tests.support import build

LAYERS = ((64, 128), (128, 64), (64, 10))


def test_cost_of_a_net_is_that_of_its_layers():
    net = build("algorithm=fedavg", "model=mlp").net
    cost = roofline.training_cost(net, torch.rand(7, 1, 8, 8), torch.arange(7))

    forward = sum(2 * a * b for a, b in LAYERS)
    inputs = sum(2 * a * b for a, b in LAYERS[1:])  # the samples need no gradient
    assert cost.operations_per_sample == 2 * forward + inputs
    # The inputs of the layers are written and read.
    assert cost.bytes_per_sample == 2 * 4 * (64 + 128 + 64)
    assert cost.bytes_per_step == roofline.WEIGHT_TRANSFERS * 4 * sum(a * b + b for a, b in LAYERS)


def test_cost_of_a_round_grows_with_samples_and_steps():
    cost = roofline.TrainingCost(operations_per_sample=10.0, bytes_per_sample=3, bytes_per_step=100)

    assert cost.total(samples=20, steps=2) == (200.0, 260.0)


def test_best_of_a_device_is_more_than_a_small_job_reaches(monkeypatch):
    monkeypatch.setattr(roofline, "MATRIX_SIDE", {"cpu": 256})
    monkeypatch.setattr(roofline, "COPY_BYTES", {"cpu": 2**22})
    device = torch.device("cpu")

    assert roofline.best_arithmetic(device, torch.float32) > 1e8
    assert roofline.best_bandwidth(device) > 1e8
