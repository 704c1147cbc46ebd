"""Data loaders and LightningDataModules as data of `fl.federate`."""

import lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import flbench as fl
from flbench.config.schema import PartitionConfig
from flbench.data.dataset import PARTS
from flbench.data.loaders import read
from flbench.data.partitioning import make_partition

SIZES = (40, 60)


class Items(Dataset):
    """Samples whose weight is their first value, as tuples or dicts."""

    def __init__(self, size, form, seed=0):
        rng = np.random.default_rng([seed, size])
        self.x = torch.from_numpy(rng.normal(size=(size, 6)).astype(np.float32))
        self.y = (self.x.sum(1) > 0).long()
        self.form = form

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        x, y = self.x[k], self.y[k]
        return {
            "pair": (x, y),
            "triple": (x, y, x[0]),
            "dict": {"weight": x[0], "label": y, "image": x},
            "text": (x, y, str(float(x[0]))),
        }[self.form]


class Lit(lightning.LightningModule):
    """A module that checks the form of its batches, and that values belong to their samples."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.fc = nn.Linear(6, 2)

    def forward(self, x):
        return self.fc(x)

    def training_step(self, batch, batch_idx):
        if self.form == "dict":
            assert list(batch) == ["weight", "label", "image"]
            batch = (batch["image"], batch["label"], batch["weight"])
        x, y, *weight = batch
        if self.form == "text":
            weight = [torch.tensor([float(text) for text in weight[0]])]
        if weight:  # inputs are normalized, which is a linear map
            pair = torch.stack([x[:, 0], weight[0]])
            self.log("correlation", torch.corrcoef(pair)[0, 1], batch_size=len(x))
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Module(lightning.LightningDataModule):
    def __init__(self, form):
        super().__init__()
        self.form = form

    def setup(self, stage):
        self.stage = stage

    def train_dataloader(self):
        return {name: loaders(self.form)[k] for k, name in enumerate("ab")}

    def test_dataloader(self):
        assert self.stage == "test"
        return DataLoader(Items(20, self.form, seed=1), batch_size=8)


def loaders(form):
    return [DataLoader(Items(size, form), batch_size=16, shuffle=True) for size in SIZES]


def trained(out, data, form, method="fedavg", module=None, **keys):
    torch.manual_seed(0)
    return fl.federate(
        module or Lit(form),
        data,
        method,
        train={"rounds": 2, "local_epochs": 2, "batch_size": 8},
        engine={"name": "sequential", "threads": 1},
        output={"dir": out},
        progress=False,
        **keys,
    )


@pytest.mark.slow
def test_batches_have_the_form_of_the_loaders(tmp_path):
    """The weights are those of a run with the same samples as arrays."""
    parts = [Items(size, "pair") for size in SIZES]
    x, y = (torch.cat([getattr(part, key) for part in parts]).numpy() for key in "xy")
    clients = np.repeat(["a", "b"], SIZES)
    arrays = fl.Data(x, y, clients=clients)
    expected = trained(tmp_path, arrays, "pair", partition="natural")
    forms = ("pair", "triple", "dict", "text")
    runs = {form: trained(tmp_path, loaders(form), form) for form in forms}

    assert {run.digest for run in runs.values()} == {expected.digest}
    for form in ("triple", "dict", "text"):
        logged = runs[form].metrics.query("metric == 'correlation'")["value"]
        assert logged.tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    # Further values count in the hash of the data.
    assert runs["pair"].config.data.sha256 != runs["triple"].config.data.sha256


@pytest.mark.slow
def test_a_data_module_has_clients_and_a_common_test_set(tmp_path):
    module = Module("dict")
    run = trained(tmp_path, module, "dict", "hfcd")

    assert run.clients["name"].unique().tolist() == ["a", "b"]
    assert run.config.partition.scheme == "natural"
    found = read(module, "`data`")
    assert len(found.arrays["test_labels"]) == 20
    assert len(found.about["extras"]["weight"]) == sum(SIZES) + 20
    assert "common" in {*run.metrics["split"]}


class Validated(Module):
    """A module with validation samples, whose first value is 100."""

    def __init__(self, form, names="ab"):
        super().__init__(form)
        self.names = names

    def val_dataloader(self):
        parts = [Items(size, self.form, seed=2) for size in (10, 14)]
        for part in parts:
            part.x[:, 0] = 100.0
        return {name: DataLoader(parts[k], 4) for k, name in enumerate(self.names)}


@pytest.mark.slow
def test_validation_parts_are_the_samples_of_val_dataloader(tmp_path):
    module = Validated("triple")
    dataset = fl.Data(module).dataset
    x = dataset.x[:, 0]

    def parts(scheme, clients=None):
        config = PartitionConfig(scheme=scheme, clients=clients)
        found = make_partition(dataset, config, seed=0)
        return found, {name: [x[rows] for rows in found.parts[name]] for name in PARTS}

    natural, found = parts("natural")
    for k in (0, 1):
        assert found["validation"][k].tolist() == [100] * (10, 14)[k]
        assert not (np.concatenate([found["train"][k], found["test"][k]]) == 100).any()
        assert len(found["train"][k]) == SIZES[k] * 3 // 4  # 0.6 and 0.2 of what is left
        assert len(found["test"][k]) == SIZES[k] // 4
    _, found = parts("iid", 3)
    assert np.concatenate(found["validation"]).tolist() == [100] * 24

    run = trained(tmp_path, module, "triple")
    assert run.partition.hash == natural.hash()


class Untold(Items):
    def __getitem__(self, k):
        return {"first": self.x[k], "second": self.y[k]}


class Broken(Items):
    def __getitem__(self, k):
        return 1 / 0


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ("loader 0.*first, second", [DataLoader(Untold(20, ""))]),
        ("loader 0.*ZeroDivisionError.*test_federate_loaders", [DataLoader(Broken(20, ""))]),
        ("loader 1", loaders("pair")[:1] + loaders("dict")[:1]),
        ("loader 0.*Tensor", [DataLoader(Items(20, "pair").x)]),
        ("train_dataloader", lightning.LightningDataModule()),
        ("val_dataloader", Validated("pair", "ac")),
    ],
)
def test_what_cannot_be_read_is_an_error(words, data):
    with pytest.raises(fl.DataError, match=words):
        fl.Data(data)


@pytest.mark.parametrize(
    "keys",
    [
        {"sampler": WeightedRandomSampler(torch.arange(1.0, 41.0), 40, replacement=False)},
        {"sampler": RandomSampler(range(40), replacement=True)},
        {"batch_sampler": BatchSampler(WeightedRandomSampler(torch.ones(40), 180), 8, False)},
        {"batch_sampler": [[0, 1], [1, 2]]},
    ],
)
def test_a_sampler_that_weights_or_repeats_samples_is_refused(keys):
    with pytest.raises(fl.DataError, match="here"):
        read(DataLoader(Items(40, "pair"), **keys), "here")


def test_a_sampler_that_takes_each_sample_once_chooses_the_samples():
    items, sampler = Items(40, "pair"), SubsetRandomSampler(range(5, 25))
    for keys in ({"sampler": sampler}, {"batch_sampler": BatchSampler(sampler, 8, False)}):
        found = read(DataLoader(items, **keys), "here").arrays["train_images"]
        assert sorted(found[:, 0].tolist()) == sorted(items.x[5:25, 0].tolist())


class Weighted(Lit):
    """A module whose outputs depend on a further value of the batch, or on the labels."""

    def __init__(self, form, call):
        super().__init__(form)
        self.call = call

    def forward(self, x, mask=None):
        if mask is None:
            return self.fc(x)
        return self.fc(x * (mask if mask.ndim == 2 else mask[:, None]))

    def training_step(self, batch, batch_idx):
        x, y, more = (
            batch if self.form == "triple" else map(batch.get, ("image", "label", "weight"))
        )
        return nn.functional.cross_entropy(self.call(self, x, y, more), y)


@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("triple", lambda net, x, y, more: net(x, more)),
        ("dict", lambda net, x, y, more: net.forward(x, more[:, None].expand(-1, 6))),
    ],
)
def test_a_module_that_is_evaluated_without_what_it_is_trained_with_is_refused(
    tmp_path, form, call
):
    with pytest.raises(fl.ConfigError, match="forward"):
        trained(tmp_path, loaders(form), form, module=Weighted(form, call))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_forward_may_get_other_samples_in_training(tmp_path):
    module = Weighted("triple", lambda net, x, y, more: net(2 * x))
    assert trained(tmp_path, loaders("triple"), "triple", module=module).finished
