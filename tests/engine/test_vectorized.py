"""The vectorized engine against the sequential one, in float64, hook by hook."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

from flbench.client.program import LocalProgram, Phase, Statistic, Transform
from flbench.config.resolve import resolve
from flbench.config.schema import OptimizerConfig, TrainConfig
from flbench.config.sources import from_overrides, from_values
from flbench.core.errors import ConfigError
from flbench.core.parts import offered
from flbench.core.rng import Draw
from flbench.core.types import Dispatch, Message, Samples
from flbench.engine import stacked_training
from flbench.engine.base import LocalWork, RoundSettings
from flbench.engine.stacked_layers import (
    exclude_padding,
    has_small_patches,
    replace_convolutions,
)
from flbench.engine.stacked_tree import StackedTree
from flbench.experiment import assembly
from flbench.losses import CrossEntropy, Proximal
from flbench.models import MODELS
from flbench.models.base import net_leaves
from flbench.testing import after
from tests.support import SMALL, build, config_of

TINY = 1e-9
# A bias before BatchNorm has no gradient but rounding noise, which Adam blows up.
ADAM = 1e-7
FEW = (
    *("partition.scheme=iid", "partition.clients=2", "partition.min_samples=1"),
    *("partition.samples=null", "train.batch_size=4"),
)
CLIENTS = (3, 0, 4, 1)  # of different size, in no order


@pytest.fixture(scope="module", params=["mlp", "lenet5"])
def engines(request):
    """The same experiment with both engines; LeNet-5 has BatchNorm."""
    few = ("partition.alpha=0.2", "partition.samples=600")
    keys = (f"model.name={request.param}", "engine.precision=64-true", *few)
    return [build(*keys, f"engine.name={name}") for name in ("sequential", "vectorized")]


def go(experiment, program, ids=CLIENTS, rows=None, dispatch=None, train=None, observe=()):
    work = LocalWork(
        program,
        rows=lambda i: {} if rows is None else {name: value[i] for name, value in rows.items()},
        dispatch=lambda i: Dispatch() if dispatch is None else dispatch(i),
        settings=RoundSettings(train or TrainConfig(batch_size=16), Draw(0, (3,), 5)),
        observe=observe,
    )
    return experiment.engine.run(work, torch.tensor(ids))


def assert_close(a, b, tiny=TINY):
    assert list(a) == list(b)
    for name, value in a.items():
        assert value.dtype == b[name].dtype, name
        worst = (value.double() - b[name].double()).abs().nan_to_num(nan=0.0).max()
        assert float(worst) <= tiny, f"{name}: {float(worst)}"
        assert torch.equal(value.isnan(), b[name].isnan()), name


def assert_same(engines, steps, keeps=(), sends=(), masks=(), tiny=TINY, **keys):
    """Run both engines; return what they agree on."""
    names = engines[0].algorithm.setting.net.names("all")
    program = LocalProgram(tuple(steps), names | set(keeps), frozenset(sends), tuple(masks))
    one, many = (go(engine, program, **keys) for engine in engines)
    assert one.ids.tolist() == many.ids.tolist()
    assert one.steps.tolist() == many.steps.tolist()
    assert torch.allclose(one.losses, many.losses, equal_nan=True, rtol=1e-6)
    assert one.failures == many.failures
    for a, b in (
        (one.kept, many.kept),
        (one.sent.values, many.sent.values),
        (one.sent.mask, many.sent.mask),
        (one.observed, many.observed),
    ):
        assert_close(a, b, tiny)
    return many


def phase(**keys) -> Phase:
    given = {"optimizer": OptimizerConfig(lr=0.05), "epochs": 2, "terms": (CrossEntropy(),)}
    return Phase(**{"train": "*"} | given | keys)


@pytest.mark.one_of("size")
@pytest.mark.parametrize("last", ["keep", "wrap", "drop"])
@pytest.mark.parametrize("size", [1, 7, 32, 500])
@pytest.mark.slow
def test_last_batches_are_padded_without_being_seen(engines, last, size):
    assert_same(engines, [phase()], train=TrainConfig(batch_size=size, last_batch=last))


def test_steps_end_in_the_middle_of_an_epoch(engines):
    many = assert_same(engines, [phase(epochs=None, steps=5)])

    assert set(many.steps.tolist()) == {5}


def memorise(context):
    return {f"old.{name}": value for name, value in context.leaves.items()}


@pytest.mark.parametrize("ids", [CLIENTS, (3,)])
@pytest.mark.slow
def test_training_changes_neither_the_start_nor_what_a_transform_remembers(engines, ids):
    """Also of kept rows, and where no client changes its place: nothing was copied on the way."""
    net = {name: leaf.detach().double() for name, leaf in net_leaves(engines[0].net).items()}
    rows = {name: value.expand(5, *value.shape).clone() for name, value in net.items()}
    pull = Proximal(engines[0].algorithm.setting.net.parameters, weight=0.5)

    assert_same(
        engines,
        [Transform(memorise), phase(terms=(CrossEntropy(), pull))],
        keeps={f"old.{name}" for name in net},
        rows=rows,
        ids=ids,
    )


def halved(context):
    return {n: v / 2 if n.endswith("weight") else v for n, v in context.leaves.items()}


def look_ahead(context, grad):
    """Two looks at the net: BatchNorm counts both."""
    first = grad(context.trained, context.batch)
    return grad({n: v - 0.01 * first[n] for n, v in context.trained.items()}, context.batch)


def shrink(context):
    return {name: 0.9 * value for name, value in context.trained.items()}


@dataclass(frozen=True)
class StopWhenLow:
    """Clients stop after different epochs: by their own loss."""

    below: float

    def __call__(self, context, losses, done):
        last = losses.gather(0, (done - 1).clamp_min(0).reshape(1))[0]
        return (done >= 2) & (last < self.below)


@pytest.mark.slow
def test_until_ends_clients_at_different_epochs(engines):
    config = OptimizerConfig(name="adam", lr=0.01)
    found = []
    for below in (1e-9, 0.6, 0.3, 0.1):
        steps = [phase(epochs=5, optimizer=config, until=StopWhenLow(below))]
        many = assert_same(engines, steps, tiny=ADAM)
        found.append(many.steps)

    epochs = [(5 * steps / found[0]).tolist() for steps in found]
    assert epochs[0] == [5.0] * len(CLIENTS)
    assert any(len(set(some)) > 1 for some in epochs), epochs


def count(context):
    mask = context.batch.mask
    low = torch.where(mask, context.out.logits.amin(dim=1), torch.inf).min()
    return {"n": mask.sum(), "low": low}


REDUCE = (("n", "sum"), ("low", "min"))


def halved_count(context, reduced):
    return {"half": reduced["n"] / 2, "low": reduced["low"]}


def use_it(context):
    facts = (
        context.info.steps.double(),
        context.info.lr.double(),
        context.info.n.double(),
        context.info.round.double(),
    )
    return {
        "made": context.ctx["found.half"] + context.ctx["given"] + context.ctx["own"],
        "facts": torch.stack(facts),
        "head.bias": context.leaves["head.bias"]
        - context.start["head.bias"]
        + context.ctx["found.low"],
    }


@pytest.mark.slow
def test_statistics_feed_transforms_with_what_the_server_sent(engines):
    statistic = Statistic("found", count, REDUCE, finish=halved_count)

    def dispatch(ids):
        return Dispatch(
            Message({"given": torch.tensor(0.25), "head.bias": torch.full((10,), 0.5)}),
            Message({"own": ids.double()}),
            {"beta": 0.5},
        )

    assert_same(
        engines,
        [phase(terms=(CrossEntropy("beta"),)), statistic, Transform(use_it)],
        keeps={"made", "facts"},
        dispatch=dispatch,
    )


def keep_found(context):
    return {"made": context.ctx["found.half"] + context.ctx["found.low"]}


HEAVY = OptimizerConfig(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
RECORDING = Statistic("found", count, REDUCE, finish=halved_count)
PULL = Proximal(("head.weight", "head.bias"), 0.5)
PROGRAMS = {
    "sgd": [phase(epochs=3)],
    "momentum": [phase(optimizer=HEAVY, epochs=3)],
    "adam": [phase(optimizer=HEAVY.altered(name="adam", lr=0.01, momentum=0, nesterov=False))],
    "adamw": [phase(optimizer=HEAVY.altered(name="adamw", lr=0.01, momentum=0, nesterov=False))],
    "phases": [
        phase(train="head.*", batchnorm="eval", epochs=1),
        phase(train="backbone.*", epochs=1),
    ],
    "clip": [phase(clip=0.05)],
    "part of the rows": [phase(samples=Samples(high=0.5, redraw="round"))],
    "proximal": [phase(terms=(CrossEntropy(), PULL))],
    "weights": [phase(weights=halved)],
    "gradient": [phase(gradient=look_ahead)],
    "project": [phase(project=shrink)],
    "record": [phase(record=(RECORDING,), clip=0.1), Transform(keep_found)],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.slow
def test_hooks_and_optimisers_act_for_each_client(engines, name):
    keeps = {"made"} if name == "record" else ()
    assert_same(engines, PROGRAMS[name], keeps, tiny=ADAM if "adam" in name else TINY)


def part_and_mask(context):
    return {
        "part": context.leaves["own"] * torch.ones(2),
        "present": context.leaves["own"] > torch.ones(2),
    }


@pytest.mark.slow
def test_masks_rows_and_observers(engines):
    observers = tuple(
        Statistic(part, count, REDUCE, samples=Samples(part))
        for part in ("validation", "test", "common")
    )
    many = assert_same(
        engines,
        [phase(), Transform(part_and_mask)],
        sends={"part"},
        masks=[("part", "present")],
        rows={"own": torch.arange(5.0)},
        observe=observers,
    )

    assert many.sent.mask["part"][:, 0].tolist() == [client > 1 for client in CLIENTS]


def test_results_share_memory_with_no_other_tensor(engines):
    ones, table = [[1.0, 1.0, 1.0]], torch.ones(1, 3, dtype=torch.float64)
    program = LocalProgram((Transform(two_names),), frozenset(), frozenset({"own", "other"}))
    late = Statistic("late", overwrite, REDUCE, samples=Samples("test"))

    def sent(one, rows, observe=()):
        dispatch = Dispatch(rows=Message({"own": rows}), leaves=frozenset({"own"}))
        results = go(one, program, ids=(0,), dispatch=lambda _: dispatch, observe=observe)
        return results.sent.values

    for one in engines:
        observed, plain = sent(one, table.clone(), observe=(late,)), sent(one, table)
        plain["own"].zero_()  # as the `aggregate` of a method may

        assert observed["own"].tolist() == observed["other"].tolist() == ones
        assert plain["other"].tolist() == table.tolist() == ones


def two_names(context):
    return {"other": context.leaves["own"]}


def overwrite(context):
    """A Statistic that writes in place, as a net does that counts its calls in a buffer."""
    context.leaves["own"].fill_(5.0)
    return count(context)


@pytest.mark.slow
def test_client_that_diverges_is_left_out(engines):
    width = engines[0].net.head.weight.shape
    rows = {"head.weight": torch.zeros(5, *width, dtype=torch.float64)}
    rows["head.weight"][4] = torch.nan
    observer = Statistic("test", count, REDUCE, samples=Samples("test"))

    many = assert_same(engines, [phase()], rows=rows, observe=(observer,))

    assert many.ids.tolist() == [3, 0, 1]
    assert many.failures[0].reason == "its training loss is not finite"


def test_nobody_may_take_part_in_a_round(engines):
    nobody, settings = (
        torch.zeros(0, dtype=torch.int64),
        RoundSettings(TrainConfig(), Draw(0, (3,), 5)),
    )
    program = LocalProgram((phase(),), engines[0].algorithm.setting.net.names("all"))

    for one in engines:
        work = LocalWork(program, lambda _: {}, lambda _: Dispatch(), settings)
        results = one.engine.run(work, nobody)
        assert results.ids.tolist() == []
        assert results.failures == ()


def test_augmentation_is_keyed_by_sample():
    keys = ("data.augment=[crop, flip]", "engine.precision=64-true", "model.name=lenet5")
    pair = [build(*keys, f"engine.name={name}") for name in ("sequential", "vectorized")]

    assert_same(pair, [phase()])


@pytest.mark.parametrize("net", ["resnet18", "cnn", "logistic"])
@pytest.mark.slow
def test_other_nets(net):
    keys = (f"model.name={net}", "engine.precision=64-true")
    pair = [build(*keys, f"engine.name={name}") for name in ("sequential", "vectorized")]

    assert_same(pair, [phase(epochs=None, steps=1)], ids=(0, 3))


def test_padded_batchnorm_equals_pytorchs_on_the_real_rows():
    torch.manual_seed(0)
    for layer, shape in (
        (torch.nn.BatchNorm2d(3).double(), (6, 3, 4, 4)),
        (torch.nn.BatchNorm1d(3).double(), (6, 3)),
        (torch.nn.BatchNorm1d(3, affine=False).double(), (6, 3)),
    ):
        x = torch.randn(shape, dtype=torch.float64)
        expected = layer(x[:4])
        statistics = {name: value.clone() for name, value in layer.named_buffers()}
        layer.reset_running_stats()
        padding = exclude_padding(torch.nn.Sequential(layer))
        padding.mask = torch.tensor([True] * 4 + [False] * 2)

        found = layer(x)

        assert torch.allclose(found[:4], expected, rtol=0, atol=1e-12)
        for name, value in layer.named_buffers():
            assert torch.allclose(value.double(), statistics[name].double(), rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Reads:
    """A term in which Python reads a value."""

    weight: float = 1.0

    def __call__(self, context):
        mean = context.out.logits.mean()
        return mean if mean > 0 else -mean


@dataclass(frozen=True)
class Picks:
    """A term whose shape follows from values, in a call of its own."""

    weight: float = 1.0

    def __call__(self, context):
        return _picked(context.out.logits, context.batch.mask).mean()


def _picked(logits, mask):
    return logits[mask]


@pytest.mark.parametrize("term", [Reads(), Picks()])
def test_a_term_that_cannot_be_stacked_is_refused_with_its_line(term):
    with pytest.raises(ConfigError, match=r"test_vectorized.py:\d+\).*engine.name=sequential"):
        go(build("engine.name=vectorized"), LocalProgram((phase(terms=(term,)),)))
    go(build(), LocalProgram((phase(terms=(term,)),)))


def test_half_precision_with_a_scaler_is_refused():
    from flbench.engine.vectorized import VectorizedEngine

    built = build()
    config = config_of("engine.precision=16-mixed", "engine.name=vectorized").engine
    with pytest.raises(ConfigError, match="16-mixed"):
        VectorizedEngine(built.net, built.federation, config)


def test_finite_weights_whose_sum_is_not_finite_are_kept(engines):
    """Numbers near the largest one of float64."""
    name = "head.weight"

    def enlarged(context):
        return {name: torch.full_like(context.leaves[name], 1e308)}

    for one in engines:
        results = go(one, LocalProgram((Transform(enlarged),), frozenset({name})))
        assert results.failures == ()


def test_bf16_stays_finite():
    experiment = build("model.name=lenet5", "engine.precision=bf16-mixed", "engine.name=vectorized")

    results = go(experiment, LocalProgram((phase(),), frozenset({"head.weight"})))

    assert results.failures == ()
    assert results.kept["head.weight"].dtype == torch.float32


@dataclass(frozen=True)
class Pixel:
    """The first pixel, or the label, of each sample; NaN for padding."""

    of_label: bool = False

    def __call__(self, context):
        if self.of_label:
            return {"found": context.batch.y}
        pixel = context.batch.x.flatten(1)[:, 20]
        return {"found": torch.where(context.batch.mask, pixel, torch.nan)}


def test_rows_of_clients_with_fewer_samples_end_with_nan(engines, monkeypatch):
    monkeypatch.setattr("flbench.engine.stack.STATISTIC_BATCH", 50)  # several batches per client
    slow, fast = engines
    sizes = [len(fast.federation.partition.parts["train"][client]) for client in CLIENTS]
    statistic = Statistic("seen", Pixel(), reduce="rows", samples=Samples("train"))

    found = go(fast, LocalProgram(()), observe=(statistic,)).observed["seen.found"]

    assert len(set(sizes)) > 1
    assert found.shape == (len(CLIENTS), max(sizes))
    for client, size, row in zip(CLIENTS, sizes, found, strict=True):
        one = go(slow, LocalProgram(()), ids=(client,), observe=(statistic,))
        assert torch.equal(row[:size], one.observed["seen.found"][0])
        assert row[size:].isnan().all()


def test_whole_numbers_of_clients_with_different_sizes_are_refused(engines):
    statistic = Statistic("seen", Pixel(of_label=True), reduce="rows", samples=Samples("train"))

    with pytest.raises(ValueError, match=r"`seen` .* torch.int64"):
        go(engines[1], LocalProgram(()), observe=(statistic,))


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.BatchNorm1d(3, momentum=None),
        torch.nn.BatchNorm2d(3, track_running_stats=False),
        torch.nn.InstanceNorm2d(3, track_running_stats=True),
    ],
)
def test_layers_whose_statistics_cannot_be_stacked_are_refused(layer):
    with pytest.raises(ConfigError, match=r"engine\.name=sequential"):
        exclude_padding(torch.nn.Sequential(layer))


class Odd(nn.Module):
    """Convolutions with biases behind each other, and a parameter that no loss uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 64, bias=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.convs = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3))
        self.fc = nn.Linear(2 * 64, 10)

    def forward(self, x):
        return self.fc(self.convs(self.first(x.flatten(1)).reshape(-1, 1, 8, 8)).flatten(1).relu())


def odd(*keys):
    """The weights of FedAvg after two rounds, of both engines."""
    found = []
    for name in ("sequential", "vectorized"):
        overrides = from_overrides([*SMALL, "algorithm=fedavg", f"engine.name={name}", *keys])
        with offered({"model": Odd()}):
            config = resolve([overrides, from_values({"model": {"name": "object"}}, "test")])[0]
            found.append(after(assembly.build(config), 2).server)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_parameter_that_the_loss_does_not_use_stays(kind):
    """PyTorch's optimizers leave it, also with weight decay and momentum."""
    keys = ("train.optimizer.weight_decay=0.1", "engine.precision=64-true")
    one, many = odd(f"train.optimizer.name={kind}", *keys)

    assert torch.equal(many["backbone.unused"], torch.ones(3).double())
    assert_close(one, many, ADAM)


@pytest.mark.slow
def test_bf16_convolutions_with_a_bias_are_those_of_the_sequential_engine():
    one, many = odd("engine.precision=bf16-mixed")
    plain, _ = odd()

    assert_close(one, many, 2e-4)
    assert not all(torch.equal(value, plain[name]) for name, value in many.items())


KINDS = {"cnn1d": "series", "gru": "tokens", "transformer": "tokens"}


@pytest.mark.slow
@pytest.mark.parametrize("net", sorted(MODELS.load()))
def test_each_net_trains_in_bf16_on_both_engines(net):
    kind = KINDS.get(net, "images")
    source = f"data.source=tests.net_methods:{'colour' if kind == 'images' else kind}"
    keys = (*FEW, source, f"data.kind={kind}", f"model.name={net}", "train.optimizer.lr=0.01")
    one, many = (
        after(build(*keys, "engine.precision=bf16-mixed", f"engine.name={name}"), 1).server
        for name in ("sequential", "vectorized")
    )

    for name, value in one.items():
        assert value.dtype == many[name].dtype != torch.bfloat16, name
        assert value.isfinite().all(), name
        scale = max(1.0, float(value.double().abs().max()))
        assert float((value.double() - many[name].double()).abs().max()) <= 0.05 * scale, name


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (5, {}),
        (3, {"stride": 2, "padding": 1, "bias": False}),
        ((3, 2), {"stride": (1, 2), "padding": (2, 0), "dilation": (2, 1)}),
        (3, {"padding": "same", "dilation": 2}),
        (1, {"stride": 2}),
        (3, {"padding": 2, "padding_mode": "circular"}),
    ],
)
def test_a_convolution_by_patches_is_that_of_pytorch_with_its_gradients(size, options):
    """For each client of a stack, whose weights differ."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, size, **options).double()
    weights = {n: torch.randn(5, *w.shape).double() for n, w in layer.named_parameters()}
    x = torch.randn(5, 2, 3, 9, 8).double()

    def found(weights, x):
        out = torch.func.functional_call(layer, weights, (x,))
        return out.sin().sum(), out

    def all_clients():
        return torch.vmap(torch.func.grad(found, argnums=(0, 1), has_aux=True))(weights, x)

    expected = all_clients()
    assert has_small_patches(layer)
    replace_convolutions(layer, casts=False, patches=True)
    (of_weights, of_x), out = all_clients()

    assert out.is_contiguous()  # the code of a net may call `view`
    assert_close({"out": out, "x": of_x, **of_weights}, flat(expected), 1e-12)


def flat(found):
    (of_weights, of_x), out = found
    return {"out": out, "x": of_x, **of_weights}


def test_convolutions_with_groups_or_large_patches_stay():
    for layer in (nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(64, 8, 3), nn.ConvTranspose2d(2, 2, 3)):
        assert not has_small_patches(layer)


def dropped(context):
    """Counts the samples' entries, and those that dropout with rate 0.3 keeps."""
    x, mask = context.batch.x, context.batch.mask
    kept = functional.dropout(torch.ones_like(x), 0.3).flatten(1).bool()
    return {"kept": (kept.sum(1) * mask).sum(), "all": kept.shape[1] * mask.sum()}


def test_each_client_of_a_stack_draws_numbers_of_the_same_distribution():
    keys = ("model.name=mlp", "partition.alpha=0.2", "partition.samples=600")
    found = {}
    for name in ("sequential", "vectorized"):
        engine = build(*keys, f"engine.name={name}")
        one, other = (
            go(engine, LocalProgram(()), observe=(Statistic("d", dropped),)).observed
            for _ in range(2)
        )
        found[name] = one["d.kept"].flatten() / one["d.all"].flatten()
        assert torch.equal(one["d.kept"], other["d.kept"])

    for shares in found.values():
        assert len(set(shares.tolist())) == len(CLIENTS)
        assert torch.allclose(shares, torch.tensor(0.7), atol=0.03)
    assert not torch.equal(*found.values())


def test_writable_rows_have_the_clients_first_in_memory():
    """Otherwise vmap's batch_norm writes the statistics of training to a copy."""
    rows = torch.arange(6.0).reshape(3, 2).T
    tree = StackedTree(stacked={"mean": rows}, names=["mean"])

    tree.make_writable(["mean"], 2)

    assert tree.stacked["mean"].is_contiguous()
    assert torch.equal(tree.stacked["mean"], rows)


def test_a_step_without_gradients_changes_nothing():
    stacked_training.StackedOptimizer(OptimizerConfig(), 0.1).step([], [])
