"""FedFomo: its mixture against a loop, the models that are sent, and two sample sets."""

from dataclasses import replace

import pytest
import torch

from flbench.algorithms import fedfomo
from flbench.client.program import Phase, Statistic
from flbench.core.errors import DivergedError
from flbench.core.rng import Draw
from flbench.core.types import Context, Info
from flbench.experiment import rounds
from flbench.testing import after, played
from tests.support import build, run

KEYS = ("algorithm=fedfomo", "model.name=lenet5", "engine.precision=64-true", "train.rounds=6")
LEARNING = ("train.participation=0.6", "train.optimizer.lr=0.1", "algorithm.models=3")


def loss_on(built, leaves, rows) -> float:
    """Mean cross entropy of a model in eval mode."""
    federation = built.federation.to(torch.device("cpu"), torch.float64)
    net = built.net.double().eval()
    with torch.no_grad():
        out = torch.func.functional_call(net, leaves, (federation.inputs(rows, torch.float64),))
    return float(torch.nn.functional.cross_entropy(out.logits, federation.y[rows]))


def slow_mixture(built, state, client, chosen):
    """The paper's formulas for one client: its mixed model, and the weights before the cut at 0."""
    which = next(s for s in built.algorithm.mixing() if isinstance(s, Statistic)).samples
    rows = built.federation.rows(which, client, Draw(built.config.seed, (0,), 5))
    names = list(state.clients)
    own = {name: state.clients[name][client].clone() for name in names}
    base = loss_on(built, own, rows)
    raw, others = [], []
    for n in chosen:
        other = {name: state.clients[name][n] for name in names}
        parameters = built.algorithm.setting.net.parameters
        squares = sum(float((other[p] - own[p]).square().sum()) for p in parameters)
        raw.append((base - loss_on(built, other, rows)) / (squares**0.5 + 1e-5))
        others.append(other)
    weights = [max(0.0, w) for w in raw]
    mixed = dict(own)
    for name in names:
        for w, other in zip(weights, others, strict=True):
            if w > 0 and own[name].is_floating_point():
                mixed[name] = mixed[name] + w / sum(weights) * (other[name] - own[name])
            elif w > 0:
                mixed[name] = torch.maximum(mixed[name], other[name])
    return mixed, raw


@pytest.mark.slow
@pytest.mark.one_of("engine")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_mixture_and_preferences_equal_a_loop_over_the_formulas(engine):
    built = build(*KEYS, *LEARNING, "algorithm.evaluated=mixed", f"engine.name={engine}")
    state = after(built, 3)
    settings = rounds.settings_of(built.algorithm, state)
    chosen = built.algorithm.candidates(state, torch.arange(5))
    slow = [
        slow_mixture(built, state, i, [n for n in chosen[i].tolist() if n >= 0]) for i in range(5)
    ]
    before = state.server["preference"].clone()
    still = build(*KEYS, *LEARNING, "train.optimizer.lr=0", f"engine.name={engine}")

    deployed = list(built.evaluator(print).deployed(state, settings))
    state, results = played(still, state)

    signs = {raw > 0 for _, row in slow for raw in row}
    assert signs == {True, False}
    for i, (mixed, _) in enumerate(slow):
        for name, value in mixed.items():
            assert torch.allclose(deployed[i][name], value, rtol=0, atol=1e-12), name
    for k, i in enumerate(results.ids.tolist()):
        for name in built.algorithm.setting.net.parameters:  # training begins with the mixture
            sent = results.sent.values[name][k]
            assert torch.allclose(sent, slow[i][0][name], rtol=0, atol=1e-12), name
        for n, raw in zip(chosen[i].tolist(), slow[i][1], strict=False):
            before[i, n] += raw
    assert torch.allclose(state.server["preference"], before, rtol=0, atol=1e-9)


def test_samples_that_weigh_models_never_train_and_stay_the_same():
    built = build(*KEYS)
    program = built.algorithm.program(built.start())
    [weighs] = [step.samples for step in program.steps if isinstance(step, Statistic)]
    [trains] = [step.samples for step in program.steps if isinstance(step, Phase)]

    for client in range(5):
        sets = []
        for number in range(3):
            draw = Draw(built.config.seed, (number,), 5)
            sets.append(
                [set(built.federation.rows(rows, client, draw)) for rows in (weighs, trains)]
            )
        own = set(built.federation.partition.parts["train"][client])
        assert sets[0] == sets[1] == sets[2]
        assert sets[0][0] | sets[0][1] == own
        assert not sets[0][0] & sets[0][1]
        assert len(sets[0][0]) == round(0.2 * len(own))


def standing(built, preference, uploaded, participation_count=0):
    state = built.start()
    state.server["preference"] = torch.tensor(preference, dtype=torch.float64)
    state.server["uploaded"] = torch.tensor(uploaded)
    state.participation_count.fill_(participation_count)
    return state


def test_the_most_preferred_models_that_exist_are_sent():
    built = build(*KEYS, "algorithm.models=2", "algorithm.epsilon=0")
    likes = [[9.0, 1.0, 3.0, 2.0, 8.0]] * 5
    state = standing(built, likes, [True, True, True, True, False])

    chosen = built.algorithm.candidates(state, torch.arange(5)).tolist()

    assert chosen == [[2, 3], [0, 2], [0, 3], [0, 2], [0, 2]]
    few = standing(built, likes, [False, True, False, False, False])
    assert built.algorithm.candidates(few, torch.tensor([0, 1])).tolist() == [[1, -1], [-1, -1]]


def test_epsilon_falls_with_every_participation():
    """The probability is 0.3 before the first participation, and 0.3 - 6 x 0.05 = 0 after six."""
    built = build(*KEYS, "partition.clients=20", "algorithm.models=1")
    likes = torch.arange(20.0).repeat(20, 1).tolist()
    greedy = [19] * 19 + [18]

    found = {}
    for participation_count in (0, 6):
        found[participation_count] = []
        for number in range(20):
            state = standing(built, likes, [True] * 20, participation_count)
            chosen = built.algorithm.candidates(replace(state, round=number), torch.arange(20))
            found[participation_count] += [
                a == b for a, b in zip(chosen[:, 0].tolist(), greedy, strict=True)
            ]

    assert all(found[6])
    assert 0.2 < 1 - sum(found[0]) / 400 < 0.37  # 0.3 x 18/19, within 3 deviations


def test_each_model_is_drawn_for_itself():
    """With epsilon 1/2 and 4 of 19 models, lists have none to four that are not the best left."""
    keys = ("algorithm.models=4", "algorithm.epsilon=0.5")
    built = build(*KEYS, "partition.clients=20", *keys)
    state = standing(built, torch.arange(20.0).repeat(20, 1).tolist(), [True] * 20)

    later = built.algorithm.candidates(replace(state, round=1), torch.arange(20))
    assert not torch.equal(later, built.algorithm.candidates(state, torch.arange(20)))
    explored = []
    for client, row in enumerate(built.algorithm.candidates(state, torch.arange(20)).tolist()):
        left = [n for n in reversed(range(20)) if n != client]  # the best one is the first
        explored.append(sum(left.pop(left.index(n)) != max([*left, n]) for n in row))

    assert len(set(explored)) >= 4  # one draw for a whole list would give 0 or 4
    always = build(*KEYS, "partition.clients=20", "algorithm.models=1", "algorithm.epsilon=1")
    firsts = always.algorithm.candidates(state, torch.arange(20))[:, 0]
    assert len(firsts.unique()) > 5  # a random one is any of those left


@pytest.mark.slow
def test_upload_of_a_client_without_a_step_is_not_offered():
    """Such a client would offer a model that it did not train."""
    built = build(*KEYS)
    start = built.start()
    _, results = played(built, built.start())
    steps = results.steps.clone()
    steps[2] = 0

    update = built.algorithm.aggregate(start, replace(results, steps=steps))

    assert update.server["uploaded"].tolist() == [True, True, False, True, True]


@pytest.mark.slow
def test_a_single_client_trains_alone():
    state = after(build(*KEYS, "partition.clients=1"), 2)

    assert not state.server["preference"].any()


# Mixing by validation losses


def mixed(losses, own_loss, count=10, asked=(True, True), models=None):
    leaves = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(4)}
    others = torch.tensor([[3.0, 2.0], [1.0, 9.0]]) if models is None else models
    ctx = {
        "model.w": others,
        "model.n": torch.tensor([9, 7]),
        "asked": torch.tensor(asked),
        "validation.sent": torch.tensor(losses, dtype=torch.float64),
        "validation.own": torch.tensor(own_loss, dtype=torch.float64),
        "validation.count": torch.tensor(count),
    }
    zero = torch.zeros(())
    info = Info(zero, zero, zero, zero)
    context = Context(leaves=leaves, start=leaves, ctx=ctx, info=info)
    return leaves, fedfomo.mixed(context, ("w", "n"), ("w",))


@pytest.mark.parametrize(
    "how",
    [
        {"count": 0, "losses": [0.0, 0.0], "own_loss": 0.0},  # no validation sample
        {"asked": (False, False), "losses": [1.0, 1.0], "own_loss": 5.0},
        {"losses": [float("inf"), float("nan")], "own_loss": 5.0},
        {"losses": [4.0, 5.0], "own_loss": 4.0, "models": torch.tensor([[1.0, 2.0]] * 2)},
    ],
)
def test_nothing_to_gain_changes_nothing(how):
    leaves, found = mixed(**how)

    assert torch.equal(found["w"], leaves["w"])
    assert found["raw"].isfinite().all()
    assert (found["raw"] <= 0).all()


def test_models_with_nan_scores_end_the_run_as_diverged_clients_do(tmp_path):
    """One step with a huge rate leaves finite weights; FedFomo takes fewer steps than others."""
    with pytest.raises(DivergedError):
        run(
            tmp_path,
            "algorithm=fedfomo",
            *("partition.scheme=iid", "partition.clients=3", "partition.samples=180"),
            *("train.rounds=3", "train.local_epochs=1", "train.batch_size=32"),
            "train.optimizer.lr=1e30",
        )
