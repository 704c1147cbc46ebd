"""Clients that join after the training: held out of everything, and evaluated after it."""

import csv
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.core.errors import ConfigError
from flbench.core.tree import copied
from flbench.core.types import State
from flbench.experiment.new_clients import NewClients
from flbench.reports import run as run_report
from flbench.testing.setting import after, build, fingerprint, run

NEW = ("partition.clients=7", "partition.new_clients=2", "model.name=mlp", "algorithm.name=fedavg")


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    """Folder and summary of a run of FedAvg with two new clients."""
    return run(tmp_path_factory.mktemp("new"), *NEW, "train.optimizer.lr=0.1")


def rows_of(path, *protocols):
    """Rows of metrics.csv of these protocols."""
    with (path / "metrics.csv").open() as lines:
        return [row for row in csv.reader(lines) if row[2] in protocols]


@pytest.mark.parametrize("name", ["scaffold", "dfedavg"])
@pytest.mark.slow
def test_held_out_clients_change_nothing_of_the_others(name, tmp_path, monkeypatch):
    """A run on the saved partition of the other clients has the same bytes."""
    monkeypatch.setattr(run_report, "render", lambda run: "")
    keys = (f"algorithm.name={name}", "model.name=lenet5", "train.rounds=2")
    with_new, summary = run(tmp_path / "with", *NEW[:2], *keys)
    without, alone = run(
        tmp_path / "without",
        "partition.scheme=file",
        f"partition.path={with_new / 'partition.npz'}",
        "partition.clients=null",
        *keys,
    )

    assert summary["clients"] == alone["clients"] == 5
    for key in ("weights_digest", "partition_hash", "communication", "client_trainings"):
        assert summary[key] == alone[key]
    lines = (with_new / "metrics.csv").read_text().splitlines()
    kept = [line for line in lines if ",new@" not in line and ",seen@" not in line]
    assert kept == (without / "metrics.csv").read_text().splitlines()
    assert (with_new / "clients.csv").read_bytes() == (without / "clients.csv").read_bytes()
    assert "new_clients" not in alone


@pytest.mark.slow
def test_results_are_in_all_files(fedavg):
    path, summary = fedavg

    assert summary["new_clients"]["clients"] == 2
    assert summary["new_clients"]["epochs"] == [0, 1, 5]
    received, steps = (summary["new_clients"][key] for key in ("received_bytes", "steps"))
    assert received["0"] == received["5"] > 0
    assert (steps["0"], steps["5"]) == (0, 5 * steps["1"])
    test = summary["last"]["test"]
    for k in (0, 1, 5):
        new, seen = test[f"new@{k}"], test[f"seen@{k}"]
        assert {f"gap_{name}" for name in seen} == new.keys() - seen.keys()
        for name, value in seen.items():
            assert new[f"gap_{name}"] == pytest.approx(new[name] - value)
    assert test["seen@0"]["accuracy"] == test["accuracy"]  # one model for all
    with (path / "new_clients.csv").open() as lines:
        table = [row for row in csv.DictReader(lines) if row["moment"] == "last"]
    assert [(row["epochs"], row["client"]) for row in table] == [
        (str(k), str(client)) for k in (0, 1, 5) for client in (5, 6)
    ]
    means = [float(row["accuracy"]) for row in table if row["epochs"] == "5"]
    assert sum(means) / 2 == pytest.approx(test["new@5"]["accuracy_mean"])
    assert {row["trainings"] for row in table} == {"0"}


@pytest.mark.slow
def test_fedavg_is_fine_tuned_fedavg_and_local_begins_at_the_seeded_net(fedavg, tmp_path):
    path, _ = fedavg
    keys = (*NEW, "train.optimizer.lr=0.1")
    protocols = [f"{who}@{k}" for who in ("new", "seen") for k in (0, 1, 5)]

    ft, _ = run(tmp_path / "ft", *keys, "algorithm.name=ft", "algorithm.finetune_epochs=2")
    local, _ = run(tmp_path / "local", *keys, "algorithm.name=local")

    mine, last = (rows_of(one, *protocols) for one in (path, ft))
    assert [row for row in mine if row[0] == "3"] == [row for row in last if row[0] == "3"]
    built = build(*keys, "algorithm.name=local")
    whole = built.federation.with_new_clients()
    right = []
    for client in (5, 6):
        rows = whole.partition.parts["test"][client]
        predicted = built.net.eval()(whole.inputs(rows, torch.float32)).logits.argmax(dim=1)
        right.append(float((predicted == whole.y[rows]).double().mean()))
    [found] = [
        float(row[4])
        for row in rows_of(local, "new@0")
        if row[:2] == ["3", "test"] and row[3] == "accuracy_mean"
    ]
    assert found == pytest.approx(sum(right) / 2)


def test_own_layers_of_fedper_are_a_linear_probe_on_the_body():
    """An independent loop: full batches of gradient descent on the head, with fixed features."""
    keys = ("train.optimizer.lr=0.1", "train.optimizer.momentum=0", "train.batch_size=1000")
    keys += ("engine.precision=64-true", "train.optimizer.weight_decay=0", *NEW)
    built = build(*keys, "algorithm.name=fedper", "evaluation.adapt.finetune_epochs=[5]")
    state = after(built, 2)
    before = fingerprint(state)
    clients = NewClients(built, print)

    found = clients.evaluate(state)["new", 5].evaluation.local["personal", "test"]

    assert fingerprint(state) == before
    whole, net = built.federation.with_new_clients(), built.net.double()
    own = {n: v.clone() for n, v in net.state_dict().items()}
    net.load_state_dict(own | {n: v for n, v in state.server.items() if n in own})
    head = built.algorithm.setting.net.names("head")
    for client in (5, 6):
        net.load_state_dict({n: v for n, v in own.items() if n in head}, strict=False)
        trained = [p for n, p in net.named_parameters() if n in head]
        rows = whole.partition.parts["train"][client]
        x, y = whole.inputs(rows, torch.float64), whole.y[rows]
        for _ in range(5):
            slopes = torch.autograd.grad(cross_entropy(net(x).logits, y), trained)
            with torch.no_grad():
                for parameter, slope in zip(trained, slopes, strict=True):
                    parameter -= 0.1 * slope
        rows = whole.partition.parts["test"][client]
        predicted = net(whole.inputs(rows, torch.float64)).logits.argmax(dim=1)
        hits = torch.bincount(whole.y[rows][predicted == whole.y[rows]], minlength=10)
        assert torch.equal(found.correct[client], hits)


def test_diverging_adaptation_is_named_and_evaluated_without_it():
    notes = []
    built = build("evaluation.adapt.finetune_epochs=[0,1]", "train.optimizer.lr=1e30", *NEW)

    found = NewClients(built, notes.append).evaluate(after(build(*NEW), 2))

    first, second = (found["new", k].evaluation.local["personal", "test"] for k in (0, 1))
    assert torch.equal(first.confusion, second.confusion)
    assert any("evaluation.adapt" in note for note in notes)


def test_state_grows_along_axes_of_clients():
    built = build(*NEW, "algorithm.name=cfl")
    state: State = after(built, 2)
    server = copied(state.server)
    server["cluster"] += 1

    grown = NewClients(built, print).grown(replace(state, server=server))

    assert grown.server["cluster"].tolist() == [*server["cluster"].tolist(), 0, 0]
    assert len(grown.participation_count) == 7
    assert all(len(rows) == 7 for rows in grown.clients.values())


def test_wrong_keys_are_refused():
    for keys, name in (
        (("partition.new_clients=7", "partition.clients=7"), "partition.new_clients"),
        (("partition.new_clients=0",), "partition.new_clients"),
        (("partition.new_clients=true",), "partition.new_clients"),
        (("evaluation.adapt.finetune_epochs=[5,1]",), "evaluation.adapt.finetune_epochs"),
    ):
        with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
            build(*keys)
    with pytest.raises(ConfigError, match=r"train\.local_steps"):
        build(*NEW, "train.local_epochs=null", "train.local_steps=3")


PERSONAL = ("model.name=mlp", "evaluation.adapt.finetune_epochs=[2]")


def confusions(built, state):
    """The predictions of all clients' models after two epochs, by group."""
    clients = NewClients(built, pytest.fail)
    found = clients.evaluate(state)
    clients.close()
    return {
        who: {key: scores.confusion for key, scores in model.evaluation.local.items()}
        for (who, _), model in found.items()
    }


def assert_equal(first, second):
    for who, scores in first.items():
        for key, confusion in scores.items():
            assert torch.equal(confusion, second[who][key])


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        ("algorithm.name=perfedavg", "algorithm.alpha=0.1"),
        ("algorithm.name=pfedme", "train.optimizer.lr=0.005"),
        ("algorithm.name=ditto", "train.optimizer.lr=0.1"),
    ],
)
def test_a_schedule_does_not_scale_what_new_clients_train(keys):
    built = [
        build(
            *NEW[:2], *PERSONAL, *keys, f"train.schedule.name={name}", "train.optimizer.momentum=0"
        )
        for name in ("constant", "exponential")
    ]
    state = after(built[0], 3)

    expected, *found = (confusions(one, state) for one in built)
    for one in found:
        assert_equal(one, expected)


def test_groups_as_many_as_clients_are_no_axis_of_clients():
    built = build(*NEW, "algorithm.name=fedpc")
    state = after(built, 2)

    clients = NewClients(built, print)
    grown = clients.grown(state)

    assert len(grown.server["groups"]) == 7
    table = "group.prototypes"
    assert len(grown.server[table]) == len(state.server[table]) == 5
    assert clients.evaluate(state)["new", 0].received > 0
