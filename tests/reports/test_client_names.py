"""Natural clients are shown with the names of their files."""

import csv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from flbench.cli import app
from flbench.config.resolve import resolve
from flbench.config.schema import DataConfig, PartitionConfig
from flbench.config.sources import from_overrides
from flbench.core.errors import DataError
from flbench.data import partition_files, sources
from flbench.data.federation import build
from flbench.experiment import lifecycle
from flbench.reports import data_figures
from flbench.results import reading
from tests.support import SMALL, Silent

NAMES = ("$x_{", "=north", "south <b>")


class Greeting(Silent):
    """Checks the names that callbacks see."""

    def on_round_end(self, run, metrics):
        super().on_round_end(run, metrics)
        assert run.client_names == NAMES


def hospitals(path: Path) -> Path:
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as file:
        for name in NAMES:
            lines = "".join(f"{x:.3f},{int(x > 0)}\n" for x in rng.normal(size=40))
            file.writestr(f"hospitals/{name}.csv", f"x,y\n{lines}")
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    data = hospitals(tmp_path_factory.mktemp("data") / "hospitals.zip")
    return [f"data.path={data}", "partition.scheme=natural", "partition.clients=3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, keys):
    extra = ("algorithm=fedavg", "output.predictions=true")
    out = f"output.dir={tmp_path_factory.mktemp('runs')}"
    config, origins = resolve([from_overrides([*SMALL, out, *keys, *extra])])
    return lifecycle.run(config, origins, [Greeting()])


def federation(data: Path, **partition):
    dataset = sources.load(DataConfig(path=data))
    return build(dataset, DataConfig(), PartitionConfig(**partition), 0)


@pytest.mark.slow
def test_tables_report_and_terminal_have_the_names(folder, capsys):
    for file, count in (("clients.csv", 3), ("predictions.csv", 24)):
        with (folder / file).open() as lines:
            rows = list(csv.DictReader(lines))
        assert {(row["client"], row["name"]) for row in rows} == {
            ("0", "$x_{"),
            ("1", "'=north"),  # not a formula
            ("2", "south <b>"),
        }
        last = [row for row in rows if row.get("moment", "last") == "last"]
        assert len(last) == count
    assert reading.read(folder).clients["name"].tolist()[:3] == list(NAMES)
    page = (folder / "report.html").read_text()
    assert app.main(["show", str(folder)]) == 0
    [line] = [one for one in capsys.readouterr().out.splitlines() if "south <b>" in one]
    row = reading.read(folder).client_table("last").set_index("client").loc[2]
    for name in ("$x_{", "=north", "south &lt;b&gt;"):
        assert f">{name}</td>" in page
    assert line.split()[:5] == ["2", "south", "<b>", str(row["train_size"]), str(row["test_size"])]
    for source in (line, page[page.index("south &lt;b&gt;") :]):
        assert f"{row['accuracy']:.4f}" in source


def test_saved_partition_keeps_the_names(tmp_path, keys):
    data = Path(keys[0].split("=")[1])
    made = federation(data, scheme="natural")
    partition_files.save(
        made.partition, made.dataset, PartitionConfig(scheme="natural"), tmp_path / "p.npz"
    )

    again = federation(data, scheme="file", path=tmp_path / "p.npz")

    assert again.partition.names == made.partition.names == NAMES
    described = tmp_path / "p.json"
    described.write_text(described.read_text().replace('"=north",', ""))
    with pytest.raises(DataError, match=r"p\.npz"):
        federation(data, scheme="file", path=tmp_path / "p.npz")


def test_drawn_natural_clients_keep_their_own_names_and_others_have_none(keys):
    data = Path(keys[0].split("=")[1])
    drawn, iid = (federation(data, scheme=one, clients=2) for one in ("natural", "iid"))

    first = [rows[0] for rows in drawn.partition.parts["test"]]
    assert drawn.partition.names == tuple(NAMES[drawn.dataset.groups[row]] for row in first)
    labels = data_figures.partition(iid).axes[0].get_yticklabels()
    assert (iid.partition.names, [text.get_text() for text in labels]) == ((), ["0", "1"])
