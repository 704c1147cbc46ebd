"""The table of nets and methods in the docs states what happens."""

import pytest

from tests import net_methods
from tests.net_methods import METHODS, NETS

SMALL = ("torchvision VisionTransformer (2 layers)", "cnn1d")


@pytest.mark.slow
@pytest.mark.parametrize(
    "net",
    [
        pytest.param(net, marks=() if net.title in SMALL else (pytest.mark.full,), id=net.title)
        for net in NETS
    ],
)
def test_cells_are_what_happens(net):
    if net.model["name"].startswith("timm:"):
        pytest.importorskip("timm")
    if "lora" in net.model:
        pytest.importorskip("peft")
    found = net_methods.written()
    for method in METHODS:
        assert net_methods.cell(net, method) == found[net.title, method], method
