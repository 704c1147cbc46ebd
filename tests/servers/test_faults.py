"""Nothing is lost, nothing is there twice, and nobody waits in silence, whatever a server does."""

import json
from contextlib import contextmanager
from typing import Final

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("ray.tune")

from flbench.cli import app
from tests.servers.counting import counts
from tests.servers.faults import FAULTS
from tests.servers.work import Work, weights

pytestmark = [pytest.mark.servers, pytest.mark.mlflow, pytest.mark.timeout(1800)]

SILENCE: Final = 30.0  # seconds


def sync(work: Work, servers, capsys) -> tuple[int, int, str]:
    """Call `flbench sync`; return its exit code, how much it has sent, and standard error."""
    capsys.readouterr()
    code = app.main(["sync", *map(str, work.folders), "--uri", servers.uri, "--json"])
    said = capsys.readouterr()
    sent = [one["sent"] or {} for one in json.loads(said.out or "[]")]
    return code, sum(sum(one.values()) for one in sent), said.err


@pytest.mark.parametrize(
    "fault",
    FAULTS,
    ids=[f"{fault.servers}-{fault.work}-{fault.name}".replace(" ", "_") for fault in FAULTS],
)
def test_nothing_is_lost(fault, installations, twin, table, tmp_path, monkeypatch, capsys):
    whole = twin(fault.work)
    servers = installations.begin(fault.servers)
    for name, value in servers.environment.items():
        monkeypatch.setenv(name, value)  # for `flbench sync`, and to count the files
    out = tmp_path / "out"
    experiment = f"{fault.work}: {fault.name}"
    begun: list[Work] = []

    def begin() -> Work:
        begun.append(Work(fault.work, out, servers, experiment))
        return begun[0]

    try:
        with contextmanager(fault.course)(servers, begin) as work:
            heard = work.wait()
        before = counts(servers.uri, experiment)
        code, _, said = sync(work, servers, capsys)
        after = counts(servers.uri, experiment)
        _, again, _ = sync(work, servers, capsys)
        found = weights(out)
    finally:
        for one in begun:
            one.end()
        if servers.nodes is not None:
            servers.nodes.stop()

    def three(name: str) -> str:
        return " / ".join(str(getattr(one, name)) for one in (before, after, whole.counts))

    equal = sum(found.get(name) == value for name, value in whole.weights.items())
    table(
        *(fault.name, fault.servers, fault.work, heard.code),
        *(three(name) for name in ("runs", "points", "files")),
        *(f"{equal} of {len(whole.weights)}", again),
        f"{heard.silence:.0f} ({whole.heard.silence:.0f})",
    )
    (tmp_path / "stderr.txt").write_text(heard.text)
    assert heard.code == 0, heard.text
    assert "Traceback" not in heard.text
    assert code == 0, said
    assert after == whole.counts
    assert not after.running
    assert not again
    assert found == whole.weights
    # The machine may have other work: then the twin is silent too.
    assert heard.silence <= max(SILENCE, 1.5 * whole.heard.silence), heard.text
