import pytest
import torch

from flbench.algorithms.dfedalt import sharpness
from flbench.core.types import Batch, Context
from flbench.models.base import net_leaves
from flbench.testing import after
from tests.support import build

METHOD, LENET = "algorithm=dfedalt", "model.name=lenet5"
DOUBLE, TWO = "engine.precision=64-true", "train.local_epochs=2"


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_round_equals_a_plain_loop(rho):
    """One step on v, four on u at full batches, momentum anew, then the mean of bodies."""
    keys = ("train.batch_size=1024", "train.local_epochs=5", "partition.clients=4", DOUBLE)
    mine = ("algorithm.head_lr=0.002", f"algorithm.rho={rho}")
    built = build(
        METHOD, *keys, *mine, "algorithm.topology=complete", "train.optimizer.momentum=0.9"
    )

    state = after(built, 1)

    federation = built.federation.to(torch.device("cpu"), torch.float64)
    trained = []
    for rows in federation.partition.parts["train"]:
        net = build(*keys).net.double()
        x, y = federation.inputs(rows, torch.float64), federation.y[torch.from_numpy(rows)]

        def gradients(parameters, net=net, x=x, y=y):
            loss = torch.nn.functional.cross_entropy(net(x).logits, y)
            return torch.autograd.grad(loss, parameters)

        for part, steps, lr in ((net.head, 1, 0.002), (net.backbone, 4, 0.01)):
            parameters = list(part.parameters())
            momentum = [torch.zeros_like(p) for p in parameters]
            for _ in range(steps):
                g = gradients(parameters)
                if part is net.backbone and rho:
                    norm = torch.cat([v.flatten() for v in g]).norm()
                    here = [p.detach().clone() for p in parameters]
                    for p, v in zip(parameters, g, strict=True):
                        p.data += rho * v / norm
                    g = gradients(parameters)
                    for p, h in zip(parameters, here, strict=True):
                        p.data = h
                for p, v, m in zip(parameters, g, momentum, strict=True):
                    m.mul_(0.9).add_(v)
                    p.data -= lr * m
        trained.append({name: leaf.detach() for name, leaf in net_leaves(net).items()})
    for name in trained[0]:
        all_ = torch.stack([leaves[name] for leaves in trained])
        expected = all_ if name.startswith("head.") else all_.mean(dim=0).expand_as(all_)
        assert torch.allclose(state.clients[name], expected, rtol=0, atol=1e-12), name


def test_sharpness_without_a_gradient_stays_where_it_is():
    batch = Batch(*(torch.zeros(1),) * 5)
    seen = []

    def grad(parameters, batch):
        seen.append(parameters["w"])
        return {"w": torch.zeros(3)}

    trained = {"w": torch.ones(3)}
    context = Context(leaves=trained, start={}, ctx={}, batch=batch, trained=trained)
    found = sharpness(context, grad, 0.7)

    assert torch.equal(found["w"], torch.zeros(3))
    assert torch.equal(seen[1], torch.ones(3))


def test_phases_share_the_rounds_epochs():
    for epochs, expected in ((5, [1, 4]), (1, [1, 1])):
        algorithm = build(METHOD, f"train.local_epochs={epochs}").algorithm
        assert [step.epochs for step in algorithm.steps()] == expected
