"""The second half of a study as a comparison: what is trained, with which seeds and parameters."""

import pytest

from flbench.comparison.winners import design_of, winners_of
from flbench.config.sources import Layer, from_overrides
from flbench.results import study_folder
from tests.support import SMALL, config_of
from tests.tuning.studies import DEFAULTS, begin, trial


def layers(*more):
    """Complete configurations of two methods, as the search has them."""
    found = {}
    for name in ("hfcd", "fedavg"):
        items = [*SMALL, "seed=7", "partition.seed=4", *more, f"algorithm.name={name}"]
        origins = from_overrides(items).origins
        found[name] = Layer(config_of(*items).tree(), origins)
    return found


def test_methods_have_their_default_and_their_best_parameters(tmp_path):
    folder = begin(tmp_path / "study", "hfcd", "fedavg", "local", trials=2)
    for method, scores in {"hfcd": (0.5, 0.6), "fedavg": (0.6, 0.5)}.items():
        for index, score in enumerate(scores):
            trial(folder, method, index, score, params=DEFAULTS | {"algorithm.tau": 1.0 + index})
    trial(folder, "local", 0, None, state="failed")

    found = winners_of(study_folder.read(folder))

    assert {method: [*labels] for method, labels in found.items()} == {
        "hfcd": ["hfcd tuned", "hfcd"],
        "fedavg": ["fedavg"],  # its default parameters have won
    }
    assert found["hfcd"]["hfcd tuned"]["algorithm.tau"] == 2.0
    assert found["hfcd"]["hfcd"] == DEFAULTS


@pytest.mark.parametrize(("vary", "partitions"), [("both", [5, 6, 7]), ("training", [4, 4, 4])])
def test_cells_have_the_seeds_after_those_of_the_search(vary, partitions):
    params = {
        "hfcd": {"hfcd tuned": {"algorithm.tau": 0.3}, "hfcd": {"algorithm.tau": 0.1}},
        "fedavg": {"fedavg": {"train.optimizer.lr": 0.2}},
    }

    cells = design_of(layers(), params, 3, vary).cells()
    assert design_of(layers(), params, 0, vary) is None

    seeds = [(cell.config.seed, cell.config.partition_seed) for cell in cells]
    assert seeds == [pair for pair in zip((8, 9, 10), partitions, strict=True) for _ in range(3)]
    assert [cell.method for cell in cells[:3]] == ["hfcd tuned", "hfcd", "fedavg"]
    assert [cell.config.algorithm.tau for cell in cells[:2]] == [0.3, 0.1]
    assert [cell.config.train.optimizer.lr for cell in cells[:3]] == [0.01, 0.01, 0.2]
    base = layers()["hfcd"]
    assert cells[0].config.partition.alpha == base["partition.alpha"].value
    assert cells[0].config.train.rounds == base["train.rounds"].value
