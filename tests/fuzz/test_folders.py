"""Mutated folders and archives of runs, comparisons and studies, read by all commands that read.

Each command succeeds, or ends with a message: there is no traceback, no file outside of the folder
of the output is made or changed, no module that a folder names is imported, no control character
reaches the terminal, and memory and time are bounded.

By default a few examples are drawn, the same ones each time. With `FLBENCH_FUZZ_SECONDS` new ones
are drawn for that time.
"""

import json
import os
import resource
import shutil
import signal
import sys
import tarfile
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flbench as fl
from flbench.analysis import text
from flbench.cli import app
from flbench.core.errors import UserError
from flbench.tuning import study_page
from tests.comparison.made import run_folder
from tests.fuzz import mutations
from tests.tuning import studies

SECONDS = float(os.environ.get("FLBENCH_FUZZ_SECONDS", "0"))
FEW = 12  # examples of a test that does not run for a time
LIMIT = 60  # seconds of the processor for an example; most take less than one
MEMORY = 2**30  # bytes by which an example may raise the memory of the process
WITH_PICTURES = 20  # one of so many examples draws the pictures of the report

pytestmark = pytest.mark.timeout(300 + 4 * SECONDS)


def fuzzed(test):
    """Call a test with drawn examples: few and always the same, or for a time."""
    shared = {
        "deadline": None,
        "database": None,
        "suppress_health_check": list(HealthCheck),
    }

    def repeated(*args, **kwargs):
        if not SECONDS:
            settings(max_examples=FEW, derandomize=True, **shared)(test)(*args, **kwargs)
            return
        end = monotonic() + SECONDS / 3
        drawn = settings(max_examples=50, **shared)(test)
        while monotonic() < end:
            drawn(*args, **kwargs)

    return repeated


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """A folder with runs, a comparison and a study; and its archive without the study."""
    root = tmp_path_factory.mktemp("intact")
    folder = root / "all"
    for method, accuracy in (("fedavg", 0.6), ("hfcd", 0.7)):
        run_folder(folder / "runs" / method, method, accuracy, classes=3, clients=3, names=True)
    cells = []
    for method in ("fedavg", "ditto"):
        name = f"{method}-digits-seed1"
        run_folder(
            folder / "comparison" / "cells" / name, method, 0.5, repetition=1, classes=3, clients=3
        )
        cells.append({"name": name, "method": method, "place": "digits", "repetition": 0})
    tree = {"command": ["flbench", "/home/me/x"], "tuned": "/home/me/study", "cells": cells}
    (folder / "comparison" / "comparison.json").write_text(json.dumps(tree))
    file = fl.pack(folder, root / "x.tar.xz")
    study = studies.begin(folder / "study", "fedavg", "hfcd", trials=2, seeds=1)
    for method in ("fedavg", "hfcd"):
        for index in (0, 1):
            studies.trial(study, method, index, 0.5 + index / 10)
        for variant in ("default", "tuned"):
            run = folder / "runs" / method
            studies.final(study, run, method, variant, 1, {"accuracy": 0.6})
    return folder, file


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the current folder, which mutated files name."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{mutations.MODULE}.py").write_text("def run(*a, **k):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")


@contextmanager
def bounded(root, allowed):
    """Check what an example does: files that it makes, modules, memory and time."""

    def ended(*_):
        raise AssertionError(f"longer than {LIMIT} s")

    def files():
        return {
            path: (path.lstat().st_size, path.lstat().st_mtime_ns)
            for path in root.rglob("*")
            if not path.is_relative_to(allowed) and not path.is_dir()
        }

    before, memory = files(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler = signal.signal(signal.SIGPROF, ended)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
    assert files() == before
    assert mutations.MODULE not in sys.modules
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert used < MEMORY / 1024 or sys.platform != "linux"  # in KiB


def called(capsys, *arguments):
    """Call a command; check how it ends, and what it prints."""
    code = app.main([str(one) for one in arguments])
    said = capsys.readouterr()
    printed = said.out + said.err
    assert code in (0, 2), (arguments, code, said.err)
    assert "Traceback" not in printed
    assert not [sign for sign in printed if sign not in "\n\t" and not _is_shown(sign)]
    assert code == 0 or said.err.strip()


def _is_shown(sign):
    return ord(sign) >= 32 and not 127 <= ord(sign) < 160 and sign not in "\u2028\u2029\u202e"


def reported(paths, out, pictures):
    """Make the report of folders, and check that no name becomes an element of a page."""
    try:
        found = fl.report(paths, force=True)
    except UserError:
        return
    analysis = found._analysis
    if pictures:
        found.write(out / "report")
        written = (out / "report" / "report.html").read_text() + text.markdown_of(analysis)
    else:
        written = text.markdown_of(analysis) + found._repr_html_()
        written += text.latex_of(analysis) + text.json_of(analysis)
        written += "".join(text.csv_of(analysis, name) for name in text.TABLES[:1])
    assert "<img" not in written.replace(text.json_of(analysis), "")
    assert "\x1b" not in written


numbers = count()


def mutated(data, folder, tmp_path, most):
    """Return a copy of a folder with up to `most` mutations; links lead to a file of the user."""
    secret = tmp_path / "secret"
    secret.write_text("of the user")
    mine = mutations.copied(folder, tmp_path / "mine")
    for _ in range(data.draw(st.integers(1, most))):
        mutations.mutate(data.draw, mine, secret)
    return mine


def test_commands_read_mutated_folders(intact, tmp_path, capsys, module, monkeypatch):
    folder, _ = intact
    monkeypatch.chdir(tmp_path)

    @fuzzed
    @given(st.data())
    def test(data):
        mine = mutated(data, folder, tmp_path, most=3)
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        with bounded(tmp_path, out):
            called(capsys, "show", mine)
            called(capsys, "show", mine, "--json")
            runs = sorted(path for path in (mine / "runs").iterdir())
            called(capsys, "diff", runs[0], runs[-1])
            called(capsys, "pack", mine, "--out", out / "x.tar.xz")
            reported([mine], out, SECONDS and next(numbers) % WITH_PICTURES == 0)
            if (out / "x.tar.xz").is_file():
                with tarfile.open(out / "x.tar.xz") as packed:
                    for member in packed.getmembers():
                        assert b"of the user" not in packed.extractfile(member).read()

    test()


def test_studies_are_shown_after_mutations(intact, tmp_path, capsys, module, monkeypatch):
    folder, _ = intact
    monkeypatch.chdir(tmp_path)

    @fuzzed
    @given(st.data())
    def test(data):
        mine = mutated(data, folder / "study", tmp_path, most=2)
        with bounded(tmp_path, tmp_path / "mine"):
            called(capsys, "show", mine)
            reported([mine], tmp_path, False)
            try:
                found = fl.load(mine)
                repr(found)
                if isinstance(found, fl.Study):
                    assert "<img" not in found._repr_html_()
                    written = study_page.markdown(found._report)
                    assert "<img" not in written
                    study_page.trials_csv(found._report)
                    study_page.as_json(found._report)
            except UserError:
                pass

    test()


def test_archives_are_read_after_mutations(intact, tmp_path, capsys, module, monkeypatch):
    _, file = intact
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    content = file.read_bytes()

    @fuzzed
    @given(st.data())
    def test(data):
        mine = tmp_path / "in" / "x.tar.xz"
        mine.parent.mkdir(exist_ok=True)
        if data.draw(st.booleans()):
            changed = bytearray(content)
            for _ in range(data.draw(st.integers(1, 3))):
                where = data.draw(st.integers(0, len(changed) - 1))
                changed[where : where + 1] = data.draw(st.binary(max_size=3))
            mine.write_bytes(changed)
        else:
            _repacked(data.draw, file, mine)
        with bounded(tmp_path / "in", tmp_path / "temporary"):
            reported([mine], tmp_path / "in", False)
            called(capsys, "show", mine)

    test()


def _repacked(draw, file, mine):
    """Write the members of an archive again, with one of them changed."""
    kinds = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    with tarfile.open(file) as old, tarfile.open(mine, "w:xz", preset=0) as new:
        members = old.getmembers()
        chosen = draw(st.integers(0, len(members) - 1))
        for k, member in enumerate(members):
            content = old.extractfile(member)
            if k == chosen:
                member.type = draw(st.sampled_from(kinds))
                member.linkname = draw(st.sampled_from(("/etc/passwd", "../../secret", "x")))
                name = (
                    draw(st.sampled_from(mutations.NAMES)).replace("\0", "").replace("\ud800", "")
                )
                where = Path(member.name)
                member.name = draw(
                    st.sampled_from((member.name, f"{name[:90]}/{where.name}", f"../{where.name}"))
                )
            new.addfile(member, content)
