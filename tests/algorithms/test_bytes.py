"""The bytes that methods send, against numbers of scalars counted by hand, in one table.

The net is LeNet-5 on colour images of 32x32 pixels. Methods that vote count theirs in files of
their own.
"""

from math import ceil

import numpy as np
import pytest

from flbench.experiment.rounds import exchange, settings_of, train
from tests.support import build

pytestmark = pytest.mark.slow

CONV = (3 * 25 * 6 + 6) + 12 + (6 * 25 * 16 + 16) + 32  # two convolutions and their BatchNorm
W = CONV + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)
D, C = 84, 10
HEAD = C * D + C
STATISTICS = 4 * 44 + 2 * 8  # of BatchNorm: 44 floats and two counters
WHOLE, BODY = 4 * W + STATISTICS, 4 * (W - HEAD) + STATISTICS
PROTOTYPE = 4 * D + 4 + 4  # with a count and an id
TABLE = 4 * C * D + C  # prototypes of all classes, and which there are
FEDCP = 4 * (2 * D * D + 6 * D)
GPFL = 4 * (2 * D * D + 6 * D + C * D)
GAUSSIANS = 4 * (C * D + D * (D + 1) // 2)
FLOCO = 4 * 4 * C * D

BYTES = [
    # method, its keys, up for each client and round, down for each client in two rounds: nothing
    # in the first one if clients know what they would get, the seeded start
    ("fedavg", [], WHOLE, WHOLE),
    ("fedavg", ["train.batchnorm=local"], 4 * W, 4 * W),
    ("apfl", [], WHOLE, WHOLE),
    ("ditto", [], WHOLE, WHOLE),
    ("fedadam", [], WHOLE, WHOLE),
    ("fedamp", [], WHOLE, WHOLE),
    ("fedas", [], BODY + 4, BODY),
    ("fedavgm", [], WHOLE, WHOLE),
    ("fedbabu", [], BODY, BODY),
    ("fedbn", [], 4 * (W - 44), 4 * (W - 44)),
    ("fedcac", [], WHOLE + ceil(W / 8), pytest.approx(WHOLE + 2 * 4 * W / 2, abs=500)),
    ("fedcmd", ["algorithm.rho=1"], WHOLE + 4, WHOLE),  # phase 1: with a vote
    ("fedcp", [], WHOLE + FEDCP, WHOLE + 2 * FEDCP),
    ("feddbe", [], WHOLE, WHOLE + 4 * D),
    ("feddyn", [], WHOLE, WHOLE),
    ("fednh", [], lambda held, _: BODY + 4 + held * (4 * D + 8), BODY + 4 + 4 * C * D),
    ("fedpac", [], lambda held, _: WHOLE + held * (PROTOTYPE + 4 * D) + 8, BODY + TABLE + 8 * HEAD),
    ("fedper", [], BODY, BODY),
    ("fedper", ["train.batchnorm=local"], 4 * (W - HEAD), 4 * (W - HEAD)),
    ("fedproto", [], lambda held, _: held * PROTOTYPE, TABLE),
    ("fedrep", ["train.local_epochs=2"], BODY, BODY),
    ("fedrod", [], WHOLE, WHOLE),
    ("fedtgp", ["algorithm.server_epochs=1"], lambda held, _: held * PROTOTYPE, TABLE),
    ("floco", ["algorithm.endpoints=4"], BODY + FLOCO + 4 * C, BODY + FLOCO * 2 + 4 * C + 4 * 4),
    ("ft", [], WHOLE, WHOLE),
    ("gpfl", [], BODY + GPFL, BODY + 2 * GPFL),
    ("hfcd", [], lambda held, pairs: held * PROTOTYPE + 4 * pairs, TABLE + 4 * C * C),
    (
        "hfcd",
        ["algorithm.share=full"],
        lambda held, pairs: held * PROTOTYPE + 4 * pairs + WHOLE,
        TABLE + 4 * C * C + WHOLE,
    ),
    ("ifca", [], WHOLE + 4, 2 * 3 * WHOLE),  # clients do not know the initial models
    ("ifca", ["algorithm.share_body=true"], WHOLE + 4, 2 * 3 * 4 * HEAD + BODY),
    ("knnper", [], WHOLE, WHOLE),
    ("lgfedavg", [], 4 * HEAD, 4 * HEAD),
    ("perfedavg", [], WHOLE, WHOLE),
    ("pfedfda", [], BODY + GAUSSIANS, BODY + 2 * GAUSSIANS),
    ("pfedhn", ["algorithm.head=generated"], 4 * W, 2 * 4 * W),  # generated in the first round too
    ("pfedhn", ["algorithm.head=personal"], 4 * (W - HEAD), 2 * 4 * (W - HEAD)),
    ("pfedme", [], WHOLE, WHOLE),
    ("scaffold", [], 8 * W + STATISTICS, 8 * W + STATISTICS),
    ("slapfl", [], 4 * CONV + STATISTICS, 2 * (4 * CONV + STATISTICS)),
    ("slapfl", ["train.batchnorm=local"], 4 * CONV, 2 * 4 * CONV),
    ("slapfl", ["train.batchnorm=drop"], 4 * CONV, 2 * 4 * CONV),
]


WEIGHTS = W - (6 + 16 + 2 * 22 + 120 + 84 + 10)  # of convolutions and linear layers
MASKED = 4 * (W - WEIGHTS) + STATISTICS + ceil(WEIGHTS / 8)
HYPERNETWORK = 4 * (129 * 128 + 129 * 9216 + 128 * ceil((W - HEAD) / 9216))

NORM = 4 * 44 + STATISTICS
REST = WHOLE - NORM  # all but BatchNorm
LOCAL = "train.batchnorm=local"

PHASES = [
    # method, its keys, set-up, down and up for each client in each round
    ("lgfedavg", ["algorithm.warmup=0.34"], 0, [0, WHOLE, 4 * HEAD], [WHOLE, 4 * HEAD, 4 * HEAD]),
    ("pfedsim", [LOCAL], 0, [0, 4 * W, 4 * W, 4 * (W - HEAD)], [4 * W] * 4),
    (
        "pfedsim",
        [LOCAL, "algorithm.classes=union"],
        0,
        [0, 4 * W, 4 * W, 4 * (W - HEAD)],
        [4 * W, 4 * W, 4 * W + 10, 4 * W + 10],
    ),
    (
        "fedap",
        ["algorithm.pretrain_share=0.4"],
        WHOLE + 8 * 22,  # the model, a mean and a variance of each channel
        [0, WHOLE, REST, REST, REST],
        [WHOLE, WHOLE, REST, REST, REST],
    ),
    (
        "fedpc",  # a prototype and an id of each class that a client holds
        [],
        lambda held: held * (4 * D + 4),
        [0, BODY + 4 * C * D + C],
        lambda held: [BODY + held * (4 * D + 4)] * 2,
    ),
    # with a flag for each model that is sent, and a weight for each that was compared
    *(
        (
            "fedfomo",
            [LOCAL, f"algorithm.models={asked}"],
            0,
            [0, *[models * (4 * W + 1)] * 2],
            [4 * W, *[4 * W + 4 * models] * 2],
        )
        for asked, models in ((2, 2), (50, 4))
    ),
]

PEERS = [
    # method, its keys, links of five clients, bytes of each link
    ("dfedavg", ["algorithm.topology=ring"], 10, WHOLE),
    ("dfedavg", ["algorithm.topology=star"], 8, WHOLE),
    ("dfedavg", ["algorithm.neighbours=2", "train.participation=0.6"], 6, WHOLE),
    ("dfedalt", ["algorithm.topology=ring"], 10, BODY),
    ("dispfl", ["algorithm.topology=ring"], 10, pytest.approx(MASKED + 2 * WEIGHTS, abs=20)),
    ("dfedhp", ["algorithm.topology=ring"], 10, HYPERNETWORK),
    ("dispfl-hp", ["algorithm.topology=ring"], 10, HYPERNETWORK),
]


@pytest.fixture(scope="module")
def colour(tmp_path_factory):
    """A data set of 3x32x32 images in ten classes, for which LeNet-5 has 62,050 parameters."""
    assert W == 62_050
    path = tmp_path_factory.mktemp("bytes") / "colour.npz"
    y = np.arange(200) % C
    x = np.random.default_rng(0).integers(0, 256, (200, 32, 32, 3), dtype=np.uint8)
    np.savez(path, train_images=x, train_labels=y, test_images=x[:20], test_labels=y[:20])
    return (
        *(f"data.path={path}", "partition.scheme=iid", "partition.min_samples=1"),
        *("model.name=lenet5", "train.participation=1", "train.rounds=2"),
    )


def costs(built, rounds: int):
    """Yield what rounds and set-ups cost."""
    algorithm, state = built.algorithm, built.start()
    while state.round < rounds:
        setup = algorithm.stages()[state.stage].setup
        settings = settings_of(algorithm, state, setup=setup)
        over = exchange(algorithm, state, train(algorithm, built.engine, state, settings))
        state = over.state
        yield over.costs


@pytest.mark.parametrize(
    ("method", "keys", "up", "down"), BYTES, ids=[" ".join([row[0], *row[1]]) for row in BYTES]
)
def test_bytes_are_those_counted_by_hand(colour, method, keys, up, down):
    built = build(*colour, f"algorithm={method}", *keys)

    sent = [one for one in costs(built, 2) if "up_bytes" in one]

    if callable(up):
        held = (built.federation.counts > 0).sum(dim=1).double()
        up = pytest.approx(up(float(held.mean()), float((held * (held - 1) / 2).mean())))
    assert [one["up_bytes"] / 5 for one in sent] == [up, up]
    assert sum(one["down_bytes"] for one in sent) / 5 == down


@pytest.mark.parametrize(("method", "keys", "setup", "down", "up"), PHASES)
def test_bytes_of_each_round_are_those_counted_by_hand(colour, method, keys, setup, down, up):
    built = build(*colour, f"algorithm={method}", *keys, f"train.rounds={len(down)}")

    found = list(costs(built, len(down)))

    held = float((built.federation.counts > 0).sum(dim=1).double().mean())
    setup, up = (pytest.approx(one(held)) if callable(one) else one for one in (setup, up))
    sent = [one for one in found if "up_bytes" in one]
    assert [one["down_bytes"] / 5 for one in sent] == down
    assert [one["up_bytes"] / 5 for one in sent] == up
    assert sum(one.get("setup_bytes", 0) for one in found) / 5 == setup
    assert not any(one["trainings"] for one in found if "up_bytes" not in one)


@pytest.mark.parametrize(("method", "keys", "links", "payload"), PEERS)
def test_neighbours_pay_for_each_link(colour, method, keys, links, payload):
    [sent] = costs(build(*colour, f"algorithm={method}", *keys), 1)

    assert sent["peer_bytes"] / links == payload
    assert sent["up_bytes"] == sent["down_bytes"] == 0
