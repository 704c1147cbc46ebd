"""Exported models: they load and predict in a process that cannot import flbench."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import flbench as fl
from flbench.core.errors import RunError, UserError
from flbench.deploy import formats, loading
from flbench.testing import run
from tests.deploy.test_models import federation_of, tables
from tests.support import SMALL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The given buffer is not writable"),  # torch.export.load
]

# Load each file as its card says, and save the scores of `samples.npy` for several sizes B.
SCRIPT = """
import json, pathlib, sys

class NoFlbench:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "flbench":
            raise ImportError("this process has no flbench")

sys.meta_path.insert(0, NoFlbench())
try:
    import flbench
except ImportError:
    pass
else:
    sys.exit("flbench can be imported")

import numpy, torch

all_samples = numpy.load("samples.npy")
for card_file in sorted(pathlib.Path().glob("*.json")):
    card = json.loads(card_file.read_text())
    for size in (1, 2, 7, len(all_samples)):
        samples = all_samples[:size]
        if card["format"] == "safetensors":
            names = {}
            exec("\\n".join(card["load"][:2]), names)
            layers = [f"({name.split('.')[0]})" for name in names["weights"]]
            assert all(layer in card["architecture"] for layer in layers)
            continue
        else:
            onnx = card["format"] == "onnx"
            names = {"samples": samples if onnx else torch.from_numpy(samples)}
            exec("\\n".join(card["load"]), names)
            scores = torch.as_tensor(names["scores"])
        numpy.save(f"{card_file.stem}-{size}.npy", scores.detach().numpy())
assert not any(name.split(".")[0] == "flbench" for name in sys.modules)
"""


def export_all(model, folder, prefix, names):
    """Write a model in the formats that can hold it; return the files of the cards."""
    cards = []
    for name in names:
        known = formats.FORMATS[name]
        if name == "safetensors" and model.net.rule:
            continue
        file = folder / f"{prefix}-{name.replace('.', '-')}{known.suffix}"
        cards.append(formats.write(model, file)[1])
    return cards


def assert_load_without_flbench(paths, folder, chosen):
    """Compare the scores of all formats, computed in another process, with those of the models.

    Args:
        paths: Run folders, of one partition of the digits.
        folder: An empty folder.
        chosen: Names of the formats for each run.
    """
    folder.mkdir()
    federation = federation_of(paths[0])
    samples = federation.dataset.x[federation.partition.parts["test"][1]][:, 0]
    np.save(folder / "samples.npy", samples)
    models = [loading.load(path, 1) for path in paths]
    cards = [
        export_all(model, folder, k, names)
        for k, (model, names) in enumerate(zip(models, chosen, strict=True))
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    for model, files in zip(models, cards, strict=True):
        for size in (1, 2, 7, len(samples)):
            wanted = model.predict(samples[:size])
            for card in files:
                if "safetensors" in card.name:
                    continue
                scores = torch.from_numpy(np.load(folder / f"{card.stem}-{size}.npy"))
                torch.testing.assert_close(scores, wanted, rtol=1e-4, atol=1e-4)
                assert torch.equal(scores.argmax(dim=1), wanted.argmax(dim=1))


@pytest.mark.processes
def test_images(tmp_path):
    small = (*SMALL, "model.name=lenet5", "partition.samples=300")
    paths = [run(tmp_path, *small, f"algorithm={name}")[0] for name in ("fedper", "fedproto")]
    # FedProto has a rule of its own, which weights alone cannot hold; ONNX lacks its distances.
    assert_load_without_flbench(paths, tmp_path / "files", [formats.FORMATS, ["torch.export"]])
    with pytest.raises(UserError, match="safetensors"):
        formats.write(loading.load(paths[1], 0), tmp_path / "model.safetensors")
    assert not list(tmp_path.glob("model.*"))


@pytest.mark.full
def test_images_of_other_methods(tmp_path):
    methods = ("fedper", "fednh", "moon", "apfl", "dispfl-hp", "hfcd", "ft")
    paths = [run(tmp_path, *SMALL, f"algorithm={name}")[0] for name in methods]
    assert_load_without_flbench(paths, tmp_path / "files", [formats.FORMATS] * len(methods))


def by_the_card(card, rows):
    """Inputs of the net for rows of a table, computed with what the card says alone."""
    names, words = card["input"]["columns"], card["input"]["words"]
    normal = card["normalization"]
    found = []
    for name, mean, std, fill in zip(
        *(normal[key] for key in ("columns", "mean", "std", "fill")), strict=True
    ):
        column, _, word = name.partition("=")
        value = rows[:, names.index(column)].astype(float)
        if word:
            value = np.where(np.isnan(value), value, value == words[column].index(word))
        value = np.where(np.isnan(value), fill, value)
        found.append(np.zeros(len(rows)) if std is None else (value - mean) / std)
    return np.stack(found, axis=1)


def test_tables(tmp_path):
    data = tables(tmp_path / "x")
    file = data / "c2.csv"
    header, *lines = file.read_text().splitlines()
    flat = [",".join([*line.split(",")[:2], "5", line.split(",")[3]]) for line in lines]
    file.write_text("\n".join([header, *flat]) + "\n")  # `weight` is constant at this client
    overrides = ("model.name=mlp", "partition.scheme=natural", f"data.path={data}")
    keys = (*SMALL, "algorithm=fedper", *overrides, "data.normalize=client")
    path, _ = run(tmp_path / "runs", *keys)
    model, federation = loading.load(path, 2), federation_of(path)
    samples = federation.dataset.x[:40].copy()
    samples[3, 1] = -1.0  # an unknown word
    assert np.isnan(samples).any()
    assert None in model.card["normalization"]["std"]
    inputs = by_the_card(json.loads(json.dumps(model.card)), samples)
    np.testing.assert_allclose(model.inputs(torch.from_numpy(samples)), inputs, atol=1e-5)
    for name in ("torch.export", "onnx"):
        file = tmp_path / f"model{formats.FORMATS[name].suffix}"
        formats.write(model, file, overwrite=True)
        if name == "onnx":
            import onnxruntime

            session = onnxruntime.InferenceSession(str(file))
            scores = torch.from_numpy(session.run(None, {"samples": samples})[0])
        else:
            scores = torch.export.load(file).module()(torch.from_numpy(samples))
        torch.testing.assert_close(scores, model.predict(samples), rtol=1e-4, atol=1e-5)


def test_colour_images(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.integers(0, 100, (120, 8, 8, 3), dtype=np.uint8)
    x[np.arange(120), :, :, y] += 100
    np.savez(tmp_path / "colours.npz", train_images=x, train_labels=y)
    path, _ = run(tmp_path, *SMALL, "algorithm=fedavg", f"data.path={tmp_path / 'colours.npz'}")
    model = loading.load(path)
    file, card = formats.write(model, tmp_path / "model.pt2")
    assert json.loads(card.read_text())["input"]["shape"] == ["B", 8, 8, 3]
    scores = torch.export.load(file).module()(torch.from_numpy(x))
    assert torch.equal(scores, model.predict(x))
    assert torch.equal(scores, model.predict(np.moveaxis(x, -1, 1)))


def test_the_card_is_beside_the_file_and_inside(tmp_path, finished_run):
    import onnx

    model = loading.load(finished_run, 1)
    for name, known in formats.FORMATS.items():
        file, card_file = formats.write(model, tmp_path / f"{name}{known.suffix}")
        card = json.loads(card_file.read_text())
        assert card["format"] == name
        assert card["classes"] == [str(k) for k in range(10)]
        assert card["metrics"]["test_size"] > 0
        assert card["config"]["seed"] == card["summary"]["seed"]
        assert model.card.items() <= card.items()
        inside = {
            "torch.export": lambda file: _extra(file),
            "onnx": lambda file: json.loads(onnx.load(file).metadata_props[0].value),
            "safetensors": lambda file: json.loads(safe_open(file, "pt").metadata()["card"]),
        }[name](file)
        assert inside == card
        with pytest.raises(UserError, match=re.escape(file.name)):
            formats.write(model, file)
    formats.write(model, file, overwrite=True)
    with pytest.raises(UserError, match=r"model\.bin"):
        formats.write(model, tmp_path / "model.bin")


def _extra(file):
    found = {"card.json": ""}
    torch.export.load(file, extra_files=found)
    return json.loads(found["card.json"])


class Attention(nn.Module):
    """Attention between the rows of an image, in a net that is compiled in a part."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.body = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend="eager")
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        x = x.flatten(1, 2)  # [B, 1, 8, 8] -> [B, 8, 8]
        return self.fc(self.body(self.attention(x, x, x)[0].mean(1)))


def model_of(net, folder):
    """Return the model of a client after a round with a net of the user."""
    run = fl.run(
        "fedavg",
        model=net,
        partition=fl.IID(clients=2, samples=60),
        train={"rounds": 1},
        engine={"name": "sequential", "threads": 1},
        output={"dir": folder},
        progress=False,
    )
    return run.trained(0)


# What torch.compile itself warns of in training mode.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_attention_is_exported_and_names_are_those_of_the_users_net(tmp_path):
    """The kernel of attention in eval mode rounds differently from the exported operations."""
    torch.manual_seed(0)
    model = model_of(Attention(), tmp_path)

    formats.write(model, tmp_path / "model.pt2")
    file, _ = formats.write(model, tmp_path / "weights.safetensors")
    with safe_open(file, "pt") as weights:
        assert list(weights.keys()) == sorted(model.net.net.state_dict())


class Branching(nn.Module):
    """A net whose code reads values of its inputs."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.fc(x if float(x.mean()) > 0 else -x)


def test_a_net_that_no_program_can_hold_is_exported_as_weights(tmp_path, capfd):
    model = model_of(Branching(), tmp_path)

    for name, known in list(formats.FORMATS.items())[:2]:
        with pytest.raises(UserError, match=f"`{name}`"):
            formats.write(model, tmp_path / f"model{known.suffix}")
    file, _ = formats.write(model, tmp_path / "weights.safetensors")
    assert file.exists()
    assert "def forward" not in "".join(capfd.readouterr())  # the graph that PyTorch prints


class Otherwise(Branching):
    """A net that computes something else when PyTorch traces it."""

    def forward(self, x):
        scores = self.fc(x.flatten(1))
        return 1.001 * scores if torch.compiler.is_exporting() else scores


def test_a_program_that_predicts_otherwise_than_the_model_is_not_written(tmp_path):
    model = model_of(Otherwise(), tmp_path / "runs")

    for suffix in (".pt2", ".onnx"):
        with pytest.raises(RunError):
            formats.write(model, tmp_path / f"model{suffix}")
    assert not list(tmp_path.glob("model.*"))
