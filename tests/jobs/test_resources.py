"""Resources of trainings at the same time."""

from hypothesis import given, settings
from hypothesis.strategies import integers

from flbench.jobs.resources import gpu_share


@settings(max_examples=30)
@given(at_once=integers(1, 20), devices=integers(1, 9))
def test_shares_of_gpus_fit_on_the_devices(at_once, devices):
    share = gpu_share(at_once, devices)

    units = round(share * 10_000)  # Ray counts no smaller parts
    on_one = 10_000 // units
    assert on_one * devices >= at_once
    assert share == 1 or (on_one - 1) * devices < at_once  # none of them is idle without need
