"""Which deployments can score trials, and which lines of metrics.csv their scores are."""

import pytest

from flbench.core.errors import ConfigError
from flbench.results.metrics_file import Row
from flbench.tuning.deployments import check, metrics_at, scorable
from tests.support import build


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (("fedavg",), ["personal"]),
        (("fedavg", "finetune_epochs=1"), ["personal", "ft"]),
        (("ft",), ["personal", "noft"]),
        (("fedproto",), ["personal", "proto_own", "head"]),
        (("pfedsim",), ["personal", "stored"]),  # of its last stage
        (("fedfomo", "evaluated=mixed"), ["personal", "trained"]),
        (("fedcpmd", "paper_evaluation=true"), ["personal"]),  # the others are for some clients
    ],
)
def test_deployments_of_the_last_stage_for_all_clients_can_score(keys, names):
    method, *options = keys
    built = build(
        f"algorithm={method}", "model.name=lenet5", *(f"algorithm.{key}" for key in options)
    )

    assert list(scorable(built)) == names
    for name in names:
        check(name, built)


def test_unknown_deployment_is_refused_with_those_that_there_are():
    built = build("algorithm=ft")

    with pytest.raises(ConfigError) as refused:
        check("nofd", built)

    for said in ("`deployment=nofd`", "algorithm.name=ft", "personal, noft"):
        assert said in str(refused.value)
    with pytest.raises(ConfigError, match="deployment=gm"):
        check("gm", built)


ROWS = [
    Row(2, "validation", "personal", "accuracy", 0.5),
    Row(2, "validation", "personal@local", "accuracy", 0.9),
    Row(2, "test", "stored", "accuracy", 0.8),
    Row(4, "validation", "personal", "accuracy", 0.6),
    Row(4, "validation", "stored", "macro_f1", 0.3),
    Row(4, "validation", "stored", "accuracy", 0.7),
    Row(4, "train", "", "loss", 0.1),
]


def test_score_is_the_validation_metric_of_the_deployment():
    """The personal models score until a later stage has the deployment; a finished trial has it."""
    for number, deployment, rounds, scores in (
        (1, "personal", 4, {}),
        (2, "personal", 4, {"accuracy": 0.5}),
        (2, "stored", 4, {"accuracy": 0.5}),
        (4, "personal", 4, {"accuracy": 0.6}),
        (4, "stored", 4, {"macro_f1": 0.3, "accuracy": 0.7}),
        (4, "head", 6, {"accuracy": 0.6}),
        (4, "head", 4, {}),
    ):
        assert metrics_at(ROWS, number, deployment, rounds) == scores
