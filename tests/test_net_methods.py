"""The table of nets and methods in the docs states what happens."""

import pytest

from tests import net_methods
from tests.net_methods import METHODS, NETS, PAGE

SMALL = ("torchvision VisionTransformer (2 layers)", "cnn1d")


def test_table_has_all_nets_and_methods():
    found = net_methods.written()
    assert found.keys() == {(net.title, method) for net in NETS for method in METHODS}
    text = PAGE.read_text()
    assert text.partition(net_methods.BEGIN)[2] == net_methods.page(found)


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
        if found[net.title, method] != net_methods.UNMEASURED:
            assert net_methods.cell(net, method) == found[net.title, method], method
