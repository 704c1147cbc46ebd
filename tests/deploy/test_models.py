"""The models of runs: they predict what the evaluation of the run has judged."""

import csv
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import flbench as fl
from flbench.algorithms import ALGORITHMS
from flbench.cli import app
from flbench.config.resolve import resolve
from flbench.config.sources import from_file
from flbench.core.errors import DataError, UserError
from flbench.core.tree import digest_of_models
from flbench.data.dataset import PARTS
from flbench.data.partition import ClientParts
from flbench.deploy import loading
from flbench.experiment import checkpoint
from flbench.experiment.assembly import load_federation
from flbench.testing import run, summary_of, with_method, write_npz
from tests.support import SMALL, interrupted_run

pytestmark = pytest.mark.slow

METHODS = ALGORITHMS.load()

# One method for each way from a state to a model that predicts.
KINDS = {
    "fedavg": "the global model",
    "ft": "fine-tuning at each client",
    "ditto": "a second model at each client",
    "fedproto": "the nearest prototype",
    "fednh": "cosines with prototypes, and a leaf of the method's own",
    "moon": "the logits of a projection",
    "apfl": "a mixture of two models, with BatchNorm statistics of its own",
    "dispfl-hp": "weights that a hypernetwork generates",
}
OTHERS = sorted(set(METHODS) - KINDS.keys())


def federation_of(path):
    config, _ = resolve([from_file(path / "config.yaml")])
    return load_federation(config)


def read(path, name):
    with (path / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def assert_predicts_as_evaluated(path, clients=None):
    """Compare the predictions of models with predictions.csv and clients.csv, client by client.

    The parameters and buffers of all clients together have the digest of summary.json.
    """
    x, written = federation_of(path).dataset.x, {}
    for row in read(path, "predictions.csv"):
        written.setdefault(int(row["client"]), []).append(row)
    last = {int(row["client"]): row for row in read(path, "clients.csv") if row["moment"] == "last"}
    assert written
    models = [loading.load(path, client, checkpoint="last") for client in clients or range(5)]
    if clients is None:
        weights = digest_of_models(model.net.net.state_dict() for model in models)
        assert weights == json.loads((path / "summary.json").read_text())["weights_digest"]
    for model in models:
        client = model.card["client"]
        if client not in written:
            continue
        predicted = model.predict(x[[int(row["sample"]) for row in written[client]]]).argmax(dim=1)
        assert predicted.tolist() == [int(row["predicted"]) for row in written[client]]
        right = [int(row["true"]) == int(row["predicted"]) for row in written[client]]
        assert sum(right) / len(right) == pytest.approx(float(last[client]["accuracy"]), abs=1e-7)
        assert model.card["metrics"]["accuracy"] == float(last[client]["accuracy"])


@pytest.mark.parametrize("method", KINDS)
def test_models_of_clients_predict_what_was_evaluated(tmp_path, method):
    overrides = with_method(method, "train.optimizer.lr=0.1", "output.predictions=true")
    assert_predicts_as_evaluated(run(tmp_path, *overrides)[0])


@pytest.mark.full
@pytest.mark.parametrize("method", OTHERS)
def test_models_of_clients_of_other_methods_predict_what_was_evaluated(tmp_path, method):
    overrides = with_method(method, "train.optimizer.lr=0.1", "output.predictions=true")
    assert_predicts_as_evaluated(run(tmp_path, *overrides)[0])


@pytest.mark.full
@pytest.mark.parametrize("policy", ["local", "drop"])
@pytest.mark.parametrize("method", METHODS)
def test_models_have_the_batchnorm_statistics_of_the_evaluation(tmp_path, method, policy):
    overrides = with_method(method, f"train.batchnorm={policy}", "model.name=lenet5")
    path, _ = run(tmp_path, *overrides, "train.rounds=2", "output.predictions=true")
    assert_predicts_as_evaluated(path)


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_models_of_nets_with_batchnorm(tmp_path, policy):
    overrides = (*SMALL, "algorithm=ft", "model.name=lenet5", f"train.batchnorm={policy}")
    if policy == "drop":  # fine-tuned models have the bits of their block
        overrides = (*overrides, "engine.name=vectorized")
    path, _ = run(tmp_path, *overrides, "partition.samples=300", "output.predictions=true")
    assert_predicts_as_evaluated(path, clients=(0, 3))


def test_the_global_model_is_the_one_evaluated_on_the_common_test_set(tmp_path):
    rng = np.random.default_rng(0)
    data = write_npz(tmp_path / "data.npz")
    path, summary = run(tmp_path, *SMALL, "algorithm=fedavg", f"data.path={data}")
    federation = federation_of(path)
    assert len(federation.common)

    model = loading.load(path, checkpoint="last")
    rows = rng.permutation(federation.common)
    predicted = model.predict(federation.dataset.x[rows]).argmax(dim=1).numpy()
    accuracy = (predicted == federation.dataset.y[rows]).mean()
    assert accuracy == pytest.approx(summary["last"]["test"]["gm"], abs=1e-7)
    assert model.card["summary"]["last"]["test"]["gm"] == summary["last"]["test"]["gm"]


def test_best_and_last_are_the_models_of_their_rounds(tmp_path):
    # The clients' models soon have the validation accuracy that they end with.
    overrides = (*SMALL, "partition.samples=null", "algorithm=local", "train.rounds=6")
    overrides = (*overrides, "evaluation.every=1")
    path, summary = run(tmp_path, *overrides, "train.local_epochs=5", "train.optimizer.lr=0.3")
    assert summary["best"]["round"] != 6
    best, last = (loading.load(path, 0, checkpoint=moment) for moment in loading.MOMENTS)
    assert best.card["round"] == summary["best"]["round"]
    assert last.card["round"] == 6
    rows = {(row["moment"], row["client"]): row for row in read(path, "clients.csv")}
    moment = "best" if best.card["round"] != 6 else "last"
    assert best.card["metrics"]["accuracy"] == float(rows[moment, "0"]["accuracy"])


def test_other_models_of_a_method(tmp_path):
    path, _ = run(tmp_path, *SMALL, "algorithm=fedproto")
    x = federation_of(path).dataset.x[:20]
    nearest, head = loading.load(path, 1), loading.load(path, 1, "head")
    assert (nearest.net.scores, head.net.scores) == ("negative distances", "logits")
    inputs = head.inputs(torch.as_tensor(x[:, 0]))
    assert torch.equal(head.predict(x), head.net.net(inputs).logits)
    assert (nearest.predict(x) <= 0).all()


def test_net_takes_normalized_inputs_and_can_be_pickled(finished_run):
    model = loading.load(finished_run, 2)
    federation = federation_of(finished_run)
    rows = np.arange(10)
    inputs = federation.inputs(rows, torch.float32)
    assert isinstance(model.net, nn.Module)
    assert not model.net.training
    assert torch.equal(model.net(inputs), model.predict(federation.dataset.x[rows]))
    raw = torch.from_numpy(federation.dataset.x[rows])
    [mean], [std] = (model.normalization[key] for key in ("mean", "std"))
    pixels = (raw.double().numpy() - mean) / std
    np.testing.assert_allclose(pixels, inputs, rtol=1e-5, atol=1e-5)

    copy = pickle.loads(pickle.dumps(model))
    assert torch.equal(copy.predict(raw), model.predict(raw))
    assert json.loads(json.dumps(model.card)) == model.card


def tables(folder):
    """Write five tables with a column of words and missing values."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for client in range(5):
        lines = ["size,colour,weight,label"]
        for k in range(40):
            label = k % 3
            size = "" if k % 11 == 0 else f"{label + rng.normal():.3f}"
            colour = "" if k % 17 == 0 else ["red", "green", "blue"][(label + (k % 5 == 0)) % 3]
            lines.append(f"{size},{colour},{rng.normal():.3f},{'abc'[label]}")
        (folder / f"c{client}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("normalize", ["standard", "client"])
def test_tables_are_encoded_and_imputed_as_in_training(tmp_path, normalize):
    overrides = (
        "model.name=mlp",
        f"data.normalize={normalize}",
        "partition.scheme=natural",
        f"data.path={tables(tmp_path / 'x')}",
    )
    path, _ = run(tmp_path, *SMALL, "algorithm=fedper", *overrides, "output.predictions=true")
    federation = federation_of(path)
    assert federation.dataset.is_table
    assert np.isnan(federation.dataset.x).any()
    assert any(federation.dataset.words)
    assert_predicts_as_evaluated(path)
    for client in range(federation.clients):
        model = loading.load(path, client)
        rows = federation.partition.parts["train"][client]
        inputs = model.inputs(torch.from_numpy(federation.dataset.x[rows]))
        assert torch.equal(inputs, federation.inputs(rows, torch.float32))
        assert model.card["client_name"] == f"c{client}"
        assert model.card["input"]["words"] == {"colour": ["blue", "green", "red"]}


def test_global_model_has_the_normalization_of_the_client_that_is_chosen(tmp_path):
    keys = (f"data.path={tables(tmp_path / 'x')}", "data.normalize=client")
    path, _ = run(tmp_path, *SMALL, "algorithm=fedavg", "partition.scheme=natural", *keys)

    with pytest.raises(UserError, match=r"data\.normalize=client.*gm"):
        loading.load(path)
    one, other = (loading.load(path, client, "gm") for client in (0, 1))
    same = zip(one.net.net.state_dict().values(), other.net.net.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) for pair in same)
    assert one.normalization["mean"] != other.normalization["mean"]
    assert one.card["normalization"]["from"] == "the client's training part"

    x = federation_of(path).dataset.x.copy()
    x[3, 2] = np.inf
    for samples, words in (
        (x, "sample 3 .*infinite"),
        (x[:3].astype(float) * 1e300, "sample 0 .*infinite"),
        (x[:, :2], "shape"),
        (["a.csv"], "shape"),
        ({}, "object"),
        (x.astype(object), "object"),
        (torch.zeros(20, 3, dtype=torch.complex64), "complex64"),
    ):
        with pytest.raises(UserError, match=words):
            one.predict(samples)


HOSPITALS = [f"hospital{k:02d}" for k in range(1, 13)]


def parts_of(names, clients=12):
    """The partition of clients with some names."""
    parts = {part: [np.arange(0)] * (len(names) or clients) for part in PARTS}
    return ClientParts(parts, "", names=tuple(names))


@pytest.mark.parametrize(
    ("names", "client", "wanted"),
    [
        *((HOSPITALS, "hospital03", 2), (HOSPITALS, 0, 0), (["3", "1", "0"], "3", 0)),
        *((["3", "1", "0"], 1, 1), ([], "7", 7), ([], 7, 7), (["-1", "x"], "-1", 0)),
    ],
)
def test_client_is_found_by_its_name_or_its_id(names, client, wanted):
    assert loading.client_of(parts_of(names), client) == wanted


def test_an_interrupted_run_has_models(tmp_path):
    path = interrupted_run(tmp_path, "algorithm=fedavg", "evaluation.every=1")
    assert loading.load(path, 0, checkpoint="last").card["round"] == 2
    assert loading.load(path, checkpoint="best").card["metrics"] == {}


def test_loading_leaves_the_number_of_threads_and_the_random_state(finished_run):
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    loading.load(finished_run, 0)
    assert torch.get_num_threads() == 2
    assert torch.equal(before, torch.get_rng_state())


def test_other_clients_and_samples_are_refused(finished_run):
    for names, client in ((HOSPITALS, "3"), (["a", "b"], "3.0"), ([], 12), ([], "-1")):
        with pytest.raises(UserError, match=str(client)):
            loading.client_of(parts_of(names), client)
    model = loading.load(finished_run, 0)
    for shape, dtype in (
        *(((8, 8), np.uint8), ((2, 9, 8), np.uint8), ((2, 8, 8, 3), np.uint8)),
        *(((2, 8, 8), np.float32), ((2, 8, 8), np.bool_)),
    ):
        with pytest.raises(UserError):
            model.predict(np.zeros(shape, dtype))


@pytest.mark.parametrize("largest", [1, 255])
def test_images_of_another_type_or_range_than_those_of_the_training_are_refused(largest, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8)).astype(np.float32) * (largest / 255)
    keys = {"partition.clients": 2, "train.rounds": 1, "model.name": "mlp", "progress": False}
    trainee = fl.run("fedavg", data=(x, np.arange(60) % 2), output={"dir": tmp_path}, **keys)
    scores = trainee.predict(x[:3], 0)

    assert trainee.trained(0).card["input"]["range"] == [float(x.min()), float(x.max())]
    others = [
        np.uint8(x[:3]),
        np.int64(x[:3]),
        np.float32(x[:3] * (255 if largest == 1 else 1 / 255)),
    ]
    for other in others:
        with pytest.raises(UserError):
            trainee.predict(other, 0)
    assert torch.equal(trainee.predict(torch.from_numpy(x[:3, None]), 0), scores)
    np.savez(tmp_path / "new.npz", images=np.uint8(x[:3]))
    assert app.main(["predict", str(trainee.path), "--client", "0", str(tmp_path / "new.npz")]) == 2


def test_the_model_of_a_client_with_a_shift_says_that_it_takes_shifted_samples(tmp_path):
    keys = (
        *SMALL,
        "algorithm=fedavg",
        "shift.rotation=[0,90]",
        "shift.labels=true",
        "output.predictions=true",
    )
    path, _ = run(tmp_path, *keys)
    federation, notes = federation_of(path), []
    model = loading.load(path, 1, checkpoint="last", warn=notes.append)

    rows = [row for row in read(path, "predictions.csv") if row["client"] == "1"]
    shifted = federation.x[[int(row["sample"]) for row in rows]][:, 0]
    predicted = model.predict(shifted).argmax(dim=1)
    assert predicted.tolist() == [int(row["predicted"]) for row in rows]
    assert notes == [model.card["input"]["shift"]]
    assert federation.partition.shifts[1] in notes[0]
    assert "shift" not in loading.load(path, warn=pytest.fail).card["input"]


def test_a_run_without_a_checkpoint_and_other_data(tmp_path):
    data = write_npz(tmp_path / "data.npz")
    path, _ = run(tmp_path, *SMALL, "algorithm=local", f"data.path={data}")
    write_npz(data, size=10)
    with pytest.raises(DataError, match=path.name):
        loading.load(path, 0)
    (path / "checkpoints" / "last.safetensors").unlink()
    write_npz(data)
    with pytest.raises(UserError, match=path.name):
        loading.load(path, 0)


def with_header(file, change):
    """Change the header of a safetensors file: its tree, its tensors and its metadata."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    tree = json.loads(content[8 : 8 + length])
    tensors = [name for name in tree if name != "__metadata__"]
    header = change(tree, tree[tensors[0]], tree["__metadata__"]) or json.dumps(tree).encode()
    claimed = header if isinstance(header, int) else len(header)
    header = content[8 : 8 + length] if isinstance(header, int) else header
    file.write_bytes(claimed.to_bytes(8, "little") + header + content[8 + length :])


BOMBS = {
    "length 2^63": lambda tree, tensor, about: 2**63,
    "deep": lambda tree, tensor, about: b'{"a":' * 10**6,
    "overlap": lambda tree, tensor, about: tensor.update(data_offsets=[0, 8]),
    "shape": lambda tree, tensor, about: tensor.update(shape=[2**62, 4]),
    "no elements": lambda tree, tensor, about: tensor.update(shape=[0, 2**62]),
    "deep names": lambda tree, tensor, about: about.update(names="[" * 10**6),
    "unknown name": lambda tree, tensor, about: about.update(names='["server/nothing"]'),
    "deep extra": lambda tree, tensor, about: about.update(extra="[" * 10**6 + "]" * 10**6),
    "digits of position": lambda tree, tensor, about: about.update(
        position=f'{{"stage": {"9" * 10**6}}}'
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_checkpoint_of_a_stranger_is_an_error(bomb, finished_run, tmp_path, capsys):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    last = folder / "checkpoints" / "last.safetensors"
    with_header(last, BOMBS[bomb])

    with pytest.raises(DataError, match=r"last\.safetensors"):
        checkpoint.load(last, summary_of(folder)["config_hash"])
