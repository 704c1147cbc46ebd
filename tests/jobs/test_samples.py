"""The data of jobs: loaded once, and the same as a run would load."""

import json

import pytest
import torch

from flbench.core.errors import DataError
from flbench.data import sources
from flbench.experiment import assembly
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples, partition_key
from tests.support import SMALL, config_of


def job(*items):
    return Job("job", "ft", "", "", 0, config_of(*SMALL, *items), {})


def test_jobs_share_samples_and_get_the_partition_of_their_configuration(monkeypatch):
    calls, load = [], sources.load
    monkeypatch.setattr(sources, "load", lambda config: calls.append(config) or load(config))
    samples = LoadedSamples()

    found = [samples.federation(job(*items)) for items in ((), ("seed=1",), ("partition.seed=2",))]

    assert len(calls) == 1
    for one, items in zip(found, ((), ("seed=1",), ("partition.seed=2",)), strict=True):
        alone = assembly.load_federation(config_of(*SMALL, *items))
        assert one.partition.hash() == alone.partition.hash()
        assert torch.equal(one.x, alone.x)


def test_the_key_of_a_partition_has_the_seed_that_the_run_gives():
    keys = {
        items: partition_key(job(*items))
        for items in ((), ("seed=1",), ("partition.seed=1",), ("partition.seed=1", "seed=3"))
    }
    assert len(set(keys.values())) == 3  # the last two are equal
    assert keys[()] == partition_key(job("train.rounds=9"))


def test_a_job_whose_samples_have_changed_is_refused(tmp_path):
    samples = LoadedSamples()
    file = tmp_path / "partition.json"
    file.write_bytes(samples.partition(job())[1])
    samples.check_unchanged(job(), tmp_path)

    file.write_text(json.dumps(json.loads(file.read_text()) | {"data": "0" * 64}))

    with pytest.raises(DataError, match="`data`") as error:
        samples.check_unchanged(job(), tmp_path)
    assert str(tmp_path) in str(error.value)
