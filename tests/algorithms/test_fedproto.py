import pytest
import torch

from flbench.algorithms.fedproto import NearestPrototype
from flbench.core.types import Message, Results, State
from tests.losses.support import case
from tests.support import build, run, summary_of_run


def method(*overrides: str):
    return build("algorithm=fedproto", *overrides).algorithm


def aggregated(algorithm, counts, rows, clients=None, steps=(1, 1)):
    server = {
        "global.prototypes": torch.full((3, 2), 9.0),
        "global.present": torch.tensor([False, False, True]),
    }
    state = State(0, 1, 1, server, clients or {}, torch.zeros(5))
    sent = Message({"prototypes": rows, "counts": counts})
    results = Results(torch.arange(2), torch.tensor(steps), torch.zeros(2), {}, sent, {})
    return algorithm.aggregate(state, results).server


COUNTS = torch.tensor([[1, 0, 0], [3, 2, 0]], dtype=torch.int32)
ROWS = torch.tensor([[[4.0, 0], [0, 0], [0, 0]], [[0, 8.0], [5.0, 5], [0, 0]]])


def test_prototype_is_the_uniform_mean_over_holders():
    server = aggregated(method(), COUNTS, ROWS)

    assert server["global.prototypes"].tolist() == [[2, 4], [5, 5], [9, 9]]
    assert server["global.present"].tolist() == [True, True, True]


def test_prototype_weighted_by_counts():
    server = aggregated(method("algorithm.agg_weights=samples"), COUNTS, ROWS)

    assert server["global.prototypes"][0].tolist() == [1, 6]


def test_cache_lets_absent_clients_take_part():
    clients = {
        "prototypes": torch.cat([ROWS, ROWS[:1] + 2]),
        "counts": torch.cat([COUNTS, COUNTS[:1]]),
    }

    server = aggregated(method("algorithm.cache=true"), COUNTS, ROWS, clients)

    assert server["global.prototypes"][0].tolist() == pytest.approx([10 / 3, 10 / 3])


def test_nearest_prototype_never_chooses_an_absent_class():
    """Class 3 has a zero row in the table and is nearest to zero features."""
    c = case()
    c.features = torch.zeros_like(c.features)

    scores = NearestPrototype(own=False)(c.context())

    assert not (scores.argmax(dim=1) == 3).any()
    distances = (c.features[:, None] - c.ctx["global.prototypes"][None]).norm(dim=2)
    distances[:, 3] = torch.inf
    assert torch.equal(scores.argmax(dim=1), distances.argmin(dim=1))


def test_nearest_prototype_among_own_classes_only():
    c = case()
    c.leaves["counts"] = torch.tensor([0, 3, 0, 0, 3])

    assert set(NearestPrototype(own=True)(c.context()).argmax(dim=1).tolist()) <= {1, 4}


def test_classifier_decides_while_there_is_no_prototype():
    c = case(absent=(0, 1, 2, 3, 4))

    assert torch.equal(NearestPrototype(own=False)(c.context()), c.logits)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "other"), [("proto", "head"), ("head", "proto")])
def test_both_rules_are_reported_and_never_mixed(tmp_path, rule, other):
    path, summary = run(tmp_path, "algorithm=fedproto", f"algorithm.predict={rule}")

    assert f",test,{other},accuracy," in (path / "metrics.csv").read_text()
    assert other in summary["last"]["test"]


@pytest.mark.slow
def test_rules_of_one_run_swap_columns():
    proto = summary_of_run("algorithm=fedproto")
    head = summary_of_run("algorithm=fedproto", "algorithm.predict=head")

    assert proto["last"]["test"]["accuracy"] == head["last"]["test"]["proto"]["accuracy"]
    assert proto["last"]["test"]["head"]["accuracy"] == head["last"]["test"]["accuracy"]
    assert proto["weights_digest"] == head["weights_digest"]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["lam=3", "agg_weights=samples", "cache=true"])
def test_every_option_changes_the_models(option):
    keys = ("algorithm=fedproto", "train.participation=0.6", "train.optimizer.lr=0.1")

    assert (
        summary_of_run(*keys)["weights_digest"]
        != summary_of_run(*keys, f"algorithm.{option}")["weights_digest"]
    )


def test_client_without_a_step_has_no_weight():
    server = aggregated(method(), COUNTS, ROWS, steps=(1, 0))

    assert server["global.prototypes"][0].tolist() == [4.0, 0.0]  # client 1's (0, 8) is left out
    assert server["global.present"].tolist() == [True, False, True]
