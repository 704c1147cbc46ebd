"""The contract of the methods in the registry, including methods that are added later.

A new file in `flbench/algorithms` is tested here without a new line. `make test` runs the methods
of `SPANNING` and a few others, which the date draws: `FLBENCH_CONTRACT_SEED=20261129` gives those
of a day again. `make test-all` runs all methods.
"""

import os
import random

import pytest

from flbench.algorithms import ALGORITHMS
from flbench.testing import Contract

pytestmark = pytest.mark.slow

METHODS = ALGORITHMS.load()

# Every hook of the base class and every kind of state occurs among these.
SPANNING = (
    "fedavg",
    "scaffold",
    "fedper",
    "ditto",
    "fedproto",
    "fedcpmd",
    "cfl",
    "dispfl",
    "pfedhn",
    "fedfomo",
    "floco",
    "dfedhp",
)

OTHERS = sorted(set(METHODS) - set(SPANNING))
DRAWN = random.Random(os.environ["FLBENCH_CONTRACT_SEED"]).sample(OTHERS, 8)


class TestContract(Contract):
    methods = tuple(
        name if name in (*SPANNING, *DRAWN) else pytest.param(name, marks=pytest.mark.full)
        for name in METHODS
    )
