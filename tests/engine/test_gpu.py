"""What a GPU computes. `pytest -m gpu tests` runs these tests; without a GPU they are skipped.

In float64 a GPU must give the results of the CPU up to rounding, for every method, engine and kind
of net; and in every precision it must give the same bits each time.
"""

from dataclasses import dataclass, replace
from itertools import product

import lightning
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import flbench as fl
from flbench.client.program import LocalProgram
from flbench.config.sources import Layer
from flbench.core.parts import offered
from flbench.core.registry import ALGORITHMS
from flbench.engine import captured_step
from flbench.engine.vectorized import VectorizedEngine
from flbench.experiment import lifecycle, rounds
from flbench.losses import CrossEntropy
from flbench.testing import build, run, summary_of
from flbench.testing.setting import after, with_method
from tests.engine.test_vectorized import go, phase
from tests.support import interrupted_run

pytestmark = pytest.mark.gpu

DEVICES = ("cpu", "cuda")
CPU, GPU = (f"engine.device={device}" for device in DEVICES)
EXACT = "engine.precision=64-true"
ENGINES = ("sequential", "vectorized")
RANKED = ("fedcac",)
"""Methods whose clients keep weights of the highest scores: rounding may exchange two of them."""


def assert_equal_up_to_rounding(states, exchanged=0.0, tolerance=1e-7):
    """`exchanged` is the largest share of the entries of clients that may differ by more."""
    for tree, share in (("server", 0.0), ("clients", exchanged)):
        one, other = (getattr(state, tree) for state in states)
        assert list(one) == list(other)
        count = different = 0
        for name, value in one.items():
            assert other[name].device.type == "cpu", name
            if value.numel():
                scale = max(1.0, float(value.double().abs().max()))
                differences = (value.double() - other[name].double()).abs()
                wrong = int((~(differences <= tolerance * scale)).sum())
                assert share or not wrong, name
                count, different = count + value.numel(), different + wrong
        assert different <= share * count


@pytest.mark.parametrize("engine", ENGINES)
def test_methods_compute_what_the_cpu_computes(engine, subtests):
    for method in sorted(ALGORITHMS.load()):
        with subtests.test(method=method):
            assert_computes_what_the_cpu_computes(method, engine)


def assert_computes_what_the_cpu_computes(method, engine):
    settings = with_method(method, f"engine.name={engine}", EXACT)
    built = [build(*settings, device) for device in (CPU, GPU)]
    states = [after(experiment) for experiment in built]

    assert_equal_up_to_rounding(states, exchanged=0.001 if method in RANKED else 0.0)
    found = []
    for experiment, state in zip(built, states, strict=True):
        wanted = rounds.settings_of(experiment.algorithm, state)
        scores = experiment.evaluator(print).evaluate(state, wanted, common=True)
        found.append(scores.local["personal", "test"].confusion)
    assert (found[0] - found[1]).abs().sum() <= 2  # one sample may have two equal scores


class Noisy(nn.Module):
    """Dropout as a module, as a function, and within attention."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.3, batch_first=True)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.drop(torch.relu(self.first(x.flatten(1))))[:, None]
        x = self.attention(x, x, x)[0][:, 0]
        return self.fc(nn.functional.dropout(x, 0.2, self.training))


SHORT = {
    "seed": 3,
    "tracking": {"mlflow": False},
    "train": {"rounds": 2, "local_epochs": 1},
    "progress": False,
}
FEW = {"clients": 4, "samples": 300}


@pytest.mark.parametrize("engine", ENGINES)
def test_random_layers_repeat_their_numbers(engine, tmp_path):
    """Whatever state the generators of the process have; another seed gives other numbers."""
    device = {"name": engine, "device": DEVICES[1]}
    digests, net = [], Noisy()
    for noise, seed in ((0, 3), (1, 3), (1, 4)):
        torch.manual_seed(noise)
        torch.rand(3, device=device["device"])
        settings = {**SHORT, "seed": seed, "output": {"dir": str(tmp_path / f"{noise}{seed}")}}
        done = fl.run("ditto", model=net, engine=device, partition=FEW, **settings)
        digests.append(done.digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("engine", "precision"),
    [
        *product(ENGINES, ("32-true", "tf32", "bf16-mixed")),
        ("sequential", "16-mixed"),  # the vectorized engine has no loss scaler for each client
    ],
)
def test_two_runs_have_one_digest_and_a_resumed_run_has_it_too(engine, precision, tmp_path):
    settings = (
        "algorithm.name=hfcd",
        "model.name=lenet5",
        f"engine.name={engine}",
        f"engine.precision={precision}",
        GPU,
    )
    digests = [run(tmp_path / str(k), *settings)[1]["weights_digest"] for k in range(2)]
    cut = interrupted_run(tmp_path / "cut", *settings)
    lifecycle.resume(cut, Layer({}))

    assert digests == [summary_of(cut)["weights_digest"]] * 2


@dataclass(frozen=True)
class Constant:
    """A term that copies a number to the GPU, which no graph can contain."""

    weight: float = 1.0

    def __call__(self, context):
        return (
            0.1 * torch.tensor(1.0).to(context.batch.x.device) * context.out.logits.square().mean()
        )


@pytest.mark.parametrize("random", [False, True])
def test_a_step_that_cannot_be_captured_is_computed_with_a_note(random, monkeypatch):
    """Also of a net with random layers: the generator is as it was before the capture."""
    monkeypatch.setattr(captured_step, "DEVICES", ("cuda",))
    model = Noisy() if random else "mlp"
    with offered({"model": model} if random else {}):
        name = "object" if random else "mlp"
        built = build(GPU, "engine.name=vectorized", f"model.name={name}")
    notes = []
    engine = VectorizedEngine(built.net, built.federation, built.config.engine, notes.append)
    # The graphs of the first phase, which are there already, are not replayed afterwards.
    program = LocalProgram(
        (phase(epochs=5), phase(terms=(CrossEntropy(), Constant()), epochs=5)),
    )
    for _ in range(2):
        results = go(replace(built, engine=engine), program)
        assert results.failures == ()
    [note] = [one for one in notes if "tf32" not in one]
    assert "test_gpu.py" in note


@pytest.mark.parametrize("random", [False, True])
def test_the_measurement_of_tf32_leaves_the_weights_as_they_are(random):
    model = Noisy() if random else "lenet5"
    with offered({"model": model} if random else {}):
        built = build(GPU, "engine.name=vectorized", f"model.name={'object' if random else model}")
    program = LocalProgram((phase(epochs=5),), built.algorithm.setting.net.names("all"))
    found = []
    for tell in (None, [].append):
        engine = VectorizedEngine(built.net, built.federation, built.config.engine, tell)
        found.append([go(replace(built, engine=engine), program) for _ in range(2)])
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(value, other.kept[name]) for name, value in one.kept.items())
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("method", ["hfcd", "ditto", "scaffold", "fedrep"])
@pytest.mark.parametrize(("net", "compiles"), [("mlp", "off"), ("lenet5", "off"), ("lenet5", "on")])
def test_graphs_give_the_weights_of_ordinary_steps(method, net, compiles, monkeypatch):
    states = []
    for devices in ((), ("cuda",)):
        monkeypatch.setattr(captured_step, "DEVICES", devices)
        keys = (f"model.name={net}", "train.local_epochs=3", "train.batch_size=8")
        keys += (f"engine.compile={compiles}",)
        settings = with_method(method, "engine.name=vectorized", EXACT, GPU, *keys)
        states.append(after(build(*settings)))

    assert_equal_up_to_rounding(states)


def samples_of(net):
    """160 samples of four clients and four classes: series [3, 32] or 12 tokens."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 4, 160)
    if net == "cnn1d":
        x = draw.normal(size=(160, 3, 32)).astype(np.float32) + y[:, None, None]
        return fl.Data(x, y, clients=np.arange(160) % 4, kind="series")
    x = draw.integers(1, 9, (160, 12)) // (1 + y[:, None]) + 1
    return fl.Data(x, y, clients=np.arange(160) % 4, kind="tokens")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["gru", "transformer", "cnn1d"])
def test_nets_for_series_and_tokens(net, engine, tmp_path):
    metrics = []
    for device in DEVICES:
        done = fl.run(
            "hfcd",
            data=samples_of(net),
            model=net,
            engine={"name": engine, "device": device, "precision": "64-true"},
            partition={"scheme": "natural"},
            output={"dir": str(tmp_path / device)},
            **SHORT,
        )
        metrics.append(numbers_of(done.path))
    assert_metrics_equal(*metrics)


def numbers_of(path):
    table = pd.read_csv(path / "metrics.csv")
    return table[[name for name in table if table[name].dtype == float and "second" not in name]]


def assert_metrics_equal(one, other):
    assert list(one) == list(other)
    assert np.allclose(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "settings",
    [
        ("model.name=lenet5", "model.freeze=backbone"),
        ("model.name=lenet5", "model.freeze=backbone", "model.cache=off"),
        ("model.name=lenet5", "model.lora={rank: 2}"),
        ("model.name=lenet5", "shift.rotation=[0, 90]"),
        ("partition.new_clients=1", "evaluation.adapt.finetune_epochs=[0, 1]"),
        ("evaluation.probabilities=true",),
    ],
    ids=["cached", "frozen", "lora", "shift", "new clients", "probabilities"],
)
def test_settings_give_the_metrics_of_the_cpu(settings, engine, tmp_path):
    common = ("algorithm.name=ditto", *settings, f"engine.name={engine}", EXACT)
    one, other = (
        run(tmp_path / device, *common, f"engine.device={device}")[0] for device in DEVICES
    )

    assert_metrics_equal(numbers_of(one), numbers_of(other))


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.2))
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        assert x.device == y.device == self.device
        loss = nn.functional.cross_entropy(self(x), y, label_smoothing=0.1)
        self.log("loss_of_module", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


@pytest.mark.parametrize("method", ["fedavg", "hfcd", "moon"])
def test_a_module_of_the_user_is_trained(method, tmp_path):
    digests = []
    for k in range(2):
        torch.manual_seed(0)
        done = fl.federate(
            Lit(),
            method=method,
            head="fc",
            engine={"device": DEVICES[1]},
            partition=FEW,
            output={"dir": str(tmp_path / str(k))},
            **SHORT,
        )
        digests.append(done.digest)
    assert digests[0] == digests[1]


def test_what_a_gpu_has_trained_is_read_without_one(tmp_path):
    path, _ = run(tmp_path, "algorithm.name=fedavg", "model.name=lenet5", GPU)
    found = fl.load(path)

    assert not any(weight.is_cuda for weight in found.model().parameters())
    assert len(found.predict(np.zeros((3, 8, 8), np.uint8))) == 3
