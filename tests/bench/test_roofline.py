"""What training needs, counted by hand, and what a device was measured to do."""

import torch

from flbench.bench import roofline
from tests.support import build

LAYERS = ((64, 128), (128, 64), (64, 10))


def test_need_of_a_net_is_that_of_its_layers():
    net = build("algorithm=fedavg", "model=mlp").net
    need = roofline.need(net, torch.rand(7, 1, 8, 8), torch.arange(7))

    forward = sum(2 * a * b for a, b in LAYERS)
    inputs = sum(2 * a * b for a, b in LAYERS[1:])  # the samples need no gradient
    assert need.arithmetic == 2 * forward + inputs
    assert need.sample == 2 * 4 * (64 + 128 + 64)  # the inputs of the layers, written and read
    assert need.step == roofline.WEIGHTS * 4 * sum(a * b + b for a, b in LAYERS)


def test_need_of_a_round_grows_with_samples_and_steps():
    need = roofline.Need(arithmetic=10.0, sample=3, step=100)

    assert need.of(samples=20, steps=2) == (200.0, 260.0)


def test_best_of_a_device_is_more_than_a_small_job_reaches(monkeypatch):
    monkeypatch.setattr(roofline, "SIDE", {"cpu": 256})
    monkeypatch.setattr(roofline, "COPIED", {"cpu": 2**22})
    device = torch.device("cpu")

    assert roofline.best_arithmetic(device, torch.float32) > 1e8
    assert roofline.best_bandwidth(device) > 1e8
