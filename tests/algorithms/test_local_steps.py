"""`train.local_steps`: a round of so many optimizer steps in place of epochs."""

import pandas as pd
import pytest

from flbench.core.errors import ConfigError
from flbench.testing.setting import with_method
from tests.support import build, config_of, run

pytestmark = pytest.mark.slow

MLP = ("model.name=mlp", "train.rounds=2", "evaluation.every=1")
STEPS = ("train.local_epochs=null", "train.local_steps=3")


@pytest.mark.parametrize("name", ["scaffold", "apfl", "feddbe", "flocoplus"])
def test_steps_are_epochs_where_all_samples_are_one_batch(name, tmp_path):
    keys = with_method(name, *MLP, "train.batch_size=4096")
    _, epochs = run(tmp_path / "epochs", *keys, "train.local_epochs=3")
    _, steps = run(tmp_path / "steps", *keys, *STEPS)

    for key in ("weights_digest", "steps", "communication", "best"):
        assert steps[key] == epochs[key]
    assert steps["config_hash"] != epochs["config_hash"]


@pytest.mark.parametrize(("name", "phases"), [("fedavg", 1), ("ditto", 2)])
def test_each_client_takes_exactly_these_steps(name, phases, tmp_path):
    keys = with_method(name, *MLP, *STEPS, "train.batch_size=16")
    path, summary = run(tmp_path, *keys)

    rows = pd.read_csv(path / "metrics.csv").query("metric == 'steps'")
    assert rows["value"].tolist() == [3 * 3 * phases] * 2  # clients of a cohort, steps, phases
    clients = pd.read_csv(path / "clients.csv").query("moment == 'last'")
    assert (clients["steps"] == clients["trainings"] * 3 * phases).all()
    assert summary["steps"] == 2 * 9 * phases


def test_epochs_and_steps_exclude_each_other():
    for keys in (["train.local_steps=3"], ["train.local_epochs=null"]):  # SMALL has one epoch
        with pytest.raises(ConfigError, match=r"train\.local_epochs.*train\.local_steps"):
            config_of(*keys)
    assert config_of(*STEPS).train.local_epochs is None
    with pytest.raises(ConfigError, match=r"train\.local_steps"):
        config_of("train.local_epochs=null", "train.local_steps=0")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("dfedalt", ()),
        ("dfedsalt", ()),
        ("fedrep", ()),
        ("fedrep", ("algorithm.head_epochs=2",)),
        ("dfedhp", ()),
        ("dfedhp", ("algorithm.k_phi=2",)),
        ("dispfl-hp", ()),
    ],
)
def test_methods_that_divide_epochs_are_refused(name, key):
    with pytest.raises(ConfigError, match=rf"train\.local_steps=3`: {name} "):
        build(*with_method(name, *STEPS, *key))
