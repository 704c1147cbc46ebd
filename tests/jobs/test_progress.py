"""The progress of jobs: a line for each that ends, a table of methods, and the time left."""

import io
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from flbench.jobs import progress as progresses
from flbench.jobs.job import Job, Outcome
from flbench.jobs.progress import JobProgress
from flbench.jobs.resources import CELL
from flbench.reports import terminal
from tests.support import config_of


@pytest.fixture
def found(tmp_path, monkeypatch):
    """The progress of four jobs of ten rounds, of which the first was finished before."""
    clock = [100.0]
    monkeypatch.setattr(progresses.time, "monotonic", lambda: clock[0])
    config = config_of("train.rounds=10")
    jobs = [
        Job(f"{method}{k}", method, "digits", "", k, config, {})
        for k in range(2)
        for method in ("ft", "local")
    ]
    folder = SimpleNamespace(
        has_failed=lambda job: False,
        run_folder=lambda job: tmp_path / job.name,
        is_done=lambda job: (tmp_path / job.name / "summary.json").is_file(),
    )
    for job in jobs:
        (tmp_path / job.name).mkdir()
    finish(tmp_path / "ft0", 0.5)
    made = JobProgress(jobs, folder, CELL)
    made.console = Console(file=io.StringIO(), width=200)
    return SimpleNamespace(progress=made, jobs=jobs, clock=clock, path=tmp_path, folder=folder)


def finish(path, accuracy):
    (path / "summary.json").write_text(json.dumps({"best": {"test": {"accuracy": accuracy}}}))


def said(progress):
    return progress.console.file.getvalue()


def test_work_that_takes_long_is_named_until_it_has_ended(monkeypatch):
    monkeypatch.setattr(terminal, "SILENCE", 0.05)
    monkeypatch.setattr(terminal, "LOOK", 0.01)
    heard = []

    with terminal.told("writing the report", heard.extend):
        while len(heard) < 2:
            time.sleep(0.01)
    before = len(heard)
    time.sleep(0.1)

    assert len(heard) == before
    assert all("writing the report" in line for line in heard)


def test_lines_say_how_jobs_ended_and_each_note_once(found):
    progress, (_, one, two, _) = found.progress, found.jobs
    progress.begin(one)
    found.clock[0] += 30
    finish(found.path / one.name, 0.75)
    progress.end(one, None, Outcome(None, ("a note.",), 20.0))
    progress.end(two, "no space", Outcome("no space", ("a note.",), 0.0))

    note, first, second = said(progress).splitlines()
    assert "a note." in note
    # Ten rounds took 20 seconds, without the start of the process, and 20 are left.
    assert first.split()[0] == "2/4"
    assert "0.7500  20.0 s  40.0 s" in first
    assert second.split()[0] == "3/4"
    assert "no space" in second


def test_time_left_counts_what_an_interrupted_job_had_done_as_done(found):
    """Twelve of twenty rounds took 18 seconds; the eight before took no time here."""
    jobs = [replace(job, config=config_of("train.rounds=20")) for job in found.jobs[1:3]]
    rows = found.path / jobs[0].name / "metrics.csv"
    rows.write_text("round,x\n7,1\n8,1\n")
    progress = JobProgress(jobs, found.folder, CELL)
    progress.begin(jobs[0])
    found.clock[0] += 18
    rows.write_text("round,x\n19,1\n20,1\n")
    finish(found.path / jobs[0].name, 0.75)
    progress.end(jobs[0], None, Outcome(None, (), 18.0))

    assert "30.0 s" in progress.table().title


def test_the_table_counts_by_method_and_shows_the_rounds_of_running_jobs(found):
    progress, (_, one, two, _) = found.progress, found.jobs
    progress.begin(one)
    (found.path / one.name / "metrics.csv").write_text("round,x\n3,1\n4,1\n5,unfinished")
    progress.end(two, "no space", Outcome("no space"))
    progress.console.print(progress.table())

    rows = [line.split() for line in said(progress).splitlines()[-2:]]
    assert rows[0] == ["ft", "1/2", "1"]
    assert rows[1][:2] == ["local", "0/2"]
    assert rows[1][-1] == "4/10"


def test_a_long_silence_ends_with_a_line_about_how_far_the_jobs_are(found, monkeypatch):
    monkeypatch.setattr(terminal, "LOOK", 0.001)
    progress, one = found.progress, found.jobs[1]
    (found.path / one.name / "metrics.csv").write_text("round,split\n4,validation\n")
    progress.begin(one)
    with progress.live():
        found.clock[0] += 19
        time.sleep(0.02)
        assert not said(progress)
        found.clock[0] += 2
        end = time.perf_counter() + 10
        while not said(progress) and time.perf_counter() < end:
            time.sleep(0.001)

    assert "4 of 10" in said(progress)
