"""The papers' facts are sound, and every setting of theirs is a configuration of flbench."""

import tomllib
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from flbench.algorithms import ALGORITHMS, Setting
from flbench.comparison.design import LabelledLayer
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_file, from_values, merge
from flbench.core.errors import ConfigError
from flbench.data import known_sets
from flbench.models.base import build, describe
from flbench.reproduce import claims, measure, paper
from flbench.reproduce.paper import Paper, cells, load, places

ROOT = Path(__file__).resolve().parents[2]
PAPERS = paper.names()
MU = {"algorithm.mu": 0.75}


def settings(name, tables=None, given=None):
    """Configuration of the first repetition of each measurable cell of tables."""
    found = {}
    for place in places(name, tables or load(name).tables, given or Layer()):
        configs = {
            cell.method: cell.config for cell in place.design(list(place.methods), 1).cells()
        }
        found |= {number: configs[label] for number, label in place.rows.items()}
    return found


@pytest.mark.parametrize("name", PAPERS)
def test_every_published_number_is_possible_for_its_metric(name):
    about = load(name)
    every = {cell.number: cell for number in about.tables for cell in cells(about, number)}

    for number, value in about.published.items():
        metric = every[number].metric
        assert value > 0
        assert value <= 100 or (metric is not None and metric.unit != "percent")
    assert about.published
    assert about.doi.startswith("10.")
    assert about.contradictions
    assert about.choices
    assert all(data.name in known_sets.known() for data in about.datasets.values())


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.slow
def test_every_cell_without_a_reason_is_a_configuration(name):
    about, found = load(name), settings(name)

    for number in about.tables:
        for cell in cells(about, number):
            assert (cell.number in found) == (cell.reason is None), cell.number
    assert {config.algorithm.name for config in found.values()} <= {*ALGORITHMS.load()}


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.full
def test_every_method_accepts_the_setting_of_its_paper(name):
    """With colour images of 32 by 32 pixels, and ten classes."""
    configs = settings(name).values()
    distinct = {repr((c.algorithm, c.train, c.model, c.partition.clients)): c for c in configs}

    refused = {}
    for config in distinct.values():
        count = config.partition.clients
        net = build(config.model, (3, 32, 32), 10, seed=0)
        setting = Setting(
            seed=0,
            rounds=config.train.rounds,
            train=config.train,
            clients=count,
            sizes=torch.full((count,), 100),
            classes=10,
            net=describe(net, (3, 32, 32)),
            model=config.model.name,
        )
        method = ALGORITHMS[config.algorithm.name]
        if unmet := method(config.algorithm, setting).requires():
            refused[config.algorithm.name] = unmet

    assert distinct
    assert refused == {}


@pytest.mark.parametrize("name", PAPERS)
def test_claims_follow_from_the_papers_cells_or_a_note_says_what_these_give(name):
    about = load(name)

    for claim in about.claims:
        printed = claims.decide(claim, about, {}).printed
        if printed is not None:
            sign = 1 if claim.above is not None else -1
            assert sign * (printed - claim.bound) >= -0.05 or "give" in claim.note, claim.text


def test_claims_whose_cells_say_otherwise():
    """By hand: 89.91 - 86.46 = 3.45, and 84.117 - 71.331 = 12.786."""
    found = defaultdict(list)
    for name in PAPERS:
        for claim in load(name).claims:
            printed = claims.decide(claim, load(name), {}).printed
            found[name, claim.table, claim.bound].append(printed)

    assert found["slapfl", "2", 3.5] == [pytest.approx(3.45)]
    assert found["fedcpmd", "8", 9.786] == [pytest.approx(12.786)]
    assert found["fedpc", "4", 0] == [pytest.approx(0.6)]  # 80.1 - 79.5, the smallest of 18 gains
    assert found["hfcd", "2", 20.0] == [pytest.approx(20.7), pytest.approx(20.0)]
    assert found["dfedhp", "payload", -87.81] == [pytest.approx(-87.81445)]


@pytest.mark.parametrize("name", PAPERS)
def test_claim_compares_rows_that_are_measured_by_the_same_metric(name):
    about = load(name)

    for claim in (one for one in about.claims if one.reason is None and one.over):
        metrics = defaultdict(set)
        over = about.tables[claim.table].rows if claim.over == "all" else claim.over
        for cell in cells(about, claim.table):
            printed = claim.over != "all" or cell.number in about.published
            rival = cell.row != claim.row and cell.row in over and printed
            if rival or cell.row == (claim.measured_row or claim.row):
                metrics[cell.column].add(cell.metric)
        for column in about.columns_of(claim):
            assert len(metrics[column]) == 1, (claim.text, column)


def test_statistics_of_one_run_are_printed_beside_each_other():
    """The published number beside its statistic, and others of the same run without a number."""
    about, [place] = load("fedcpmd"), places("fedcpmd", ["7"], Layer(), "FMNIST")
    by_row = {cell.row: cell for cell in cells(about, "7") if cell.column == "FMNIST"}

    beside = [f"FedCPMD, {name}" for name in about.metrics["after local training"].beside]
    order = list(by_row)
    first = order.index("FedCPMD")
    assert order[first + 1 : first + 4] == beside
    assert [by_row[row].metric.protocol for row in ("FedCPMD", "FedCMD", *beside)] == [
        *("personal@local", "personal"),
        *("personal@before", "personal@aggregated", "personal"),
    ]
    for row in beside:
        assert by_row[row].number not in about.published
        assert place.rows[by_row[row].number] == "FedCPMD"
    assert about.published["7", "FedCPMD", "FMNIST"] == Decimal("97.803")


@pytest.mark.parametrize(("name", "table"), [("fedcpmd", "15"), ("hfcd", "curves-cifar100")])
def test_a_method_has_the_same_label_whichever_tables_are_asked_for(name, table):
    def labels(tables):
        return {n: one for place in places(name, tables, Layer()) for n, one in place.rows.items()}

    every, alone = labels(load(name).tables), labels([table])

    assert alone
    assert {number: every[number] for number in alone} == alone


def test_a_method_that_had_another_label_is_found_by_its_keys():
    [place] = places("fedcpmd", ["7"], Layer(), "FMNIST")
    layer = place.methods["FedProx"]
    same, other = (
        LabelledLayer.of("before", one) for one in (layer, merge([layer, from_values(MU, "me")]))
    )

    assert measure.label_of(place, same) == "FedProx"
    assert measure.label_of(place, other) is None
    other = other.model_copy(update={"label": "FedProx"})
    assert measure.label_of(place, other) is None
    assert measure.label_of(place, other, exact=False) == "FedProx"


def test_accuracies_and_rounds_to_a_target_are_read_from_the_same_runs():
    found = settings("dfedhp")

    for (table, row, column), config in found.items():
        if table != "payload":
            assert config.evaluation.target_accuracy is not None
            assert config.partition.split[1] == 0  # so the target is one of the test accuracy
            if not table.startswith("rounds"):
                assert found[f"rounds-{table}", row, column] == config


def test_keys_of_the_user_override_the_papers_for_the_methods_that_have_them():
    found = settings(
        "dfedhp", ["dirichlet"], from_values({"train.rounds": 3, "train.participation": 0.2}, "me")
    )
    prox = settings("fedcpmd", ["7"], from_values({"algorithm.mu": 0.5}, "me"))

    assert {config.train.rounds for config in found.values()} == {3}
    assert {config.train.participation for config in found.values()} == {0.2}
    assert prox["7", "FedProx", "FMNIST"].algorithm.mu == 0.5
    assert not hasattr(prox["7", "FedAvg", "FMNIST"].algorithm, "mu")


@pytest.mark.parametrize("key", ["algorithm.mue", "algorithm.name", "algorithm.tau"])
def test_key_of_no_method_of_the_tables_is_an_error(key):
    with pytest.raises(ConfigError, match=rf"`{key}` \(me\)"):
        places("fedpc", ["4"], from_values({key: 1}, "me"))


def test_data_set_of_the_tables_leaves_out_others_and_another_stands_for_the_first():
    only = places("fedpc", ["4"], Layer(), "fashionmnist")
    other = places("fedpc", ["4"], Layer(), "digits")

    assert {one.dataset for one in only} == {"FMNIST"}
    assert {one.base["data.name"].value for one in only} == {"fashionmnist"}
    assert {one.dataset for one in other} == {"CIFAR10"}
    assert {one.base["data.name"].value for one in other} == {"digits"}


@pytest.mark.parametrize("name", PAPERS)
def test_preset_is_a_configuration_that_run_takes(name):
    file = ROOT / "configs" / "papers" / f"{name}.yaml"

    resolve([from_file(file)])
    assert file.samefile(paper.FOLDER / "presets" / f"{name}.yaml")


def test_facts_and_presets_are_installed_with_the_package():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "flbench"
    packed = {file for p in patterns["package-data"]["flbench"] for file in package.glob(p)}

    assert {*package.rglob("*.yaml"), *package.rglob("reproduce/*.csv")} <= packed


@pytest.fixture
def facts():
    """The tree of a small paper, in which tests make errors."""
    return {
        "name": "P",
        "title": "t",
        "authors": "a",
        "venue": "v",
        "doi": "10.1/1",
        "seeds": 1,
        "datasets": {"D": {"name": "digits"}},
        "methods": {"A": {"algo": "fedavg"}},
        "metrics": {"F": {"what": "w", "metric": "accuracy"}},
        "tables": {"1": {"caption": "c", "metric": "F", "columns": ["D"], "rows": ["A"]}},
        "published": {("1", "A", "D"): 1},
    }


def test_row_with_metrics_of_its_own_has_no_other_cells(facts):
    facts["metrics"]["G"] = {"what": "w", "metric": "macro_f1"}
    facts["tables"]["1"] |= {
        "columns": {"D": {}, "two": {"dataset": "D"}},
        "rows": {"A": {}, "of A": {"method": "A", "metrics": {"two": "G"}}},
    }

    found = cells(Paper.model_validate(facts), "1")

    assert [(cell.row, cell.column, cell.metric.metric) for cell in found] == [
        ("A", "D", ("accuracy",)),
        ("A", "two", ("accuracy",)),
        ("of A", "two", ("macro_f1",)),
    ]


def test_later_settings_override_earlier_ones(facts):
    facts["metrics"]["G"] = {"what": "v", "metric": "macro_f1"}
    facts["datasets"]["D"]["settings"] = {"train.rounds": 1, "train.clip": 1}
    facts["methods"]["A"] |= {"settings": {"train.participation": 0.5}, "keys": {"lam": 1}}
    facts["tables"]["1"] |= {
        "settings": {"train.rounds": 2, "model.name": "mlp"},
        "columns": {"D": {"settings": {"train.rounds": 3}}},
        "rows": {"A": {"metric": "G", "settings": {"algorithm.lam": 2}}},
    }

    [cell] = cells(Paper.model_validate(facts), "1")

    assert cell.metric.metric == ("macro_f1",)
    assert cell.setting == {"train.rounds": 3, "train.clip": 1, "model.name": "mlp"}
    assert cell.own == {"algorithm.name": "fedavg", "train.participation": 0.5, "algorithm.lam": 2}


@pytest.mark.parametrize("name", PAPERS)
def test_every_name_in_the_facts_stands_for_something(name):
    about = load(name)

    def known(names, where):
        assert {*names} - {None} <= {*where}, name

    for table in about.tables.values():
        columns, rows = table.columns.values(), table.rows.values()
        known([table.dataset, *(one.dataset for one in columns)], about.datasets)
        known([table.metric, *(one.metric for one in (*columns, *rows))], about.metrics)
        known([one for row in rows for one in row.metrics.values()], about.metrics)
        known([one for row in rows for one in row.metrics], table.columns)
        known([row.method for row in rows], about.methods)
        known([table.confusable], table.rows)
    for number, row, column in about.published:
        known([row], about.tables[number].rows)
        known([column], about.tables[number].columns)
    for method in about.methods.values():
        known(method.by_dataset, about.datasets)
    for claim in (one for one in about.claims if one.reason is None):
        table = about.tables[claim.table]
        known([claim.row, claim.measured_row], table.rows)
        known([] if claim.over == "all" else claim.over, table.rows)
        known([*about.columns_of(claim), claim.over_column], table.columns)
        assert claim.columns
        assert (claim.above is None) != (claim.below is None)
        assert claim.over or claim.over_column


def test_unknown_keys_and_numbers_that_are_none_are_refused(facts):
    for change in ({"unknown": 1}, {"published": {("1", "A", "D"): float("nan")}}):
        with pytest.raises(ValidationError):
            Paper.model_validate(facts | change)
