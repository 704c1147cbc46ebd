"""Runs on series and tokens, from the file to the predictions of exported models."""

import csv

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from flbench.cli import app
from flbench.core.errors import UserError
from flbench.deploy import formats, loading
from flbench.testing import run

# Of torch.export.load.
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")

LABELS = np.arange(120) % 3
KINDS = {
    "tokens": ("data.padding=0", "model=gru", "model.hidden=4", "model.embedding=2"),
    "series": ("data.kind=series", "model=cnn1d", "model.channels=[2]", "model.hidden=4"),
}
SHORT = (
    "algorithm=fedper",
    "partition.scheme=natural",
    "partition.clients=null",
    "train.rounds=2",
    "train.local_epochs=1",
    "output.predictions=true",
)


def samples(kind):
    rng = np.random.default_rng(0)
    if kind == "tokens":
        x = rng.integers(1, 9, size=(120, 5))
        x[:, 0] = LABELS + 1
        x[::4, 3:] = 0
        return x
    return (rng.normal(size=(120, 2, 12)) + LABELS[:, None, None]).astype(np.float32)


@pytest.fixture(scope="module", params=KINDS)
def finished(request, tmp_path_factory):
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    x = samples(kind)
    np.savez(folder / "x.npz", train_images=x, train_labels=LABELS, train_groups=LABELS % 2)
    keys = (*SHORT, f"data.path={folder / 'x.npz'}", *KINDS[kind])
    path, summary = run(folder / "runs", *keys)
    return kind, x, path, summary, keys


@pytest.mark.slow
def test_predictions_are_those_of_the_run(finished):
    kind, x, path, _, _ = finished
    with open(path / "predictions.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["client"] == "1"]
    model = loading.load(path, 1)

    index = np.array([int(row["sample"]) for row in rows])
    names = [model.classes[k] for k in model.predict(x[index]).argmax(dim=1)]

    assert rows
    assert names == [row["predicted"] for row in rows]
    assert model.card["input"]["dtype"] == {"tokens": "int64", "series": "float32"}[kind]
    assert len(model.card["normalization"]["mean"]) == {"tokens": 0, "series": 2}[kind]


@pytest.mark.one_of("finished")
@pytest.mark.slow
def test_exported_models_predict_the_same(finished, tmp_path):
    _, x, path, _, _ = finished
    model = loading.load(path, 1)
    wanted = model.predict(x[:9])
    files = {one: formats.write(model, tmp_path / f"m.{one}")[0] for one in ("pt2", "onnx")}
    weights = load_file(formats.write(model, tmp_path / "m.safetensors")[0])

    program = torch.export.load(files["pt2"]).module()
    [scores] = onnxruntime.InferenceSession(files["onnx"]).run(None, {"samples": x[:9]})
    torch.testing.assert_close(program(torch.from_numpy(x[:9])), wanted)
    torch.testing.assert_close(torch.from_numpy(scores), wanted, rtol=1e-4, atol=1e-5)
    assert weights.keys() == model.net.net.state_dict().keys()


@pytest.mark.slow
def test_files_are_predicted_and_wrong_samples_refused(finished, tmp_path, capsys):
    kind, x, path, _, _ = finished
    np.savez(tmp_path / "new.npz", images=x[:3])
    words = ["predict", str(path), "--client", "1", str(tmp_path / "new.npz")]

    assert app.main([*words, "--json"]) == 0
    assert capsys.readouterr().out.count('"class"') == 3
    assert app.main(["predict", str(path), "--client", "1", __file__]) == 2
    assert ".npz" in capsys.readouterr().err
    model = loading.load(path, 1)
    wrong = x[:2].copy()
    if kind == "tokens":
        wrong[1, 2] = 9
        others = [wrong, x[:2].astype(np.float32), [[3, 4], ["a"]], [[3] * 6]]
        assert torch.equal(
            model.predict([[3, 4], [5]]), model.predict(np.int64([[3, 4, 0], [5, 0, 0]]))
        )
        assert torch.equal(model.predict([[3, 4]]), model.predict(np.int64([[3, 4, 0, 0, 0]])))
    else:
        others = [wrong[:, :, :8]]
    for other in others:
        with pytest.raises(UserError):
            model.predict(other)


@pytest.mark.slow
def test_next_characters_of_a_text_are_predicted(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    for name, text in (("a", "abcd" * 40), ("b", "dcba" * 40)):
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    texts = (f"data.path={tmp_path / 'texts'}", "data.text.window=3", "train.rounds=4")
    keys = (*SHORT, *texts, "model=gru", "algorithm.name=local", "train.optimizer.lr=0.5")
    path, _ = run(tmp_path, *keys)
    (tmp_path / "new.txt").write_text("cdabcd")

    assert app.main(["predict", str(path), "--client", "a", str(tmp_path / "new.txt")]) == 0
    predicted = loading.load(path, 0).predict(np.array([[2, 3, 0], [3, 0, 1], [0, 1, 2]]))

    assert "new.txt" in capsys.readouterr().out
    assert predicted.argmax(dim=1).tolist() == [1, 2, 3]
    (tmp_path / "new.txt").write_text("abcz")
    assert app.main(["predict", str(path), "--client", "a", str(tmp_path / "new.txt")]) == 2
    assert "'z'" in capsys.readouterr().err


@pytest.mark.slow
def test_vectorized_engine_trains_the_same_models(finished, tmp_path):
    _, x, _, _, keys = finished
    other, _ = run(tmp_path, *keys, "engine.name=vectorized", "engine.precision=64-true")
    sequential, _ = run(tmp_path / "s", *keys, "engine.precision=64-true")

    one, two = (loading.load(folder, 1).predict(x[:20]) for folder in (sequential, other))

    torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8)
