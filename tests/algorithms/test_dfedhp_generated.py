"""The chunked hypernetwork: its size, what fills what, and the gradient that runs through it."""

import pickle
from math import sqrt

import pytest
import torch
from torch.func import functional_call, grad, vmap

from flbench.algorithms.dfedhp import PHI, Hypernetwork, Z, tensors_of
from flbench.core.rng import generator
from flbench.core.types import Context
from flbench.models import MODELS
from flbench.models.base import build, describe, net_leaves

CARD = {"chunk": 9216, "embedding": 128, "hidden": 128}
LEAVES = PHI | Z
TINY = {"chunk": 50, "embedding": 3, "hidden": 4}


def weights_of(hyper, leaves):
    """What the net is called with."""
    return hyper(Context(leaves=leaves, start=leaves, ctx={}))


def net_of(name: str, shape=(3, 32, 32), classes: int = 10, **options):
    net = build(MODELS.find(name).Config(name=name, **options), shape, classes, 0)
    return net, describe(net, shape), {k: v.detach() for k, v in net_leaves(net).items()}


def body_of(net, spec, sizes=CARD):
    generated = frozenset(spec.parameters) - spec.names("head")
    return Hypernetwork(tensors_of(spec, generated), **sizes)


def scalars(tree) -> int:
    return sum(value.numel() for value in tree.values())


@pytest.mark.parametrize("classes", [10, 100])
def test_payload_of_resnet18_is_that_of_the_paper(classes):
    """A message has 1,360,512 numbers, 5,314.5 KiB, for any number of classes."""
    net, spec, start = net_of("resnet18", classes=classes, norm="group")
    hyper = body_of(net, spec)

    own = hyper.initial(start, generator(0, "model", 1))

    assert sum(start[name].numel() for name, _ in hyper.tensors) == 11_168_832
    assert set(own) == LEAVES
    assert scalars(own) == hyper.size(11_168_832) == 1_360_512
    assert own["z"].shape == (1212, 128)
    assert 4 * scalars(own) / 1024 == 5314.5


def test_generated_matrices_start_with_the_variance_of_he_and_norms_near_identity():
    net, spec, start = net_of("resnet18", norm="group")
    hyper = body_of(net, spec)

    weights = weights_of(hyper, start | hyper.initial(start, generator(0, "model", 1)))

    for name, kind in hyper.tensors:
        value = weights[name]
        assert value.shape == start[name].shape
        if kind == "weight":
            assert value.std() * sqrt(value[0].numel() / 2) == pytest.approx(1, abs=0.2), name
        else:
            assert value.mean() == pytest.approx(1.0 if kind == "gain" else 0.0, abs=0.01), name
            assert 0 < value.std() < 0.03, name
    kinds = {kind for _, kind in hyper.tensors}
    assert kinds == {"weight", "gain", "bias"}


def test_initial_values_follow_the_stream_and_the_type_of_number():
    net, spec, start = net_of("mlp", shape=(5,))
    hyper = body_of(net, spec, TINY)
    double = {name: value.double() for name, value in start.items()}

    one, two = (hyper.initial(start, generator(seed, "model", 1)) for seed in (0, 1))
    wide = hyper.initial(double, generator(0, "model", 1))

    assert not torch.equal(one["z"], two["z"])
    assert {value.dtype for value in wide.values()} == {torch.float64}
    assert all(torch.equal(value, wide[name].float()) for name, value in one.items())


def test_outputs_fill_the_tensors_in_the_nets_order_chunk_after_chunk():
    """The weights are such that chunk c has the outputs 50 c to 50 c + 49."""
    net, spec, start = net_of("lenet5", shape=(1, 16, 16), hidden=1)
    hyper = body_of(net, spec, {"chunk": 50, "embedding": 1, "hidden": 1})
    size = sum(start[name].numel() for name, _ in hyper.tensors)
    own = {
        "hyper.in.weight": torch.ones(1, 1),
        "hyper.in.bias": torch.zeros(1),
        "hyper.out.weight": torch.ones(50, 1),
        "hyper.out.bias": torch.arange(50.0),
        "z": 50.0 * torch.arange(-(-size // 50))[:, None],
    }

    weights = weights_of(hyper, start | own)

    at = 0
    generated = [name for name in spec.parameters if not name.startswith("head")]
    assert [name for name, _ in hyper.tensors] == generated
    for name in generated:
        shape = start[name].shape
        plain = torch.arange(at, at + start[name].numel()).float().reshape(shape)
        if "norm" in name:
            expected = 0.01 * plain + (1 if name.endswith("weight") else 0)
        elif name.endswith("bias"):
            expected = 0.01 * plain
        else:
            expected = plain * sqrt(2 / shape[1:].numel())
        assert torch.allclose(weights[name], expected), name
        at += start[name].numel()
    assert at == size


def test_gradient_through_h_is_the_finite_difference():
    """Gradients of the generated weights and of the loss are checked in float64."""
    net, spec, start = net_of("mlp", shape=(5,), classes=3, hidden=(6,))
    net, start = net.double(), {name: value.double() for name, value in start.items()}
    hyper = body_of(net, spec, TINY)
    own = hyper.initial(start, generator(0, "model", 1))
    x = torch.from_numpy(generator(0, "noise").standard_normal((7, 5)))
    y = torch.arange(7) % 3
    names = sorted(own)

    def weights(*values):
        made = weights_of(hyper, start | dict(zip(names, values, strict=True)))
        return torch.cat([made[name].flatten() for name, _ in hyper.tensors])

    def loss(*values):
        made = weights_of(hyper, start | dict(zip(names, values, strict=True)))
        logits = functional_call(net, start | made, (x,)).logits
        return torch.nn.functional.cross_entropy(logits, y)

    values = [own[name].requires_grad_() for name in names]
    assert torch.autograd.gradcheck(weights, values)
    assert torch.autograd.gradcheck(loss, values)
    gradients = torch.autograd.grad(loss(*values), values)
    assert all(bool(gradient.any()) for gradient in gradients)


def test_it_may_be_stacked_hashed_and_sent_to_workers():
    net, spec, start = net_of("mlp", shape=(5,))
    hyper = body_of(net, spec, TINY)
    owns = [hyper.initial(start, generator(seed, "model", 1)) for seed in range(3)]
    stacked = {name: torch.stack([own[name] for own in owns]) for name in LEAVES}

    def total(own):
        return sum(value.square().sum() for value in weights_of(hyper, start | own).values())

    together = vmap(grad(total))(stacked)

    for k, own in enumerate(owns):
        alone = grad(total)(own)
        for name in LEAVES:
            assert torch.allclose(together[name][k], alone[name], rtol=1e-4, atol=1e-6)
    again = pickle.loads(pickle.dumps(hyper))
    assert again == hyper == body_of(net, spec, TINY)
    assert hash(again) == hash(hyper)
    assert hyper != body_of(net, spec, TINY | {"hidden": 5})
