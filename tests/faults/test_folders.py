"""Mutated folders and archives of runs, comparisons and studies, read by all commands that read.

Each command succeeds, or ends with a message: there is no traceback, no file outside of the folder
of the output is made or changed, no module that a folder names is imported, no process is started,
no connection is made, nothing is unpickled, no control character reaches the terminal, no name
becomes an element of a page, and memory and time are bounded.

By default a few examples are drawn, the same ones each time. With `FLBENCH_FUZZ_SECONDS` new ones
are drawn for that time.
"""

import json
import os
import re
import resource
import shutil
import signal
import sys
import tarfile
from contextlib import contextmanager, suppress
from functools import cache
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import flbench as fl
from flbench.analysis import report
from flbench.analysis.page import page_of
from flbench.cli import app
from flbench.core.errors import UserError
from flbench.core.text import is_printable
from flbench.reports import render
from flbench.testing import run
from tests.comparison.made import run_folder
from tests.faults import mutations
from tests.tuning import studies

SECONDS = float(os.environ.get("FLBENCH_FUZZ_SECONDS", "0"))
FEW = 4  # examples of a test that does not run for a time
LIMIT = 60  # seconds of the processor for an example; most take less than one
MEMORY = 2**30  # bytes by which an example may raise the memory of the process
WITH_PICTURES = 20  # one of so many examples draws the pictures of the report
TESTS = 5  # tests that share the time

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300 + 4 * SECONDS)]


def fuzzed(test):
    """Call a test with drawn examples: few and always the same, or for a time."""
    shared = {
        "deadline": None,
        "database": None,
        "suppress_health_check": list(HealthCheck),
        "phases": [Phase.generate],  # to shrink an example takes hundreds of calls
    }

    def repeated(*args, **kwargs):
        if not SECONDS:
            settings(max_examples=FEW, derandomize=True, **shared)(test)(*args, **kwargs)
            return
        begin = monotonic()
        drawn = settings(max_examples=50, **shared)(test)
        while monotonic() < begin + SECONDS / TESTS:
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
    (folder / "real").mkdir()
    for method in ("fedavg", "fedproto"):
        trained, _ = run(root, f"algorithm={method}")
        shutil.move(trained, folder / "real" / method)
    study = studies.begin(folder / "study", "fedavg", "hfcd", trials=2, seeds=1)
    for method in ("fedavg", "hfcd"):
        for index in (0, 1):
            studies.trial(study, method, index, 0.5 + index / 10)
        for label in (f"{method} tuned", method):
            studies.cell(study, folder / "runs" / method, label, 1, {"accuracy": 0.6})
    return folder, file


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the current folder, which mutated files name."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{mutations.MODULE}.py").write_text("def run(*a, **k):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")


happened = []
"""What an example has done that reading must not do; None while nobody watches."""
allowed_folder = []

WATCHED = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"),
    *("socket.getaddrinfo", "socket.bind", "pickle.find_class"),
)


def _watch(event, arguments):
    if allowed_folder:
        if event in WATCHED and "git" not in str(arguments[0]):
            happened.append((event, str(arguments)[:200]))
        elif event == "open" and isinstance(arguments[0], str) and arguments[2] is not None:
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            path = os.path.abspath(arguments[0])
            if writes and not path.startswith((*allowed_folder, "/dev/", CACHE)):
                happened.append((event, path))


CACHE = os.path.expanduser("~/.cache/")


@cache
def _begin_to_watch():
    """Watch this process from its first example on: a hook stays, and later tests pay for it."""
    sys.addaudithook(_watch)


@contextmanager
def bounded(root, allowed, *, limit=LIMIT):
    """Check what an example does: files that it makes, modules, processes, memory and time."""

    def too_long(*_):
        raise AssertionError(f"longer than {limit} s")

    def files():
        found = {}
        for folder, names, entries in os.walk(root):
            # Unpacked archives in the allowed folder may be deleted while this function runs.
            names[:] = [name for name in names if Path(folder, name) != Path(allowed)]
            for path in (Path(folder, entry) for entry in entries):
                found[path] = path.lstat().st_size, path.lstat().st_mtime_ns
        return found

    before, memory = files(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, limit)
    happened.clear()
    _begin_to_watch()
    allowed_folder.append(str(allowed))
    try:
        yield
    finally:
        allowed_folder.clear()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
    assert files() == before
    assert mutations.MODULE not in sys.modules
    assert not happened
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert used < MEMORY / 1024 or sys.platform != "linux"  # in KiB


class Page(HTMLParser):
    """What could run in a page: the tests' names try to become such elements."""

    def __init__(self, content):
        super().__init__()
        self.found = []
        self.inside = ""
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        self.inside = tag
        for name, value in attributes:
            if name.startswith("on") and "alert" in (value or ""):
                self.found.append((tag, name, value))
            if name in ("href", "src", "action") and re.match(
                r"\s*(javascript|x\b)", value or "", re.IGNORECASE
            ):
                self.found.append((tag, name, value))

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in ("script", "style") and data.strip().startswith(("alert", "*{}")):
            self.found.append((self.inside, data[:50]))


def check_page(content):
    """Check that no name of a page or a Markdown text has become an element."""
    assert Page(content).found == []
    assert is_printable(content)


def called(capsys, *arguments):
    """Call a command; check how it ends, and what it prints."""
    code = app.main([str(one) for one in arguments])
    said = capsys.readouterr()
    printed = said.out + said.err
    assert code in ((0, 1, 2) if arguments[0] == "run" else (0, 2)), (arguments, code, said.err)
    assert "Traceback" not in printed
    assert is_printable(printed)
    assert code == 0 or said.err.strip()
    assert len(printed) < 10**6


def reported(paths, out, pictures):
    """Make the report of folders, and check that no name becomes an element of a page."""
    try:
        found = fl.report(paths, force=True)
    except UserError:
        return
    analysis = found
    if pictures:
        found.write(out / "report")
        check_page((out / "report" / "report.html").read_text())
    else:
        check_page(found._repr_html_())
        board = report.csv_of(analysis, "leaderboard")
        for written in (*report.latex_of(analysis).values(), board):
            assert is_printable(written)
        report.json_of(analysis)
    check_page(render.page(page_of(analysis)))


def shown(*runs):
    """Make the pages of runs."""
    for one in runs:
        with suppress(UserError):
            check_page(fl.load(one)._repr_html_())
    with suppress(UserError):
        fl.runs(runs)


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
            shown(*runs)
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
                    check_page(found._repr_html_())
                    found.report.write(mine / "written")
                    check_page((mine / "written" / "report.html").read_text())
            except UserError:
                pass

    test()


def test_archives_are_read_after_mutations(intact, tmp_path, capsys, module, monkeypatch):
    folder, file = intact
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    content = file.read_bytes()

    @fuzzed
    @given(st.data())
    def test(data):
        mine = tmp_path / "in" / "x.tar.xz"
        mine.parent.mkdir(exist_ok=True)
        if data.draw(st.integers(0, 9)) == 0:
            changed = bytearray(content)
            for _ in range(data.draw(st.integers(1, 3))):
                where = data.draw(st.integers(0, len(changed) - 1))
                changed[where : where + 1] = data.draw(st.binary(max_size=3))
            mine.write_bytes(changed)
        else:
            theirs = mutated(data, folder, tmp_path, most=2)
            mutations.archive(data.draw, theirs, mine)
        with bounded(tmp_path, tmp_path / "temporary"):
            reported([mine], tmp_path / "in", False)
            called(capsys, "show", mine)
        assert not list((tmp_path / "temporary").glob("flbench-*"))

    test()


def test_models_are_loaded_after_mutations(intact, tmp_path, capsys, module, monkeypatch):
    """Checkpoints of strangers are read by predict, export and --resume."""
    folder, _ = intact
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 1, 8, 8), np.uint8))

    @fuzzed
    @given(st.data())
    def test(data):
        name = data.draw(st.sampled_from(["fedavg", "fedproto"]))
        mine = mutated(data, folder / "real" / name, tmp_path, most=2)
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        with bounded(tmp_path, out):
            called(capsys, "predict", mine, "new.npz", "--client", "0", "--out", out / "x.csv")
            called(capsys, "export", mine, "--client", "0", "--out", out / "x.safetensors")

    test()


def test_runs_are_resumed_after_mutations(intact, tmp_path, capsys, module, monkeypatch):
    """Only files besides the configuration change: another one is another training."""
    folder, _ = intact
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    @fuzzed
    @given(st.data())
    def test(data):
        name = data.draw(st.sampled_from(["fedavg", "fedproto"]))
        config = (folder / "real" / name / "config.yaml").read_bytes()
        mine = mutated(data, folder / "real" / name, tmp_path, most=2)
        with suppress(OSError):
            (mine / "summary.json").unlink(missing_ok=True)
        mine.mkdir(exist_ok=True)
        if not (mine / "config.yaml").is_symlink() and (mine / "config.yaml").is_file():
            (mine / "config.yaml").write_bytes(config)
        with bounded(tmp_path, mine):
            called(capsys, "run", "--resume", mine)
        assert (tmp_path / "secret").read_text() == "of the user"

    test()
