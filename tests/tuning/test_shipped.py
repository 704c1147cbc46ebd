"""The spaces that come with flbench, over the registry: a new method fails here till it has one."""

import pytest

from flbench.algorithms import ALGORITHMS
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, leaves
from flbench.tuning import library
from flbench.tuning.library import RATE, fit
from flbench.tuning.search_space import Space
from tests.support import build

METHODS = ALGORITHMS.load()
NET = ("model.name=lenet5", "train.rounds=15", "train.local_epochs=2")


def fitted(method: str, rounds: int = 15) -> tuple[Space, list[Layer]]:
    layer = Layer({"algorithm": {"name": method}, "train": {"rounds": rounds}})
    return library.built_in(method, rounds=rounds), [layer]


def test_there_is_a_space_for_each_method_and_for_nothing_else():
    assert {path.stem for path in library.FOLDER.glob("*.yaml")} == set(METHODS)


def test_space_of_each_method(subtests):
    for method in METHODS:
        for rounds in (1, 15, 200):
            with subtests.test("fits the method", method=method, rounds=rounds):
                space, layers = fitted(method, rounds)
                assert fit(space, layers) == (space, [])
        with subtests.test("is small and searches the learning rate", method=method):
            assert_small(method)
        with subtests.test("holds the defaults", method=method):
            assert_defaults(method)


def assert_small(method):
    space, layers = fitted(method)
    config, _ = resolve(layers)

    rate = space.parameters[RATE]
    assert rate.log
    assert rate.holds(config.train.optimizer.lr)
    # HFCD's paper leaves the most open: four numbers, and how its losses combine.
    assert 1 <= len(space.parameters) <= 6
    assert all(not path.startswith("train.") for path in space.parameters if path != RATE)


def test_methods_share_the_range_of_the_learning_rate():
    """All but the one where the key is another quantity, as its file says."""
    ranges = {name: library.built_in(name, rounds=15).parameters[RATE].values for name in METHODS}

    assert [name for name in METHODS if ranges[name] != "0.001 to 0.3, log"] == ["pfedme"]


def assert_defaults(method):
    """A range that leaves the default out would make the comparison with it unfair."""
    space, layers = fitted(method, rounds=200)
    config, _ = resolve(layers)

    for path, value in space.defaults(config).items():
        parameter = space.parameters[path]
        assert value is None or parameter.holds(value), (path, value)


@pytest.mark.slow
@pytest.mark.parametrize("corner", [1, *(pytest.param(k, marks=pytest.mark.full) for k in (0, -1))])
def test_corners_of_the_space_make_runs_that_start(corner, subtests):
    """No requirement of a method refuses values of its own space."""
    for method in METHODS:
        with subtests.test(method=method):
            space, _ = fitted(method, rounds=15)
            params = space.assign(lambda one, k=corner: (*one.grid(), one.grid()[-1])[k])
            items = [f"{path}={'null' if v is None else v}" for path, v in params.items()]
            built = build(
                *NET, *ALGORITHMS.find(method).example(), f"algorithm.name={method}", *items
            )
            built.engine.close()
            assert leaves(built.config.tree()).items() >= params.items()


def test_searched_epochs_are_those_of_fine_tuning_and_change_no_round():
    """Steps of the rounds, and so the budget, are the same for all trials of a method."""
    found = {
        method: [path for path in library.built_in(method, rounds=15).parameters if is_cost(path)]
        for method in METHODS
    }

    assert {method for method, paths in found.items() if paths} == {"ft", "fedbabu"}
    for method, paths in found.items():
        for path in paths:
            more = ["algorithm.finetune=head_first"] if path.endswith("head_epochs") else []
            few, many = (build(f"algorithm={method}", *more, f"{path}={count}") for count in (1, 9))
            assert few.algorithm.program(few.start()) == many.algorithm.program(many.start())


def is_cost(path: str) -> bool:
    return path.endswith(("epochs", "batch_size"))
