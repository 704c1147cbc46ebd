"""The papers' facts are sound, and every setting of theirs is a configuration of flbench."""

import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError

from flbench.algorithms import Setting
from flbench.config.resolve import resolve
from flbench.config.sources import from_file, from_overrides
from flbench.data import catalogue, known_sets
from flbench.models.base import build, describe
from flbench.reproduce import cells, library, plan, verdicts
from flbench.reproduce.request import ReproduceRequest
from flbench.reproduce.schema import PaperFacts

ROOT = Path(__file__).resolve().parents[2]
PAPERS = library.names()


def test_there_are_five_papers_and_a_leaderboard():
    assert PAPERS == ["dfedhp", "fedcpmd", "fedpc", "hfcd", "pfllib", "slapfl"]


@pytest.mark.parametrize("name", PAPERS)
def test_every_published_number_is_possible_for_its_metric(name):
    paper, count = library.load(name), 0

    for number in paper.tables:
        for cell in cells.of_table(paper, number):
            if cell.published is None:
                continue
            count += 1
            assert cell.published > 0
            if cell.metric is None or cell.metric.unit == "percent":
                assert cell.published <= 100

    assert count
    assert paper.doi.startswith("10.")
    assert paper.contradictions
    assert paper.choices


@pytest.mark.parametrize("name", PAPERS)
def test_data_sets_are_known_by_name_or_are_files_to_make(name):
    for data in library.load(name).datasets.values():
        assert data.name in known_sets.known()


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.slow
def test_every_cell_of_a_method_that_exists_is_a_configuration(name, scale, monkeypatch):
    """As if all data were there; keys of methods that are not there yet cannot be checked."""
    monkeypatch.setattr(catalogue, "is_available", lambda config: True)

    made = plan.make(ReproduceRequest(name, tables="all", scale=scale, seeds=1))

    for item in made.cells:
        method = item.cell.method
        exists = method is not None and made.paper.methods[method].algo in plan.ALGORITHMS.load()
        assert bool(item.jobs) == (exists and item.cell.reason is None)
    for job in made.jobs.values():
        rounds, full = job.config.train.rounds, {key: old for key, old, _ in job.scaled}
        assert not job.changed
        assert bool(job.scaled) == (scale == "small")
        if scale == "small":
            assert rounds <= full.get("train.rounds", rounds) <= 2000
            assert job.config.partition.clients <= 11


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.full
def test_every_method_accepts_the_setting_of_its_paper(name, scale, monkeypatch):
    """With colour images of 32 by 32 pixels, and ten classes."""
    monkeypatch.setattr(catalogue, "is_available", lambda config: True)
    made = plan.make(ReproduceRequest(name, tables="all", scale=scale, seeds=1))
    configs = [job.config for job in made.jobs.values()]
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
        method = plan.ALGORITHMS[config.algorithm.name]
        if unmet := method(config.algorithm, setting).requires():
            refused[config.algorithm.name] = unmet

    assert distinct
    assert refused == {}


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.slow
def test_small_scale_changes_no_more_than_counts_and_learning_rates(name, monkeypatch):
    monkeypatch.setattr(catalogue, "is_available", lambda config: True)
    allowed = (
        *("partition.clients", "partition.samples", "partition.samples_per_client"),
        *("train.rounds", "train.participation", "train.batch_size", "evaluation.common.limit"),
        *("model.classifier", "algorithm.k_p"),
    )
    if name == "pfllib":  # its learning rate is for 2,000 rounds
        allowed += ("train.optimizer.lr", "algorithm.alpha")

    made = plan.make(ReproduceRequest(name, tables="all", seeds=1))

    for job in made.jobs.values():
        assert {key for key, _, _ in job.scaled} <= set(allowed)


@pytest.mark.parametrize("name", PAPERS)
def test_claims_follow_from_the_papers_cells_or_a_note_says_what_these_give(name):
    paper = library.load(name)

    for claim in paper.claims:
        if claim.reason is not None:
            continue
        printed = verdicts.own_difference(claim, paper)
        if printed is None:
            continue
        sign = 1 if claim.above is not None else -1
        if sign * (printed - claim.bound) < -0.05:
            assert "give" in claim.note, claim.text


def test_claims_whose_cells_say_otherwise():
    """By hand: 89.91 - 86.46 = 3.45, and 84.117 - 71.331 = 12.786."""
    found = defaultdict(list)
    for name in PAPERS:
        paper = library.load(name)
        for claim in paper.claims:
            if claim.reason is None:
                found[name, claim.table, claim.bound].append(verdicts.own_difference(claim, paper))

    assert found["slapfl", "2", 3.5] == [pytest.approx(3.45)]
    assert found["fedcpmd", "8", 9.786] == [pytest.approx(12.786)]
    assert found["fedpc", "4", 0] == [pytest.approx(0.6)]  # 80.1 - 79.5, the smallest of 18 gains
    assert found["hfcd", "2", 20.0] == [pytest.approx(20.7), pytest.approx(20.0)]
    assert found["dfedhp", "payload", -87.81] == [pytest.approx(-87.81445)]


@pytest.mark.parametrize("name", PAPERS)
def test_claim_compares_rows_that_are_measured_by_the_same_metric(name):
    paper = library.load(name)

    for claim in paper.claims:
        if claim.reason is not None:
            continue
        grid = {(cell.row, cell.column): cell for cell in cells.of_table(paper, claim.table)}
        row = claim.measured_row or claim.row
        for column in verdicts._columns(claim, paper):
            for rival in verdicts._rivals(claim, paper, column):
                assert grid[row, column].metric == grid[rival].metric, (claim.text, rival)


def test_fedcpmds_statistics_are_printed_beside_each_other(monkeypatch):
    """The published number beside its statistic, and others of the same run without a number."""
    monkeypatch.setattr(catalogue, "is_available", lambda config: True)
    made = plan.make(ReproduceRequest("fedcpmd", tables="7,13", scale="full", seeds=1))
    by_row = defaultdict(dict)
    for item in made.cells:
        by_row[item.cell.table, item.cell.row][item.cell.column] = item

    for table, row in (("7", "FedCPMD"), ("13", "JS"), ("13", "Bhattacharyya")):
        first = by_row[table, row]
        order = [label for number, label in by_row if number == table]
        place = order.index(row)
        beside = [f"{row}, {name}" for name in made.paper.metrics["after local training"].beside]
        assert order[place + 1 : place + 4] == beside
        assert beside[-1] == f"{row}, all clients as deployed"
        protocols = [by_row[table, label]["FMNIST"].cell.metric.protocol for label in beside]
        assert protocols == ["personal@before", "personal@aggregated", "personal"]
        for column, item in first.items():
            assert item.cell.published is not None
            assert item.cell.metric.protocol == "personal@local"
            assert item.jobs[0].config.algorithm.paper_evaluation
            for label in beside:
                other = by_row[table, label][column]
                assert other.cell.published is None
                assert other.jobs[0].name == item.jobs[0].name
    assert by_row["7", "FedCMD"]["FMNIST"].cell.metric.protocol == "personal"


def test_accuracies_right_after_local_training_are_beside_those_of_slapfls_table(monkeypatch):
    """They are read from the same runs, and take no part in the claims."""
    monkeypatch.setattr(catalogue, "is_available", lambda config: True)
    made = plan.make(ReproduceRequest("slapfl", scale="full", seeds=1))
    items = {(item.cell.row, item.cell.column): item for item in made.cells}

    for method in ("FedAvg", "FedALA", "SLAPFL"):
        for column in made.paper.tables["2"].columns:
            item, beside = (
                items[row, column] for row in (method, f"{method}, right after local training")
            )
            assert beside.jobs[0].name == item.jobs[0].name
            assert beside.cell.published is None
            metric, other = item.cell.metric, beside.cell.metric
            assert (metric.protocol, other.protocol) == ("personal", "personal@local")
            assert (metric.metric, metric.over, metric.unit) == (
                other.metric,
                other.over,
                other.unit,
            )
    for claim in made.paper.claims[:2]:
        [column] = claim.columns
        rivals = {row for row, _ in verdicts._rivals(claim, made.paper, column)}
        assert rivals == {"FedAvg", "FedALA"}


def test_dfedhps_tables_have_its_learning_rates_and_the_participation_of_its_baselines(monkeypatch):
    monkeypatch.setattr(catalogue, "is_available", lambda config: True)
    made = plan.make(ReproduceRequest("dfedhp", tables="all", scale="full", seeds=1))
    runs = defaultdict(set)

    for item in made.cells:
        if item.cell.table == "payload":
            continue
        config = item.jobs[0].config
        runs[config.partition.scheme, item.cell.dataset].add(item.cell.row)
        central = item.cell.row in ("FedAvg", "FedPer", "Ditto")
        assert item.cell.published is None
        assert config.train.participation == (0.1 if central else 1.0)
        if item.cell.row in ("DFedHP", "DisPFL+HP"):
            keys = config.algorithm
            assert (keys.lr_v, keys.lr_phi, keys.lr_z) == (0.001, 0.01, 0.01)
        assert config.evaluation.target_accuracy is not None
        assert config.partition.split[1] == 0  # so the target is one of the test accuracy

    rows = {"FedAvg", "FedPer", "Ditto", "DFedAvg", "DFedAlt", "DisPFL", "DisPFL+HP", "DFedHP"}
    places = [(s, d) for s in ("dirichlet", "pathological") for d in made.paper.datasets]
    assert list(made.paper.datasets) == ["CIFAR10", "CIFAR100", "TinyImageNet"]
    assert runs == dict.fromkeys(places, rows)
    # Accuracies and rounds to the target are read from the same runs.
    by_table = defaultdict(set)
    for item in made.cells:
        by_table[item.cell.table].add(item.jobs[0].name)
    assert by_table["dirichlet"] == by_table["rounds-dirichlet"]
    assert by_table["pathological"] == by_table["rounds-pathological"]
    for claim in made.paper.claims:
        rivals = () if claim.over == "all" else claim.over
        assert not (claim.row == "DFedHP" and "DisPFL+HP" in (*rivals, claim.over))


def test_pfllibs_columns_are_best_test_rounds_of_four_partitions(monkeypatch):
    monkeypatch.setattr(catalogue, "is_available", lambda config: True)

    made = plan.make(ReproduceRequest("pfllib", tables="all", scale="full", seeds=1))

    found = {}
    for item in made.cells:
        [job] = item.jobs.values()
        found.setdefault((item.cell.table, item.cell.column), set()).add(
            (
                *(job.config.data.name, job.config.partition.title, job.config.partition.alpha),
                *(job.config.partition.classes_per_client, job.config.train.rounds),
                *(job.config.model.name, job.config.train.optimizer.lr, job.config.seed),
            )
        )
        read = "last" if item.cell.row.endswith(", last round") else "max"
        assert item.cell.metric.over == read
    dirichlet = {
        ("leaderboard", "FMNIST beta 0.1"): ("fashionmnist", 0.1),
        ("leaderboard", "CIFAR100 beta 0.1"): ("cifar100", 0.1),
        **{("beta", f"beta {beta:g}"): ("cifar100", beta) for beta in (0.01, 0.5, 5.0)},
    }
    rest = (2000, "cnn4", 0.005, 0)
    for key, (data, alpha) in dirichlet.items():
        assert found.pop(key) == {(data, "dirichlet", alpha, 2, *rest)}
    for name, data, classes in (("FMNIST", "fashionmnist", 2), ("CIFAR100", "cifar100", 10)):
        [column] = found.pop(("leaderboard", f"{name} pathological"))
        assert column == (data, "pathological", 0.1, classes, *rest)
    assert not found


@pytest.mark.parametrize("method", ["dfedhp", "fedavg"])
def test_dfedhps_preset_has_keys_for_dfedhp_alone(method):
    file = ROOT / "configs" / "papers" / "dfedhp.yaml"

    config, _ = resolve([from_file(file), from_overrides([f"algorithm={method}"])])

    assert getattr(config.algorithm, "lr_v", None) == (0.001 if method == "dfedhp" else None)


@pytest.mark.parametrize("name", PAPERS)
def test_preset_is_a_configuration_that_run_takes(name):
    file = ROOT / "configs" / "papers" / f"{name}.yaml"

    config, _ = resolve([from_file(file)])

    assert file.samefile(library.preset(name))
    assert config.train.rounds >= 200
    assert config.partition.clients in (20, 50, 100)


def test_facts_and_presets_are_installed_with_the_package():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "flbench"
    packed = {file for p in patterns["package-data"]["flbench"] for file in package.glob(p)}

    assert set(package.rglob("*.yaml")) <= packed
    assert {library.preset(name) for name in PAPERS} <= packed


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
        "small": {},
        "choices": [],
        "contradictions": [],
        "datasets": {"D": {"name": "digits"}},
        "methods": {"A": {"algo": "fedavg"}},
        "metrics": {"F": {"what": "w", "metric": "accuracy"}},
        "tables": {
            "1": {"caption": "c", "metric": "F", "columns": ["D"], "rows": {"A": [1.0]}},
        },
        "claims": [],
    }


def test_sound_facts_are_read(facts):
    [cell] = cells.of_table(PaperFacts.model_validate(facts), "1")

    assert (cell.dataset, cell.method, cell.published, cell.reason) == ("D", "A", 1.0, None)


def test_row_with_metrics_of_its_own_has_no_other_cells(facts):
    facts["metrics"]["G"] = {"what": "w", "metric": "macro_f1"}
    facts["tables"]["1"] |= {
        "columns": {"one": {"dataset": "D"}, "two": {"dataset": "D"}},
        "rows": {
            "A": [1.0, 2.0],
            "of A": {"method": "A", "metrics": {"two": "G"}, "values": [None, None]},
        },
    }

    found = cells.of_table(PaperFacts.model_validate(facts), "1")

    assert [(cell.row, cell.column, cell.metric.metric) for cell in found] == [
        ("A", "one", ("accuracy",)),
        ("A", "two", ("accuracy",)),
        ("of A", "two", ("macro_f1",)),
    ]


def test_row_without_values_has_none_in_any_column(facts):
    facts["tables"]["1"] |= {"columns": {"D": {}, "E": {"dataset": "D"}}, "rows": {"A": {}}}

    found = cells.of_table(PaperFacts.model_validate(facts), "1")

    assert [cell.published for cell in found] == [None, None]


def test_metric_of_a_row_and_settings_of_a_method_reach_its_cells(facts):
    facts["metrics"]["G"] = {"what": "v", "metric": "macro_f1"}
    facts["methods"]["A"] |= {"settings": {"train.participation": 0.5}, "keys": {"lam": 1}}
    facts["tables"]["1"]["rows"]["A"] = {"values": [1.0], "metric": "G"}

    [cell] = cells.of_table(PaperFacts.model_validate(facts), "1")

    assert cell.metric.metric == ("macro_f1",)
    assert cell.settings == {"train.participation": 0.5, "algorithm.lam": 1}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("tables.1.rows.A", {"metrics": {"E": "F"}, "values": [None]}, "there is no `E`"),
        ("tables.1.rows.A", {"metrics": {"D": "G"}, "values": [None]}, "there is no `G`"),
        ("tables.1.rows.A", [1.0, 2.0], "2 values for 1 columns"),
        ("tables.1.rows.B", [1.0], "names no method"),
        ("tables.1.columns", ["E"], "names no dataset"),
        ("tables.1.metric", "G", "there is no `G`"),
        ("tables.1.footnotes", [{"text": "x", "row": "Z"}], "there is no `Z`"),
        ("tables.1.rows.A", [float("nan")], "finite"),
        ("metrics.F", {"what": "w"}, "needs the key `metric`"),
        ("metrics.F", {"what": "w", "metric": "accuracy", "rounds": 5}, "over: mean"),
        ("metrics.F", {"what": "w", "metric": "accuracy", "beside": ["G"]}, "there is no `G`"),
        ("tables.1.rows.A", {"metric": "G"}, "there is no `G`"),
        ("claims", [{"text": "x", "table": "2", "row": "A", "columns": "all"}], "above"),
        (
            "claims",
            [{"text": "x", "table": "1", "row": "B", "columns": "all", "over": "all", "above": 1}],
            "there is no `B`",
        ),
        ("unknown", 1, "Extra inputs"),
    ],
)
def test_unsound_facts_are_refused(facts, path, value, said):
    *above, last = path.split(".")
    tree = facts
    for key in above:
        tree = tree[key]
    tree[last] = value

    with pytest.raises(ValidationError, match=said):
        PaperFacts.model_validate(facts)


def test_error_names_the_damaged_file(tmp_path, monkeypatch):
    (tmp_path / "broken.yaml").write_text("name: [")
    monkeypatch.setattr(library, "FOLDER", tmp_path)

    with pytest.raises(library.DataError, match=r"broken\.yaml is damaged"):
        library.load("broken")


def test_files_hold_no_text_that_yaml_reads_as_something_else():
    """Labels are words: `NO` and `1e3` are not."""
    for name in PAPERS:
        tree = yaml.safe_load((library.FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
        for table in tree["tables"].values():
            assert all(isinstance(label, str) for label in (*table["rows"], *table["columns"]))
