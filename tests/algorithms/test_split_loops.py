"""Methods whose clients keep some layers: one loop over rounds for all of them."""

import pytest

from flbench.core.tree import only
from flbench.testing import after
from tests.algorithms.plain import EPOCHS, FULL, Plain, assert_close
from tests.support import build

pytestmark = pytest.mark.slow

ALL = (("all", EPOCHS, True),)
HEAD_FIRST = (("head", 3, False), ("backbone", 1, True))  # the head in eval mode
METHODS = [
    # what clients keep: last layers, first layers, or a part of the net; names, epochs and mode of
    # each phase
    ("fedper", (), slice(-1, None), ALL),
    ("fedper", ("layers=2",), slice(-2, None), ALL),
    ("fedper", ("layers=4",), slice(-4, None), ALL),
    ("lgfedavg", ("layers=4", "agg_weights=samples"), slice(0, 2), ALL),  # with its BatchNorm
    ("fedbn", (), "batchnorm", ALL),
    ("fedrep", ("head_epochs=3",), "head", HEAD_FIRST),
    ("fedbabu", (), None, (("backbone", EPOCHS, True),)),  # the head is the seeded one
]


@pytest.mark.parametrize(("method", "keys", "part", "phases"), METHODS)
def test_rounds_equal_a_loop(method, keys, part, phases):
    keys = (f"algorithm.{key}" for key in keys)
    built = build(f"algorithm={method}", "model.name=lenet5", *keys, *FULL)
    plain, net = Plain(built), built.algorithm.setting.net
    if isinstance(part, slice):
        keeps = {leaf for layer in net.layers[part] for leaf in layer.leaves}
    else:
        keeps = net.names(part) if part else frozenset()

    def local(client, leaves):
        for names, epochs, batchnorm in phases:
            for _ in range(epochs):
                leaves = plain.step(leaves, client, net.names(names), batchnorm=batchnorm)
        return leaves

    server, kept = plain.federate(keeps, local)
    state = after(built, 3)

    assert set(state.clients) == keeps
    sent = net.names("backbone" if method == "fedbabu" else "all") - keeps
    assert set(state.server) >= sent
    assert_close(only(state.server, sent), only(server, sent))
    for client in range(5 if keeps else 0):
        assert_close({name: rows[client] for name, rows in state.clients.items()}, kept[client])
