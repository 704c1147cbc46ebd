"""Statistics estimated anew are those of the net that is evaluated."""

import torch

from flbench.algorithms.base import Deployment
from flbench.core.types import Dispatch, Message
from flbench.experiment.rounds import settings_of
from tests.support import build

SCALED = "backbone.conv1.weight"


def tripled(context):
    """What the net is called with: its leaves, one of them three times as large."""
    return context.leaves | {SCALED: 3 * context.leaves[SCALED]}


def test_statistics_follow_what_a_deployment_calls_the_net_with(monkeypatch):
    built = build("algorithm=local", "model.name=lenet5", "train.batchnorm=drop")
    state = built.start()
    scaled = Dispatch(Message({SCALED: 3 * built.net.get_parameter(SCALED).detach()}))
    found = []
    for deployment in (Deployment(Dispatch(), weights=tripled), Deployment(scaled)):
        monkeypatch.setattr(built.algorithm, "deploy", lambda *_, d=deployment: {"personal": d})
        settings = settings_of(built.algorithm, state)
        found.append(list(built.evaluator(print).deployed(state, settings)))

    for called, plain in zip(*found, strict=True):
        assert called.keys() == plain.keys()
        assert all(torch.equal(value, plain[name]) for name, value in called.items())
    means = [client["backbone.norm1.running_mean"] for client in found[0]]
    assert not torch.equal(means[0], means[1])
