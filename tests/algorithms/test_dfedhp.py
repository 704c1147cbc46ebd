"""DFedHP against a loop, its phases, and what it generates, keeps and sends."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flbench.algorithms.dfedhp import PHI, Z
from flbench.client.program import Phase
from flbench.experiment import rounds
from flbench.testing import after
from tests.algorithms.plain import generated
from tests.support import build

METHOD, LENET, GROUP = "algorithm=dfedhp", "model.name=lenet5", "model.norm=group"
DOUBLE, FOUR = "engine.precision=64-true", "train.local_epochs=4"
SMALL = ("algorithm.chunk=500", "algorithm.embedding=6", "algorithm.hidden=5")
ROUGH = ("train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0.01")
HEAD = {"head.weight", "head.bias"}
LEAVES = PHI | Z


def phases(built) -> list[Phase]:
    return [s for s in built.algorithm.program(built.start()).steps if isinstance(s, Phase)]


@pytest.mark.slow
def test_round_is_the_loop_of_algorithm_1():
    """The loop has full batches, three optimizers with momentum, and means over a ring.

    LeNet-5 with GroupNorm; the chunks are small, so that several fill the net.
    """
    rates = {"v": 0.01, "phi": 0.02, "z": 0.1}
    keys = ("train.batch_size=1024", "partition.clients=4", "partition.split=[0.1,0.4,0.5]")
    keys += (LENET, GROUP, FOUR, DOUBLE, *ROUGH)
    lrs = [f"algorithm.lr_{name}={lr}" for name, lr in rates.items()]
    built = build(METHOD, "algorithm.topology=ring", *keys, *SMALL, *lrs)
    clients = [
        {name: value[i].clone() for name, value in built.start().clients.items()} for i in range(4)
    ]
    net = build(*keys).net.double().train()
    shapes = {name: p.shape for name, p in net.named_parameters() if not name.startswith("head")}
    federation = built.federation.to(torch.device("cpu"), torch.float64)

    def h(own):
        return generated(own, shapes) | {name: own[name] for name in HEAD}

    for _ in range(2):
        for own, rows in zip(clients, federation.partition.parts["train"], strict=True):
            x, y = federation.inputs(rows, torch.float64), federation.y[torch.from_numpy(rows)]
            for part, names, k in (("v", HEAD, 1), ("phi", PHI, 2), ("z", {"z"}, 1)):
                momentum = {name: torch.zeros_like(own[name]) for name in names}
                for _ in range(k):
                    here = {name: own[name].requires_grad_() for name in sorted(names)}
                    loss = cross_entropy(functional_call(net, h(own), (x,)).logits, y)
                    found = torch.autograd.grad(loss, list(here.values()))
                    for (name, value), g in zip(here.items(), found, strict=True):
                        decay = 0.0 if part == "z" else 0.01
                        momentum[name] = 0.9 * momentum[name] + g + decay * value.detach()
                        own[name] = value.detach() - rates[part] * momentum[name]
        for name in LEAVES:
            before = [own[name] for own in clients]
            for i, own in enumerate(clients):
                own[name] = (before[i - 1] + before[i] + before[(i + 1) % 4]) / 3

    state = after(built, 2)

    assert set(state.clients) == HEAD | LEAVES
    for name, value in state.clients.items():
        assert torch.allclose(value, torch.stack([own[name] for own in clients]), atol=1e-10), name
    settings = rounds.settings_of(built.algorithm, state)
    evaluated = built.evaluator(print).deployed(state, settings)
    for model, own in zip(evaluated, clients, strict=True):
        for name, value in h(own).items():
            assert torch.allclose(model[name], value, atol=1e-10), name


def test_all_clients_start_from_the_same_phi_and_z():
    start, other = (build(METHOD, seed).start().clients for seed in ("seed=0", "seed=1"))

    for name in LEAVES:
        assert bool((start[name] == start[name][0]).all())
    assert not torch.equal(start["z"], other["z"])


@pytest.mark.slow
def test_phases_have_the_epochs_rates_and_decay_of_their_keys():
    def told(*overrides: str) -> list[tuple]:
        return [
            (p.epochs, p.steps, p.optimizer.lr, p.optimizer.weight_decay)
            for p in phases(build(METHOD, "train.optimizer.weight_decay=0.1", *overrides))
        ]

    assert told(FOUR) == [(1, None, 0.01, 0.1), (2, None, 0.01, 0.1), (1, None, 0.01, 0.0)]
    assert [k for k, *_ in told("train.local_epochs=1")] == [1, 1, 1]
    keys = ("algorithm.k_v=0", "algorithm.k_phi=5", "algorithm.k_z=6", "algorithm.lr_z=3")
    assert told(*keys, "algorithm.weight_decay_z=0.2")[1] == (6, None, 3, 0.2)


def test_what_is_private_is_neither_generated_nor_sent():
    def generated(*overrides: str) -> set[str]:
        built = build(METHOD, LENET, *overrides)
        keeps, sends = built.algorithm.split()
        made = set(built.algorithm.h.theta)
        assert sends == LEAVES
        assert keeps == built.algorithm.setting.net.names("all") - made
        assert set().union(*(p.train for p in phases(built))) == LEAVES | {
            name for name in keeps if name in built.algorithm.setting.net.parameters
        }
        return {name.removeprefix("backbone.").partition(".")[0] for name in made}

    convolutions, norms, linear = {"conv1", "conv2"}, {"norm1", "norm2"}, {"fc1", "fc2"}
    assert generated() == convolutions | norms | linear
    assert generated("algorithm.private=linear") == convolutions | norms


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_batchnorm_statistics_stay_with_the_client(policy):
    """With train.batchnorm=drop no client keeps them."""
    built = build(METHOD, LENET, f"train.batchnorm={policy}")
    keeps, sends = built.algorithm.split()

    statistics = built.algorithm.setting.net.statistics
    assert sends == LEAVES
    assert keeps & statistics == (set() if policy == "drop" else statistics)
