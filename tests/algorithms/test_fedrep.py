"""FedRep's two phases: what each leaves alone, a loop over both, and what it needs."""

from dataclasses import replace

import pytest
import torch

from flbench.client.program import Phase
from flbench.core.errors import UserError
from flbench.core.tree import only
from flbench.experiment import rounds
from flbench.testing import after
from tests.algorithms.plain import FULL, Plain, accuracies, assert_close
from tests.support import build, run, summary_of_run

HEAVY = ("train.optimizer.momentum=0.9", "train.optimizer.weight_decay=0.0005")


def ends(built, phases: int) -> dict[str, torch.Tensor]:
    """All leaves of all clients after a part of the program, in the second round."""
    state = after(built, 1)
    program = built.algorithm.program(state)
    steps = [k for k, step in enumerate(program.steps) if isinstance(step, Phase)]
    count = steps[phases - 1] + 1 if phases else 0
    names = built.algorithm.setting.net.names("all")
    shown = replace(program, steps=program.steps[:count], keeps=names, sends=frozenset())
    settings = rounds.settings_of(built.algorithm, state)
    return rounds.train(built.algorithm, built.engine, state, settings, program=shown).results.kept


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_each_phase_leaves_the_other_part_alone_to_the_bit(engine):
    """Momentum and weight decay would move a part that is frozen by zero gradients only."""
    built = build(
        "algorithm=fedrep",
        "model.name=lenet5",
        "train.local_epochs=3",
        f"engine.name={engine}",
        *HEAVY,
    )
    net = built.algorithm.setting.net
    head = net.names("head")

    before, middle, end = (ends(built, phases) for phases in (0, 1, 2))

    for name in net.names("all"):
        moved = not torch.equal(before[name], middle[name])
        in_body = not torch.equal(middle[name], end[name])
        assert moved == (name in head), name
        assert in_body == (name not in head), name


@pytest.mark.slow
def test_rounds_equal_a_loop():
    built = build("algorithm=fedrep", "model.name=lenet5", "algorithm.head_epochs=3", *FULL)
    plain, net = Plain(built), built.algorithm.setting.net

    def local(client, leaves):
        for _ in range(3):
            leaves = plain.step(leaves, client, net.names("head"), batchnorm=False)
        return plain.step(leaves, client, net.names("backbone"))

    server, kept = plain.federate(net.names("head"), local)
    state = after(built, 3)

    assert_close(only(state.server, net.names("backbone")), server)
    for client in range(5):
        assert_close({name: rows[client] for name, rows in state.clients.items()}, kept[client])


def test_head_gets_the_epochs_that_are_left():
    steps = build("algorithm=fedrep", "train.local_epochs=5").algorithm.program(None).steps

    assert [step.epochs for step in steps] == [4, 1]


def test_heads_have_their_epochs_beside_one_of_the_body():
    built = build("algorithm=fedrep", "algorithm.head_epochs=2")

    assert [step.epochs for step in built.algorithm.program(None).steps] == [2, 1]


def test_no_personal_layer_is_refused():
    with pytest.raises(UserError, match="fedrep"):
        after(build("algorithm=fedrep", "train.local_epochs=2", "algorithm.layers=0"), 1)


@pytest.mark.slow
def test_heads_are_fine_tuned_beside_and_discarded(tmp_path):
    keys = ("algorithm=fedrep", "train.local_epochs=2", "train.optimizer.lr=0.1")
    keys += ("partition.samples=300",)
    path, tuned = run(tmp_path, *keys, "algorithm.finetune_epochs=3")
    plain = summary_of_run(*keys)

    program = build(*keys, "algorithm.finetune_epochs=3").algorithm
    tuning = program.deploy(build(*keys).start(), torch.arange(2))["ft"].program.steps
    assert [(step.train, step.epochs) for step in tuning] == [(program.personal(), 3)]
    assert tuned["weights_digest"] == plain["weights_digest"]
    assert accuracies(path, "ft") != accuracies(path, "personal")


def test_a_frozen_body_leaves_the_head_phase():
    """With a frozen body all clients train as with FedPer, and send nothing."""
    keys = ("model.name=lenet5", "model.freeze=backbone", "model.cache=off")
    built = [build(*keys, f"algorithm.name={name}") for name in ("fedrep", "fedper")]
    one, other = (after(each, 2) for each in built)

    assert one.clients.keys() == other.clients.keys()
    assert all(torch.equal(value, other.clients[name]) for name, value in one.clients.items())
    assert not built[0].algorithm.split()[1]
