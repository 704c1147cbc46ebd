"""IFCA: FedAvg with one model, a loop over all models, the choices of clients."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.core.types import Message, Results
from flbench.experiment.rounds import settings_of
from flbench.testing import after, played
from tests.algorithms.plain import EPOCHS, FULL, ROUNDS, Plain, assert_close
from tests.support import build

EXACT = "engine.precision=64-true"


def model(state, j, several):
    """Model j of the server's."""
    return {n: v[j] if n in several else v for n, v in leaves(state).items()}


def leaves(state):
    """Leaves of the models, without the choices of the clients."""
    return {name: value for name, value in state.server.items() if name != "choices"}


def losses(plain, state, several, clusters, client):
    x, y = plain.samples(client)
    outs = [plain.outputs(model(state, j, several), x, train=False) for j in range(clusters)]
    return torch.stack([cross_entropy(out.logits, y) for out in outs])


def test_models_start_as_other_draws_of_the_seeded_net():
    built = build("algorithm=ifca", "model.name=lenet5")
    seeded = Plain(built).start()
    state = built.start()

    for name, value in leaves(state).items():
        assert value.shape == (3, *seeded[name].shape)
        assert torch.equal(value[0].double(), seeded[name].double())
        for other in value[1:]:
            assert torch.equal(other.flatten().sort().values, value[0].flatten().sort().values)
        if name.endswith("fc1.weight"):
            assert not torch.equal(value[0], value[1])
            assert not torch.equal(value[1], value[2])


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_rounds_equal_a_plain_loop(shared, weights):
    built = build(
        "algorithm=ifca",
        "model.name=lenet5",
        f"algorithm.share_body={shared}",
        f"algorithm.agg_weights={weights}",
        *FULL,
    )
    plain, several = Plain(built), built.algorithm.several()
    names, state, chosen = built.algorithm.setting.net.parameters, built.start(), set()
    counts = torch.zeros(3, 5, dtype=torch.float64)
    assert set(several) == {n for n in plain.start() if shared == "false" or n[:4] == "head"}
    for t in range(ROUNDS):
        sent, choice = {}, {}
        for i in plain.cohort(t):
            choice[i] = int(losses(plain, state, several, 3, i).argmin())
            sent[i] = model(state, choice[i], several)
            for _ in range(EPOCHS):
                sent[i] = plain.step(sent[i], i, names)
        expected = plain.mean(sent, uniform=weights == "uniform")
        for name in several:
            expected[name] = state.server[name].clone()
            for j in set(choice.values()):
                own = {i: sent[i] for i in sent if choice[i] == j}
                expected[name][j] = plain.mean(own, uniform=weights == "uniform")[name]
        chosen |= set(choice.values())
        for i, j in choice.items():
            counts[j, i] += 1

        state, results = played(built, state)

        assert results.sent.values["choice"].tolist() == list(choice.values())
        assert_close(leaves(state), expected)
        [table] = built.algorithm.learned(state)
        assert torch.equal(table.values, counts)
    assert len(chosen) > 1


def test_model_without_a_client_stays_and_sizes_are_logged():
    built = build("algorithm=ifca", EXACT)
    state, names = built.start(), build("algorithm=ifca").algorithm.several()
    rows = {name: torch.ones(4, *state.server[name].shape[1:]).double() for name in names}
    sent = Message(rows | {"choice": torch.tensor([0, 2, 2, 1], dtype=torch.int32)})

    def aggregated(steps):
        ids, steps = torch.tensor([0, 1, 2, 4]), torch.tensor(steps)
        results = Results(ids, steps, torch.zeros(4), {}, sent, {})
        return built.algorithm.aggregate(state, results)

    update = aggregated([1, 3, 0, 0])
    assert update.metrics == {"cluster_0": 1, "cluster_1": 1, "cluster_2": 2}
    for name in names:
        assert (update.server[name][[0, 2]] == 1).all()
        assert torch.equal(update.server[name][1], state.server[name][1])  # its client had no step
    assert aggregated([0, 0, 0, 0]).server == {}


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_ties_go_to_the_first_model_and_overflowing_models_are_never_chosen(engine):
    built = build("algorithm=ifca", f"engine.name={engine}")
    state = built.start()
    for value in leaves(state).values():
        value[2] = value[1]
        value[0] = torch.nan

    _, results = played(built, state)

    assert not results.failures
    assert results.sent.values["choice"].tolist() == [1] * 5


def test_clients_are_evaluated_with_the_model_that_they_would_choose_now():
    built = build("algorithm=ifca", "model.name=lenet5", *FULL)
    state, several = after(built, 1), built.algorithm.several()

    settings = settings_of(built.algorithm, state)
    evaluated = list(built.evaluator(print).deployed(state, settings))

    best = [int(losses(Plain(built), state, several, 3, i).argmin()) for i in range(5)]
    for client, found in enumerate(evaluated):
        assert_close(found, model(state, best[client], several))
    assert list(built.algorithm.deploy(state, torch.arange(5))) == ["personal"]  # no global model
