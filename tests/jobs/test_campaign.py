"""A campaign with a folder: its jobs are trained in their run folders, here in this process."""

import pytest

from flbench.comparison.folder import ComparisonFolder
from flbench.config.sources import Layer
from flbench.core import files
from flbench.experiment.found import find_engine
from flbench.jobs import campaign
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples
from flbench.workers import orphans
from flbench.workers.ray_resources import CELL, Resources
from tests.support import SMALL, config_of


def carried_out(jobs: list[Job], folder: ComparisonFolder) -> dict[str, str]:
    """Train jobs of one configuration in this process, and return why some have failed."""
    failures = campaign.carry_out(
        jobs,
        folder,
        LoadedSamples(),
        Resources(1, find_engine(jobs[0].config.engine), 0, 0, kind=CELL),
        changed=Layer({}),
        shown=True,
    )
    folder.close()
    return failures


@pytest.mark.slow
def test_a_damaged_file_of_a_job_does_not_end_the_others(tmp_path, monkeypatch):
    config = config_of(*SMALL, "train.rounds=1")
    jobs = [Job(name, name, "", "", 0, config, {}) for name in ("first", "second")]
    folder = ComparisonFolder.create(tmp_path, "damaged")
    end = campaign._Campaign.end

    def damage(self, job, outcome):
        if job.name == "first":
            (folder.run_folder(job) / "config.yaml").write_text("train: {rounds: [1]}")
        end(self, job, outcome)

    monkeypatch.setattr(campaign._Campaign, "end", damage)
    failures = carried_out(jobs, folder)

    assert [*failures] == ["first"]
    assert "config.yaml" in failures["first"]
    assert "`train.rounds`" in failures["first"]
    assert folder.is_done(jobs[1])


@pytest.mark.slow
def test_a_job_that_a_worker_of_a_killed_driver_begins_late_is_waited_for(
    tmp_path, monkeypatch, capsys
):
    """The worker locks the second job's run folder when the campaign has begun already."""
    monkeypatch.setattr(orphans, "PATIENCE", 0.0)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.0)
    monkeypatch.setattr(orphans.time, "sleep", lambda seconds: [lock.release() for lock in held])
    config = config_of(*SMALL, "train.rounds=1")
    jobs = [Job(name, name, "", "", 0, config, {}) for name in ("first", "second")]
    folder = ComparisonFolder.create(tmp_path, "late")
    held, unfinished = [], folder.is_done

    def is_done(job):
        if job.name == "second" and folder.run_folder(jobs[0]).is_dir() and not held:
            folder.run_folder(job).mkdir()
            held.append(files.lock_folder(folder.run_folder(job)))
        return unfinished(job)

    monkeypatch.setattr(folder, "is_done", is_done)
    failures = carried_out(jobs, folder)

    assert held
    assert not failures
    assert all(map(unfinished, jobs))
    assert "processes of an earlier call" in capsys.readouterr().err
