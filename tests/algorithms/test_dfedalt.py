import pytest
import torch

from flbench.algorithms.dfedalt import sharpness
from flbench.client.program import LocalProgram
from flbench.core.tree import digest
from flbench.core.types import Batch, Context
from flbench.experiment import rounds
from flbench.models.base import net_leaves
from flbench.testing import after
from tests.support import build, summary_of_run

METHOD, LENET = "algorithm=dfedalt", "model.name=lenet5"
DOUBLE, TWO = "engine.precision=64-true", "train.local_epochs=2"
ROUGH = ("train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0.01")


def after_steps(built, some: slice):
    """The leaves of all clients after some steps of the program, nothing mixed."""
    state = built.start()
    program = built.algorithm.program(state)
    part = LocalProgram(program.steps[some], program.keeps | program.sends)
    settings = rounds.settings_of(built.algorithm, state)
    return rounds.train(built.algorithm, built.engine, state, settings, program=part).results.kept


def test_head_phase_leaves_the_body_and_body_phase_leaves_the_head():
    """Equal to the bit, with momentum and weight decay; BatchNorm statistics belong to the body."""
    built = build(METHOD, LENET, TWO, *ROUGH)
    net, start = built.algorithm.setting.net, built.start().clients

    first, second = (after_steps(built, slice(k, k + 1)) for k in range(2))

    for names, kept, moved in (
        (net.names("backbone"), first, second),
        (net.names("head"), second, first),
    ):
        for name in names:
            assert torch.equal(kept[name], start[name]), name
            assert not torch.equal(moved[name], start[name]), name


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


@pytest.mark.slow
def test_dfedsalt_is_dfedalt_with_a_radius():
    def models(*overrides: str) -> str:
        return digest([after(build(*overrides, TWO), 2).clients])

    dfedalt = models(METHOD)

    assert models("algorithm=dfedsalt", "algorithm.rho=0") == dfedalt
    assert models("algorithm=dfedsalt") == models(METHOD, "algorithm.rho=0.7") != dfedalt


@pytest.mark.slow
def test_heads_are_never_mixed():
    """Heads differ between clients that all mix with all; bodies are the same."""
    built = build(METHOD, LENET, TWO, "algorithm.topology=complete", DOUBLE)

    state = after(built, 2)

    for name in built.algorithm.setting.net.parameters:
        same = torch.allclose(state.clients[name][0], state.clients[name][1], atol=1e-12)
        assert same == (not name.startswith("head.")), name
    assert not state.server
    assert set(built.algorithm.deploy(state, torch.arange(5))) == {"personal"}


def test_phases_share_the_rounds_epochs_or_a_note_explains_why_not():
    def epochs_and_note(*overrides: str) -> tuple[list[int], bool]:
        built = build(METHOD, *overrides)
        steps = built.algorithm.program(built.start()).steps
        return [s.epochs for s in steps], any("train.local_epochs" in n for n in built.notes)

    assert epochs_and_note("train.local_epochs=5") == ([1, 4], False)
    assert epochs_and_note("train.local_epochs=1") == ([1, 1], True)


@pytest.mark.slow
def test_neighbours_get_the_body_and_its_statistics():
    """One body for each neighbour; LeNet-5's head, which stays, has 84 x 10 + 10 scalars."""
    keys = ("partition.clients=6", "algorithm.topology=ring", "train.rounds=2")

    summary = summary_of_run(METHOD, LENET, *keys)

    body = build(METHOD, LENET).algorithm.setting.net.size - 850
    assert summary["communication"]["peer_bytes"] == 2 * 12 * (4 * body + 4 * 44 + 2 * 8)


def test_head_of_learning_rate_zero_never_moves():
    built = build(METHOD, "algorithm.head_lr=0", TWO)

    state = after(built, 2)

    start = build(METHOD, TWO).start().clients
    for name, value in state.clients.items():
        assert torch.equal(value, start[name]) == name.startswith("head."), name
