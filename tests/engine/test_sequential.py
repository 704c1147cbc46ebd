"""The reference engine.

A bare loop gives the same, and every hook of a program does what it says.
"""

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from flbench.client.forward import apply
from flbench.client.program import LocalProgram, Phase, Statistic, Transform
from flbench.config.schema import OptimizerConfig, TrainConfig
from flbench.core.errors import UnknownNameError
from flbench.core.rng import Draw
from flbench.core.types import Dispatch, Message, Samples
from flbench.data import batches
from flbench.engine import sequential
from flbench.engine.base import LocalWork, RoundSettings, open_device
from flbench.engine.sequential import SequentialEngine
from flbench.losses import CrossEntropy
from flbench.models.base import net_leaves
from tests.engine.playing import played
from tests.support import build, config_of

SGD = OptimizerConfig(lr=0.05)
DRAW = Draw(0, (3,), 5)


@pytest.fixture
def lenet():
    return build("model.name=lenet5", "engine.precision=64-true")


@pytest.fixture
def mlp():
    return build("model.name=mlp", "model.hidden=[6]", "engine.precision=64-true")


def go(experiment, program, ids=(1,), rows=None, dispatch=None, observe=(), factor=1.0):
    work = LocalWork(
        program,
        rows=lambda i: {} if rows is None else {name: value[i] for name, value in rows.items()},
        dispatch=lambda i: Dispatch() if dispatch is None else dispatch(i),
        settings=RoundSettings(TrainConfig(), DRAW, factor),
        observe=observe,
    )
    return experiment.engine.run(work, torch.tensor(ids))


def everything(experiment) -> frozenset[str]:
    return experiment.algorithm.setting.net.names("all")


def phase(**keys) -> Phase:
    return Phase(**{"train": "*", "terms": (CrossEntropy(),), "optimizer": SGD, "epochs": 2} | keys)


def start_of(experiment):
    return {
        name: leaf.detach().double() if leaf.is_floating_point() else leaf.detach()
        for name, leaf in net_leaves(experiment.net).items()
    }


def bare(experiment, epochs=2, lr=0.05, skip=True):
    """Ten lines of PyTorch over the same batches of client 1."""
    net = build("model.name=lenet5").net.double() if "conv1" in str(experiment.net) else None
    net = net or build("model.name=mlp", "model.hidden=[6]").net.double()
    federation = experiment.federation.to(torch.device("cpu"), torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    rows = federation.partition.parts["train"][1]
    net.train()
    for number in range(epochs):
        given = 1, number, DRAW, TrainConfig()
        order = batches.epoch_order(rows, *given, skip_single=skip)
        for batch in batches.epoch(federation, order, *given, dtype=torch.float64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(batch.x).logits, batch.y).backward()
            optimizer.step()
    return {name: leaf.detach() for name, leaf in net_leaves(net).items()}


def assert_equal(tree, expected):
    assert set(tree) == set(expected)
    for name, value in expected.items():
        assert torch.equal(tree[name][0], value), name


def test_plain_phase_equals_a_bare_loop(lenet):
    results = go(lenet, LocalProgram((phase(),), everything(lenet)))

    assert_equal(results.kept, bare(lenet))


def test_learning_rate_follows_the_schedules_factor(mlp):
    results = go(mlp, LocalProgram((phase(),), everything(mlp)), factor=0.5)

    assert_equal(results.kept, bare(mlp, lr=0.025, skip=False))


def test_clients_do_not_depend_on_the_clients_before_them(lenet):
    heavy = OptimizerConfig(lr=0.05, momentum=0.9)
    program = LocalProgram((phase(optimizer=heavy),), everything(lenet))

    together, swapped = go(lenet, program, (0, 2, 4)), go(lenet, program, (4, 2, 0))
    alone = go(lenet, program, (4,))

    for name, value in together.kept.items():
        assert torch.equal(value, swapped.kept[name].flip(0))
        assert torch.equal(value[2], alone.kept[name][0])
    assert together.losses.tolist() == swapped.losses.flip(0).tolist()


def test_leaves_are_start_overlaid_by_kept_rows_overlaid_by_dispatch(mlp):
    start = start_of(mlp)
    names = list(start)
    rows = {
        names[0]: torch.full((5, *start[names[0]].shape), 2.0),
        names[1]: torch.full((5, *start[names[1]].shape), 2.0),
    }
    program = LocalProgram((), everything(mlp))

    results = go(
        mlp,
        program,
        (3,),
        rows,
        lambda i: Dispatch(
            Message({names[1]: torch.full_like(start[names[1]], 3.0), "other": torch.tensor(1.0)}),
            Message({names[2]: torch.full((len(i), *start[names[2]].shape), 4.0)}),
        ),
    )

    assert (results.kept[names[0]] == 2).all()
    assert (results.kept[names[1]] == 3).all()
    assert (results.kept[names[2]] == 4).all()
    assert torch.equal(results.kept[names[3]][0], start[names[3]])
    assert "other" not in results.kept


def test_phases_have_optimisers_of_their_own_and_freezing_is_freezing(lenet):
    heavy = OptimizerConfig(lr=0.05, momentum=0.9, weight_decay=0.1)
    head = phase(train="head.*", optimizer=heavy, batchnorm="eval", epochs=1)
    body = phase(train="backbone.*", optimizer=heavy, epochs=1)
    start = start_of(lenet)

    after_head = go(lenet, LocalProgram((head,), everything(lenet))).kept
    after_both = go(lenet, LocalProgram((head, body), everything(lenet))).kept

    for name, value in start.items():
        if name.startswith("backbone"):
            assert torch.equal(after_head[name][0], value), name
        else:
            assert torch.equal(after_both[name][0], after_head[name][0]), name
            assert not torch.equal(after_head[name][0], value)
    assert not torch.equal(after_both["backbone.conv1.weight"][0], start["backbone.conv1.weight"])


def with_second(context):
    """The net is called with the sum of its leaves and a second model's."""
    return {
        n[2:]: context.leaves[n[2:]] + context.leaves[n]
        for n in context.leaves
        if n.startswith("v.")
    }


def second_model(context):
    """Adds a second model of zeros."""
    return {f"v.{name}": torch.zeros_like(leaf) for name, leaf in context.leaves.items()}


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_gradients_that_share_memory_are_clipped_once(engine):
    """Autograd hands one tensor to two leaves whose sum the net sees."""
    mlp = build("model.name=mlp", "engine.precision=64-true", f"engine.name={engine}")
    names = everything(mlp)
    keeps = names | {f"v.{name}" for name in names}
    sgd = OptimizerConfig(lr=1.0)
    clipped = phase(epochs=None, steps=1, clip=0.01, optimizer=sgd, weights=with_second)

    kept = go(mlp, LocalProgram((Transform(second_model), clipped), keeps)).kept

    before = start_of(mlp)
    moved = [kept[name][0] - before[name] for name in names]
    moved += [kept[f"v.{name}"][0] for name in names]
    assert torch.stack([x.norm() for x in moved]).norm() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_gradients_that_share_memory_get_nesterovs_momentum_once(engine, monkeypatch):
    """On a GPU PyTorch's optimisers take all leaves at once, and add momentum in place."""
    built = build("model.name=mlp", "model.hidden=[6]", f"engine.name={engine}")
    names = everything(built)
    keeps = names | {f"v.{name}" for name in names}
    nesterov = OptimizerConfig(lr=0.5, momentum=0.9, nesterov=True)
    trained = phase(epochs=None, steps=3, optimizer=nesterov, weights=with_second)
    program = LocalProgram((Transform(second_model), trained), keeps)

    one_by_one = go(built, program).kept
    several, sgd = "_default_to_fused_or_foreach", import_module("torch.optim.sgd")
    monkeypatch.setattr(sgd, several, lambda *_, **__: (False, True))
    together = go(built, program).kept

    for name, value in one_by_one.items():
        assert torch.allclose(value, together[name], rtol=0, atol=1e-6), name


def first_batch(experiment):
    federation = experiment.federation.to(torch.device("cpu"), torch.float64)
    rows = federation.partition.parts["train"][1]
    given = 1, 0, DRAW, TrainConfig()
    order = batches.epoch_order(rows, *given, skip_single=False)
    batch = next(batches.epoch(federation, order, *given, dtype=torch.float64))
    return batch.x, batch.y


def gradient_elsewhere(context, grad):
    """The gradient at twice the parameters (a look-ahead, as in SAM)."""
    return grad({name: 2 * value for name, value in context.trained.items()}, context.batch)


def test_gradient_hook_decides_what_the_optimiser_sees(mlp):
    start = start_of(mlp)
    results = go(
        mlp,
        LocalProgram((phase(gradient=gradient_elsewhere, epochs=None, steps=1),), everything(mlp)),
    )

    x, y = first_batch(mlp)
    leaves = {name: (2 * leaf).requires_grad_() for name, leaf in start.items()}
    loss = torch.nn.functional.cross_entropy(apply(mlp.net.double(), leaves, x).logits, y)
    for name, gradient in zip(
        leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True
    ):
        assert torch.allclose(
            results.kept[name][0], start[name] - 0.05 * gradient, rtol=0, atol=1e-12
        )


def after_two_epochs(context, losses, done):
    assert bool(losses[: int(done)].isfinite().all())
    assert bool(losses[int(done) :].isnan().all())
    return done >= 2


def test_until_is_called_before_each_epoch(mlp):
    stopped = go(mlp, LocalProgram((phase(epochs=9, until=after_two_epochs),), everything(mlp)))

    assert_equal(stopped.kept, bare(mlp, epochs=2, skip=False))


def count(context):
    ones = context.batch.mask.to(torch.int64)
    return {
        "n": ones.sum(),
        "low": context.out.logits.detach().min(),
        "labels": context.batch.y,
    }


def number_of_rows(context):
    return {"n": context.batch.mask.sum()}


def reductions() -> tuple:
    return (("n", "sum"), ("low", "min"), ("labels", "rows"))


def test_statistic_reduces_over_all_rows_in_eval_mode(lenet):
    statistic = Statistic("found", count, reductions(), samples=Samples("test"))
    results = go(lenet, LocalProgram(()), observe=(statistic,))
    federation = lenet.federation
    rows = federation.partition.parts["test"][1]

    assert int(results.observed["found.n"]) == len(rows)
    assert torch.equal(results.observed["found.labels"][0], federation.y[rows])
    x = federation.to(torch.device("cpu"), torch.float64).inputs(rows, torch.float64)
    expected = apply(lenet.net.double(), start_of(lenet), x).logits.min()
    assert torch.allclose(results.observed["found.low"][0], expected, rtol=0, atol=1e-12)


def halved_count(context, reduced):
    return {"half": reduced["n"] / 2}


def use_it(context):
    return {
        "made": context.ctx["found.half"] + context.ctx["given"],
        "facts": torch.stack(
            [
                context.info.steps.double(),
                context.info.lr.double(),
                context.info.n.double(),
                context.info.round.double(),
            ]
        ),
        "head.bias": context.leaves["head.bias"] - context.start["head.bias"] + 7,
    }


def test_transform_computes_leaves_from_statistics_and_what_the_server_sent(mlp):
    statistic = Statistic("found", count, reductions(), finish=halved_count)
    program = LocalProgram(
        (phase(epochs=1), statistic, Transform(use_it)), frozenset({"made", "facts", "head.bias"})
    )
    trained = go(mlp, LocalProgram((phase(epochs=1),), everything(mlp)))

    results = go(mlp, program, dispatch=lambda i: Dispatch(numbers={"given": 0.25}))

    n = int(mlp.federation.sizes[1])
    assert float(results.kept["made"]) == n / 2 + 0.25
    assert results.kept["facts"][0].tolist() == [int(results.steps), 0.05, n, 3]
    start = start_of(mlp)
    assert torch.equal(
        results.kept["head.bias"], trained.kept["head.bias"] - start["head.bias"] + 7
    )


def swap(context):
    return {"a": context.leaves["b"], "b": context.leaves["a"]}


def test_transform_may_swap_two_leaves(mlp):
    rows = {"a": torch.arange(5.0), "b": torch.arange(5.0) + 10}

    results = go(mlp, LocalProgram((Transform(swap),), frozenset({"a", "b"})), (2,), rows)

    assert (float(results.kept["a"]), float(results.kept["b"])) == (12.0, 2.0)


def test_record_sees_every_training_batch_before_its_step(mlp):
    recording = Statistic("seen", number_of_rows, finish=halved_count)
    program = LocalProgram((phase(record=(recording,)), Transform(keep_seen)), frozenset({"kept"}))

    results = go(mlp, program)

    assert float(results.kept["kept"]) == 2 * int(mlp.federation.sizes[1]) / 2
    plain = go(mlp, LocalProgram((phase(),), everything(mlp)))
    recorded = go(mlp, LocalProgram((phase(record=(recording,)),), everything(mlp)))
    assert_equal(recorded.kept, {name: value[0] for name, value in plain.kept.items()})


def keep_seen(context):
    return {"kept": context.ctx["seen.half"]}


def test_equal_phases_see_equal_batches(mlp):
    once = go(mlp, LocalProgram((phase(),), everything(mlp)))
    again = LocalProgram((phase(), Transform(restart), phase()), everything(mlp))

    assert_equal(go(mlp, again).kept, {name: value[0] for name, value in once.kept.items()})


def restart(context):
    return dict(context.start)


def test_observers_do_not_change_what_is_kept_and_sent(lenet):
    program = LocalProgram((phase(),), everything(lenet) - {"head.bias"}, frozenset({"head.bias"}))
    observers = (
        Transform(restart),
        Statistic("late", count, reductions(), samples=Samples("validation")),
    )

    plain, watched = (
        go(lenet, program, (0, 1)),
        go(lenet, replace(program), (0, 1), observe=observers[:1]),
    )

    for name in plain.kept:
        assert torch.equal(plain.kept[name], watched.kept[name])
    assert torch.equal(plain.sent.values["head.bias"], watched.sent.values["head.bias"])
    assert go(lenet, program, (0,), observe=observers).observed.keys() == {
        "late.n",
        "late.low",
        "late.labels",
    }


def test_client_that_diverges_is_left_out_with_a_reason(mlp):
    rows = {"head.weight": torch.zeros(5, 10, 6, dtype=torch.float64)}
    rows["head.weight"][2] = torch.nan

    results = go(mlp, LocalProgram((phase(),), everything(mlp)), (1, 2, 4), rows)

    assert results.ids.tolist() == [1, 4]
    assert [(failure.client, failure.reason) for failure in results.failures] == [
        (2, "its training loss is not finite")
    ]
    assert results.kept["head.weight"].shape[0] == 2
    alone = go(mlp, LocalProgram((phase(),), everything(mlp)), (4,), rows)
    assert torch.equal(results.kept["head.weight"][1], alone.kept["head.weight"][0])


def test_single_sample_is_skipped_with_batchnorm_and_used_without(lenet, mlp):
    one = Samples(limit=1)

    with_norm = go(lenet, LocalProgram((phase(samples=one),), everything(lenet)))
    without = go(mlp, LocalProgram((phase(samples=one),), everything(mlp)))
    frozen = go(lenet, LocalProgram((phase(samples=one, batchnorm="eval"),), everything(lenet)))

    assert (int(with_norm.steps), int(without.steps), int(frozen.steps)) == (0, 2, 2)
    assert bool(with_norm.losses.isnan())


def test_engine_leaves_its_net_and_data_alone(lenet):
    before = {name: leaf.clone() for name, leaf in net_leaves(lenet.net).items()}
    data = lenet.federation.x.clone()

    go(lenet, LocalProgram((phase(),), everything(lenet)))

    assert all(torch.equal(leaf, before[name]) for name, leaf in net_leaves(lenet.net).items())
    assert torch.equal(lenet.federation.x, data)


def test_phase_that_trains_nothing_is_a_mistake(mlp):
    with pytest.raises(UnknownNameError, match=r"step 1 \(Phase\).*nothing"):
        go(mlp, LocalProgram((phase(train="nothing.*"),)))


SEEN = []


def look_at_leaves(context):
    """A leaf that is trained, and logits that gradients flow through."""
    logits = context.out.logits.abs() * context.batch.mask[:, None]
    return {"bias": context.leaves["head.bias"], "logits": logits.sum(dim=0)}


def note(context, found):
    SEEN.append(found)
    return found


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_what_is_recorded_is_neither_a_leaf_nor_part_of_a_graph(engine):
    built = build("model.name=mlp", f"engine.name={engine}")
    recording = Statistic("seen", look_at_leaves, "max", finish=note)
    SEEN.clear()

    recorded = go(built, LocalProgram((phase(record=(recording,)),), everything(built)))

    plain = go(built, LocalProgram((phase(),), everything(built)))
    assert_equal(recorded.kept, {name: value[0] for name, value in plain.kept.items()})
    [found] = SEEN
    assert not any(value.requires_grad for value in found.values())


@pytest.fixture
def switches(monkeypatch):
    """A GPU that is not there, and PyTorch's own switches as they were afterwards."""
    holders = torch.backends.cudnn, torch.backends.cuda.matmul
    allowed = [holder.allow_tf32 for holder in holders]
    was = torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    yield monkeypatch
    torch.use_deterministic_algorithms(was)
    for holder, value in zip(holders, allowed, strict=True):
        holder.allow_tf32 = value


@pytest.mark.parametrize("precision", ["32-true", "tf32"])
def test_a_gpu_rounds_products_to_tf32_only_with_precision_tf32(precision, switches):
    config = config_of("engine.device=cuda", f"engine.precision={precision}").engine

    assert open_device(config) == torch.device("cuda")
    assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")
    assert torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32")
    assert torch.are_deterministic_algorithms_enabled()


def test_bf16_on_a_cpu_trains_and_stays_finite():
    experiment = build("model.name=lenet5", "engine.precision=bf16-mixed")

    results = go(experiment, LocalProgram((phase(),), everything(experiment)))

    assert isinstance(experiment.engine, SequentialEngine)
    assert results.failures == ()
    assert results.kept["head.weight"].dtype == torch.float32


@pytest.mark.parametrize("method", ["ditto", "fedavgm"])
def test_channels_last_in_memory_change_only_rounding(method, monkeypatch):
    keys = (f"algorithm.name={method}", "model.name=cnn", "engine.precision=64-true")
    keys = (*keys, "partition.clients=3", "partition.samples=60", "train.batch_size=8")

    def after_rounds():
        built = build(*keys)
        state = played(built, built.engine, 3)
        return state.server | {f"client {n}": x for n, x in state.clients.items()}

    last = after_rounds()
    monkeypatch.setattr(sequential, "has_plain_convolutions", lambda net: False)
    first = after_rounds()

    assert max(float((x - first[n]).abs().max()) for n, x in last.items()) < 1e-12
    assert any(not torch.equal(x, first[n]) for n, x in last.items())
    assert all(x.is_contiguous() for x in last.values())
