"""Pretrained weights: files, weights of torchvision and timm by name, grey images."""

import hashlib
import shutil
import sys
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import flbench as fl
from flbench.config.schema import OwnModelConfig
from flbench.core.errors import ConfigError
from flbench.models import pretrained
from flbench.models.base import build, net_leaves
from flbench.models.mlp import MlpConfig

SHAPE = (3, 32, 32)
VIT = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "mlp_dim": 16,
}
SMALL = "torchvision.models:mobilenet_v3_small"


class Opened:
    """Its pickle writes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def small(classes=7):
    """A net of two layers, as a user's function makes it."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, classes))


def net_of(shape, classes):
    """A net like `small`, with the seeded weights of a run."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, classes))


def start(classes=10, shape=(1, 8, 8), name="tests.models.test_pretrained:net_of", **keys):
    """The net with its weights before the first round."""
    return build(OwnModelConfig(name=name, **keys), shape, classes, seed=0)


def short(out, **model):
    """A run of one round."""
    return fl.run(
        "fedavg",
        model={"name": "tests.models.test_pretrained:net_of", **model},
        partition=fl.IID(clients=2, samples=40),
        train={"rounds": 1, "local_epochs": 1},
        engine={"threads": 1},
        output={"dir": out},
        progress=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "module.", "backbone"])
def test_file_gives_all_but_a_head_of_other_classes(tmp_path, prefix):
    net, seeded = small(), start()
    state = {f"{prefix}{name}": one for name, one in net.state_dict().items()}
    if prefix == "backbone":  # as flbench exports it
        state = {
            f"backbone.{k}" if k[0] == "1" else f"head{k[1:]}": v
            for k, v in net.state_dict().items()
        }
    file = tmp_path / "body.pth"
    torch.save({"epoch": 3, "state_dict": state} if prefix == "module." else state, file)
    found = start(weights=str(file))

    assert torch.equal(found.backbone[1].weight, net[1].weight)
    assert torch.equal(found.head.weight, seeded.head.weight)
    about = pretrained.of(found)
    assert about.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert about.new_head
    assert torch.equal(start(classes=7, weights=str(file)).head.weight, net[3].weight)


@pytest.mark.slow
def test_content_of_the_file_is_part_of_the_configuration(tmp_path):
    one, same, other = (tmp_path / f"{name}.safetensors" for name in ("one", "same", "other"))
    save_file(small().state_dict(), one)
    shutil.copy(one, same)
    save_file({k: v + 1 for k, v in small().state_dict().items()}, other)
    runs = [short(tmp_path, weights=str(file)) for file in (one, same, other)]

    assert runs[0].config.model.weights_sha256 == hashlib.sha256(one.read_bytes()).hexdigest()
    assert runs[0].config.hash() == runs[1].config.hash() != runs[2].config.hash()
    assert runs[0].digest == runs[1].digest != runs[2].digest
    model = runs[0].model()
    runs[0].export(tmp_path / "trained.safetensors")
    trained = start(weights=str(tmp_path / "trained.safetensors"))
    assert torch.equal(trained.head.weight, model.net.head.weight)
    one.write_bytes(other.read_bytes())
    with pytest.raises(ConfigError, match="weights_sha256"):
        short(tmp_path, weights=str(one), weights_sha256=runs[0].config.model.weights_sha256)


def test_files_that_do_not_fit_are_refused(tmp_path):
    state, file = small(10).state_dict(), tmp_path / "weights.pth"

    def message(content):
        torch.save(content, file)
        with pytest.raises(ConfigError) as error:
            start(weights=str(file))
        return str(error.value)

    wider = state | {"1.weight": torch.zeros(6, 65)}
    assert "1.weight" in message(wider)
    assert "9.bias" in message(state | {"9.bias": torch.ones(1)})
    del wider["1.weight"]
    assert "1.weight" in message(wider)
    message(Opened(tmp_path / "opened"))
    assert not (tmp_path / "opened").exists()
    for content in (torch.ones(3), {"epoch": 3}):
        message(content)
    file.write_bytes(b"")
    for path in (file, tmp_path / "weight.pth"):
        with pytest.raises(ConfigError, match=r"model\.weights="):
            start(weights=str(path))


def test_nets_of_flbench_take_files_too(tmp_path):
    donor = build(MlpConfig(), (1, 8, 8), 10, seed=5)
    torch.save(donor.state_dict(), tmp_path / "mlp.pth")
    config = MlpConfig(weights=str(tmp_path / "mlp.pth"))
    found = net_leaves(build(config, (1, 8, 8), 10, seed=0))
    assert all(torch.equal(one, found[name]) for name, one in net_leaves(donor).items())
    with pytest.raises(ConfigError, match=r"model\.weights=DEFAULT"):
        build(MlpConfig(weights="DEFAULT"), (1, 8, 8), 10, seed=0)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """PyTorch's cache of weights in an empty folder, without a network."""

    def refuse(url, *args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    return tmp_path / "checkpoints"


@pytest.mark.slow
def test_weights_of_torchvision_by_name(hub):
    from torchvision.models import MobileNet_V3_Small_Weights, mobilenet_v3_small

    file = hub / MobileNet_V3_Small_Weights.DEFAULT.url.rpartition("/")[2]
    with pytest.raises(ConfigError, match=r"model\.weights=DEFAULT"):
        start(shape=SHAPE, name=SMALL, weights="DEFAULT")
    donor = mobilenet_v3_small()
    torch.save(donor.state_dict(), file)
    found = start(shape=SHAPE, name=SMALL, weights="DEFAULT")
    assert torch.equal(found.backbone.features[0][0].weight, donor.features[0][0].weight)
    assert found.head.weight.shape == (10, 1024)
    by_file = start(shape=SHAPE, name=SMALL, weights=str(file))
    equal = {k: torch.equal(v, net_leaves(by_file)[k]) for k, v in net_leaves(found).items()}
    # The new head is drawn after the head for 1000 classes, and by_file's instead of it.
    assert {name for name, same in equal.items() if not same} <= {"head.weight", "head.bias"}
    with pytest.raises(ConfigError, match=r"model\.weights=IMAGENET1K_V11"):
        start(shape=SHAPE, name=SMALL, weights="IMAGENET1K_V11")


@pytest.mark.slow
def test_nets_of_timm_by_name(tmp_path, monkeypatch):
    timm = pytest.importorskip("timm")
    donor, name = timm.create_model("test_resnet"), "timm:test_resnet"
    save_file(donor.state_dict(), tmp_path / "timm.safetensors")
    found = start(shape=SHAPE, name=name, weights=str(tmp_path / "timm.safetensors"))
    assert torch.equal(net_leaves(found)["backbone.conv1.0.weight"], donor.conv1[0].weight)
    tagged = start(shape=SHAPE, name=f"{name}.r160_in1k")
    assert tagged.backbone.pretrained_cfg["tag"] == "r160_in1k"
    grey = start(shape=(1, 32, 32), name=name)  # timm adapts the first layer
    assert net_leaves(grey)["backbone.conv1.0.weight"].shape[1] == 1
    with pytest.raises(ConfigError, match="test_resnett"):
        start(shape=SHAPE, name="timm:test_resnett")
    torch.save(Opened(tmp_path / "opened"), tmp_path / "theirs.pth")
    file = str(tmp_path / "theirs.pth")
    for args in ({"checkpoint_path": file}, {"pretrained": True}, {"pretrained_cfg": "a1_in1k"}):
        for net in (name, "timm.models.resnet:resnet18"):
            with pytest.raises(ConfigError, match=r"model\.args\.\w+.*model\.weights"):
                start(shape=SHAPE, name=net, args=args)
    assert not (tmp_path / "opened").exists()
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"model\.weights=DEFAULT"):
        start(shape=SHAPE, name=name, weights="DEFAULT")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"timm:test_resnet"):
        start(shape=SHAPE, name=name)


@pytest.mark.slow
def test_grey_images_are_repeated(tmp_path):
    x = torch.randint(0, 256, (24, 32, 32), dtype=torch.uint8)
    runs = [
        fl.run(
            "fedavg",
            data=fl.Data(images, torch.arange(24) % 2),
            model={"name": "torchvision.models:VisionTransformer", "args": VIT, "channels": 3},
            partition=fl.IID(clients=2),
            train={"rounds": 1, "local_epochs": 1},
            engine={"threads": 1},
            output={"dir": tmp_path},
            progress=False,
        )
        for images in (x, x[:, None].expand(-1, 3, -1, -1))
    ]
    assert runs[0].digest == runs[1].digest
    with pytest.raises(ConfigError, match=r"model\.channels"):
        start(shape=(1, 32, 32), name=SMALL)
    with pytest.raises(ConfigError, match=r"`model\.channels=4`"):
        start(shape=SHAPE, name=SMALL, channels=4)
