"""What a study refuses before anything starts, and what it takes over on resume."""

import json

import pytest

from flbench import cli
from flbench.layers import Layer, from_overrides
from flbench.search import prepare
from tests.support import SMALL


def layers_of(*methods, more=()):
    items = [item for item in SMALL if not item.startswith("engine.")]
    return {
        method: [
            from_overrides([*items, *more]),
            Layer({"algorithm": {"name": method}}, {"algorithm.name": "--algo"}),
        ]
        for method in methods
    }


@pytest.fixture
def begin(tmp_path):
    """Prepare a study in a folder of the test's; close it afterwards."""
    begun = []

    def made(*methods, more=(), **asked):
        request = prepare.Request(methods, out=tmp_path / "studies", **asked)
        begun.append(prepare.begin(request, layers_of(*methods, more=more), ["flbench", "tune"]))
        return begun[-1]

    yield made
    for each in begun:
        each.folder.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--algo", "fedafg"), "fedavg"),
        (("--algo", "fedavg", "--metric", "acuracy"), "`accuracy`"),
        (("--algo", "fedavg", "--metric", "confusable_f1"), "evaluation.confusable"),
        (("--algo", "fedavg", "--search", "bayes"), "random, grid, optuna"),
        (("--algo", "fedavg", "--scheduler", "bohb"), "asha, pbt, none"),
        (("--algo", "fedavg", "--scheduler", "pbt", "--search", "grid"), "--search random"),
        (("--algo", "hfcd", "--search", "grid"), "--trials"),
        (("--algo", "fedavg", "partition.split=[0.8,0.0,0.2]"), "partition.split"),
        (("--algo", "fedavg", "train.optimizer.lr=0.1"), "nothing is left to search"),
        (("--algo", "fedavg", "algorithm.tau=0.1"), "algorithm.tau"),
        (("--algo", "fedrep", "--space", "nowhere.yaml"), "nowhere.yaml"),
        (("--algo", "slapfl", "train.participation=0.5"), "slapfl"),
        (("--resume", "nowhere"), "study.json"),
        (("--resume", "nowhere", "--algo", "fedavg"), "--resume takes"),
        ((), "--algo hfcd"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    arguments, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    code = cli.main(["tune", *arguments])

    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "studies").exists()


def test_methods_are_compared_on_the_same(begin):
    prepared = begin("hfcd", "fedavg", trials=3, seeds=2)

    first, second = prepared.configs.values()
    for section in ("seed", "data", "partition", "train", "evaluation"):
        assert getattr(first, section) == getattr(second, section)
    assert first.partition.seed == first.seed  # finals change the seed, and keep the partition
    assert first.engine.threads == 1
    assert any("fewer than 3 seeds" in note for note in prepared.notes)


def test_study_tells_spaces_and_defaults(begin):
    prepared = begin("hfcd", more=("algorithm.tau=0.25",))

    told = json.loads((prepared.folder.path / "study.json").read_text())

    defaults = told["methods"]["hfcd"]["defaults"]
    assert "algorithm.tau" not in defaults  # settled on the command line
    assert defaults["train.optimizer.lr"] == prepared.configs["hfcd"].train.optimizer.lr
    assert set(told["methods"]["hfcd"]["space_tree"]["space"]) == set(defaults)
    assert prepared.configs["hfcd"].algorithm.tau == 0.25
    assert any("algorithm.tau" in note for note in prepared.notes)


def test_reopened_study_is_the_one_that_was_begun(begin):
    first = begin("fedcpmd", trials=5, search="optuna", concurrent=2, more=("model=lenet5",))
    first.folder.close()

    again = prepare.reopen(first.folder.path, {"concurrent": 1})

    assert again.means.concurrent == 1
    assert again.budget == first.budget  # and so Optuna's batches
    assert again.rules == first.rules
    assert again.spaces["fedcpmd"].parameters == first.spaces["fedcpmd"].parameters
    assert again.configs["fedcpmd"].tree() == first.configs["fedcpmd"].tree()
    samplers = (each.samplers()["fedcpmd"] for each in (first, again))
    assert len({repr(sampler.propose([], 2)) for sampler in samplers}) == 1
    again.folder.close()


def test_study_is_refused_on_other_data(begin):
    first = begin("fedavg")
    first.folder.close()
    file = first.folder.path / "study.json"
    told = json.loads(file.read_text()) | {"partition_hash": "0" * 64}
    file.write_text(json.dumps(told))

    with pytest.raises(prepare.UserError, match="another partition"):
        prepare.reopen(first.folder.path, {})
