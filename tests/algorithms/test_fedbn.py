"""FedBN against a loop, and with BatchNorm layers that names would not show."""

import pytest

from flbench.core.tree import only
from flbench.testing import after
from tests.algorithms.plain import EPOCHS, FULL, Plain, assert_close
from tests.support import build


@pytest.mark.slow
def test_rounds_equal_a_loop():
    built = build("algorithm=fedbn", "model.name=lenet5", *FULL)
    plain, net = Plain(built), built.algorithm.setting.net
    keeps = net.names("batchnorm")

    def local(client, leaves):
        for _ in range(EPOCHS):
            leaves = plain.step(leaves, client, net.parameters)
        return leaves

    server, kept = plain.federate(keeps, local)
    state = after(built, 3)

    assert len(keeps) == 10
    assert set(state.clients) == keeps
    assert_close(state.server, only(server, net.names("all") - keeps))
    assert state.server.keys().isdisjoint(keeps)
    for client in range(5):
        assert_close({name: rows[client] for name, rows in state.clients.items()}, kept[client])


def test_layers_are_known_by_type_not_by_name():
    """A search for "bn" or "norm" would miss ResNet's shortcuts."""
    personal = build("algorithm=fedbn", "model.name=resnet18").algorithm.personal()

    assert "backbone.stage2_block1.shortcut.1.weight" in personal
    assert "backbone.stage2_block1.shortcut.1.running_mean" in personal
    assert "backbone.stage2_block1.shortcut.0.weight" not in personal
    assert len(personal) == 20 * 5
