"""What is known of metrics.csv while it grows, against a search in all rows."""

import random

import pytest

from flbench.config.schema import BestConfig
from flbench.results.metrics_file import Row
from flbench.results.summary import RunningSummary

METRICS = ("accuracy", "mae")
EVALUATED = (("validation", "personal"), ("test", "personal"))


def drawn(seed):
    """Return pieces of a metrics.csv: rounds, some with evaluations, and rows of the best round."""
    draw = random.Random(seed)
    pieces = []
    for number in range(1, 40):
        pieces.append([Row(number, "train", "", name, 3.0) for name in ("trainings", "up_bytes")])
        if draw.random() < 0.5:
            pieces.append([Row(number, "test", "personal@local", "accuracy", draw.random())])
            pieces.append(
                [
                    Row(number, split, protocol, metric, draw.randrange(5) / 5)
                    for split in ("validation", "test")
                    for protocol in ("head", "personal")
                    for metric in METRICS
                ]
            )
    pieces.append([Row(draw.randrange(1, 30), "test", "personal", "macro_f1", 0.5)])
    return pieces


@pytest.mark.parametrize("by", [BestConfig(), BestConfig(metric="mae", mode="min")])
@pytest.mark.parametrize("seed", range(3))
def test_running_summary_is_that_of_a_search_in_all_rows_at_every_moment(by, seed):
    rows = []
    running = RunningSummary(rows, by)
    assert (running.best, running.last) == (None, None)
    for piece in drawn(seed):
        rows += piece

        found = [row for row in rows if row[1:4] == ("validation", "personal", by.column)]
        best = max(found, key=lambda row: (by.key(row.value), -row.round), default=None)
        rounds = {row.round for row in rows if row[1:3] in EVALUATED}
        last = max(rounds, default=None)
        assert running.best == (best and best.round)
        assert running.last == last
        assert running.evaluated == len(rounds)
        trainings = sum(row.value for row in rows if row.metric == "trainings")
        assert running.totals()["client_trainings"] == trainings
