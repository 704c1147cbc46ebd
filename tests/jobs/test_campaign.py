"""A campaign with a folder: its jobs are trained in their run folders, here in this process."""

import pytest

from flbench.comparison.folder import ComparisonFolder
from flbench.config.sources import Layer
from flbench.experiment.engines import with_device
from flbench.jobs import campaign
from flbench.jobs.job import Job
from flbench.jobs.resources import CELL, Resources
from flbench.jobs.samples import LoadedSamples
from tests.support import SMALL, config_of


def carried_out(jobs: list[Job], folder: ComparisonFolder) -> dict[str, str]:
    """Train jobs of one configuration in this process, and return why some have failed."""
    failures = campaign.carry_out(
        jobs,
        folder,
        LoadedSamples(),
        Resources(1, with_device(jobs[0].config.engine), 0, 0, kind=CELL),
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
    check = campaign.why_nothing_was_trained

    def damage(path):
        if path.name == "first" and (path / "summary.json").is_file():
            (path / "config.yaml").write_text("train: {rounds: [1]}")
        return check(path)

    monkeypatch.setattr(campaign, "why_nothing_was_trained", damage)
    failures = carried_out(jobs, folder)

    assert [*failures] == ["first"]
    assert "config.yaml" in failures["first"]
    assert "`train.rounds`" in failures["first"]
    assert folder.is_done(jobs[1])
