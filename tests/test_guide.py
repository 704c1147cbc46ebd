"""The methods in docs/guides/your-method.md run, and so do their tests."""

import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from flbench.algorithms import ALGORITHMS
from flbench.reports import run as run_report
from flbench.testing import Contract, Played
from flbench.tuning import library
from tests.support import summary_of_run

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "your-method.md"
TEXT = GUIDE.read_text("utf-8")
METHODS = ("confident", "firstlayer", "slow", "kindred")


def files():
    """The files of the guide by name; blocks with one title are the parts of a file."""
    found = {}
    for title, text in re.findall(r'```python title="(.*?)"\n(.*?)```', TEXT, re.DOTALL):
        found.setdefault(Path(title).stem, []).append(text)
    return {name: "\n".join(parts) for name, parts in found.items()}


FILES = files()


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """The guide's methods, registered for the tests of this file; the guide's tests by name."""
    folder = tmp_path_factory.mktemp("guide")
    names = list(FILES)
    for name, text in FILES.items():
        (folder / f"guide_{name}.py").write_text(text)
    [space] = re.findall(r'```yaml title="flbench_slow/slow.yaml"\n(.*?)```', TEXT, re.DOTALL)
    (folder / "slow.yaml").write_text(space)
    sys.path.insert(0, str(folder))
    modules = {name: importlib.import_module(f"guide_{name}") for name in names}
    yield {
        name: value
        for module in modules.values()
        for name, value in vars(module).items()
        if name.startswith("test_")
    }
    sys.path.remove(str(folder))
    for name in METHODS:
        del ALGORITHMS[name]
    for name in names:
        del sys.modules[f"guide_{name}"]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What the contract computes of a method, by the method's name."""

    @cache
    def of(name):
        return Played(name, lambda: tmp_path_factory.mktemp(name))

    return of


def test_its_own_tests_pass(guide, tmp_path):
    assert len(guide) == 7
    for test in guide.values():
        test(tmp_path) if inspect.signature(test).parameters else test()


def test_a_search_space_beside_the_method_is_its_own(guide):
    found = library.built_in("slow", rounds=3).parameters
    assert list(found) == ["train.optimizer.lr", "algorithm.mu", "algorithm.memory"]


def test_confident_with_strength_zero_is_fedavg(guide):
    confident = summary_of_run("algorithm=confident", "algorithm.strength=0")
    fedavg = summary_of_run("algorithm=fedavg")

    assert confident["weights_digest"] == fedavg["weights_digest"]


def test_first_layer_costs_as_much_as_the_other_layers(guide):
    summary = summary_of_run("algorithm=firstlayer", "train.participation=1", "train.rounds=2")

    upper = 4 * (128 * 64 + 64 + 64 * 10 + 10)
    assert summary["communication"]["up_bytes"] == 2 * 5 * upper
    assert summary["communication"]["down_bytes"] == 5 * upper


@pytest.mark.docs
@pytest.mark.parametrize(
    "test",
    [
        "test_vectorized_engine_does_what_the_sequential_one_does",
        "test_dispatch_of_a_client_depends_on_its_id_alone",
        "test_rows_of_absent_clients_stay_as_they_were",
        "test_order_of_the_cohort_does_not_matter",
        "test_programs_of_a_stage_are_equal_and_hashable",
        "test_free_numbers_of_a_dispatch_follow_from_the_round_alone",
        "test_poor_clients_run_without_nan",
        "test_no_method_is_off_by_default",
        "test_personal_leaves_stay_with_their_client",
        "test_evaluation_and_unpaid_values_change_nothing",
    ],
)
@pytest.mark.parametrize("name", METHODS)
def test_they_keep_the_contract(guide, played, name, test, tmp_path, monkeypatch):
    check = getattr(Contract(), test)
    monkeypatch.setattr(run_report, "render", lambda run: "")
    known = {
        "method": played(name),
        "reference": played("fedavg"),
        "tmp_path": tmp_path,
        "monkeypatch": monkeypatch,
    }
    check(**{key: known[key] for key in inspect.signature(check).parameters})
