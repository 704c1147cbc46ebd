import torch

from flbench.algorithms.shared.held import held_classes
from flbench.client.program import LocalProgram
from flbench.core.types import Dispatch
from flbench.experiment.rounds import settings_of
from tests.support import build


def test_held_classes_are_those_with_training_samples():
    built = build("algorithm=local", "partition.alpha=0.1")
    program = LocalProgram(held_classes(10), sends=frozenset({"held"}))

    results = built.engine.run(
        program,
        torch.arange(5),
        rows=lambda ids: {},
        dispatch=lambda ids: Dispatch(),
        settings=settings_of(built.config, built.algorithm, built.start()),
    )

    held = results.sent.values["held"]
    assert torch.equal(held, built.federation.counts > 0)
    assert not held.all()
