"""Settings and keys that methods refuse, with the key that the error names, and notes."""

import re

import pytest

from flbench.algorithms import ALGORITHMS, PLAIN_SGD
from flbench.core.errors import ConfigError
from tests.support import build, config_of

NET, GROUP, ONE_LAYER = "model.name=lenet5", "model.norm=group", "model.name=logistic"

REFUSED = [
    ("fedit", ("model.name=mlp",), "model.lora.rank=8"),
    ("ffalora", ("model.name=mlp",), "model.lora.rank=8"),
    ("fedsalora", ("model.name=mlp",), "model.lora.rank=8"),
    ("dfedavgm", ("train.optimizer.name=adam",), "train.optimizer.name=sgd"),
    (
        "dfedavgm",
        ("train.optimizer.momentum=0.5", "train.optimizer.nesterov=true"),
        "train.optimizer.nesterov=false",
    ),
    ("dfedhp", (ONE_LAYER,), "nothing to generate"),
    ("dfedhp", ("model.name=mlp", "algorithm.private=linear"), "nothing to generate"),
    ("fedap", (NET, GROUP), "BatchNorm"),
    ("fedap", (NET, "train.rounds=1"), "train.rounds=1"),
    ("fedbabu", (ONE_LAYER,), "model.name"),
    ("fednh", (ONE_LAYER,), "model.name"),
    ("fedbn", (NET, GROUP), "algorithm.allow_no_bn=true"),
    ("fedcmd", ("model.name=resnet18",), "model.name"),
    ("fedcpmd", ("model.name=resnet18",), "model.name"),
    ("fedcpmd", (ONE_LAYER,), "model.name"),
    ("feddbe", ("algorithm.mu=0.5", "train.optimizer.momentum=0.9"), "plain SGD"),
    ("feddbe", ("algorithm.mu=0.5", "train.clip=1"), "plain SGD"),
    ("fedper", ("algorithm.layers=4",), "algorithm.layers"),
    ("fedrep", (), "train.local_epochs"),
    ("lgfedavg", (NET, "algorithm.layers=6"), "algorithm.layers"),
    ("pfedhn", (ONE_LAYER, "algorithm.head=personal"), "algorithm.head=generated"),
    ("slapfl", ("model.name=mlp",), "last_only=true"),
    ("slapfl", (ONE_LAYER, "algorithm.last_only=true"), "lenet5"),
    *(
        (method, (f"train.optimizer.{key}",), "train.optimizer.name=sgd")
        for method in ALGORITHMS.load()
        if PLAIN_SGD in ALGORITHMS.find(method).needs
        for key in ("momentum=0.9", "name=adam")
    ),
]


@pytest.mark.parametrize(("method", "keys", "named"), REFUSED)
def test_setting_is_refused(method, keys, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        build(f"algorithm={method}", *keys)


def test_value_out_of_range_is_refused():
    for method, value in (("feddyn", "alpha=0"), ("ft", "finetune_lr=0"), ("pfedme", "beta=0")):
        with pytest.raises(ConfigError, match=value.partition("=")[0]):
            config_of(f"algorithm={method}", f"algorithm.{value}")


NOTED = [
    # a method, keys with a note of the method's own, keys without it
    ("cfl", ("train.participation=0.1",), ()),
    ("cfl", ("algorithm.start_round=3",), ("algorithm.start_round=2",)),
    ("dfedalt", (), ("train.local_epochs=5",)),
    (
        "dfedavg",
        ("algorithm.topology=erdos_renyi", "algorithm.edge_probability=0"),
        ("algorithm.topology=erdos_renyi", "algorithm.edge_probability=1"),
    ),
    ("dfedhp", (), ("train.local_epochs=4",)),
    ("fedcpmd", ("train.participation=0.2", "algorithm.k_p=2"), ("train.participation=1",)),
    ("pfedme", ("train.optimizer.lr=0.1",), ()),
    ("pfedme", ("algorithm.lam=30",), ()),
]


@pytest.mark.parametrize(("method", "keys", "others"), NOTED)
def test_setting_is_noted(method, keys, others):
    noted, plain = (
        build(f"algorithm={method}", *some).algorithm.notes() for some in (keys, others)
    )

    assert len(noted) > len(plain)


def test_setting_without_what_needs_plain_sgd_is_accepted():
    for keys in (("algorithm.mu=0.5",), ("algorithm.mu=0.5", "algorithm.kappa=0", "train.clip=1")):
        assert not build("algorithm=feddbe", *keys).algorithm.requires()
