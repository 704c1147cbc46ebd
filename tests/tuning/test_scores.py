"""Which lines of metrics.csv score a trial."""

from flbench.results.metrics_file import Row
from flbench.tuning.scores import by_round, metrics_at

ROWS = [
    Row(2, "validation", "personal", "accuracy", 0.5),
    Row(2, "validation", "personal@local", "accuracy", 0.9),
    Row(2, "test", "personal", "accuracy", 0.8),
    Row(4, "validation", "personal", "macro_f1", 0.3),
    Row(4, "validation", "personal", "accuracy", 0.6),
    Row(4, "validation", "stored", "accuracy", 0.7),
    Row(4, "train", "", "loss", 0.1),
]


def test_scores_are_validation_metrics_of_the_personal_models():
    scores = {2: {"accuracy": 0.5}, 4: {"macro_f1": 0.3, "accuracy": 0.6}}

    assert by_round(ROWS) == scores
    assert [metrics_at(ROWS, number) for number in (1, 2, 4)] == [{}, *scores.values()]
